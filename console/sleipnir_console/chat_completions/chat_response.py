"""Completions as responses: one JSON document, or a stream of chunks."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from sleipnir.errors import SleipnirError
from sleipnir.runs.plain_text import printable
from sleipnir.runs.views import RunInfo
from sleipnir_console.chat_completions.chat_questions import question_facts, question_text
from sleipnir_console.chat_completions.chat_run import ChatRun
from sleipnir_console.frame_stream import BEAT, FrameStream, unless_gone
from sleipnir_console.listened_run import PAUSE, AnswerSlots, RunStanding
from sleipnir_console.openai_errors import openai_error
from sleipnir_console.problems import HttpProblem, problem_of

RUN_HEADER: Final = "X-Sleipnir-Run"
_CHUNK: Final = "chat.completion.chunk"
_DONE: Final = b"data: [DONE]\n\n"


@dataclass
class Completion:
    """What is said of one run to one client. `leaves`: the run is cancelled if the client leaves before the end."""

    chat: ChatRun
    model: str
    created_s: int
    slots: AnswerSlots
    leaves: bool = True
    has_usage: bool = False

    async def whole(self, request: Request) -> Response:
        """The response with all of it. Raises SleipnirError and HttpProblem."""
        with self.slots.taken():
            ended = await self._ended_or_gone(request)
        if ended is None:
            return Response(status_code=499)  # nobody reads it
        standing, text = ended
        message = {"role": "assistant", "content": text, "refusal": None}
        choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
        document = self.document(standing, "chat.completion", [choice])
        return JSONResponse({**document, "usage": self.usage(standing.info)}, headers=self.headers())

    async def _ended_or_gone(self, request: Request) -> tuple[RunStanding, str] | None:
        """None: the client has left."""
        ended = await unless_gone(request.receive, self._ended())
        if ended is not None:
            return ended
        await self.client_has_left()
        return None

    async def client_has_left(self) -> None:
        """Cancel the run, if it shall not go on without its client."""
        if self.leaves and not self.chat.followed.is_stopping():
            await self.chat.leave()

    def headers(self) -> dict[str, str]:
        """Those of the response."""
        return {RUN_HEADER: self.chat.run.id, "Cache-Control": "no-store"}

    async def _ended(self) -> tuple[RunStanding, str]:
        """Where the run stands in the end, and the whole answer."""
        standing, text = None, ""
        async with contextlib.aclosing(self.said(streams=False)) as pieces:
            async for piece in pieces:
                if isinstance(piece, RunStanding):
                    standing = piece
                else:
                    text += piece
        assert standing is not None, "it is the last piece"
        return standing, text

    async def said(self, *, streams: bool) -> AsyncGenerator[str | RunStanding]:
        """The pieces of the answer, then where the run stands; empty ones as signs of life."""
        chat = self.chat
        if chat.question is not None:
            yield chat.refused
            yield RunStanding(await chat.run.info(), (chat.question,))
            return
        if chat.notice:
            yield chat.notice + PAUSE
        async with contextlib.aclosing(chat.followed.news()) as all_news:
            async for news in all_news:
                if isinstance(news, str):
                    yield news if streams else ""
                    continue
                text = _last_words(news)
                yield chat.followed.spoken.rest(text) if streams else text
                yield news

    def document(self, standing: RunStanding | None, object_: str, choices: list[Any]) -> dict[str, Any]:
        """A completion, or a chunk of one."""
        made = {
            "id": f"chatcmpl-{self.chat.run.id}", "object": object_, "created": self.created_s, "model": self.model,
            "choices": choices,
        }  # fmt: skip
        return made if standing is None else {**made, "sleipnir": _facts(standing)}

    def usage(self, info: RunInfo) -> dict[str, int]:
        """What was used for this answer."""
        before, now = self.chat.used, info.usage
        sent = max(0, now.input_tokens - before.input_tokens)
        made = max(0, now.output_tokens - before.output_tokens)
        return {"prompt_tokens": sent, "completion_tokens": made, "total_tokens": sent + made}


class ChunkStream(FrameStream):
    """The response of a completion that streams, as server-sent events: chunks, and `[DONE]`. One that cannot go on
    ends with an `error`."""

    def __init__(self, completion: Completion) -> None:
        super().__init__(completion.headers())
        self._completion = completion

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._completion.slots.taken():
            await super().__call__(scope, receive, send)

    async def client_has_left(self) -> None:
        await self._completion.client_has_left()

    async def frames(self) -> AsyncGenerator[bytes]:
        yield self._chunk({"role": "assistant", "content": ""})
        try:
            async with contextlib.aclosing(self._completion.said(streams=True)) as pieces:
                async for piece in pieces:
                    if isinstance(piece, RunStanding):
                        yield self._chunk({}, piece)
                        if self._completion.has_usage:
                            usage = self._completion.usage(piece.info)
                            yield _frame({**self._completion.document(None, _CHUNK, []), "usage": usage})
                    else:
                        yield self._chunk({"content": piece}) if piece else BEAT
        except SleipnirError as error:
            yield _frame({"error": openai_error(problem_of(error))})
        except HttpProblem as problem:
            yield _frame({"error": openai_error(problem)})
        else:
            yield _DONE

    def _chunk(self, delta: dict[str, Any], standing: RunStanding | None = None) -> bytes:
        reason = None if standing is None else "stop"
        choice = {"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}
        made = self._completion.document(standing, _CHUNK, [choice])
        return _frame({**made, "usage": None} if self._completion.has_usage else made)


def _frame(data: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n".encode("utf-8", "replace")


def _facts(standing: RunStanding) -> dict[str, Any]:
    """The run, for programs."""
    question = question_facts(standing.gates[0]) if standing.gates else None
    return {"run_id": standing.info.id, "status": standing.info.status, "question": question}


def _last_words(standing: RunStanding) -> str:
    """What the answer ends with. Raises HttpProblem for a run that has none."""
    info = standing.info
    if standing.gates:
        return question_text(standing.gates[0])
    if info.status == "completed":
        return standing.output
    reason = f": {printable(info.error)}" if info.error else ""
    raise HttpProblem("run-failed", f"run {info.id} {info.status}{reason}", {"run_id": info.id, "status": info.status})

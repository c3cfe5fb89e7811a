"""The run of a completion: a new one, or one whose question the user's message answers.

Rules. A question that the last message of the assistant asks is answered before anything else; then one that a run of
the session asks. In a session (the header, or `user`) the agent keeps the conversation, and only the last message
counts; without one the whole history is given to a run of its own. A client that leaves cancels the run, unless it says
otherwise: nobody reads the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import structlog

from sleipnir.client.async_client import AsyncClient, AsyncRun
from sleipnir.errors import AnswerRefused, GateError, RunNotFound, SleipnirError, TooManyQueued, UsageError
from sleipnir.graph.message_keys import MESSAGES, declares_messages
from sleipnir.graph.model import Graph
from sleipnir.messages import Usage
from sleipnir.runs.interrupts import typed_answer
from sleipnir.runs.views import GateInfo
from sleipnir_console.chat_completions.chat_questions import QuestionMark, question_text
from sleipnir_console.chat_completions.chat_request import ChatRequest
from sleipnir_console.listened_run import ListenedRun, place_of
from sleipnir_console.permissions import UNSEEN
from sleipnir_console.problems import HttpProblem

CANCEL_S: Final = 5.0  # for the request to cancel a run


@dataclass(frozen=True)
class ChatRun:
    """The run that answers. `used` is what it had used before; `notice` is said before its answer. With a `refused`
    question, the answer did not fit, and it is asked again."""

    followed: ListenedRun
    used: Usage = field(default_factory=Usage)
    notice: str = ""
    refused: str = ""
    question: GateInfo | None = None

    @property
    def run(self) -> AsyncRun:
        return self.followed.run

    async def leave(self) -> None:
        """Cancel the run: its client has left."""
        try:
            async with asyncio.timeout(CANCEL_S):
                await self.run.cancel()
        except UsageError:
            pass  # it is over
        except (SleipnirError, TimeoutError) as error:
            structlog.get_logger().warning("the run of a client that left goes on", run=self.run.id, error=str(error))


@dataclass(frozen=True)
class Conversation:
    """What a request is about: `name` is its session or thread; None: it has none."""

    client: AsyncClient
    graph: Graph
    namespace: str
    is_stopping: Callable[[], bool]
    asked: ChatRequest
    name: str | None = None
    request_id: str | None = None

    async def run(self) -> ChatRun:
        """The run that answers, new or not. Raises SleipnirError and HttpProblem."""
        if (mark := self._mark()) is not None:
            return await self._answered(await self._visible(mark.run), mark)
        waiting = await self._waiting()
        if waiting is not None:
            run, gates = waiting
            return await self._use(run, gates[0])
        return await self._submitted()

    def _mark(self) -> QuestionMark | None:
        last = self.asked.earlier[-1] if self.asked.earlier else None
        return QuestionMark.in_text(last.text) if last is not None and last.role == "assistant" else None

    async def _visible(self, run_id: str) -> AsyncRun:
        """The run at the top of the tree of a run. Raises RunNotFound, also for one of another agent or namespace."""
        run = await self.client.run(run_id)
        info = await run.info()
        if info.root not in (None, info.id):
            run = await self.client.run(info.root)
            info = await run.info()
        if (info.agent, info.namespace) != (self.asked.model, self.namespace):
            raise RunNotFound(f"no run {run_id!r} of {self.asked.model!r}")
        return run

    async def _waiting(self) -> tuple[AsyncRun, list[GateInfo]] | None:
        """The run of the session that asks, with its questions."""
        if self.name is None:
            return None
        if self.graph.loop is None:
            thread = await self.client.thread(self.asked.model, self.name, namespace=self.namespace)
            run_id = None if thread is None else thread.run
        else:
            session = await self.client.session(self.asked.model, self.name, namespace=self.namespace)
            run_id = None if session is None else session.run
        if run_id is None:
            return None
        try:
            run = await self.client.run(run_id)
        except RunNotFound:
            return None
        info = await run.info()
        if info.namespace != self.namespace:
            raise HttpProblem("not-found", UNSEEN)
        gates = [] if info.is_final else await run.gates()
        return (run, gates) if gates else None

    async def _answered(self, run: AsyncRun, mark: QuestionMark) -> ChatRun:
        gates = await run.gates()
        gate = next((gate for gate in gates if QuestionMark.of(gate) == mark), None)
        if gate is not None:
            return await self._use(run, gate)
        return await self._not_used(run, mark.run, mark.seq)

    async def _use(self, run: AsyncRun, gate: GateInfo) -> ChatRun:
        """Answer a question with the user's message."""
        used, since_ms = (await run.info()).usage, await self.client.now_ms()
        chat = ChatRun(self._following(run, since_ms, gate), used)
        try:
            voices = await run.answer(typed_answer(gate, self.asked.prompt.strip()), gate)
        except AnswerRefused as error:
            return replace(chat, refused=question_text(gate, f"The answer was refused: {error}"), question=gate)
        except GateError:
            return await self._not_used(run, gate.run, gate.seq)
        except UsageError as error:
            return replace(chat, refused=question_text(gate, f"The answer does not fit: {error}"), question=gate)
        if voices is not None:
            more = "The answer counts, and more people must give the same one."
            return replace(chat, refused=question_text(gate, more), question=gate)
        return chat

    async def _not_used(self, run: AsyncRun, of_run: str, seq: int) -> ChatRun:
        """The question has been answered, or has expired: the user gets what became of the run."""
        step = await (await self.client.run(of_run)).answered(seq)
        by = f"{step.by} has answered it" if step is not None else "it is not open any more"
        notice = f"Your answer was not used: {by}."
        return ChatRun(self._following(run, await self.client.now_ms()), (await run.info()).usage, notice)

    async def _submitted(self) -> ChatRun:
        given: dict[str, Any] = {}
        prompt = self.asked.prompt
        if self.name is not None:
            given["thread" if self.graph.loop is None else "session"] = self.name
        elif self.asked.earlier and declares_messages(self.graph.state):
            given["state"] = {MESSAGES: [message.as_said for message in self.asked.earlier]}
        else:
            prompt = self.asked.transcript()
        try:
            run = await self.client.submit(
                self.asked.model, prompt, scratch=True, request_id=self.request_id, namespace=self.namespace, **given
            )
        except TooManyQueued as error:
            raise HttpProblem("too-many-requests", str(error)) from None
        return ChatRun(self._following(run))

    def _following(self, run: AsyncRun, since_ms: int = 0, answered: GateInfo | None = None) -> ListenedRun:
        places = set() if answered is None else {place_of(answered)}
        return ListenedRun(run, self.is_stopping, since_ms, places)

"""Runs as tasks of A2A: the id of a task is that of its run, so any server of the deployment knows every task.

Rules. The context of a task is the thread or the session of its run; without one, the run's id. A message that begins a
task begins one run, however often it is delivered. A task whose run asks is `input-required`, and a message to it
answers the question that it names, or the oldest one. A client that leaves, leaves the run alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from sleipnir.client.async_client import AsyncClient, AsyncRun
from sleipnir.errors import GateError, RunNotFound, SessionBusy, ThreadBusy, TooManyQueued, UsageError
from sleipnir.graph.model import Graph
from sleipnir.runs.interrupts import INTERRUPT, typed_answer
from sleipnir.runs.plain_text import printable
from sleipnir.runs.views import GateInfo, RunInfo
from sleipnir_console.agent_protocol.agent_message import GATE, AgentMessage
from sleipnir_console.agent_protocol.protocol_forms import (
    BAD_PARAMETERS,
    NO_TASK,
    NOT_CANCELABLE,
    UNSUPPORTED,
    A2aError,
    Json,
)
from sleipnir_console.listened_run import ListenedRun, RunStanding, place_of

ARTIFACT: Final = "output"
CANCEL_S: Final = 10.0
"""How long the answer to a cancellation waits for the end of the run."""
_STATES: Final[Mapping[str, str]] = {
    "submitted": "submitted", "completed": "completed", "failed": "failed", "cancelled": "canceled",
}  # fmt: skip


@dataclass(frozen=True)
class AgentTasks:
    """The tasks of one agent, for one request."""

    client: AsyncClient
    agent: str
    graph: Graph
    namespace: str
    caller: str
    is_stopping: Callable[[], bool]

    async def find(self, task_id: str) -> AsyncRun:
        """Raises A2aError, also for a run of another agent or namespace."""
        with _no_task(task_id):
            run = await self.client.run(task_id)
            info = await run.info()
        if (info.agent, info.namespace, info.id) != (self.agent, self.namespace, task_id):
            raise A2aError(NO_TASK, f"there is no task {task_id!r}")
        return run

    async def begin(self, message: AgentMessage) -> ListenedRun:
        """The run of a message: a new one, or one whose question it answers. Raises A2aError and SleipnirError."""
        if message.task is not None:
            return await self._answered(await self.find(message.task), message)
        given: dict[str, Any] = {}
        if message.context is not None:
            given["thread" if self.graph.loop is None else "session"] = message.context
        if message.data:
            given["state"] = self._state(message.data)
        words = "\0".join((self.namespace, self.caller, self.agent, message.id))
        request_id = f"a2a {hashlib.sha256(words.encode('utf-8', 'surrogatepass')).hexdigest()}"
        try:
            run = await self.client.submit(
                self.agent, message.text, scratch=True, request_id=request_id, namespace=self.namespace, **given
            )
        except (SessionBusy, ThreadBusy, TooManyQueued) as error:
            raise A2aError(UNSUPPORTED, str(error)) from None
        except UsageError as error:
            raise A2aError(BAD_PARAMETERS, str(error)) from None
        return ListenedRun(run, self.is_stopping)

    def _state(self, data: tuple[Any, ...]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for part in data:
            if not isinstance(part, dict):
                raise A2aError(BAD_PARAMETERS, "the data of a message that begins a task is an object of state keys")
            values |= part
        return values

    async def _answered(self, run: AsyncRun, message: AgentMessage) -> ListenedRun:
        if (await run.info()).is_final:
            raise A2aError(UNSUPPORTED, f"task {run.id!r} is over: send a message without a task to begin another one")
        since_ms, gates = await self.client.now_ms(), await run.gates()
        gate = next((each for each in gates if message.gate in (None, gate_id(each))), None)
        if gate is None:
            asked = f"the question {message.gate!r}" if message.gate else "a question"
            raise A2aError(UNSUPPORTED, f"task {run.id!r} has not {asked} open")
        try:
            voices = await run.answer(_answer(gate, message), gate)
        except GateError as error:
            raise A2aError(UNSUPPORTED, str(error)) from None
        except UsageError as error:
            raise A2aError(BAD_PARAMETERS, str(error)) from None
        # A question that needs more people stays open, and the task is `input-required` again at once.
        return ListenedRun(run, self.is_stopping, since_ms, set() if voices is not None else {place_of(gate)})

    async def ended(self, listened: ListenedRun) -> Json:
        """The task, once its run has ended or asks."""
        standing: RunStanding | None = None
        async with contextlib.aclosing(listened.news()) as all_news:
            async for news in all_news:
                standing = news if isinstance(news, RunStanding) else standing
        assert standing is not None, "it is the last piece of news"
        return task_of(standing)

    async def cancel(self, run: AsyncRun) -> Json:
        """The task, cancelled. Raises A2aError."""
        try:
            await run.cancel()
        except UsageError as error:
            raise A2aError(NOT_CANCELABLE, str(error)) from None
        ending = ListenedRun(run, self.is_stopping)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CANCEL_S):
                while not (await run.info()).is_final:
                    await ending.until_it_may_have_ended()
        return await self.now(run)

    async def now(self, run: AsyncRun) -> Json:
        """The task as it is now."""
        return task_of(await ListenedRun(run, self.is_stopping).now())

    async def events(self, listened: ListenedRun) -> AsyncGenerator[Json | None]:
        """A stream: the task, its output as it comes, its last status; None as a sign of life."""
        info = await listened.run.info()
        context = context_of(info)
        yield {**task_of(RunStanding(info)), "artifacts": []} if not info.is_final else await self.now(listened.run)
        sent = ""
        async with contextlib.aclosing(listened.news()) as all_news:
            async for news in all_news:
                if isinstance(news, str):
                    text = listened.spoken.said if news else sent
                    yield _output(info.id, context, sent, text) if text != sent else None
                    sent = text
                    continue
                if news.info.status == "completed" and not info.is_final:
                    yield _output(info.id, context, sent, news.output, is_last=True)
                status = task_of(news)["status"]
                yield {
                    "kind": "status-update", "taskId": info.id, "contextId": context, "status": status, "final": True,
                }  # fmt: skip


@contextlib.contextmanager
def _no_task(task_id: str) -> Any:
    try:
        yield
    except RunNotFound:
        raise A2aError(NO_TASK, f"there is no task {task_id!r}") from None


def gate_id(gate: GateInfo) -> str:
    """The name of a question among those of its task."""
    return f"{gate.run}/{gate.seq}.{gate.attempt}.{gate.opened_ms}"


def _answer(gate: GateInfo, message: AgentMessage) -> Any:
    if gate.kind == INTERRUPT and message.data:
        return message.data[0]
    return typed_answer(gate, message.text.strip())


def context_of(info: RunInfo) -> str:
    """The context of a run's task."""
    return info.thread or info.session or info.id


def task_of(standing: RunStanding) -> Json:
    """A run as a task, in the form of 0.3."""
    info = standing.info
    state = "input-required" if standing.gates else _STATES.get(info.status, "working")
    at_ms = info.ended_ms or info.started_ms or info.created_ms
    status: Json = {"state": state}
    if standing.gates:
        gate = standing.gates[0]
        at_ms = gate.opened_ms
        status["message"] = _said(info, gate_id(gate), _question(gate), {GATE: gate_id(gate)})
    elif info.error and info.status == "failed":
        status["message"] = _said(info, f"{info.id}/error", [_text(printable(info.error))])
    status["timestamp"] = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"
    artifacts = [_artifact(standing.output)] if info.status == "completed" else []
    return {
        "kind": "task", "id": info.id, "contextId": context_of(info), "status": status, "artifacts": artifacts,
        "metadata": {"agent": info.agent},
    }  # fmt: skip


def _said(info: RunInfo, id_: str, parts: list[Json], metadata: Json | None = None) -> Json:
    made = {
        "kind": "message", "role": "agent", "messageId": id_, "taskId": info.id, "contextId": context_of(info),
        "parts": parts,
    }  # fmt: skip
    return {**made, "metadata": metadata} if metadata else made


def _question(gate: GateInfo) -> list[Json]:
    facts = {"node": gate.address, "kind": gate.kind, "options": list(gate.options), "schema": gate.schema}
    return [_text(printable(gate.question)), {"kind": "data", "data": {GATE: gate_id(gate), **facts}}]


def _text(text: str) -> Json:
    return {"kind": "text", "text": text}


def _artifact(output: str) -> Json:
    """An output; one that is a JSON object is there as data too."""
    parts = [_text(output)]
    with contextlib.suppress(ValueError, RecursionError):
        if output.lstrip().startswith("{"):
            parts.append({"kind": "data", "data": json.loads(output, parse_constant=_refuse)})
    return {"artifactId": ARTIFACT, "name": ARTIFACT, "parts": parts}


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _output(task: str, context: str, sent: str, text: str, *, is_last: bool = False) -> Json:
    """What the output is now: more of what was sent, or all of another text."""
    goes_on = bool(sent) and text.startswith(sent)
    artifact = {**_artifact(text), "parts": [_text(text[len(sent) :])]} if goes_on else _artifact(text)
    return {
        "kind": "artifact-update", "taskId": task, "contextId": context, "artifact": artifact, "append": goes_on,
        "lastChunk": is_last,
    }  # fmt: skip

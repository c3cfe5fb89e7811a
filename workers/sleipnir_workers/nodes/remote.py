"""Executes the node of a remote agent: a look at its task, or a message, and then the next wait, question or end.

Rules. An execution makes a few short calls and holds no worker between them. The first message has an id that follows
from the visit, so a remote agent that knows messages by their ids begins one task however often the visit is repeated;
one that does not may begin another one, if a worker dies after the message and before its result. Once the id of the
task is stored, it is only looked at. An answer is sent only while the task asks that question. While the remote agent
is away, the visit waits and tries again: the time limit of the agent node decides how long.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Final

import structlog

from sleipnir import failpoints
from sleipnir.errors import ConfigError, NodeFailed
from sleipnir.graph.model import REMOTE_OUTPUT, Json, RemoteNode
from sleipnir.graph.plain import compact_json, first_not_json
from sleipnir.messages import MOST_QUESTION_BYTES, InterruptQuestion, VisitResult, WaitRequest
from sleipnir.runs.interrupts import answers_of
from sleipnir.runs.remote_tasks import CANCELS
from sleipnir_workers.execution.execution import Execution
from sleipnir_workers.execution.registry import executor
from sleipnir_workers.machine.host import this_host
from sleipnir_workers.remotes.remote_server import BAD_PARAMETERS, UNSUPPORTED, AgentAtRemote, TaskRefused
from sleipnir_workers.remotes.request import RemoteFailure
from sleipnir_workers.remotes.task_forms import RemoteTask

FIRST_LOOK_MS: Final = 500
LONGEST_LOOK_MS: Final = 30_000
"""Between two looks at a task; each wait is twice the last one."""
MOST_CANCELS: Final = 8
"""Tries to cancel a task at a remote agent that is away: about two minutes."""
MOST_VALUES: Final = 500
_PRIVATE: Final = ("_", "user:", "app:", "temp:")


@dataclass(frozen=True)
class TaskRecord:
    """What an execution leaves for the next one. `task` None: no message has been answered yet. `looks` and `failures`
    follow each other without a change; `asked` is the question that a person answers, `answers` how many were sent."""

    task: str | None = None
    context: str | None = None
    looks: int = 0
    failures: int = 0
    asked: str | None = None
    gate: str | None = None
    answers: int = 0
    cancels: bool = False

    @property
    def text(self) -> str:
        return compact_json({name: value for name, value in asdict(self).items() if value not in (None, 0, False)})


@executor("remote")
def run_remote(node: RemoteNode, execution: Execution) -> VisitResult:
    """Raises NodeFailed and VisitLost."""
    given = answers_of(execution.talk.told)
    memo = TaskRecord(**json.loads(given[-1].key or "{}")) if given else TaskRecord()
    try:
        visit = _RemoteVisit(AgentAtRemote(node, this_host()), execution)
        if memo.cancels or (given and given[-1].at == CANCELS):
            return visit.cancelled(replace(memo, cancels=True))
        return visit.next(memo, given[-1].value if given else None)
    except ConfigError as error:
        raise NodeFailed(str(error), "config") from error


@dataclass(frozen=True)
class _RemoteVisit:
    """One execution."""

    server: AgentAtRemote
    execution: Execution

    def next(self, memo: TaskRecord, answer: Json) -> VisitResult:
        """Look at the task, or begin it, or answer its question."""
        try:
            with self._cancelled_on_failure(memo):
                task, memo = self._task(memo, answer)
        except RemoteFailure as away:
            structlog.get_logger().warning("a remote agent does not answer; it is tried again", reason=str(away))
            later = replace(memo, failures=memo.failures + 1)
            return self._wait(later, later.failures)
        except _NotAccepted as refused:
            return self._ask(refused.task, refused.memo, refused.why)
        memo = replace(memo, failures=0)
        with self._cancelled_on_failure(memo):
            return self._after(task, memo)

    def cancelled(self, memo: TaskRecord) -> VisitResult:
        """Cancel the task. What cannot be cancelled is told in the error of the run."""
        assert memo.task is not None, "the scheduler asks for it only if the task is known"
        try:
            self.server.cancel(memo.task)
        except RemoteFailure as away:
            later = replace(memo, failures=memo.failures + 1)
            if later.failures < MOST_CANCELS:
                return self._wait(later, later.failures)
            return VisitResult(False, error=str(away), error_kind="remote_away")
        except NodeFailed as refused:
            return VisitResult(False, error=str(refused), error_kind=refused.kind)
        return VisitResult(True)

    def _task(self, memo: TaskRecord, answer: Json) -> tuple[RemoteTask, TaskRecord]:
        """The task as it is now, and what is known of it. Raises RemoteFailure, NodeFailed and _NotAccepted."""
        if memo.task is None:
            return self._begun(memo)
        task = self.server.get(memo.task)
        if memo.asked is None:
            return task, memo
        if task.state == "input-required" and task.question == memo.asked:
            task = self._answered(task, memo, answer)
        return task, replace(memo, asked=None, gate=None, looks=0, answers=memo.answers + 1)

    def _begun(self, memo: TaskRecord) -> tuple[RemoteTask, TaskRecord]:
        state = dict(self.execution.state)
        prompt = str(state.pop("initial_prompt", ""))
        data = {key: value for key, value in state.items() if not key.startswith(_PRIVATE)}
        failpoints.hit("remote_send.before")
        task = self.server.send(f"{self._name}", prompt, data or None)
        failpoints.hit("remote_send.after")
        memo = replace(memo, task=task.id or None, context=task.context)
        if self.execution.lost.is_set():  # nobody will look at the task
            with contextlib.suppress(RemoteFailure, NodeFailed):
                self._end(memo)
        self.execution.check()
        return task, memo

    def _answered(self, task: RemoteTask, memo: TaskRecord, answer: Json) -> RemoteTask:
        """The task after an answer, which a dead worker may have sent before."""
        is_data = isinstance(answer, dict | list)
        text = "" if is_data else answer if isinstance(answer, str) else compact_json(answer)
        id_, data = f"{self._name}-{memo.answers + 1}", answer if is_data else None
        assert memo.task is not None
        try:
            failpoints.hit("remote_answer.before")
            return self.server.send(id_, text, data, task=memo.task, context=memo.context, gate=memo.gate)
        except TaskRefused as refused:
            if refused.rpc_code == BAD_PARAMETERS:
                raise _NotAccepted(task, replace(memo, answers=memo.answers + 1), str(refused)) from None
            if refused.rpc_code != UNSUPPORTED:
                raise
            now = self.server.get(memo.task)
            if now.state == "input-required" and now.question == memo.asked:
                raise
            return now

    def _after(self, task: RemoteTask, memo: TaskRecord) -> VisitResult:
        """What follows from a task. Raises NodeFailed."""
        if task.state == "completed":
            return self._completed(task)
        if task.state in _SAID:
            why = f": {self.server.clean(task.text)}" if task.text else ""
            kind = f"remote_{task.state.replace('-', '_')}"
            said = _SAID[task.state]
            raise NodeFailed(f"the remote agent {said}{why}", kind)
        if task.state == "input-required":
            return self._ask(task, memo)
        return self._wait(replace(memo, looks=memo.looks + 1), memo.looks)

    def _completed(self, task: RemoteTask) -> VisitResult:
        values = {
            key: value
            for key, value in task.values.items()
            if key and len(key) <= 200 and not key.startswith(_PRIVATE) and key != "initial_prompt"
        }
        if len(values) > MOST_VALUES:
            values = {"data": values}
        output = task.output or (compact_json(values) if values else "")
        delta = {**values, "artifacts": [dict(artifact) for artifact in task.artifacts], REMOTE_OUTPUT: output}
        if problem := first_not_json(delta):
            raise NodeFailed(f"the remote agent has returned something that cannot be stored: {problem}", "protocol")
        return VisitResult(True, delta, notes=(f"task {task.id or 'without an id'} of {self.server.node.url}",))

    def _ask(self, task: RemoteTask, memo: TaskRecord, remark: str = "") -> VisitResult:
        """Let a person answer the question of the task."""
        text = task.text or "The remote agent asks for input."
        text = (f"{remark}\n{text}" if remark else text)[:50_000]
        value: Json = {"question": text, "data": list(task.data)} if task.data else text
        if first_not_json({"value": value}) or len(compact_json(value).encode(errors="replace")) > MOST_QUESTION_BYTES:
            value = text.encode(errors="replace").decode()
        memo = replace(memo, asked=task.question, gate=task.gate)
        return VisitResult.asking(InterruptQuestion("answer", value, memo.text))

    def _wait(self, memo: TaskRecord, tries: int) -> VisitResult:
        wait = WaitRequest(for_ms=min(FIRST_LOOK_MS * 2 ** min(tries, 10), LONGEST_LOOK_MS))
        return VisitResult.asking(InterruptQuestion("task", None, memo.text, wait=wait))

    @contextlib.contextmanager
    def _cancelled_on_failure(self, memo: TaskRecord) -> Iterator[None]:
        """A task that nobody will look at again is cancelled, if that can be done at once."""
        try:
            yield
        except NodeFailed:
            with contextlib.suppress(RemoteFailure, NodeFailed):
                self._end(memo)
            raise

    def _end(self, memo: TaskRecord) -> None:
        if memo.task is not None:
            self.server.cancel(memo.task)

    @property
    def _name(self) -> str:
        """The id of the visit's first message."""
        return f"sleipnir-{self.execution.run}-{self.execution.seq}"


class _NotAccepted(Exception):
    """The remote agent does not accept the answer to its question."""

    def __init__(self, task: RemoteTask, memo: TaskRecord, why: str) -> None:
        super().__init__(why)
        self.task, self.memo, self.why = task, memo, why


_SAID: Final[Mapping[str, str]] = {
    "failed": "says that its task has failed",
    "rejected": "says that its task is rejected",
    "canceled": "says that its task is canceled",
    "auth-required": "wants another authentication",
}
"""The ends of tasks that fail the visit."""

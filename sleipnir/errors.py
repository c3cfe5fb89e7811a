"""Errors, sorted by who must act.

SleipnirError
├── UsageError            the caller asked for something that does not exist or is invalid
│   ├── AgentNotFound     no agent folder of that name
│   ├── RunNotFound       no run of that id (it may have expired)
│   ├── BatchNotFound     no batch of that id (it may have expired)
│   ├── ScheduleNotFound  no schedule of that name
│   ├── JobNotFound       no job of that id
│   ├── GateError         no such open question, or it was answered already
│   │   ├── AnswerRefused this person may not answer it, or not without a comment
│   │   └── GateAnswered  another person has answered it
│   ├── SessionBusy       the session has a run that is not over; one at a time
│   ├── ThreadBusy        the same of a thread
│   ├── TooManyQueued     the thread has as many queued turns as it takes
│   ├── AccessDenied      the HTTP API does not know the caller, or does not let it do this
│   └── NotServed         the HTTP API has no route for the method
├── GraphError            the author must fix graph.yaml; carries every Problem with file, line and column
├── ToolFileError         the author must fix a tools file; carries its path and line
├── BundleError           the agent folder cannot be packed (too large, a link that leaves it, not readable)
├── KnowledgeError        a knowledge base cannot be built, shared or read; nothing was changed
├── RunFailure             a run whose result is asked for did not complete
├── NodeFailed            a node gave up; the graph routes on it (fallback, next) or the run fails
├── RecordUnreadable      a stored record or a message is damaged, or of a newer release; what it is of is set aside
├── MachineFailed         the worker's machine cannot run the visit; it goes back, and the worker stops taking its queue
├── ServerFailed          the HTTP API failed, or something else answers at its address
├── ConfigError           a setting or the environment is wrong; the operator must act before anything runs
└── StoreUnavailable      Redis did not answer; retry with back-off
    ├── StoreUnsuitable   Redis answered but cannot be used (too old, no access, evicting keys)
    └── NotReplicated     it is done, but a fail-over of Redis could lose it

A visit can fail in four ways, with four consequences:

the node's        NodeFailed                          the author's: retries, fallback, `next`; it is counted and shown
the machine's     MachineFailed                       uncounted; another worker runs it, or this one once it is sound
the store's       StoreUnavailable                    uncounted; repeated with back-off, then redelivered
the definition's  GraphError, BundleError,            refused before it runs; what cannot be read later fails its run,
                  ToolFileError, RecordUnreadable     or parks it, and no fallback hides it
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal


class SleipnirError(Exception):
    """Base of all errors that Sleipnir raises itself. `str(error)` is safe for a terminal."""


class UsageError(SleipnirError):
    """The caller asked for something that does not exist or is invalid."""


class AgentNotFound(UsageError):
    """No folder of that name in any of the search directories of agents."""


class RunNotFound(UsageError):
    """No run of that id: never submitted, or finished longer ago than the retention."""


class BatchNotFound(UsageError):
    """No batch of that id: never submitted, or ended longer ago than the retention."""


class WebhookNotFound(UsageError):
    """No webhook of that name, or no delivery of that id."""


class HookNotFound(UsageError):
    """No hook of that name."""


class ScheduleNotFound(UsageError):
    """No schedule of that name."""


class JobNotFound(UsageError):
    """No job of that id."""


class RunFailure(SleipnirError):
    """The run failed or was cancelled, so it has no result. Where the cause has an exception class that this process
    knows, the error is an instance of that class too: python_graph.errors.run_failure."""

    def __init__(self, message: str) -> None:
        Exception.__init__(self, message)  # not that of the other class, which may want other arguments

    def __str__(self) -> str:
        return str(self.args[0])


class GateError(UsageError):
    """The run has no such open question, or it was answered already."""


class AnswerRefused(GateError):
    """This person may not answer the question, or not without a comment. `why` is `author`, `people`, `comment` or
    `voices` (it has as many as it keeps); `assignees` and `role` say who may."""

    def __init__(self, message: str, why: str, assignees: Sequence[str] = (), role: str | None = None) -> None:
        super().__init__(message)
        self.why, self.assignees, self.role = why, tuple(assignees), role


class GateAnswered(GateError):
    """The question has another answer, of `by` (empty: not known) at `at_ms`."""

    def __init__(self, message: str, by: str, at_ms: int) -> None:
        super().__init__(message)
        self.by, self.at_ms = by, at_ms


class GateClaimed(GateError):
    """Another `person` has claimed the question at `at_ms`, until `until_ms`."""

    def __init__(self, message: str, person: str, at_ms: int, until_ms: int) -> None:
        super().__init__(message)
        self.person, self.at_ms, self.until_ms = person, at_ms, until_ms


class SessionBusy(UsageError):
    """The session has a run that is not over, and takes one at a time."""

    @classmethod
    def by(cls, session: str, agent: str, run: str) -> SessionBusy:
        return cls(
            f"session {session!r} of agent {agent!r} is busy with run {run}, and takes one at a time. "
            f"`sleipnir watch {run}` follows that run, `sleipnir cancel {run}` ends it"
        )


class ThreadBusy(UsageError):
    """The thread has a run that is not over, and takes one at a time."""

    @classmethod
    def by(cls, thread: str, agent: str, run: str, status: str, verb: str) -> ThreadBusy:
        """`verb` is the command that goes on with the run."""
        command = f"sleipnir answer {run} TEXT" if verb == "answer" else f"sleipnir {verb} {run}"
        what = {"answer": "answers its question", "resume": "resumes it", "watch": "follows it"}[verb]
        return cls(
            f"thread {thread!r} of agent {agent!r} goes on with run {run}, which is {status}: a new turn begins when "
            f"that has ended. `{command}` {what}, `sleipnir cancel {run}` ends it"
        )


class TooManyQueued(UsageError):
    """The thread has as many queued turns as it takes."""


class AccessDenied(UsageError):
    """The HTTP API does not know the caller (no valid token), or its role does not allow the request."""


class NotServed(UsageError):
    """A client over HTTP has no such method or parameter: the API has no route for it."""


class ServerFailed(SleipnirError):
    """The HTTP API failed, or what answers at its address is none of this release."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One finding about an agent's file: `file:line:col: [node] message`. Lines and columns count from 1. `code`
    is its kind (sleipnir/graph/codes.py); empty for findings about files that are not an agent's."""

    level: Literal["error", "warning"]
    message: str
    file: str
    line: int | None = None
    column: int | None = None
    node: str | None = None
    hint: str | None = None
    code: str = ""

    def __str__(self) -> str:
        return self._text("")

    def with_code(self) -> str:
        """As `str`, with the code after the message: `validate --explain` explains it."""
        return self._text(f" ({self.code})" if self.code else "")

    def _text(self, code: str) -> str:
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)
        node = f"[{self.node}] " if self.node else ""
        level = "warning: " if self.level == "warning" else ""
        hint = f"\n    {self.hint}" if self.hint else ""
        return f"{place}: {level}{node}{self.message}{code}{hint}"


class GraphError(SleipnirError):
    """A graph definition that cannot run. `problems` has all errors and warnings, in file order."""

    def __init__(self, message: str, problems: Sequence[Problem] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems)


class ToolFileError(SleipnirError):
    """A tools file that cannot be used. `line` counts from 1; None for the file as a whole."""

    def __init__(self, path: Path, line: int | None, message: str) -> None:
        super().__init__(f"{path}: {message}" if line is None else f"{path}:{line}: {message}")
        self.path, self.line, self.message = path, line, message


class BundleError(SleipnirError):
    """The agent folder cannot be packed or unpacked."""


class KnowledgeError(SleipnirError):
    """A knowledge base cannot be built, shared or read. `kind` says who must act: `usage` (the agent or the command
    must be changed), `sources` (documents), `model`, `store` (Redis, the index store or a disk) or `bug`; `transient`:
    the same may succeed a little later. `machine`: it is a failure of the machine."""

    def __init__(
        self, message: str, kind: str = "usage", *, transient: bool = False, machine: MachineFailed | None = None
    ) -> None:
        super().__init__(message)
        self.kind, self.transient, self.machine = kind, transient, machine


class NodeFailed(SleipnirError):
    """A node gave up. `kind` is one word a program can branch on (`timeout`, `exit`, `output`, ...); `transient`: the
    same may succeed a little later. `retried_as` is the entry of a policy's `on` that a worker has found to apply,
    `code` the script's own."""

    retried_as: str | None = None
    code: str | None = None

    def __init__(self, message: str, kind: str = "failed", *, transient: bool = False) -> None:
        super().__init__(message)
        self.kind, self.transient = kind, transient


class RecoverableError(Exception):
    """Raised by the function of a node for a failure after which the run goes on, in a graph with `errors:`. `value` is
    what the node returns instead (None: nothing); `code` is for programs."""

    def __init__(self, message: str = "", code: str | int | None = None, value: Any = None) -> None:
        super().__init__(message)
        self.message, self.code, self.value = message, code, value


class RecordUnreadable(SleipnirError):
    """A stored record or a message that this release cannot read. `record` is its kind, `key` its key (empty: unknown),
    `why` the problem; `newer`: a newer release wrote it and can read it. Nothing was changed: the owner of the record
    is set aside, and continues when the record can be read."""

    def __init__(self, record: str, key: str, why: str, *, newer: bool = False) -> None:
        super().__init__(f"{record}{f' of {key}' if key else ''} cannot be read: {why}")
        self.record, self.key, self.why, self.newer = record, key, why, newer


EXHAUSTED: Mapping[int, str] = {
    errno.ENOSPC: "disk", errno.EDQUOT: "disk", errno.EROFS: "disk", errno.EIO: "disk",
    errno.EMFILE: "descriptors", errno.ENFILE: "descriptors",
    errno.ENOMEM: "memory", errno.EAGAIN: "processes",
}  # fmt: skip
"""The exhausted resource of a machine, by error number. fork fails with EAGAIN at the limit of processes."""


class MachineFailed(SleipnirError):
    """The machine of a worker cannot run a visit: no disk space, no memory, no process, no file descriptor. It is never
    the node's failure. `part` is one word for the missing resource (`disk`, `memory`, `processes`, `descriptors`,
    `interpreter`, `sandbox`); `begun`: the node's own work may have started."""

    def __init__(self, part: str, message: str, *, begun: bool = False) -> None:
        super().__init__(message)
        self.part, self.begun = part, begun

    @classmethod
    def of(cls, error: OSError, doing: str, *, part: str | None = None) -> MachineFailed:
        """The machine failure for an error on our own files and processes. `doing` begins the message."""
        reason = error.strerror or str(error)
        where = f": {error.filename}" if error.filename else ""
        return cls(part or EXHAUSTED.get(error.errno or 0, "disk"), f"{doing}: {reason}{where}")

    def __str__(self) -> str:
        return f"{self.part}: {super().__str__()}"


class ConfigError(SleipnirError):
    """A setting or the environment is wrong; the message says which, and what to do."""


class StoreUnavailable(SleipnirError):
    """Redis did not answer. It is unknown whether anything changed; calling again is safe."""


class StoreUnsuitable(StoreUnavailable):
    """Redis answered but cannot be used: too old, read-only, or set to evict keys."""


class NotReplicated(StoreUnavailable):
    """The request is done, but fewer replicas of Redis have it than the setting ack_wait_replicas asks for: a fail-over
    could still lose it. The same request again changes nothing, and waits again."""

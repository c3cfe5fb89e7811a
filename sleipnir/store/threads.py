"""The clients' operations on threads: read, begin a turn, remove. A commit that ends the last run of a thread keeps
that run."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sleipnir.errors import ThreadBusy, TooManyQueued, UsageError
from sleipnir.messages import FINAL, RunStatus
from sleipnir.runs.cards import card_text
from sleipnir.runs.conversation_pages import MOST_OF_PAGE, PageOfConversations
from sleipnir.runs.run import QueuedTurn, RunSpec
from sleipnir.runs.threads import MOST_QUEUED, ThreadName, is_kept
from sleipnir.runs.views import ThreadInfo
from sleipnir.store.connect import Client
from sleipnir.store.conversation_lists import newest_names
from sleipnir.store.keys import Keys, last_run_keys
from sleipnir.store.record_text import dumps, record
from sleipnir.store.runs import Runs
from sleipnir.store.scripts import Arg, LuaScript

_START, _DROP, _QUEUE = LuaScript("start_turn"), LuaScript("drop_thread"), LuaScript("queue_turn")
_FIELDS = ("created_ms", "used_ms", "turns", "waiting", "run")
_BUSY, _OTHER, _GONE = -1, -2, -3
_HAS_GONE_ON, _FULL = -1, -2


@dataclass(frozen=True)
class LastTurn:
    """What a thread goes on from: its last run, as it was read at its version, with the state that the next turn begins
    with; and the number of turns of the thread."""

    run: str
    version: int
    turns: int
    status: RunStatus
    state: Mapping[str, Any]


@dataclass(frozen=True)
class LiveTurn:
    """What a queued turn comes after, as it was read: the run before it, the number of turns of the thread, and the
    current state of the thread's last run."""

    before: str
    turns: int
    state: Mapping[str, Any]


@dataclass(frozen=True)
class NextTurn:
    """A turn that would be the next one of its thread: its number, and the last run."""

    number: int
    previous: str | None


class Threads:
    """Threads, for clients. `retention_ms` is how long other ended runs are kept, and `by` who submits."""

    def __init__(self, client: Client, keys: Keys, runs: Runs, *, retention_ms: int, by: str) -> None:
        self._client, self._keys, self._runs = client, keys, runs
        self._retention_ms, self._by = retention_ms, by

    def page(
        self, agent: str | None, namespace: str | None, limit: int, after: str | None
    ) -> PageOfConversations[ThreadInfo]:
        """Threads of an agent (None: of all) in a namespace (None: in all), the last used first, after a cursor. Raises
        UsageError."""

        def fits(text: str) -> bool:
            name = ThreadName.of_text(text)
            return agent in (None, name.agent) and namespace in (None, name.namespace)

        indexes = [self._keys.of_partition(partition).threads for partition in range(self._keys.partitions)]
        found = newest_names(self._client, indexes, fits, limit, after)
        return PageOfConversations(self._read(list(map(ThreadName.of_text, found.names))), found.after)

    def all(self) -> list[ThreadInfo]:
        """The threads of all agents in all namespaces, the last used first."""
        found, after = list[ThreadInfo](), None
        while True:
            page = self.page(None, None, MOST_OF_PAGE, after)
            found += page
            after = page.after
            if after is None:
                return found

    def info(self, name: ThreadName) -> ThreadInfo | None:
        """None: there is no such thread."""
        return next(iter(self._read([name])), None)

    def _read(self, names: Sequence[ThreadName]) -> list[ThreadInfo]:
        pipe = self._client.pipeline(transaction=False)
        for name in names:
            pipe.hmget(self._keys.of_thread(name), _FIELDS)
        found = [
            (name, fields)
            for name, fields in zip(names, pipe.execute(), strict=True)
            if fields and fields[-1] is not None
        ]
        ends = self._runs.ends([run for _, (*_, run) in found])
        return [
            ThreadInfo(
                name.agent, name.name, int(created), int(used), int(turns), run, None if end is None else end.status,
                tuple((waiting or "").split()), name.namespace,
            )
            for name, (created, used, turns, waiting, run) in found
            for end in [ends[run]]
        ]  # fmt: skip

    def last(self, name: ThreadName) -> LastTurn | None:
        """What the next turn goes on from. None: there is no such thread. Raises ThreadBusy for a thread whose last run
        is not over, or with queued turns, and UsageError if that run is gone."""
        turns, run, waiting = self._client.hmget(self._keys.of_thread(name), ("turns", "run", "waiting"))
        if run is None:
            return None
        if waiting:
            raise self._busy(name, waiting.split()[0])
        keys = self._keys.of_run(run)
        pipe = self._client.pipeline()  # one moment
        pipe.hmget(keys.run, ("status", "version", "retrying"))
        pipe.hgetall(keys.state)
        (status, version, retrying), state = pipe.execute()
        if status is None:
            raise _gone(name, run)
        if status not in FINAL or retrying is not None:
            raise self._busy(name, run)
        values = {key: json.loads(text) for key, text in state.items() if is_kept(key)}
        return LastTurn(run, int(version), int(turns), status, values)

    def live(self, name: ThreadName) -> LiveTurn | None:
        """What a queued turn comes after. None: the thread is not busy, or there is none, or its last run is gone."""
        turns, run, busy, waiting = self._client.hmget(self._keys.of_thread(name), ("turns", "run", "busy", "waiting"))
        if run is None or not (busy or waiting):
            return None
        keys = self._keys.of_run(run)
        pipe = self._client.pipeline()  # one moment
        pipe.exists(keys.run)
        pipe.hgetall(keys.state)
        exists, state = pipe.execute()
        if not exists:
            return None
        values = {key: json.loads(text) for key, text in state.items() if is_kept(key)}
        return LiveTurn(waiting.split()[-1] if waiting else run, int(turns), values)

    def queue(self, run_id: str, spec: RunSpec, state: Mapping[str, Any], queued: QueuedTurn) -> None:
        """Accept a run of a busy thread: it begins when the runs before it are over, whatever their ends. Its spec
        names the thread, its turn, and the run before it. Safe to repeat. Raises ThreadBusy if the thread is not busy,
        or has gone on since it was read, and TooManyQueued if too many turns are queued."""
        from sleipnir.runs.transitions import Step

        name = _thread_of(spec)
        run, partition = self._keys.of_run(run_id), self._keys.of_partition(self._keys.partition_of(run_id))
        why = f"turn {spec.turn} of thread {name.name}, queued behind run {spec.previous}"
        keys = {
            "run": run.run, "state": run.state, "journal": run.journal, "runs": partition.runs, "specs": run.spec,
            "thread": self._keys.of_thread(name), "threads": partition.threads, "cards": partition.cards,
        }  # fmt: skip
        args: dict[str, Arg] = {
            "run_id": run_id,
            "spec": record(spec),
            "step": record(Step(step=0, kind="submitted", at_ms=0, by=self._by, reason=why)),
            "name": str(name),
            "before": str(spec.previous),
            "turns": spec.turn - 1,
            "queued": record(queued),
            "most": MOST_QUEUED,
            "card": card_text(spec, "submitted:turn"),
        }
        values: list[Arg] = [part for key, value in state.items() for part in (key, dumps(value))]
        code = _QUEUE(self._client, keys, args, values)
        if code == _HAS_GONE_ON:
            raise ThreadBusy(f"{_what(name)} goes on with other turns while this one is submitted; submit it again")
        if code == _FULL:
            raise TooManyQueued(
                f"{_what(name)} has {MOST_QUEUED} queued turns, and takes no more; "
                f"`sleipnir threads show {name.arguments}` lists them"
            )

    def start(self, run_id: str, spec: RunSpec, changes: Mapping[str, Any], last: LastTurn | None) -> None:
        """Accept a run of a thread, which has an id of the thread's partition: its spec names the thread. It begins
        with the state of the run that it goes on from, with `changes`. Safe to repeat.

        Raises ThreadBusy, also if the thread has gone on since `last` was read, and UsageError if its last run is gone.
        """
        from sleipnir.runs.transitions import Step

        name = _thread_of(spec)
        run, partition = self._keys.of_run(run_id), self._keys.of_partition(self._keys.partition_of(run_id))
        past = run if last is None else self._keys.of_run(last.run)
        why = f"turn {spec.turn} of thread {name.name}" + (f", after run {last.run}, {last.status}" if last else "")
        keys = {
            "run": run.run, "state": run.state, "journal": run.journal, "inbox": partition.inbox,
            "runs": partition.runs, "specs": run.spec, "thread": self._keys.of_thread(name),
            "threads": partition.threads, "expiring": partition.expiring, **last_run_keys(past),
            "cards": partition.cards,
        }  # fmt: skip
        args: dict[str, Arg] = {
            "run_id": run_id,
            "spec": record(spec),
            "step": record(Step(step=0, kind="submitted", at_ms=0, by=self._by, reason=why)),
            "name": str(name),
            "before": "" if last is None else last.run,
            "version": 0 if last is None else last.version,
            "expire_ms": self._retention_ms,
            "card": card_text(spec, "submitted"),
        }
        values: list[Arg] = [part for key, value in changes.items() for part in (key, dumps(value))]
        code, other = _START(self._client, keys, args, values)
        if code < 0:
            raise self.refusal(name, code, other)

    def next_turn(self, name: ThreadName) -> NextTurn:
        """The turn that comes next, whether or not the last one is over."""
        turns, run = self._client.hmget(self._keys.of_thread(name), ("turns", "run"))
        return NextTurn(1 if run is None else int(turns) + 1, run)

    def refusal(self, name: ThreadName, code: int, run: str) -> UsageError:
        """Why a thread has not taken a run, from the reply of the script (start_turn.lua)."""
        if code == _BUSY:
            return self._busy(name, run)
        if code == _GONE:
            return _gone(name, run)
        what = _what(name)
        if not run:
            return ThreadBusy(f"{what} was removed while this run was submitted; submit it again")
        return ThreadBusy(
            f"{what} has gone on with run {run} while this one was submitted. `sleipnir watch {run}` follows that run; "
            "submit again when it has ended"
        )

    def remove(self, name: ThreadName) -> bool:
        """Remove a thread; its last run expires like others from now on. False: there is no such thread. Raises
        ThreadBusy."""
        token = secrets.token_hex(6)
        while (run := self._client.hget(self._keys.of_thread(name), "run")) is not None:
            partition, last = self._keys.of_partition(self._keys.partition_of(str(name))), self._keys.of_run(run)
            keys = {
                "thread": self._keys.of_thread(name), "threads": partition.threads, "expiring": partition.expiring,
                **last_run_keys(last),
            }  # fmt: skip
            args: dict[str, Arg] = {"name": str(name), "last": run, "expire_ms": self._retention_ms, "token": token}
            code, other = _DROP(self._client, keys, args)
            if code == _BUSY:
                raise self._busy(name, other)
            if code != _OTHER:
                return bool(code)
        return False

    def _busy(self, name: ThreadName, run: str) -> ThreadBusy:
        """The reason why the thread takes no new run now, with the command that goes on with the one that it has."""
        info = next(iter(self._runs.find([run])), None)
        if info is not None and info.status == "paused" and not info.is_over_budget:
            verb = "resume"
        else:
            verb = "answer" if self._runs.gates_below(run) else "watch"
        return ThreadBusy.by(name.name, name.agent, run, "unfinished" if info is None else info.status, verb)


def _thread_of(spec: RunSpec) -> ThreadName:
    if (name := ThreadName.of(spec)) is None:
        raise TypeError("a turn needs its thread")
    return name


def _what(name: ThreadName) -> str:
    return f"thread {name.name!r} of agent {name.agent!r}"


def _gone(name: ThreadName, run: str) -> UsageError:
    return UsageError(
        f"the last run {run} of thread {name.name!r} of agent {name.agent!r} is gone, and the state of the thread with "
        f"it. `sleipnir threads rm {name.arguments}` removes the thread; a new one begins without a past"
    )

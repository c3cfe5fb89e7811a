"""New runs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from sleipnir.access.audit import audit_text
from sleipnir.errors import SessionBusy
from sleipnir.runs.cards import card_text
from sleipnir.runs.run import Checkpoint, Fork, PastState, RunSpec, limited_from
from sleipnir.runs.sessions import SessionName, instructions_of
from sleipnir.runs.threads import ThreadName
from sleipnir.store.keys import last_run_keys, session_keys
from sleipnir.store.record_text import dumps, record
from sleipnir.store.runs.connection import RunConnection
from sleipnir.store.scripts import Arg, LuaScript, RedisCommand, checked, run_in_order

if TYPE_CHECKING:
    from sleipnir.runs.transitions import Step

_CREATE_RUN, _FORK_RUN, _LIST_FORK = LuaScript("create_run"), LuaScript("fork_run"), LuaScript("list_fork")
_SOURCE_LEFT = -4
MOST_REASON = 500
"""The characters that the overrides of a fork have in its first journal step."""


class TurnRefused(Exception):
    """The thread of a fork does not take it: `code` and `run` are the reply of the script (Threads.refusal)."""

    def __init__(self, code: int, run: str) -> None:
        super().__init__(code, run)
        self.code, self.run = code, run


class RunCreation(RunConnection):
    """Accept runs."""

    def create(self, run_id: str, spec: RunSpec, state: Mapping[str, Any]) -> bool:
        """Accept a run: it will reach a terminal status. False: it existed already. Safe to repeat.

        A run in a session must have an id of the session's partition. Raises SessionBusy if the session has an
        unfinished run.
        """
        [reply] = run_in_order(self._client, [self.creation(run_id, spec, state)])
        code, busy = checked(reply)
        if code == -1:
            raise SessionBusy.by(str(spec.session), spec.agent, busy)
        return bool(code)

    def fork(
        self,
        run_id: str,
        spec: RunSpec,
        *,
        last_step: int | None,
        state: Mapping[str, Any],
        changes: Mapping[str, Any],
        overlays: Mapping[str, str] | None = None,
        cancels_source: bool = False,
        place: str = "",
        due_ms: int | None = None,
    ) -> bool:
        """Accept a run that goes on as its `spec.fork` says; its id is of the partition of its source, unless it is the
        row `place` of a batch (batches.place_of), or the next turn of a thread, as its spec says: then it is of that of
        the thread, whose last run is kept for the retention from now on, if its end did not say how long. It begins
        with the source's state, if that is still at its journal step `last_step`; None: with `state`; and with
        `changes`. `overlays` are the updates of the commands that it goes on with (Step.overlays).
        `cancels_source`: with that the cancellation of the source is requested, if it is not over. With `due_ms`, only
        a reference to the state is stored (`last_step` None: to that at the checkpoint), and the fork takes it before
        it begins, at the latest at that time, when its source still exists.

        False: the source is gone, or its state was to be copied and it has gone on. Safe to repeat. Raises TurnRefused.
        """
        fork = spec.fork
        if fork is None:
            raise TypeError("a fork needs its source")
        fields = _fields(spec, fork.checkpoint, place, with_counts=not due_ms)
        texts = {key: dumps(value) for key, value in state.items()}
        begin = {key: dumps(value) for key, value in changes.items()}
        past = PastState(fork.run, fork.checkpoint.step, -1 if last_step is None else last_step)
        rewound = f"rewound: run {run_id} goes on after step {past.step}" if cancels_source else ""
        thread = ThreadName.of(spec)
        at = past.last
        if apart := self._is_apart(run_id, fork.run):
            copied = self._state_of_source(fork.run, None if due_ms is not None else last_step)
            if copied is None:
                return False
            at, texts = at if due_ms is not None else -1, {**copied, **texts}
        code, other = _FORK_RUN(
            self._client,
            self._fork_keys(run_id, spec, fork.run, thread),
            {
                "run_id": run_id, "spec": record(spec), "step": record(_first_step(spec, fork, self._by, overlays)),
                "source_id": fork.run, "cancel_by": self._by, "cancel_why": rewound,
                "at": at, "reference": "" if due_ms is None else record(past), "due_ms": due_ms or 0,
                "name": str(thread or ""), "before": "" if thread is None else spec.previous or "",
                "expire_ms": self._retention_ms, "fields": len(fields), "values": len(texts),
                "entry": "" if place else _fork_entry(run_id, fork, self._by), "keep_ms": self._audit_ms,
                "card": card_text(spec, "submitted", place), "apart": int(apart),
            },
            [part for pairs in (fields, texts, begin) for pair in pairs.items() for part in pair],
        )  # fmt: skip
        if code < 0 and code != _SOURCE_LEFT:
            raise TurnRefused(code, other)
        if apart and code >= 0:
            self._list_fork(run_id, fork.run, rewound)
        return bool(code >= 0)

    def _is_apart(self, run_id: str, source_id: str) -> bool:
        """Whether no script can reach both runs."""
        return self._keys.of_cluster and self._keys.partition_of(run_id) != self._keys.partition_of(source_id)

    def _state_of_source(self, source_id: str, last_step: int | None) -> dict[str, str] | None:
        """The state of a source that is apart, if that is still at this step; {} without a step. None: it is gone, or
        has gone on."""
        source = self._keys.of_run(source_id)
        pipe = self._client.pipeline()  # one moment
        pipe.hmget(source.run, "status", "step", "past")
        if last_step is not None:
            pipe.hgetall(source.state)
        (status, step, past), *state = pipe.execute()
        if status is None or (state and (int(step or 0) != last_step or past is not None)):
            return None
        return dict(state[0]) if state else {}

    def _list_fork(self, run_id: str, source_id: str, cancel_why: str) -> None:
        source, partition = self._keys.of_run(source_id), self._keys.of_partition(self._keys.partition_of(source_id))
        keys = {"source": source.run, "forks": source.children, "inbox": partition.inbox}
        args: dict[str, Arg] = {"run_id": run_id, "source_id": source_id}
        _LIST_FORK(self._client, keys, args | {"cancel_by": self._by, "cancel_why": cancel_why})

    def _fork_keys(self, run_id: str, spec: RunSpec, source_id: str, thread: ThreadName | None) -> dict[str, str]:
        """The keys of fork_run.lua; a run that is in no thread, or is its first one, has its own where those are not
        used."""
        keys, run = self._keys, self._keys.of_run(run_id)
        reached = run_id if self._is_apart(run_id, source_id) else source_id
        source = keys.of_run(reached)
        partition = keys.of_partition(keys.partition_of(run_id))
        last = run if thread is None or not spec.previous else keys.of_run(spec.previous)
        return {
            "source": source.run, "past": source.state, "run": run.run, "state": run.state, "journal": run.journal,
            "inbox": partition.inbox, "runs": partition.runs, "specs": run.spec, "forks": source.children,
            "timers": partition.timers, "source_inbox": keys.of_partition(keys.partition_of(reached)).inbox,
            "thread": run.run if thread is None else keys.of_thread(thread), "threads": partition.threads,
            "expiring": partition.expiring, **last_run_keys(last), "items": run.items, "audit": partition.audit,
            "cards": partition.cards,
        }  # fmt: skip

    def creation(self, run_id: str, spec: RunSpec, state: Mapping[str, Any], batch: str = "") -> RedisCommand:
        """The command of `create`; create_run.lua has the replies. `batch` is the row of the run, or of its root run
        (batches.place_of)."""
        run, partition = self._keys.of_run(run_id), self._keys.of_partition(self._keys.partition_of(run_id))
        keys = {
            "run": run.run,
            "state": run.state,
            "journal": run.journal,
            "inbox": partition.inbox,
            "runs": partition.runs,
            "specs": run.spec,
            "items": run.items,
            "sessions": partition.sessions,
            "cards": partition.cards,
            **session_keys(run, self._keys.of_session_of(spec)),
        }
        values: list[Arg] = [part for key, value in state.items() for part in (key, dumps(value))]
        name = SessionName.of(spec)
        args: dict[str, Arg] = {"run_id": run_id, "spec": record(spec), "step": _submitted()}
        args |= {"in_session": str(name or ""), "listed": int(name is not None and name.expire_ms is None)}
        args["instructions_of"] = instructions_of(spec.bundle, spec.variables) if name is not None else ""
        args |= {"batch": batch, "card": card_text(spec, "submitted", batch)}
        return RedisCommand(_CREATE_RUN, _CREATE_RUN.vector(keys, args, values))


@cache
def _submitted() -> str:
    """The first journal step of every new run."""
    from sleipnir.runs.transitions import Step

    return record(Step(step=0, kind="submitted", at_ms=0))


def _first_step(spec: RunSpec, fork: Fork, by: str, overlays: Mapping[str, str] | None) -> Step:
    """The first journal step of a fork, with the updates of the commands that it goes on with."""
    from sleipnir.graph.node_overrides import in_words
    from sleipnir.runs.transitions import Step

    why = f"from run {fork.run} after step {fork.checkpoint.step}"
    if spec.thread:
        why += f", as turn {spec.turn} of thread {spec.thread}"
    if fork.as_node is not None:
        why += f", with an update as node '{fork.as_node}'"
    if spec.of_nodes:
        why += f", with {', '.join(in_words(spec.of_nodes))}"[:MOST_REASON]
    past = (fork.run, fork.checkpoint.step)
    return Step(step=0, kind="forked", at_ms=0, by=by, reason=why, past=past, overlays=overlays or None)


def _fork_entry(run_id: str, fork: Fork, by: str) -> str:
    """The entry of the audit; '' where nobody is known."""
    after = {"fork": run_id, "step": fork.checkpoint.step}
    return audit_text("run forked", f"run {fork.run}", by, after=after) if by else ""


def _fields(spec: RunSpec, point: Checkpoint, place: str, *, with_counts: bool) -> dict[str, Arg]:
    """The fields of the record of a fork, the row `place` of a batch, that goes on from this checkpoint."""
    fields: dict[str, Arg] = {f"n:{node}": count for node, count in point.counts.items()} if with_counts else {}
    if place:
        fields["batch"] = place
    if point.steps:
        fields["steps"] = point.steps
        if "recursion_limit" in spec.config:
            fields["limited_from"] = limited_from(point.steps + 1)
    if point.arrived:
        fields["arrived"] = dumps(point.arrived)
    if point.deferred:
        fields["deferred"] = dumps(point.deferred)
    return fields

"""New runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sleipnir.errors import SessionBusy
from sleipnir.runs.run import RunSpec
from sleipnir.runs.sessions import SessionName, instructions_of
from sleipnir.store.keys import session_keys
from sleipnir.store.record_text import dumps, record
from sleipnir.store.runs.connection import RunConnection
from sleipnir.store.scripts import Arg, LuaScript, RedisCommand

_CREATE_RUN, _FORK_RUN = LuaScript("create_run"), LuaScript("fork_run")


class RunCreation(RunConnection):
    """Accept runs."""

    def create(self, run_id: str, spec: RunSpec, state: Mapping[str, Any]) -> bool:
        """Accept a run: it will reach a terminal status. False: it existed already. Safe to repeat.

        A run in a session must have an id of the session's partition. Raises SessionBusy if the session has an
        unfinished run.
        """
        code, busy = _CREATE_RUN(self._client, *self._creation(run_id, spec, state))
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
    ) -> bool:
        """Accept a run that goes on as its `spec.fork` says; its id is of the partition of its source. It begins with
        the source's state, if that is still at its journal step `last_step`; None: with `state`; and with `changes`.

        False: the source has gone on, or is gone. Safe to repeat.
        """
        from sleipnir.runs.transitions import Step

        fork = spec.fork
        if fork is None:
            raise TypeError("a fork needs its source")
        run, source = self._keys.of_run(run_id), self._keys.of_run(fork.run)
        partition, point = self._keys.of_partition(self._keys.partition_of(run_id)), fork.checkpoint
        why = f"from run {fork.run} after step {point.step}"
        step = Step(step=0, kind="forked", at_ms=0, by=self._by, reason=why, past=(fork.run, point.step))
        fields: dict[str, Arg] = {f"n:{node}": count for node, count in point.counts.items()}
        fields |= {"steps": point.steps} if point.steps else {}
        fields |= {"arrived": dumps(point.arrived)} if point.arrived else {}
        fields |= {"deferred": dumps(point.deferred)} if point.deferred else {}
        texts = {key: dumps(value) for key, value in state.items()}
        begin = {key: dumps(value) for key, value in changes.items()}
        code = _FORK_RUN(
            self._client,
            {
                "source": source.run, "past": source.state, "run": run.run, "state": run.state, "journal": run.journal,
                "inbox": partition.inbox, "runs": partition.runs, "specs": run.spec,
            },
            {
                "run_id": run_id, "spec": record(spec), "step": record(step),
                "at": -1 if last_step is None else last_step, "fields": len(fields), "values": len(texts),
            },
            [part for pairs in (fields, texts, begin) for pair in pairs.items() for part in pair],
        )  # fmt: skip
        return int(code) >= 0

    def creation(self, run_id: str, spec: RunSpec, state: Mapping[str, Any], batch: str = "") -> RedisCommand:
        """The command of `create`; create_run.lua has the replies. `batch` is the row of the run, or of its root run
        (batches.place_of)."""
        return RedisCommand(_CREATE_RUN, _CREATE_RUN.vector(*self._creation(run_id, spec, state, batch)))

    def _creation(
        self, run_id: str, spec: RunSpec, state: Mapping[str, Any], batch: str = ""
    ) -> tuple[dict[str, str], dict[str, Arg], list[Arg]]:
        """Keys, arguments and values of create_run.lua."""
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
            **session_keys(run, self._keys.of_session_of(spec)),
        }
        from sleipnir.runs.transitions import Step

        step = record(Step(step=0, kind="submitted", at_ms=0))
        values: list[Arg] = [part for key, value in state.items() for part in (key, dumps(value))]
        name = SessionName(spec.agent, spec.session) if spec.session is not None else None
        args: dict[str, Arg] = {"run_id": run_id, "spec": record(spec), "step": step}
        args |= {"in_session": str(name or ""), "listed": int(name is not None and name.expire_ms is None)}
        args["instructions_of"] = instructions_of(spec.bundle, spec.variables) if name is not None else ""
        args["batch"] = batch
        return keys, args, values

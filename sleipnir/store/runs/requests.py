"""What clients and other runs ask of a run: each request is an entry of its inbox, and the planner decides."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from sleipnir.decoding import read_text
from sleipnir.errors import RunNotFound, UsageError
from sleipnir.messages import FINAL
from sleipnir.runs.run import ID_ALPHABET, ID_LENGTH, RunSpec
from sleipnir.store.keys import SessionKeys, session_keys
from sleipnir.store.runs.connection import RunConnection
from sleipnir.store.scripts import Arg, LuaScript, RedisCommand, checked, run_in_order

_TELL = LuaScript("tell")

TOLD_BEFORE = "known"  # the reply of tell.lua to a request that it has passed on already: the first reply was lost


@dataclass(frozen=True)
class Fence:
    """Identifies a request at its run, so that repetitions are detected. For an effect, `source` is its kind and
    partition, and `number` its increasing stream id; for a client's request, `number` is a token."""

    source: str
    number: str


NO_FENCE = Fence("", "")


class RunRequests(RunConnection):
    """Cancel, pause, resume and retry runs."""

    def cancel(self, run_id: str) -> None:
        """Request the cancellation of a run. Raises RunNotFound, or UsageError if it is over."""
        self._tell_unfinished(run_id, "cancelled", "cancel", "by", self._by)

    def pause(self, run_id: str, by: str | None = None, reason: str | None = None) -> None:
        """Request a hold of a run. Raises RunNotFound, or UsageError if it is over."""
        self._tell_unfinished(
            run_id, "paused", "pause", "by", by or self._by, "reason", reason or "", "owner", "person"
        )

    def resume(self, run_id: str) -> None:
        """Request the end of persons' holds of a run; other holds stay. Raises RunNotFound, or UsageError if it is
        over."""
        self._tell_unfinished(run_id, "resumed", "resume", "owner", "person", "by", self._by)

    def retry(self, run_id: str, *, fresh_children: bool = False) -> None:
        """Request that a failed run continues from its failure; with `fresh_children` its child runs start again.
        Raises RunNotFound, or UsageError if it did not fail, or if its session has continued without it."""
        text = self._client.get(self._keys.of_run(run_id).spec)
        if text is None:
            raise RunNotFound(f"no run {run_id!r}")
        spec = read_text(RunSpec, text, "spec", run_id)
        fields = ("by", self._by, *(("fresh_children", "1") if fresh_children else ()))
        status = self._tell(run_id, "retried", *fields, session=self._keys.of_session_of(spec))
        if status == "left":
            raise UsageError(
                f"run {run_id!r} cannot be retried: its session {spec.session!r} has continued without it. "
                "Send its message to the session again"
            )
        if status == "retrying":
            raise UsageError(f"run {run_id!r} is already being retried")
        if status not in ("failed", TOLD_BEFORE):
            raise UsageError(f"run {run_id!r} is {status}; only a failed run can be retried")

    def _tell_unfinished(self, run_id: str, type_: str, verb: str, *fields: str) -> None:
        status = self._tell(run_id, type_, *fields)
        if status in FINAL:
            raise UsageError(f"run {run_id!r} is already {status}; nothing to {verb}")

    def _tell(self, run_id: str, type_: str, *fields: str, session: SessionKeys | None = None) -> str:
        token = Fence("", request_token())
        status = _TELL(self._client, *self._telling(run_id, type_, session, token), fields)
        if status is None:
            raise RunNotFound(f"no run {run_id!r}")
        return str(status)

    def cancel_all(self, run_ids: Sequence[str], by: str = "") -> None:
        """Request the cancellation of runs for `by`, in one round trip; finished and missing runs are ignored."""
        commands = [self.notification(run_id, "cancelled", "by", by) for run_id in run_ids]
        for reply in run_in_order(self._client, commands):
            checked(reply)

    def notification(self, run_id: str, type_: str, *fields: str) -> RedisCommand:
        """The command that adds an entry to the inbox of a run; nothing happens when it is finished or gone."""
        return self.notification_once(run_id, type_, NO_FENCE, *fields)

    def notification_once(
        self, run_id: str, type_: str, fence: Fence, *fields: str, version: int | None = None
    ) -> RedisCommand:
        """The same for an effect: nothing changes when this one, or a later one of its source, was sent before.
        `version`: the one with which the run ended that is to continue; None: any."""
        return RedisCommand(_TELL, _TELL.vector(*self._telling(run_id, type_, None, fence, version), fields))

    def _telling(
        self, run_id: str, type_: str, session: SessionKeys | None, fence: Fence, version: int | None = None
    ) -> tuple[dict[str, str], dict[str, Arg]]:
        """Keys and arguments of tell.lua."""
        partition, run = self._keys.of_partition(self._keys.partition_of(run_id)), self._keys.of_run(run_id)
        keys = {"run": run.run, "inbox": partition.inbox, "session": session_keys(run, session)["session"]}
        args: dict[str, Arg] = {"run_id": run_id, "type": type_, "source": fence.source, "number": fence.number}
        return keys, {**args, "version": "" if version is None else version}


def request_token() -> str:
    """A unique token for a request."""
    return "".join(secrets.choice(ID_ALPHABET) for _ in range(ID_LENGTH))

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
from sleipnir.store.record_text import dumps
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
    """Cancel, pause, resume and retry runs, and skip their visits."""

    def cancel(self, run_id: str) -> None:
        """Request the cancellation of a run. Raises RunNotFound, or UsageError if it is over."""
        self._tell_unfinished(run_id, "cancelled", "cancel", "by", self._by)

    def pause(
        self, run_id: str, by: str | None = None, reason: str | None = None, *, timeout_ms: int | None = None
    ) -> None:
        """Request a hold of a run; visits that still run `timeout_ms` later are stopped. Raises RunNotFound, or
        UsageError if it is over."""
        type_, *fields = self._pausing(by, reason, timeout_ms)
        self._tell_unfinished(run_id, type_, "pause", *fields)

    def pause_several(
        self, run_ids: Sequence[str], *, reason: str | None = None, timeout_ms: int | None = None
    ) -> list[str | None]:
        """The same for several runs, in one round trip. Returns the status of each, a final one if nothing was
        requested; None: it does not exist."""
        type_, *fields = self._pausing(None, reason, timeout_ms)
        return self._tell_several([(run_id, type_, *fields) for run_id in run_ids])

    def steer_once(
        self,
        action: str,
        targets: Sequence[tuple[str, str, int]],
        *,
        reason: str = "",
        timeout_ms: int | None = None,
        fresh_children: bool = False,
    ) -> list[str | None]:
        """Cancel, pause, resume or retry several runs in one round trip, or two. A target is a run, the token of the
        request, and the `seen_ms` of a resume; a run takes a token once. Returns the replies of tell.lua: `known` for a
        request that a run has taken before; None: there is no such run. Raises RecordUnreadable."""
        retrying = ("retried", "by", self._by, *(("fresh_children", "1") if fresh_children else ()))
        sessions: dict[str, SessionKeys | None] = {}
        if action == "retry":
            texts = self._specs([run for run, _, _ in targets])
            sessions = {
                run: self._keys.of_session_of(read_text(RunSpec, text, "spec", run)) for run, text in texts.items()
            }
        commands = []
        for run, token, seen_ms in targets:
            match action:
                case "cancel":
                    type_, *fields = "cancelled", "by", self._by
                case "pause":
                    type_, *fields = self._pausing(None, reason, timeout_ms)
                case "resume":
                    type_, *fields = self._resuming(seen_ms)
                case _:
                    type_, *fields = retrying
            vector = _TELL.vector(*self._telling(run, type_, sessions.get(run), Fence("", token)), fields)
            commands.append(RedisCommand(_TELL, vector))
        return [checked(reply) for reply in run_in_order(self._client, commands)]

    def _specs(self, run_ids: Sequence[str]) -> dict[str, str]:
        """The stored specs of runs, without missing ones."""
        pipe = self._client.pipeline(transaction=False)
        for run_id in run_ids:
            pipe.get(self._keys.of_run(run_id).spec)
        return {run_id: text for run_id, text in zip(run_ids, pipe.execute(), strict=True) if text is not None}

    def _pausing(self, by: str | None, reason: str | None, timeout_ms: int | None) -> tuple[str, ...]:
        """The type and the fields of the request."""
        fields = ("by", by or self._by, "reason", reason or "", "owner", "person")
        if timeout_ms is None:
            return ("paused", *fields)
        return ("paused_until", *fields, "timeout_ms", str(timeout_ms))

    def resume(self, run_id: str, seen_ms: int | None = None) -> None:
        """Request the end of persons' holds of a run, and of breakpoints at which it has stopped by `seen_ms` (None:
        all); other holds stay. Raises RunNotFound, or UsageError if it is over."""
        type_, *fields = self._resuming(seen_ms)
        self._tell_unfinished(run_id, type_, "resume", *fields)

    def resume_several(self, runs: Sequence[tuple[str, int]]) -> list[str | None]:
        """The same for several runs, each with its `seen_ms`, in one round trip; returns what pause_several does."""
        return self._tell_several([(run_id, *self._resuming(seen_ms)) for run_id, seen_ms in runs])

    def _resuming(self, seen_ms: int | None) -> tuple[str, ...]:
        """The type and the fields of the request."""
        seen = () if seen_ms is None else ("seen_ms", str(seen_ms))
        return ("resumed", "owner", "person", "by", self._by, *seen)

    def retry(self, run_id: str, *, fresh_children: bool = False) -> None:
        """Request that a failed run continues from its failure; with `fresh_children` its child runs start again.
        Raises RunNotFound, or UsageError if it did not fail, or if its session or thread has continued without it."""
        spec = self._spec(run_id)
        fields = ("by", self._by, *(("fresh_children", "1") if fresh_children else ()))
        status = self._tell(run_id, "retried", *fields, session=self._keys.of_session_of(spec))
        if status == "left":
            again = "Send its message to the session again"
            if spec.thread is not None:
                again = f"Fork it: `sleipnir fork {run_id} --thread {spec.thread}`"
            raise UsageError(f"run {run_id!r} cannot be retried: {_left(spec)}. {again}")
        if status == "retrying":
            raise UsageError(f"run {run_id!r} is already being retried")
        if status not in ("failed", TOLD_BEFORE):
            raise UsageError(f"run {run_id!r} is {status}; only a failed run can be retried")

    def skip(
        self, run_id: str, seq: int, value: str, to: Sequence[str] = (), *, by: str | None = None, reason: str = ""
    ) -> None:
        """Request that the visit `seq` ends with the output `value`, a JSON text; a failed run goes on then. Raises
        RunNotFound, or UsageError if the run is over, or is about to go on already."""
        spec = self._spec(run_id)
        given = ("seq", str(seq), "value", value, "to", dumps(list(to)), "by", by or self._by, "reason", reason)
        status = self._tell(run_id, "skipped", *given, session=self._keys.of_session_of(spec))
        if status == "left":
            raise UsageError(f"run {run_id!r} cannot go on: {_left(spec)}")
        if status == "retrying":
            raise UsageError(f"run {run_id!r} is being retried or skipped already; look at it again in a moment")
        if status in ("completed", "cancelled"):
            raise UsageError(f"run {run_id!r} is {status}; nothing to skip")

    def _spec(self, run_id: str) -> RunSpec:
        text = self._client.get(self._keys.of_run(run_id).spec)
        if text is None:
            raise RunNotFound(f"no run {run_id!r}")
        return read_text(RunSpec, text, "spec", run_id)

    def _tell_unfinished(self, run_id: str, type_: str, verb: str, *fields: str) -> None:
        status = self._tell(run_id, type_, *fields)
        if status in FINAL:
            raise UsageError(f"run {run_id!r} is already {status}; nothing to {verb}")

    def _tell(self, run_id: str, type_: str, *fields: str, session: SessionKeys | None = None) -> str:
        token = Fence("", random_id())
        status = _TELL(self._client, *self._telling(run_id, type_, session, token), fields)
        if status is None:
            raise RunNotFound(f"no run {run_id!r}")
        return str(status)

    def cancel_all(self, run_ids: Sequence[str], by: str = "") -> None:
        """Request the cancellation of runs for `by`, in one round trip; finished and missing runs are ignored."""
        self._tell_several([(run_id, "cancelled", "by", by) for run_id in run_ids])

    def _tell_several(self, requests: Sequence[tuple[str, ...]]) -> list[str | None]:
        """Requests, each with its run, type and fields, in one round trip; the status of each run as it was."""
        commands = [self.notification(run_id, type_, *fields) for run_id, type_, *fields in requests]
        return [checked(reply) for reply in run_in_order(self._client, commands)]

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


def _left(spec: RunSpec) -> str:
    what = f"session {spec.session!r}" if spec.thread is None else f"thread {spec.thread!r}"
    return f"its {what} has continued without it"


def random_id() -> str:
    """Of a run, or of a request."""
    return "".join(ID_ALPHABET[byte % len(ID_ALPHABET)] for byte in secrets.token_bytes(ID_LENGTH))

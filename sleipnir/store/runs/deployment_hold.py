"""The hold of the whole deployment."""

from __future__ import annotations

from sleipnir.access.audit import audit_text
from sleipnir.decoding import read_text
from sleipnir.runs.actor import Change
from sleipnir.runs.run import Hold
from sleipnir.store.record_text import record
from sleipnir.store.runs.connection import RunConnection
from sleipnir.store.scripts import Arg, LuaScript, checked, run_batch

_PAUSE_ALL, _RESUME_ALL = LuaScript("pause_all"), LuaScript("resume_all")


class DeploymentHold(RunConnection):
    """Pause and resume all runs at once."""

    def pause_all(self, pause: Hold) -> None:
        """Hold the deployment: no visit is claimed until `resume_all`. An existing hold is kept unchanged."""
        entry = audit_text("deployment paused", "deployment", pause.by, reason=pause.reason) if pause.by else ""
        vectors = []
        for number in range(self._keys.partitions):
            partition = self._keys.of_partition(number)
            args: dict[str, Arg] = {"hold": record(pause), "entry": "" if number else entry, "keep_ms": self._audit_ms}
            vectors.append(_PAUSE_ALL.vector({"paused": partition.paused, "audit": partition.audit}, args))
        for reply in run_batch(self._client, _PAUSE_ALL, vectors):
            checked(reply)

    def resume_all(self) -> bool:
        """Resume a held deployment; queued visits are published at once. False: it was not held."""
        was_held = self.held() is not None
        pending: list[list[Arg]] = []
        entry = audit_text("deployment resumed", "deployment", self._by) if self._by else ""
        for partition in map(self._keys.of_partition, range(self._keys.partitions)):
            keys = {"paused": partition.paused, "outbox": partition.outbox, "resumed": partition.resumed}
            keys["audit"] = partition.audit
            args: dict[str, Arg] = {"by": self._by, "entry": "" if pending else entry, "keep_ms": self._audit_ms}
            pending.append(_RESUME_ALL.vector(keys, args))
        while pending:
            replies = list(map(checked, run_batch(self._client, _RESUME_ALL, pending)))
            pending = [vector for vector, reply in zip(pending, replies, strict=True) if reply == 1]
        return was_held

    def resumed(self) -> Change | None:
        """Who resumed the deployment last, and when; None: not recorded."""
        pipe = self._client.pipeline(transaction=False)
        for partition in range(self._keys.partitions):
            pipe.hmget(self._keys.of_partition(partition).resumed, ["by", "at_ms"])
        changes = [Change("resumed", by, int(at_ms)) for by, at_ms in pipe.execute() if by is not None and at_ms]
        return max(changes, key=lambda change: change.at_ms, default=None)

    def held(self) -> Hold | None:
        """The hold of the deployment, if there is one."""
        pipe = self._client.pipeline(transaction=False)
        for partition in range(self._keys.partitions):
            pipe.get(self._keys.of_partition(partition).paused)
        holds = [read_text(Hold, text, "hold of the deployment") for text in pipe.execute() if text]
        return min(holds, key=lambda hold: hold.at_ms, default=None)

"""The hold of the whole deployment."""

from __future__ import annotations

from sleipnir.decoding import read_text
from sleipnir.runs.actor import Change
from sleipnir.runs.run import Hold
from sleipnir.store.record_text import record
from sleipnir.store.runs.connection import RunConnection
from sleipnir.store.scripts import LuaScript, checked, run_batch

_RESUME_ALL = LuaScript("resume_all")


class DeploymentHold(RunConnection):
    """Pause and resume all runs at once."""

    def pause_all(self, pause: Hold) -> None:
        """Hold the deployment: no visit is claimed until `resume_all`. An existing hold is kept unchanged."""
        pipe = self._client.pipeline(transaction=False)
        for partition in range(self._keys.partitions):
            pipe.set(self._keys.of_partition(partition).paused, record(pause), nx=True)
        pipe.execute()

    def resume_all(self) -> bool:
        """Resume a held deployment; queued visits are published at once. False: it was not held."""
        was_held = self.held() is not None
        pending = []
        for partition in map(self._keys.of_partition, range(self._keys.partitions)):
            keys = {"paused": partition.paused, "outbox": partition.outbox, "resumed": partition.resumed}
            pending.append(_RESUME_ALL.vector(keys, {"by": self._by}))
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

"""Holds of the whole deployment, and of namespaces."""

from __future__ import annotations

from collections.abc import Sequence

from sleipnir.access.audit import audit_text
from sleipnir.decoding import read_text
from sleipnir.errors import UsageError
from sleipnir.graph.plain import compact_json
from sleipnir.runs.actor import Change
from sleipnir.runs.deployment_holds import (
    DEPLOYMENT,
    DeploymentHolds,
    ScopeHold,
    checked_resumption,
    holds_in,
    merged,
    scope_in_words,
)
from sleipnir.runs.run import Hold
from sleipnir.store.connect import clock_ms
from sleipnir.store.record_text import record
from sleipnir.store.runs.connection import RunConnection
from sleipnir.store.scripts import Arg, LuaScript, checked, run_batch

_PAUSE_ALL, _RESUME_ALL, _RESUME_PART = LuaScript("pause_all"), LuaScript("resume_all"), LuaScript("resume_part")


class DeploymentHold(RunConnection):
    """Pause and resume all runs at once, or all of a namespace. A scope is a namespace, or DEPLOYMENT."""

    def pause_all(self, pause: Hold, scope: str = DEPLOYMENT) -> None:
        """Hold the scope: no visit of it is claimed until it is resumed. An existing hold is kept unchanged."""
        entry = audit_text(f"{_noun(scope)} paused", _subject(scope), pause.by, reason=pause.reason) if pause.by else ""
        vectors = []
        for number in range(self._keys.partitions):
            partition = self._keys.of_partition(number)
            args: dict[str, Arg] = {
                "scope": scope, "hold": record(pause), "entry": "" if number else entry, "keep_ms": self._audit_ms,
            }  # fmt: skip
            keys = {"paused": partition.paused, "holds": partition.holds, "audit": partition.audit}
            vectors.append(_PAUSE_ALL.vector(keys, args))
        for reply in run_batch(self._client, _PAUSE_ALL, vectors):
            checked(reply)

    def resume_all(self) -> bool:
        """Resume a held deployment; queued visits are published at once. False: it was not held."""
        was_held = self.held() is not None
        pending: list[list[Arg]] = []
        entry = audit_text("deployment resumed", "deployment", self._by) if self._by else ""
        for partition in map(self._keys.of_partition, range(self._keys.partitions)):
            keys = {"paused": partition.paused, "outbox": partition.outbox, "resumed": partition.resumed}
            keys |= {"audit": partition.audit, "holds": partition.holds}
            args: dict[str, Arg] = {"by": self._by, "entry": "" if pending else entry, "keep_ms": self._audit_ms}
            pending.append(_RESUME_ALL.vector(keys, args))
        while pending:
            replies = list(map(checked, run_batch(self._client, _RESUME_ALL, pending)))
            pending = [vector for vector, reply in zip(pending, replies, strict=True) if reply == 1]
        return was_held

    def resume_namespace(self, namespace: str) -> bool:
        """Resume a held namespace: its runs may go on at once, and schedulers end the hold when they have published
        what waits. False: it was not held."""
        return self._resume(namespace, (), None, everything=True)

    def resume_part(self, scope: str, agents: Sequence[str] = (), rate: float | None = None) -> ScopeHold:
        """Let runs of these agents go on, and so many runs a second of the others. Returns the hold. Raises UsageError:
        the scope is not held. Safe to repeat."""
        if not self._resume(scope, checked_resumption(agents, rate), rate, everything=False):
            raise UsageError(f"{scope_in_words(scope)} is not paused")
        return next(held for held in self.all_holds() if held.scope == scope)

    def _resume(self, scope: str, agents: Sequence[str], rate: float | None, *, everything: bool) -> bool:
        part = {"agents": list(agents), "rate": rate, "everything": everything}
        what = f"{_noun(scope)} resumed" + ("" if everything else " in part")
        after = {name: value for name, value in part.items() if value}
        entry = audit_text(what, _subject(scope), self._by, after=after) if self._by else ""
        at_ms, vectors = clock_ms(self._client), []
        for number in range(self._keys.partitions):
            partition = self._keys.of_partition(number)
            args: dict[str, Arg] = {
                "scope": scope, "agents": compact_json(list(agents)), "rate": "" if rate is None else repr(rate),
                "everything": int(everything), "at_ms": at_ms, "by": self._by, "entry": "" if number else entry,
                "keep_ms": self._audit_ms,
            }  # fmt: skip
            keys = {"paused": partition.paused, "holds": partition.holds, "audit": partition.audit}
            vectors.append(_RESUME_PART.vector(keys, args))
        return any([bool(checked(reply)) for reply in run_batch(self._client, _RESUME_PART, vectors)])

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

    def all_holds(self) -> list[ScopeHold]:
        """What is held: the deployment, and namespaces, the oldest hold first."""
        return merged(self._holds_of(range(self._keys.partitions)).values())

    def _holds_of(self, partitions: Sequence[int]) -> dict[int, DeploymentHolds]:
        pipe = self._client.pipeline(transaction=False)
        for partition in map(self._keys.of_partition, partitions):
            pipe.get(partition.paused)
            pipe.hgetall(partition.holds)
        replies = pipe.execute()
        return {
            number: holds_in(paused, fields)
            for number, paused, fields in zip(partitions, replies[::2], replies[1::2], strict=True)
        }


def _noun(scope: str) -> str:
    return "deployment" if scope == DEPLOYMENT else "namespace"


def _subject(scope: str) -> str:
    return "deployment" if scope == DEPLOYMENT else f"namespace {scope}"

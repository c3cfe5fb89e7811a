"""Runs that wait because their namespace or the deployment is held, and how they go on: services/resuming.py."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from sleipnir.graph.plain import compact_json
from sleipnir.runs.conversation_names import DEFAULT_NAMESPACE
from sleipnir.runs.deployment_holds import (
    DEPLOYMENT,
    MARK_OF_DEPLOYMENT,
    MARK_OF_NAMESPACE,
    WALKED_PREFIX,
    DeploymentHolds,
    HeldRun,
    ScopeHold,
    holds_in,
    is_resumed,
)
from sleipnir.store.keys import is_member, parse_member
from sleipnir.store.partitions.outbox import QueuedVisits
from sleipnir.store.scripts import Arg, LuaScript, checked, run_batch

_RESUME_RUN, _END_HOLD = LuaScript("resume_run"), LuaScript("end_hold")

WALK: Final = 1_000
"""Queued visits that one step of a walk looks at, about."""
LOOK: Final = 500
"""Queued visits that are looked at for held runs at once."""


@dataclass(frozen=True)
class WaitingRun:
    """A held run with the visits of it that were seen, as members of the outbox."""

    run: str
    created_ms: int
    members: tuple[str, ...]


@dataclass(frozen=True)
class WaitingRuns:
    """Held runs of a scope in a partition, which knows the hold as `held` (None: there is none), and the place to look
    at next; 0: the first one."""

    held: ScopeHold | None
    runs: tuple[WaitingRun, ...] = ()
    following: int = 0


class HeldRuns(QueuedVisits):
    """Find held runs, and let them go on."""

    def holds(self, partition: int) -> DeploymentHolds:
        """What is held, as this partition knows it."""
        part = self._of(partition)
        pipe = self._client.pipeline(transaction=False)
        pipe.get(part.paused)
        pipe.hgetall(part.holds)
        paused, fields = pipe.execute()
        return holds_in(paused, fields)

    def walked(self, partition: int, held: ScopeHold) -> bool:
        """Whether all visits of what was resumed last were made due."""
        mark = self._client.hget(self._of(partition).holds, WALKED_PREFIX + held.scope)
        return held.resumption is not None and mark == _stamp(held)

    def walk(self, partition: int, held: ScopeHold, cursor: int) -> int:
        """Make queued visits of what goes on due: about WALK of them. Returns the next cursor; 0: it was the end, which
        is noted. A pass sees every visit that is queued all the time."""
        assert held.resumption is not None
        part = self._of(partition)
        following, found = self._client.zscan(part.outbox, cursor, count=WALK)
        names = [name for name, _ in found if is_member(name)]
        cards = self._cards(partition, names)
        agents = None if held.resumption.everything else set(held.resumption.agents)
        due = [
            name
            for name, card in zip(names, cards, strict=True)
            if _in_scope(held, card) and (agents is None or not card or card.get("a") in agents)
        ]
        if due:
            self._client.zadd(part.outbox, dict.fromkeys(due, 0), xx=True)
        if int(following) == 0 and self._client.exists(part.holds):
            self._client.hset(part.holds, WALKED_PREFIX + held.scope, _stamp(held))
        return int(following)

    def waiting(self, partition: int, scope: str, first: int) -> WaitingRuns:
        """Held runs of the scope, the oldest first, among LOOK queued visits from the place `first`."""
        held = self.holds(partition).scopes.get(scope)
        if held is None:
            return WaitingRuns(None)
        members = self._client.zrange(self._of(partition).outbox, first, first + LOOK - 1)
        by_run: dict[str, list[str]] = {}
        for name in filter(is_member, members):
            by_run.setdefault(parse_member(name)[0], []).append(name)
        runs = [
            WaitingRun(run, about.created_ms, tuple(by_run[run]))
            for run, about in self._facts(partition, list(by_run)).items()
            if scope in (DEPLOYMENT, about.namespace) and not is_resumed(held, about)
        ]
        runs.sort(key=lambda each: (each.created_ms, each.run))
        return WaitingRuns(held, tuple(runs), first + LOOK if len(members) == LOOK else 0)

    def resume_runs(self, partition: int, held: ScopeHold, runs: Sequence[WaitingRun]) -> int:
        """Let these runs go on. Returns how many of them are new. Safe to repeat."""
        part, vectors = self._of(partition), []
        for each in self._whole(runs):
            keys = {"run": self._keys.of_run(each.run).run, "outbox": part.outbox, "holds": part.holds}
            field = MARK_OF_DEPLOYMENT if held.scope == DEPLOYMENT else MARK_OF_NAMESPACE
            args: dict[str, Arg] = {"field": field, "at_ms": held.hold.at_ms, "scope": held.scope}
            vectors.append(_RESUME_RUN.vector(keys, args, list(each.members[:WALK])))
        return sum(int(checked(reply)) for reply in run_batch(self._client, _RESUME_RUN, vectors))

    def _whole(self, runs: Sequence[WaitingRun]) -> Iterator[WaitingRun]:
        """The runs with all of their queued visits. Most have no others than those that were seen."""
        pipe = self._client.pipeline(transaction=False)
        for each in runs:
            pipe.hlen(self._keys.of_run(each.run).frontier)
        for each, visits in zip(runs, pipe.execute(), strict=True):
            yield each if visits <= len(each.members) else replace(each, members=tuple(self._queued(each.run)))

    def end_hold(self, partition: int, held: ScopeHold) -> bool:
        """End the hold of a namespace, everything of which was resumed. False: it is not, or not any more."""
        args: dict[str, Arg] = {"namespace": held.scope, "at_ms": held.hold.at_ms}
        return bool(_END_HOLD(self._client, {"holds": self._of(partition).holds}, args))

    def _cards(self, partition: int, members: Sequence[str]) -> list[Mapping[str, object]]:
        """The cards of the runs of these visits; an empty one, if a run has none that can be read."""
        if not members:
            return []
        return [_card(text) for text in self._client.hmget(
            self._of(partition).cards, [parse_member(name)[0] for name in members])]  # fmt: skip

    def _facts(self, partition: int, run_ids: Sequence[str]) -> dict[str, HeldRun]:
        if not run_ids:
            return {}
        pipe = self._client.pipeline(transaction=False)
        pipe.hmget(self._of(partition).cards, run_ids)
        for run_id in run_ids:
            pipe.hmget(self._keys.of_run(run_id).run, "created_ms", MARK_OF_DEPLOYMENT, MARK_OF_NAMESPACE)
        cards, *records = pipe.execute()
        facts = {}
        for run_id, text, (created_ms, *marks) in zip(run_ids, cards, records, strict=True):
            card = _card(text)
            namespace, agent = card.get("ns", DEFAULT_NAMESPACE), card.get("a", "?")
            facts[run_id] = HeldRun(
                str(namespace), str(agent), int(created_ms or 0), card.get("k") == "child", (marks[0], marks[1])
            )
        return facts


def _stamp(held: ScopeHold) -> str:
    """Names what was resumed, so that a walk for less is no walk for more."""
    assert held.resumption is not None
    return compact_json([held.resumption.at_ms, sorted(held.resumption.agents), held.resumption.everything])


def _card(text: str | None) -> Mapping[str, object]:
    try:
        card = json.loads(text or "{}")
    except ValueError:
        return {}
    return card if isinstance(card, dict) else {}


def _in_scope(held: ScopeHold, card: Mapping[str, object]) -> bool:
    return held.scope == DEPLOYMENT or not card or card.get("ns", DEFAULT_NAMESPACE) == held.scope

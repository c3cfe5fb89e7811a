"""Holds of a deployment or of a namespace, and what of them goes on again. Pure; lua/shared/holds.lua has the same
rules for workers, and tests/store/test_deployment_holds.py compares them.

While a scope is held, no visit of its runs starts. A resumption lets part of it go on: all runs of some agents, so many
runs a second, or everything. A run that is resumed at a rate is marked with the time of the hold, so a mark of an
earlier hold means nothing. Child runs count by their own agent; at a rate, those that were created after it began go on
with their parents, which go on too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from sleipnir.decoding import read_text
from sleipnir.errors import RecordUnreadable, UsageError
from sleipnir.messages import VERSION
from sleipnir.runs.run import Hold

DEPLOYMENT: Final = "*"
"""The scope of a hold of all namespaces. No namespace has this name."""

MOST_RESUME_RATE: Final = 1_000
MOST_RESUMED_AGENTS: Final = 100

MARK_OF_DEPLOYMENT: Final = "resumed_all"
MARK_OF_NAMESPACE: Final = "resumed_ns"
"""The fields of a run that say by which hold of the deployment, and of its namespace, it was resumed: its `at_ms`."""

HOLD_PREFIX: Final = "hold:"
RESUMPTION_PREFIX: Final = "resumption:"
COUNT_PREFIX: Final = "count:"
WALKED_PREFIX: Final = "walked:"
"""The fields of PartitionKeys.holds, each with a scope behind it."""


@dataclass(frozen=True)
class Resumption:
    """What goes on of a held scope: runs of these agents, `rate` runs a second beside them (since `paced_ms`), or
    everything. `at_ms` is when it was last changed, `by` whom."""

    agents: tuple[str, ...] = ()
    rate: float | None = None
    everything: bool = False
    at_ms: int = 0
    paced_ms: int = 0
    by: str = ""
    v: int = VERSION


@dataclass(frozen=True)
class ScopeHold:
    """The hold of a namespace, or of the deployment (`scope` is `*`). `resumed_runs` is how many runs were resumed at
    a rate."""

    scope: str
    hold: Hold
    resumption: Resumption | None = None
    resumed_runs: int = 0


@dataclass(frozen=True)
class HeldRun:
    """What decides whether a hold applies to a run. `marks` are the values of its two fields."""

    namespace: str
    agent: str
    created_ms: int
    is_child: bool
    marks: tuple[str | None, str | None] = (None, None)


def is_resumed(held: ScopeHold, run: HeldRun) -> bool:
    """Whether a run of the scope may go on."""
    resumption = held.resumption
    if resumption is None:
        return False
    if resumption.everything or run.agent in resumption.agents:
        return True
    if resumption.rate is None:
        return False
    mark = run.marks[0 if held.scope == DEPLOYMENT else 1]
    return mark == str(held.hold.at_ms) or (run.is_child and run.created_ms >= resumption.paced_ms)


@dataclass(frozen=True)
class DeploymentHolds:
    """All holds that one partition knows, by their scopes."""

    scopes: Mapping[str, ScopeHold]

    def over(self, run: HeldRun) -> list[ScopeHold]:
        """The holds that keep a run from going on."""
        applying = (self.scopes.get(scope) for scope in (DEPLOYMENT, run.namespace))
        return [held for held in applying if held is not None and not is_resumed(held, run)]

    def holds_back(self, namespace: str, agent: str) -> bool:
        """Whether no visit of runs of this agent is published. At a rate they are: workers ask for each run."""
        for scope in (DEPLOYMENT, namespace):
            held = self.scopes.get(scope)
            if held is None:
                continue
            resumption = held.resumption
            if resumption is None or not (
                resumption.everything or resumption.rate is not None or agent in resumption.agents
            ):
                return True
        return False

    @property
    def is_deployment_held(self) -> bool:
        return DEPLOYMENT in self.scopes

    @property
    def holds_everything(self) -> bool:
        """Whether no visit at all may start."""
        held = self.scopes.get(DEPLOYMENT)
        return held is not None and held.resumption is None


NO_HOLDS: Final = DeploymentHolds({})


def holds_in(paused: str | None, fields: Mapping[str, str]) -> DeploymentHolds:
    """The holds from their records. One that cannot be read here still holds; a resumption that cannot, resumes
    nothing."""
    texts = {name.removeprefix(HOLD_PREFIX): text for name, text in fields.items() if name.startswith(HOLD_PREFIX)}
    if paused:
        texts[DEPLOYMENT] = paused
    if not texts:
        return NO_HOLDS
    return DeploymentHolds(
        {
            scope: ScopeHold(
                scope,
                _hold(text),
                _resumption(fields.get(RESUMPTION_PREFIX + scope)),
                _number(fields.get(COUNT_PREFIX + scope)),
            )
            for scope, text in texts.items()
        }
    )


def merged(partitions: Iterable[DeploymentHolds]) -> list[ScopeHold]:
    """The holds of the deployment: one that only some partitions have, because its client died, counts. The oldest
    first."""
    found: dict[str, ScopeHold] = {}
    for holds in partitions:
        for scope, held in holds.scopes.items():
            first = found.get(scope)
            if first is None:
                found[scope] = held
                continue
            older = min(first, held, key=lambda each: each.hold.at_ms)
            resumption = max((first.resumption, held.resumption), key=lambda each: -1 if each is None else each.at_ms)
            found[scope] = ScopeHold(scope, older.hold, resumption, first.resumed_runs + held.resumed_runs)
    return sorted(found.values(), key=lambda held: (held.hold.at_ms, held.scope))


def checked_resumption(agents: Iterable[str], rate: float | None) -> tuple[str, ...]:
    """The agents, each once. Raises UsageError for what is no resumption."""
    names = tuple(dict.fromkeys(agents))
    if not names and rate is None:
        raise UsageError("say what to resume: agents, a rate, or everything")
    if len(names) > MOST_RESUMED_AGENTS:
        raise UsageError(f"{len(names)} agents: a resumption names at most {MOST_RESUMED_AGENTS} at once")
    if rate is not None and not 0 < rate <= MOST_RESUME_RATE:
        raise UsageError(
            f"the rate of a resumption is a number of runs per second, up to {MOST_RESUME_RATE:,}, not {rate:g}"
        )
    return names


def scope_in_words(scope: str) -> str:
    """`the deployment`, `namespace 'shop'`."""
    return "the deployment" if scope == DEPLOYMENT else f"namespace {scope!r}"


def resumption_in_words(held: ScopeHold) -> str:
    """`resumed: agents triage, refund; 5 runs a second (1,200 so far)`."""
    resumption = held.resumption
    if resumption is None:
        return "nothing of it is resumed"
    if resumption.everything:
        return "everything is being resumed"
    parts = []
    if resumption.agents:
        parts.append(f"agent{'' if len(resumption.agents) == 1 else 's'} {', '.join(resumption.agents)}")
    if resumption.rate is not None:
        parts.append(f"{resumption.rate:g} runs a second ({held.resumed_runs:,} so far)")
    return "resumed: " + "; ".join(parts)


def _hold(text: str) -> Hold:
    try:
        return read_text(Hold, text, "hold")
    except RecordUnreadable as error:
        return Hold("?", 0, f"its record cannot be read here: {error.why}")


def _resumption(text: str | None) -> Resumption | None:
    if text is None:
        return None
    try:
        return read_text(Resumption, text, "resumption")
    except RecordUnreadable:
        return None


def _number(text: str | None) -> int:
    return int(text) if text and text.isdecimal() else 0

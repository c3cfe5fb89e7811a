"""What a query of runs asks for, the cursor with which it goes on, and its answers."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sleipnir.errors import UsageError
from sleipnir.messages import STATUSES
from sleipnir.runs.cards import REASONS, STANDINGS, VERSION_CHARS
from sleipnir.runs.conversation_names import DEFAULT_NAMESPACE

if TYPE_CHECKING:
    from sleipnir.runs.views import RunInfo

ANY_NAMESPACE: Final = "*"
_CURSOR: Final = re.compile(r"(\d{1,16})\.([^\s/]{1,100})")


@dataclass(frozen=True)
class RunFilter:
    """Which runs are wanted: all that is given must fit; empty or None fits any. Times are ms, [since, before).

    `namespace` `*` is any. `statuses` and `reasons` (cards.REASONS) choose standings. `version` is the beginning of a
    bundle's digest, `thread` is `agent/name`. `with_children` and `with_rows`: also runs that runs have started, and
    rows of batches; those of a `parent`, or of a `batch`, are wanted if they are named. `text` is searched in the
    beginning of the message of failures, without regard to case, numbers, ids and quoted values; `fingerprint` is that
    of a group of failures."""

    namespace: str = DEFAULT_NAMESPACE
    statuses: frozenset[str] = frozenset()
    reasons: frozenset[str] = frozenset()
    agents: frozenset[str] = frozenset()
    version: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    batch: str | None = None
    thread: str | None = None
    parent: str | None = None
    since_ms: int | None = None
    before_ms: int | None = None
    ended_since_ms: int | None = None
    ended_before_ms: int | None = None
    cost_min: float | None = None
    cost_max: float | None = None
    node: str | None = None
    text: str | None = None
    fingerprint: str | None = None
    with_children: bool = True
    with_rows: bool = True

    def __post_init__(self) -> None:
        """Raises UsageError for what no run can be."""
        for given, known, what in ((self.statuses, STATUSES, "status"), (self.reasons, REASONS, "reason")):
            if unknown := sorted(set(given) - set(known)):
                raise UsageError(f"{unknown[0]!r} is no {what}; there are {', '.join(sorted(known))}")
        for name in ("cost_min", "cost_max"):
            cost = getattr(self, name)
            if cost is not None and not (isinstance(cost, int | float) and math.isfinite(cost) and cost >= 0):
                raise UsageError(f"{name} is an amount in USD of 0 or more, not {cost!r}")

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of runs that may fit."""
        if self.parent is not None:
            return ("child",)
        if self.batch is not None:
            return ("row",)
        return ("run", *(("row",) if self.with_rows else ()), *(("child",) if self.with_children else ()))

    @property
    def standings(self) -> tuple[str, ...]:
        """The standings of the runs that may fit. Only failed runs have failures, only ended ones an end."""
        statuses = self.statuses or STATUSES
        if self.node is not None or self.text is not None or self.fingerprint is not None:
            statuses = statuses & {"failed"}
        if self.ended_since_ms is not None or self.ended_before_ms is not None:
            statuses = statuses & {"completed", "failed", "cancelled"}
        found = []
        for standing in STANDINGS:
            status, _, reason = standing.partition(":")
            if status in statuses and (not self.reasons or reason in self.reasons):
                found.append(standing)
        return tuple(found)

    def fits(self, card: Mapping[str, Any]) -> bool:
        """Whether a run with this card is wanted, whatever list it was found in."""
        return (
            (self.namespace == ANY_NAMESPACE or card.get("ns", DEFAULT_NAMESPACE) == self.namespace)
            and card.get("k", "run") in self.kinds
            and (not self.agents or card["a"] in self.agents)
            and (self.version is None or card["d"].startswith(self.version[:VERSION_CHARS]))
            and (not self.tags or self.tags.items() <= card.get("t", {}).items())
            and (self.batch is None or card.get("b") == self.batch)
            and (self.thread is None or card.get("h") == self.thread)
            and (self.parent is None or card.get("p") == self.parent)
            and _is_in(card["c"], self.since_ms, self.before_ms)
            and self._fits_standing(card["s"])
            and self._fits_end(card)
        )

    def _fits_standing(self, standing: str) -> bool:
        status, _, reason = standing.partition(":")
        return (not self.statuses or status in self.statuses) and (not self.reasons or reason in self.reasons)

    def _fits_end(self, card: Mapping[str, Any]) -> bool:
        is_ended = self.ended_since_ms is not None or self.ended_before_ms is not None
        if is_ended and not ("e" in card and _is_in(card["e"], self.ended_since_ms, self.ended_before_ms)):
            return False
        cost = card.get("u", 0.0)
        if not (self.cost_min or 0) <= cost <= (math.inf if self.cost_max is None else self.cost_max):
            return False
        if self.fingerprint is not None and card.get("f") != self.fingerprint:
            return False
        if self.node is not None and card.get("n") != self.node:
            return False
        return self.text is None or ("m" in card and _has_text(card, self.text))


def _is_in(at_ms: int, since_ms: int | None, before_ms: int | None) -> bool:
    return (since_ms is None or at_ms >= since_ms) and (before_ms is None or at_ms < before_ms)


def _has_text(card: Mapping[str, Any], text: str) -> bool:
    """Whether the message of a failure has a text, or one of the values that are quoted there."""
    from sleipnir.runs.cards import general_message

    return general_message(text).lower() in card["m"].lower() or text.lower() in card.get("q", "")


class ListPosition(NamedTuple):
    """How far a query has looked: at all runs that were submitted later, and at those of the same millisecond whose ids
    are not less than `run`. The same in every partition, because lists are merged by time."""

    at_ms: int
    run: str

    @property
    def cursor(self) -> str:
        return f"{self.at_ms}.{self.run}"

    @classmethod
    def of(cls, cursor: str) -> ListPosition:
        """Raises UsageError."""
        match = _CURSOR.fullmatch(cursor) if isinstance(cursor, str) else None
        if match is None:
            raise UsageError(f"{cursor!r:.80} is no cursor: give the one that came with the page before")
        return cls(int(match[1]), match[2])


class PageOfRuns(list["RunInfo"]):
    """The runs of one page, newest first. `after` is the cursor of the next page; None: there is none. `looked` is how
    many runs were looked at: a page with few runs and a cursor means that few fit, and that the next call goes on."""

    def __init__(self, runs: Collection[RunInfo] = (), after: str | None = None, looked: int = 0) -> None:
        super().__init__(runs)
        self.after, self.looked = after, looked


class RunCount(int):
    """How many runs fit. `is_exact` False: at least that many; counting stopped there."""

    is_exact: bool

    def __new__(cls, count: int, *, is_exact: bool = True) -> RunCount:
        number = super().__new__(cls, count)
        number.is_exact = is_exact
        return number


@dataclass(frozen=True)
class RunCounts:
    """How many runs of a namespace there are by standing (`waiting:person`, `completed`), and in how many of them the
    oldest was submitted, in ms. `is_exact` False: not every run is listed yet, after an upgrade."""

    counts: Mapping[str, int]
    oldest_ms: Mapping[str, int]
    is_exact: bool = True

    @property
    def by_status(self) -> dict[str, int]:
        sums: dict[str, int] = {}
        for standing, count in self.counts.items():
            status = standing.partition(":")[0]
            sums[status] = sums.get(status, 0) + count
        return sums


MOST_NOTE: Final = 1_000
"""Characters of the note with which failures are discarded."""


@dataclass(frozen=True)
class DiscardNote:
    """That a person has dealt with the failures of a group up to `at_ms`, and what was done. `by` is the actor as
    text."""

    note: str
    by: str
    at_ms: int
    v: int = 1


@dataclass(frozen=True)
class FailureGroup:
    """Failed runs that failed alike: the same `agent`, `version` (the beginning of the bundle's digest), failed `node`
    (None: unknown) and `message`, without numbers, ids and quoted values. `fingerprint` is the same for all versions;
    `first_ms` and `last_ms` are ends of runs, `runs` some of them, newest first. Runs that were retried or have
    expired do not count. `discarded`: a person has dealt with it, and no run has failed so since."""

    fingerprint: str
    agent: str
    version: str
    node: str | None
    message: str
    count: int
    first_ms: int
    last_ms: int
    runs: tuple[str, ...] = ()
    discarded: DiscardNote | None = None

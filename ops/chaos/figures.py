"""Recovery times, on Redis' clock: from a fault to the next sign of life in the runs' event streams."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sleipnir.client.client import Client
from sleipnir.runs.views import RunEvent

MESSAGES = "messages"


@dataclass
class Blows:
    """The faults, and their times. Times are Redis' milliseconds."""

    visits: list[tuple[int, str, int, int]] = field(default_factory=list)
    """(at, run, seq, attempt) of every visit that a killed worker held."""
    schedulers: list[tuple[int, frozenset[int]]] = field(default_factory=list)
    """(at, partitions) of every scheduler that was killed."""
    drops: list[tuple[int, frozenset[str]]] = field(default_factory=list)
    """(at, workers that were consuming) of every cut of all connections."""
    outages: list[tuple[int, str]] = field(default_factory=list)
    """(at, name) of every blow to a worker, which excuses it; MESSAGES for a queue that was deleted."""


@dataclass(frozen=True)
class Signs:
    """Signs of life of all runs: commits by partition, claims by worker, and what became of each visit."""

    commits: dict[int, list[int]]
    claims: dict[str, list[int]]
    of_visit: dict[tuple[str, int], list[RunEvent]]


def read(client: Client, run_ids: Iterable[str]) -> Signs:
    commits: dict[int, list[int]] = defaultdict(list)
    claims: dict[str, list[int]] = defaultdict(list)
    of_visit: dict[tuple[str, int], list[RunEvent]] = defaultdict(list)
    for run_id in run_ids:
        partition = client.store.keys.partition_of(run_id)
        for event in client.store.runs.events(run_id, "0"):
            if event.type == "visit_started":
                claims[event.data["worker"].split("@")[0]].append(event.at_ms)
            elif event.type in ("visit_opened", "run_ended"):
                commits[partition].append(event.at_ms)
            if "seq" in event.data:
                of_visit[run_id, event.data["seq"]].append(event)
            elif event.type in ("run_paused", "run_ended"):
                of_visit[run_id, 0].append(event)
    for times in (*commits.values(), *claims.values()):
        times.sort()
    return Signs(dict(commits), dict(claims), dict(of_visit))


def of_visits(blows: Blows, signs: Signs) -> list[float]:
    """Seconds from a worker's death to the next start of each visit it held, or to the question about its outcome.

    Excludes gaps that a person held, and those whose new message was deleted too, because that is another fault.
    """
    gaps_s, seen = [], set()
    for at_ms, run, seq, attempt in blows.visits:
        if (run, seq, attempt) in seen:
            continue  # its worker's successor was killed before the lease lapsed
        seen.add((run, seq, attempt))
        if any(event.at_ms >= at_ms for event in signs.of_visit.get((run, 0), ()) if event.type == "run_paused"):
            continue  # held by a person
        for event in signs.of_visit.get((run, seq), ()):
            again = event.type == "visit_started" and event.data["attempt"] > attempt
            asked = event.type == "gate_opened"
            if event.at_ms >= at_ms and (again or asked):
                if any(name == MESSAGES and at_ms <= at <= event.at_ms for at, name in blows.outages):
                    break
                gaps_s.append((event.at_ms - at_ms) / 1000)
                break
    return gaps_s


def of_schedulers(blows: Blows, signs: Signs) -> list[float]:
    """Seconds from a scheduler's death to the first commit in one of its partitions."""
    gaps_s = []
    for at_ms, partitions in blows.schedulers:
        after = [_first(signs.commits.get(partition, ()), at_ms) for partition in partitions]
        if known := [at for at in after if at is not None]:
            gaps_s.append((min(known) - at_ms) / 1000)
    return gaps_s


def of_drops(blows: Blows, signs: Signs) -> list[float]:
    """Seconds from a cut of all connections until every consumer has consumed: each worker claimed, some run moved.

    A worker that was killed or frozen before its next claim is excused.
    """
    commits = sorted(at for times in signs.commits.values() for at in times)
    gaps_s = []
    for at_ms, workers in blows.drops:
        ends = [_first(commits, at_ms)]
        for name in workers:
            end = _first(signs.claims.get(name, ()), at_ms)
            struck = [
                at for at, whom in blows.outages if whom == name and at_ms - 1000 <= at <= (end or at_ms + 60_000)
            ]
            ends.append(None if struck else end)
        if known := [end for end in ends if end is not None]:
            gaps_s.append((max(known) - at_ms) / 1000)
    return gaps_s


def percentile(values: Sequence[float], share: float) -> float | None:
    """Nearest rank; None for an empty list."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)] if values else None


def _first(times: Sequence[int], at_ms: int) -> int | None:
    index = bisect_left(times, at_ms)
    return times[index] if index < len(times) else None

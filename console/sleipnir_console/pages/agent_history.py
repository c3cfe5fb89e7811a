"""The versions of an agent, by its newest runs: what each did, and what distinguishes the definitions of two.

A version is the digest of a bundle. The numbers of runs are those of the store's lists; success and cost are those of
the newest runs (MOST_RUNS), because the store keeps no cost by version. A version without any of these is not listed.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sleipnir.client.async_client import AsyncClient
from sleipnir.errors import BundleError, RunNotFound
from sleipnir.runs.views import RunInfo
from sleipnir_console.pages.text_difference import ChangedLine, changed_lines

MOST_RUNS: Final = 200
MOST_VERSIONS: Final = 20
VERSION_CHARS: Final = 12
MOST_TEXT: Final = 200_000
"""Characters of each definition that are compared."""
NOW: Final = "now"
"""Stands for the definition that the server has now."""


@dataclass(frozen=True)
class VersionSummary:
    """A version. `runs` is the number of its stored runs; `completed`, `failed` and `cost_usd` (the median of those
    that called a model) are of the `seen` newest ones. `newest` is the last of them."""

    version: str
    runs: int
    is_exact: bool
    seen: int
    completed: int
    failed: int
    cost_usd: float | None
    first_ms: int
    last_ms: int
    newest: str

    @property
    def success(self) -> float | None:
        """The share of the runs that ended by themselves and completed, in percent; None: none did."""
        ended = self.completed + self.failed
        return 100 * self.completed / ended if ended else None


@dataclass(frozen=True)
class VersionDifference:
    """The definitions of two versions, compared. `problem`: one of them is not stored any more."""

    first: str
    second: str
    lines: Sequence[ChangedLine] = ()
    problem: str = ""


async def versions_of(client: AsyncClient, agent: str, namespace: str | None) -> list[VersionSummary]:
    """The versions among the newest runs of an agent, the one used last first."""
    by_version: dict[str, list[RunInfo]] = {}
    for info in await client.runs(MOST_RUNS, agents=[agent], children=True, namespace=namespace):
        if info.version:
            by_version.setdefault(info.version, []).append(info)
    found = []
    for version, runs in list(by_version.items())[:MOST_VERSIONS]:
        count = await client.run_count(version=version, namespace=namespace)
        costs = [run.usage.cost_usd for run in runs if run.usage.calls and run.usage.cost_usd is not None]
        found.append(
            VersionSummary(
                version, int(count), count.is_exact, len(runs),
                sum(run.status == "completed" for run in runs), sum(run.status == "failed" for run in runs),
                statistics.median(costs) if costs else None, runs[-1].created_ms, runs[0].created_ms, runs[0].id,
            )
        )  # fmt: skip
    return found


async def difference_of(
    client: AsyncClient, versions: Sequence[VersionSummary], first: str, second: str, now: str
) -> VersionDifference:
    """What distinguishes the definition of `second` from that of `first`; each is a version, or NOW, whose text is
    `now`."""
    texts = []
    for name in (first, second):
        run = next((each.newest for each in versions if each.version == name), None)
        if name == NOW:
            texts.append(now)
        elif run is None:
            return VersionDifference(first, second, problem=f"no run of version {name[:VERSION_CHARS]} is listed")
        else:
            try:
                texts.append((await (await client.run(run)).source()).text)
            except (BundleError, RunNotFound) as error:
                return VersionDifference(first, second, problem=str(error))
    before, after = (text[:MOST_TEXT].splitlines() for text in texts)
    return VersionDifference(first, second, changed_lines(before, after))

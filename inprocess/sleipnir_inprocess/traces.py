"""Where the execution traces of runs in this process are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from sleipnir.graph.model import Graph
from sleipnir.memory.store import MemoryRun, MemoryStore
from sleipnir.runs.run import RunSpec
from sleipnir.runs.transitions import Step
from sleipnir.runs.views import ChildInfo, Reason, RunInfo, VisitInfo
from sleipnir.runs.visits import Visit


class MemoryTraces:
    """The runs of a store in memory, as a TraceSource. `graph_of` gives the definition of a run."""

    def __init__(self, store: MemoryStore, graph_of: Callable[[RunSpec], Graph]) -> None:
        self._store, self._graph_of = store, graph_of

    def info(self, run_id: str) -> RunInfo:
        run = self._store.run(run_id)
        visits = sorted(run.view.frontier.values(), key=lambda visit: visit.seq)
        return replace(self._store.info(run_id), visits=tuple(_live(run, visit) for visit in visits))

    def children(self, run_id: str) -> list[ChildInfo]:
        return sorted(self._store.run(run_id).children.values(), key=lambda child: child.seq)

    def path(self, run_id: str) -> Sequence[str]:
        return self._store.run(run_id).view.spec.path

    def output(self, run_id: str) -> str | None:
        return self._store.run(run_id).output

    def graph(self, run_id: str) -> Graph:
        return self._graph_of(self._store.run(run_id).view.spec)

    def entries(self, run_id: str, until: int | None = None) -> Iterator[tuple[Step, Mapping[str, str]]]:
        return iter(self._store.run(run_id).values.journal[:until])


def _live(run: MemoryRun, visit: Visit) -> VisitInfo:
    """A live visit of a run that waits; its reason is not known here."""
    is_claimed = visit.state == "queued" and run.claims.get(visit.seq) == visit.attempt
    state = "started" if is_claimed else "waiting" if visit.state == "failed" else visit.state
    item = None if visit.item is None else (visit.item.map, visit.item.index)
    return VisitInfo(
        visit.seq, visit.node, visit.kind, visit.attempt, state, visit.opened_ms, Reason("queued"),
        role=visit.role, item=item, part=visit.part,
    )  # fmt: skip

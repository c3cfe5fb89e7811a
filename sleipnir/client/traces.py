"""Where the execution traces of stored runs are read."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from sleipnir.client.pinned_graph import pinned_graph
from sleipnir.errors import SleipnirError
from sleipnir.graph.model import Graph
from sleipnir.runs.transitions import Step
from sleipnir.runs.views import ChildInfo, RunInfo
from sleipnir.store.store import Store


class StoredRuns:
    """The runs of a deployment, as a TraceSource."""

    def __init__(self, store: Store, after: Mapping[str, int] | None = None) -> None:
        """`after`: of these runs only the journal steps after this one are read."""
        self._store, self._after = store, after or {}

    def info(self, run_id: str) -> RunInfo:
        return self._store.runs.info(run_id)

    def children(self, run_id: str) -> list[ChildInfo]:
        return self._store.runs.children([run_id])[run_id]

    def path(self, run_id: str) -> Sequence[str]:
        return self._store.runs.spec(run_id).path

    def output(self, run_id: str) -> str | None:
        return self._store.runs.output(run_id)

    def graph(self, run_id: str) -> Graph | None:
        try:
            return pinned_graph(self._store, self._store.runs.spec(run_id))
        except SleipnirError:
            return None

    def entries(self, run_id: str, until: int | None = None) -> Iterator[tuple[Step, Mapping[str, str]]]:
        after = self._after.get(run_id)
        if after is None:
            return self._store.runs.written(run_id, until)
        entries = self._store.runs.written_after(run_id, after + 1)
        return itertools.takewhile(lambda entry: until is None or entry[0].step < until, entries)

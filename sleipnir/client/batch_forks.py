"""Batches of forks: each row goes on from the run of a row of another batch, its source.

A row is stored as a reference. Where its fork begins is found out when the row is admitted, so a batch of any size is
accepted at once; a row that cannot be forked fails with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from sleipnir.batches.records import BatchFork, BatchPlan, check_plan, fork_text, row_run_id
from sleipnir.batches.rows import BadRow
from sleipnir.client import forks
from sleipnir.client.batch import CHUNK, SubmittedRows
from sleipnir.client.comparison import rows_compared
from sleipnir.client.options import ForkChanges
from sleipnir.client.pinned_graph import pinned_graph
from sleipnir.client.preparation import BATCH_ID, NO_BATCH_ID
from sleipnir.errors import BatchNotFound, UsageError
from sleipnir.graph.expression import Expression, ExpressionError, parse

if TYPE_CHECKING:
    from sleipnir.client.batch import OnBad, OnProgress
    from sleipnir.client.preparation import Preparation
    from sleipnir.runs.comparison import ComparedRun
    from sleipnir.runs.run import RunSpec
    from sleipnir.store.store import Store

NAMES: Final = ("key", "row", "status", "output", "error", "tokens", "cost", "seconds", "path", "state", "variables")
"""What an expression that chooses rows sees of each."""

READ_ROWS: Final = 100
"""Rows that are read at once for an expression."""


@dataclass(frozen=True)
class RowChoice:
    """Which rows are forked: of those that have a run, only the failed ones, or those for which an expression holds."""

    failed: bool = False
    where: Expression | None = None


def row_choice(failed: bool, where: str | None) -> RowChoice:
    """Raises UsageError for what is no expression."""
    try:
        return RowChoice(failed, None if where is None else parse(where, NAMES))
    except ExpressionError as error:
        raise UsageError(f"the rows cannot be chosen: {error}") from error


class BatchForking:
    """Adds forks of the rows of a batch to another one."""

    def __init__(
        self,
        store: Store,
        source: str,
        chosen: RowChoice,
        *,
        on_bad: OnBad | None = None,
        on_progress: OnProgress | None = None,
    ) -> None:
        self._store, self._source, self._chosen = store, source, chosen
        self._on_bad, self._on_progress = on_bad, on_progress
        self._spec: RunSpec | None = None
        self.so_far = SubmittedRows()

    def submit(
        self,
        preparation: Preparation,
        batch_id: str | None,
        plan: BatchPlan,
        *,
        at: int | None,
        before: str | None,
        changes: ForkChanges,
    ) -> str:
        """Returns the id of the batch. Raises as Client.fork_batch."""
        if at is not None and before is not None:
            raise UsageError("forks begin at a step or before a node, not both")
        check_plan(plan)
        with self._store.errors():
            spec = self._spec = self._store.batches.spec(self._source)
            if spec is None:
                raise BatchNotFound(f"no batch {self._source!r}")
            source_graph = pinned_graph(self._store, spec)
        again, graph, roster = preparation.fork(spec, changes)
        again = again.of_author(self._store.person.name)
        forks.refuse_kind(f"batch {self._source!r}", spec)
        for where in (source_graph, graph):
            if before is not None and before not in where.nodes:
                raise UsageError(f"the graph {where.name!r} has no node {before!r}; it has: {', '.join(where.nodes)}")
        values = forks.stored_values(graph, changes.state)
        agent = None if changes.agent is None else str(changes.agent)
        nodes = again.of_nodes if changes.overrides or changes.patches else None
        fork = BatchFork(self._source, at, before, tuple(values), agent, changes.model, nodes)
        batch = preparation.batch_id() if batch_id is None else batch_id
        self._refuse_other(batch, fork)
        with self._store.errors():
            if roster is not None:
                preparation.offer(roster)
        self._add(batch, again, replace(plan, fork=fork), values)
        return batch

    def _refuse_other(self, batch: str, fork: BatchFork) -> None:
        """Raises UsageError for the id of a batch that is another one."""
        if not BATCH_ID.fullmatch(batch):
            raise UsageError(NO_BATCH_ID.format(batch))
        with self._store.errors():
            spec, known = self._store.batches.spec(batch), self._store.batches.fork_of(batch)
        if spec is not None and (known is None or known[0] != fork):
            raise UsageError(
                f"batch {batch!r} exists, and its rows are no forks of {self._source!r} with these parameters; "
                "give another name"
            )

    def _add(self, batch: str, spec: RunSpec, plan: BatchPlan, values: Mapping[str, Any]) -> None:
        for page in self._pages():
            with self._store.errors():
                rows = [(key, fork_text(row_run_id(self._source, row))) for key, row in page]
                added = self._store.batches.add(batch, spec, plan, rows, fork_state=values)
            so_far = self.so_far
            self.so_far = replace(so_far, added=so_far.added + added.added, known=so_far.known + added.known)
            if self._on_progress is not None:
                self._on_progress(self.so_far)
        if not self.so_far.added and not self.so_far.known:
            raise UsageError(f"no row of batch {self._source!r} is to be forked; nothing was submitted")
        with self._store.errors():
            self._store.batches.seal(batch)

    def _pages(self) -> Iterator[list[tuple[str, int]]]:
        """The chosen rows."""
        chunk: list[tuple[str, int]] = []
        for names, first in self._names():
            with self._store.errors():
                states = self._store.batches.states(self._source, first, first + len(names) - 1)
                rows = [(key, first + at) for at, key in enumerate(names) if self._is_candidate(states[at])]
                has_run = self._store.batches.started(self._source, [row for _, row in rows])
            chunk += self._where(
                [row for row, found in zip(rows, has_run, strict=True) if self._has_run(row[0], found)]
            )
            if len(chunk) >= CHUNK:
                yield chunk
                chunk = []
        if chunk:
            yield chunk

    def _names(self) -> Iterator[tuple[list[str], int]]:
        first = 0
        while True:
            with self._store.errors():
                names = self._store.batches.names(self._source, first)
            if not names:
                return
            yield names, first
            first += len(names)

    def _is_candidate(self, state: str) -> bool:
        """By the byte of its state: a row that waits has nothing to go on from."""
        return state == "f" if self._chosen.failed else state != "w"

    def _has_run(self, key: str, found: bool) -> bool:
        if not found:
            self._refuse(key, "it has no run to go on from: it did not start, or its run has expired")
        return found

    def _where(self, rows: list[tuple[str, int]]) -> list[tuple[str, int]]:
        expression = self._chosen.where
        if expression is None:
            return rows
        held: list[tuple[str, int]] = []
        for at in range(0, len(rows), READ_ROWS):
            page = rows[at : at + READ_ROWS]
            reads_paths = "path" in expression.text
            with self._store.errors():
                sides = rows_compared(self._store, [(self._source, row) for _, row in page], paths=reads_paths)
            held += [row for row, side in zip(page, sides, strict=True) if side and self._holds(expression, row, side)]
        return held

    def _holds(self, expression: Expression, row: tuple[str, int], side: ComparedRun) -> bool:
        assert self._spec is not None
        values = {**side.to_data(), "key": row[0], "row": row[1] + 1, "variables": dict(self._spec.variables)}
        values["state"] = side.values() if "state" in expression.text else {}
        try:
            return expression.is_true(values)
        except ExpressionError as error:
            self._refuse(row[0], str(error))
            return False

    def _refuse(self, key: str, why: str) -> None:
        self.so_far = replace(self.so_far, bad=self.so_far.bad + 1)
        if self._on_bad is not None:
            self._on_bad(BadRow(f"row {key}", why))

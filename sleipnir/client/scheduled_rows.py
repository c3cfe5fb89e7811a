"""The rows of a schedule: checked as those of a batch when the schedule is added, and stored beside it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sleipnir.batches.records import DEFAULT_PRIORITY, BatchPlan
from sleipnir.client.batch import Given, RowSubmission
from sleipnir.errors import UsageError
from sleipnir.schedules.records import MOST_ROWS, MOST_ROWS_BYTES, ScheduledBatch
from sleipnir.store.batches.rows import AddedRows

if TYPE_CHECKING:
    from sleipnir.batches.rows import BadRow
    from sleipnir.client.preparation import PreparedBatch
    from sleipnir.settings import Settings
    from sleipnir.store.store import Store

SHOWN_BAD: Final = 5


@dataclass(frozen=True)
class ScheduleRows:
    """What each fire of a schedule submits, as Client.batch takes it: `rows`, the column `key` that identifies them,
    and how they are run. `name` None: that of the schedule."""

    rows: Iterable[Given]
    key: str | None = None
    name: str | None = None
    priority: int = DEFAULT_PRIORITY
    parallel: int | None = None
    canary: int | None = None

    def plan(self, schedule: str, max_cost_usd: float | None, max_tokens: int | None) -> BatchPlan:
        """The plan of the batches of a schedule of this name."""
        name = schedule if self.name is None else self.name
        return BatchPlan(name, self.priority, self.parallel, self.canary, max_cost_usd, max_tokens)


def stored(
    store: Store, settings: Settings, batch: PreparedBatch, given: ScheduleRows, schedule: str, token: str
) -> ScheduledBatch:
    """Store the rows of a schedule that is to be added. Raises UsageError if a row cannot be run, or if there are too
    many; none is stored then."""
    submission = _ScheduleSubmission(store, settings, batch, schedule, token)
    try:
        try:
            submission.add_all(given.rows, given.key)
        finally:
            submission.refuse_bad()
    except BaseException:
        with store.errors():
            store.scheduled_batches.drop_staged(schedule, token)
        raise
    plan = batch.plan
    return ScheduledBatch(
        submission.so_far.added, plan.name, plan.priority, plan.parallel, plan.canary, plan.max_cost_usd,
        plan.max_tokens,
    )  # fmt: skip


class _ScheduleSubmission(RowSubmission):
    """Adds rows to a schedule."""

    def __init__(self, store: Store, settings: Settings, batch: PreparedBatch, schedule: str, token: str) -> None:
        super().__init__(store, settings, batch, on_bad=self._note)
        self._schedule, self._token, self._size = schedule, token, 0
        self._bad: list[BadRow] = []

    def _note(self, bad: BadRow) -> None:
        if len(self._bad) < SHOWN_BAD:
            self._bad.append(bad)

    def _add(self, rows: Sequence[tuple[str, str]]) -> AddedRows:
        self._size += sum(len(key) + len(text) for key, text in rows)
        if self.so_far.added + len(rows) > MOST_ROWS or self._size > MOST_ROWS_BYTES:
            raise UsageError(
                f"the rows of a schedule are at most {MOST_ROWS:,} and {MOST_ROWS_BYTES // 2**20} MiB: submit larger "
                "batches with `batch submit` from a crontab"
            )
        with self._store.errors():
            self._store.scheduled_batches.stage(self._schedule, self._token, rows)
        return AddedRows(len(rows), 0, ())

    def _seal(self) -> None:
        """The schedule is added by its own script."""

    def refuse_bad(self) -> None:
        """Raises UsageError if a row was refused: a schedule would leave it out each time."""
        if self._bad:
            more = self.so_far.bad - len(self._bad)
            listed = "; ".join(map(str, self._bad)) + (f"; and {more:,} more" if more else "")
            raise UsageError(f"{self.so_far.bad:,} rows cannot be run, and no schedule is added: {listed}")

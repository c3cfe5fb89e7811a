"""The rows of batches in cells, in pages and by their ends, on a real Redis: also of a million rows."""

from __future__ import annotations

import time

import pytest

from sleipnir.batches.records import BatchPlan, row_run_id
from sleipnir.batches.rollups import WORST_FIRST, EndedRows, RowGrid
from sleipnir.client.batch import Batch
from sleipnir.errors import BatchNotFound
from sleipnir.store.batches import rollups
from sleipnir.store.batches.rollups import READ_ROWS
from sleipnir.store.connect import server_infos
from sleipnir.store.store import Store
from tests.store.test_batches import ID, SPEC, World, rows

OTHER = "batch0000002"


def with_states(store: Store, states: str, batch: str = ID) -> Batch:
    """A batch whose rows have these states; they have no runs."""
    store.batches.add(batch, SPEC, BatchPlan(), rows(*range(min(len(states), 500))))
    store._client.set(store.keys.of_batch(batch).states, states)
    store._client.hset(store.keys.of_batch(batch).batch, "total", len(states))
    return Batch(store, batch)


def test_a_small_batch_has_a_cell_for_each_row(store: Store) -> None:
    assert with_states(store, "cfxaw").grid() == RowGrid(1, ("completed", "failed", "cancelled", "active", "waiting"))


def test_a_cell_has_the_worst_of_its_states(store: Store) -> None:
    batch = with_states(store, "cwxacwxccwcccccccfxacc")
    assert batch.grid(6) == RowGrid(4, ("active", "cancelled", "waiting", "completed", "failed", "completed"))
    assert set(WORST_FIRST) == {"active", "cancelled", "waiting", "completed", "failed"}


def test_a_batch_without_rows_has_no_cells(store: Store) -> None:
    assert store.batch_rollups.grid("nothing").cells == ()


@pytest.mark.parametrize("most", [1, 7, 1_240])
def test_cells_larger_than_one_read_are_read_in_parts(store: Store, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollups, "READ_ROWS", 10)
    states = "c" * 1_000 + "f" + "c" * 999
    grid = with_states(store, states).grid(most)
    assert len(grid.cells) <= most
    assert (len(grid.cells) - 1) * grid.rows_per_cell < 2_000 <= len(grid.cells) * grid.rows_per_cell
    assert [cell for cell, state in enumerate(grid.cells) if state == "failed"] == [1_000 // grid.rows_per_cell]


def test_a_million_rows_are_read_in_short_calls(store: Store) -> None:
    """Redis works on each call for less than 20 ms; all of them take less than a page may."""
    states = ("c" * 9_999 + "f") * 100
    batch = with_states(store, states)
    store._client.config_resetstat()
    began = time.monotonic()
    grid = batch.grid()
    took_s = time.monotonic() - began
    assert (len(grid.cells), grid.rows_per_cell) == (1_240, 807)
    assert grid.cells.count("failed") == 100
    stats = [info.get("cmdstat_evalsha") for info in server_infos(store._client, "commandstats")]
    calls = max(filter(None, stats), key=lambda each: each["calls"])
    assert calls["calls"] >= 20, "in pieces"
    assert calls["usec_per_call"] < 20_000
    assert took_s < 5, "on a loaded machine; it takes some milliseconds"


def test_a_page_of_rows_has_their_runs(store: Store) -> None:
    world = World(store, count=3)
    world.go_on()
    world.answer(1, "yes")
    page = world.batch.rows()
    assert [(each.row, each.key, each.state) for each in page.rows] == [
        (0, "k0", "active"), (1, "k1", "completed"), (2, "k2", "active")
    ]  # fmt: skip
    assert [each.info.id for each in page.rows if each.info] == [row_run_id(ID, row) for row in range(3)]
    assert (page.looked, page.after) == (3, None)
    assert [each.row for each in world.batch.rows("completed").rows] == [1]
    assert [each.row for each in world.batch.rows(start=2).rows] == [2]


def test_pages_of_rows_follow_each_other(store: Store) -> None:
    batch = with_states(store, "wfwfwfwfw")
    seen, after = list[int](), 0
    while after is not None:
        page = batch.rows("failed", start=after, limit=2)
        seen += [each.row for each in page.rows]
        after = page.after  # type: ignore[assignment]
    assert seen == [1, 3, 5, 7]
    assert batch.rows(start=100).rows == ()


def test_a_page_stops_after_many_rows_that_do_not_fit(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollups, "MOST_LOOKED", 2 * READ_ROWS)
    batch = with_states(store, "c" * (3 * READ_ROWS) + "f")
    page = batch.rows("failed")
    assert (page.rows, page.looked, page.after) == ((), 2 * READ_ROWS, 2 * READ_ROWS)
    assert [each.row for each in batch.rows("failed", start=2 * READ_ROWS).rows] == [3 * READ_ROWS]


def test_a_row_that_did_not_become_a_run_says_why(store: Store) -> None:
    world = World(store, count=1)
    world.admit()
    from sleipnir.store.scripts import run_in_order

    run_in_order(store._client, [store.batches.refused(f"{ID}/0", "the graph is gone", "{}")])
    [row] = world.batch.rows("failed").rows
    assert (row.info, row.error) == (None, "the graph is gone")


def test_ended_rows_are_counted_over_time(store: Store) -> None:
    batch = with_states(store, "cccc")
    for row, at_ms in enumerate((1_000, 2_000, 9_000, 4_000)):
        store._client.rpush(store.keys.of_batch(ID).ends, row)
        store._client.hset(store.keys.of_run(row_run_id(ID, row)).run, "ended_ms", at_ms)
    # Row 2 was retried, and ended again after row 3: its first end is not known any more.
    assert batch.ended_rows() == [EndedRows(1_000, 1), EndedRows(2_000, 2), EndedRows(4_000, 4)]
    assert batch.ended_rows(2) == [EndedRows(1_000, 1), EndedRows(4_000, 4)]
    assert Batch(store, "nothing").ended_rows() == []


def test_two_batches_are_compared_a_page_at_a_time(store: Store) -> None:
    a, b = with_states(store, "www"), Batch(store, OTHER)
    store.batches.add(OTHER, SPEC, BatchPlan(), rows(2, 3, 4, 1))
    found, after, pages = list[tuple[str | None, str]](), 0, 0
    while after is not None:
        page = a.comparisons(b, start=after, limit=2)
        found += [(each.key, each.outcome) for each in page.comparisons]
        after, pages = page.after, pages + 1  # type: ignore[assignment]
    assert found == [("k0", "only_a"), ("k1", "same"), ("k2", "same"), ("k3", "only_b"), ("k4", "only_b")]
    assert pages == 4
    with pytest.raises(BatchNotFound):
        a.comparisons("nothing")

"""What is read of runs to compare them."""

from __future__ import annotations

from typing import Any

import pytest

from sleipnir.runs.run import RunSpec
from sleipnir.runs.transitions import Closing, Step
from sleipnir.store.record_text import record
from sleipnir.store.runs import compared_runs
from sleipnir.store.store import Store

A, B, C = "run000000001", "run000000002", "run000000003"


def create(store: Store, run: str, *steps: Step, **fields: Any) -> None:
    """A run with these steps after its first one."""
    assert store.runs.create(run, RunSpec("agent", "digest"), {"x": 1})
    keys = store.keys.of_run(run)
    for step in steps:
        store._client.rpush(keys.journal, record(step))
    if fields:
        store._client.hset(keys.run, mapping=fields)


def visit(step: int, seq: int, node: str, **fields: Any) -> Step:
    return Step(step, "script", 0, seq=seq, node=node, **fields)


def paths(store: Store, *runs: str) -> list[tuple[tuple[str, ...], int]]:
    return [(side.path, side.visits) for side in store.runs.compared(runs) if side is not None]


def test_a_path_has_the_visits_in_the_order_in_which_they_were_opened(store: Store) -> None:
    """Parallel visits end in any order; items, turns and requests are none."""
    create(
        store, A, visit(1, 1, "a"), visit(2, 3, "c", held=True), visit(3, 2, "b", applies=(2, 3)),
        visit(4, 5, "each", item=(4, 0)), Step(5, "paused", 0, by="ann"), visit(6, 4, "each", ok=False),
    )  # fmt: skip
    create(store, B, visit(1, 1, "a"), visit(2, 2, "b", held=True), visit(3, 3, "c", applies=(2, 3)))
    assert paths(store, A, B) == [(("a", "b", "c", "each"), 4), (("a", "b", "c"), 3)]


def test_in_a_dag_the_visit_order_is_that_of_the_ranks(store: Store) -> None:
    ranks: Any = [(1, "", "", 0), (3, "", "", 0), (2, "", "", 0)]
    create(store, A, *(visit(n, n, node, rank=rank) for n, node, rank in zip((1, 2, 3), "acb", ranks, strict=True)))
    assert paths(store, A) == [(("a", "b", "c"), 3)]


def test_a_long_path_is_read_in_pages_and_kept_up_to_a_limit(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compared_runs, "MOST_PATH", 260)
    create(store, A, *(visit(n, n, f"n{n}") for n in range(1, 301)))
    [side] = store.runs.compared([A])
    assert side is not None and (len(side.path), side.path[-1], side.visits) == (260, "n260", 300)


def test_the_path_of_a_fork_begins_with_that_of_its_source(store: Store) -> None:
    create(store, A, visit(1, 1, "a", closing=Closing(("b",))), visit(2, 2, "b"), visit(3, 3, "c"))
    for run, past, node in ((B, (A, 1), "x"), (C, (B, 1), "y")):
        create(store, run, visit(1, 1, node))
        begin = record(Step(0, "forked", 0, past=past))
        store._client.lset(store.keys.of_run(run).journal, 0, begin)
    assert paths(store, B) == [(("a", "x"), 2)]
    assert paths(store, C, A) == [(("a", "x", "y"), 3), (("a", "b", "c"), 3)]
    store._client.delete(store.keys.of_run(A).journal)
    assert paths(store, C) == [(("...", "x", "y"), 2)], "its beginning has expired"


def test_only_what_is_over_has_an_output_and_a_time(store: Store) -> None:
    create(store, A, status="completed", started_ms=1_000, ended_ms=3_500, tokens_in=5, tokens_out=2, model_calls=1)
    create(store, B, status="running", started_ms=1_000, ended_ms=3_500, cost_usd="0.5", model_calls=1)
    for run in (A, B):
        store._client.set(store.keys.of_run(run).output, "text")
    a, b, gone = store.runs.compared([A, B, C])
    assert a is not None and b is not None and gone is None
    assert (a.output, a.took_ms, a.tokens, a.cost_usd, a.values()) == ("text", 2_500, 7, 0.0, {"x": 1})
    assert (b.output, b.took_ms, b.cost_usd, b.is_over) == (None, None, 0.5, False)
    store._client.hset(store.keys.of_run(A).run, "unpriced_calls", 1)
    [a] = store.runs.compared([A])
    assert a is not None and a.cost_usd is None


def test_a_run_that_cannot_be_read_does_not_hide_the_others(store: Store) -> None:
    for run in (A, B, C):
        create(store, run, visit(1, 1, "a"))
    store._client.rpush(store.keys.of_run(A).journal, '{"v": 99}')
    store._client.hset(store.keys.of_run(B).run, "tokens_in", "many")
    a, b, c = store.runs.compared([A, B, C])
    assert a is not None and b is not None and c is not None
    assert (a.status, b.status, c.path) == ("unreadable", "unreadable", ("a",))
    assert "written by a newer release" in str(a.error) and "damaged" in str(b.error)

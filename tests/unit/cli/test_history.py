"""The table of a run's steps."""

from __future__ import annotations

from typing import Any

from sleipnir.cli.runs.history import history_table, with_late_results
from sleipnir.cli.terminal.render import plain_table
from sleipnir.runs.views import LateResult, StepInfo
from sleipnir.runs.visits import Part


def step(number: int, node: str | None, **more: Any) -> StepInfo:
    usual: dict[str, Any] = {
        "kind": "function", "at_ms": number, "seq": number, "attempt": 1, "ok": True, "next": None, "error": None,
        "took_ms": 10, "worker": "w", "keys": (),
    }  # fmt: skip
    return StepInfo(step=number, node=node, **(usual | more))


STEPS = [
    step(0, None, kind="submitted", seq=None, took_ms=0, keys=("items",), checkpoint=True),
    step(1, "split", next=("side", "fan"), checkpoint=True),
    step(2, "work", seq=4, item=(3, 0), took_ms=20),
    step(3, "side", seq=2, keys=("a", "b"), next="meet"),
    step(4, "work", seq=6, item=(3, 2), ok=False, error="Boom", took_ms=1_500),
    step(5, "work", seq=5, item=(3, 1)),
    step(6, "fan", seq=3, kind="map", keys=("results",), next="meet", checkpoint=True),
]


def test_the_items_of_a_map_are_one_row_where_the_first_of_them_ended() -> None:
    columns, rows = history_table(STEPS, {3: "fan"}, each_item=False)
    assert plain_table(columns, rows) == [
        "STEP  NODE   KIND                                          TOOK   WROTE    NEXT       CHECKPOINT  ERROR",
        "0     -      submitted                                     0ms    items    -          yes         -",
        "1     split  function                                      10ms   -        side, fan  yes         -",
        "2-5   fan    items 0-2: 3 visits, 1 failed, slowest 1.50s  1.53s  -        -          -           Boom",
        "3     side   function                                      10ms   a, b     meet       -           -",
        "6     fan    map                                           10ms   results  meet       yes         -",
    ]


def test_each_item_has_a_row_where_that_is_wanted() -> None:
    columns, rows = history_table(STEPS, {3: "fan"}, each_item=True)
    assert [row[:3] for row in rows if "item" in row[2]] == [
        ["2", "work", "function, item 0"],
        ["4", "work", "function, item 2"],
        ["5", "work", "function, item 1"],
    ]
    assert "error" in columns


def test_turns_and_calls_of_an_items_loop_are_listed_only_with_each_item() -> None:
    steps = [
        step(2, "ask", seq=6, item=(3, 0), role="turn", part=Part(5, 0), calls=("look",)),
        step(3, "own", seq=9, role="turn", part=Part(8, 0)),
        step(4, "ask", seq=7, role="tool", part=Part(5, 0, 0, "look")),
        step(5, "ask", seq=5, item=(3, 0)),
    ]
    _, rows = history_table(steps, {3: "fan"}, each_item=False)
    assert [row[:3] for row in rows] == [
        ["3", "own", "function, turn 1"],
        ["5", "fan", "item 0: 1 visit, slowest 10ms"],
    ]
    _, rows = history_table(steps, {3: "fan"}, each_item=True)
    assert [row[2] for row in rows][:3] == [
        "function, item 0, turn 1: look", "function, turn 1", "function, look of turn 1",
    ]  # fmt: skip


def test_a_turn_without_calls_that_was_not_the_last_reports_that_it_continues() -> None:
    parts = [step(2, "ask", part=Part(1, 0), calls=("look",)), step(3, "ask", part=Part(1, 1), goes_on=True)]
    _, rows = history_table([*parts, step(4, "ask", part=Part(1, 2))], {}, each_item=False)
    assert [row[2] for row in rows] == ["function, turn 1: look", "function, turn 2, continues", "function, turn 3"]


def test_a_single_item_is_described_as_one_and_an_unknown_map_has_the_name_of_its_body() -> None:
    _, rows = history_table([step(7, "work", item=(99, 4))], {}, each_item=False)
    assert rows == [["7", "work", "item 4: 1 visit, slowest 10ms", "10ms", "", "", ""]]


def test_ten_thousand_items_are_one_row() -> None:
    steps = [step(number, "work", item=(1, number - 2)) for number in range(2, 10_002)]
    _, [row] = history_table(steps, {1: "fan"}, each_item=False)
    assert row[:4] == ["2-10001", "fan", "items 0-9999: 10,000 visits, slowest 10ms", "1m40s"]


def test_what_chose_a_way_and_what_folded_is_named() -> None:
    steps = [step(1, "a", kind="branch", role="branch", next="b"), step(2, "a", kind="reduce", role="reduce")]
    assert [row[2] for row in history_table(steps, {}, each_item=False)[1]] == ["branch", "reduce"]


def test_a_late_result_is_listed_at_its_time_with_the_columns_for_it() -> None:
    entries = with_late_results([step(1, "a"), step(5, "b", attempt=2)], [LateResult(3, 2, "b", 1, "w9")])
    columns, rows = history_table(entries, {}, each_item=False)
    assert columns == ["step", "node", "kind", "took", "wrote", "next", "checkpoint", "attempt", "worker"]
    assert rows[1] == ["", "b", "late result refused", "", "", "", "", "1", "w9"]

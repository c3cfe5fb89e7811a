"""The state at a step, folded from the journal: held steps, reducers, and what ended out of order."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sleipnir.runs import journal
from sleipnir.runs.journal import StateFold, state_after
from sleipnir.runs.state_differences import StateDifference


def entry(step: int, values: dict[str, Any] | None = None, **header: Any) -> str:
    lines = [json.dumps({"step": step, "kind": "visit", "at_ms": 0, "v": 1, **header})]
    for key, value in (values or {}).items():
        lines += [json.dumps(key), json.dumps(value)]
    return "\n".join(lines)


def states(*entries: str) -> list[dict[str, Any]]:
    """The state after each step."""
    return [state_after(entries[: count + 1]) for count in range(len(entries))]


def test_without_branches_the_last_write_counts() -> None:
    assert states(entry(0, {"a": 1, "b\n": 2}), entry(1, {"a": [1, None]}), entry(2)) == [
        {"a": 1, "b\n": 2},
        {"a": [1, None], "b\n": 2},
        {"a": [1, None], "b\n": 2},
    ]


def test_the_writes_of_a_super_step_count_when_it_closes_and_in_visit_order() -> None:
    found = states(
        entry(0, {"k": "before"}),
        entry(1, {"k": "of b", "b": 1}, held=True),
        entry(2, {"k": "of a", "a": 1}, held=True, applies=[2, 1]),
        entry(3, {"k": "after"}),
    )
    assert [state["k"] for state in found] == ["before", "before", "of b", "after"]
    assert (found[1], found[2]) == ({"k": "before"}, {"k": "of b", "a": 1, "b": 1})


def test_a_step_that_never_closed_left_nothing() -> None:
    assert state_after([entry(0, {"k": 1}), entry(1, {"k": 2}, held=True), entry(2, {"e": 1})]) == {"k": 1, "e": 1}


def test_updates_are_folded_in_visit_order_into_what_was_there() -> None:
    folds = {"log": "append", "n": "sum"}
    found = states(
        entry(0, {"log": ["start"], "n": 1}),
        entry(1, {"log": "b", "n": 10}, held=True, folds=folds),
        entry(2, {"log": ["a", "a"], "n": 100, "p": 1}, held=True, folds=folds, applies=[2, 1]),
        entry(3, {"log": "alone"}, folds=folds),
    )
    assert found[2:] == [
        {"log": ["start", "a", "a", "b"], "n": 111, "p": 1},
        {"log": ["start", "a", "a", "b", "alone"], "n": 111, "p": 1},
    ]


def test_an_update_keeps_the_sense_that_its_block_gives_to_its_reducer() -> None:
    write = {"log": ["a"]}
    strict = entry(1, write, folds={"log": "append"}, strict=True)
    assert state_after([entry(0), strict]) == {"log": [["a"]]}
    assert state_after([entry(0), entry(1, write, folds={"log": "append"})]) == {"log": ["a"]}


def test_a_write_without_a_change_is_no_update_if_the_step_marks_it() -> None:
    folds = {"n": "sum"}
    found = state_after(
        [
            entry(0, {"n": 1}),
            entry(1, {"n": 1, "x": 1}, held=True, folds=folds),
            entry(2, {"n": 5}, held=True, folds=folds, applies=[1, 2], skips={"1": ["n"]}),
        ]
    )
    assert found == {"n": 6, "x": 1}


def test_what_the_agents_own_reducer_made_of_updates_is_taken_from_its_visit() -> None:
    folds = {"best": "fold.py:best", "log": "append"}
    found = states(
        entry(0, {"best": 1}),
        entry(1, {"best": 7, "log": "a"}, held=True, folds=folds),
        entry(2, {"best": 3, "log": "b"}, held=True, folds=folds),
        entry(3, {"best": 7}, role="reduce", applies=[1, 2]),
    )
    assert found[1:] == [{"best": 1}, {"best": 1}, {"best": 7, "log": ["a", "b"]}]


def test_in_a_dag_an_update_is_folded_where_its_rank_puts_it() -> None:
    folds = {"log": "append"}
    found = states(
        entry(0, {"log": ["start"]}),
        entry(1, {"log": "second"}, folds=folds, rank=[2, "b", "", 0]),
        entry(2, {"log": "third"}, folds=folds, rank=[3, "a", "", 0]),
        entry(3, {"log": "first"}, folds=folds, rank=[2, "a", "", 0]),
    )
    assert [state["log"] for state in found] == [
        ["start"],
        ["start", "second"],
        ["start", "second", "third"],
        ["start", "first", "second", "third"],
    ]


def test_in_a_dag_a_value_of_a_lower_rank_comes_too_late() -> None:
    found = states(
        entry(0, {"k": 0}),
        entry(1, {"k": "high"}, rank=[2, "b", "", 0]),
        entry(2, {"k": "low", "other": 1}, rank=[2, "a", "", 0]),
        entry(3, {"k": "higher"}, rank=[3, "a", "", 0]),
    )
    assert [state["k"] for state in found] == [0, "high", "high", "higher"]


def test_in_a_dag_the_last_reduction_counts_for_every_cause() -> None:
    folds = {"k": "fold.py:both"}
    found = states(
        entry(0),
        entry(1, {"k": 1}, held=True, folds=folds, rank=[2, "b", "", 0]),
        entry(2, {"k": [1]}, role="reduce", rank=[2, "b", "", 0], applies=[1]),
        entry(3, {"k": 2}, held=True, folds=folds, rank=[2, "a", "", 0]),
        entry(4, {"k": [2, 1]}, role="reduce", rank=[2, "a", "", 0], applies=[3]),
    )
    assert found == [{}, {}, {"k": [1]}, {"k": [1]}, {"k": [2, 1]}]


def test_an_update_that_overwrites_replaces_what_came_before_it_and_not_what_came_after() -> None:
    folds = {"log": "append"}
    found = states(
        entry(0, {"log": ["start"]}),
        entry(1, {"log": ["a"]}, held=True, folds=folds),
        entry(2, {"log": {"__overwrite__": ["new"]}}, held=True, folds=folds, applies=[1, 2]),
        entry(3, {"log": ["b"]}, folds=folds),
        entry(4, {"log": {"__overwrite__": []}}, folds=folds),
        entry(5, {"log": ["c"]}, folds=folds),
    )
    assert [state["log"] for state in found[2:]] == [["new"], ["new", "b"], [], ["c"]]


@pytest.mark.parametrize(("reducer", "update"), [("append", ["x"]), ("sum", 1), ("concat", "y")])
def test_a_long_series_of_updates_is_folded_in_parts(
    reducer: str, update: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = {"k": update}
    entries = [entry(number, write, folds={"k": reducer}, strict=reducer == "concat") for number in range(40)]
    whole = states(*entries)
    monkeypatch.setattr(journal, "MOST_UPDATES", 3)
    assert states(*entries) == whole
    fold = StateFold().over(entries)
    [key] = fold._keys.values()
    assert len(key.updates) <= (4 if reducer == "sum" else 25)


def test_updates_of_one_super_step_are_never_folded_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "MOST_UPDATES", 1)
    folds = {"log": "append"}
    first = entry(0, {"log": {"__overwrite__": ["new"]}}, held=True, folds=folds)
    writes = [entry(number, {"log": [number]}, held=True, folds=folds) for number in range(1, 5)]
    last = entry(5, {"log": [5]}, held=True, folds=folds, applies=[0, 1, 2, 3, 4, 5])
    assert state_after([first, *writes, last]) == {"log": ["new"]}


def test_a_difference_has_the_keys_that_later_steps_changed_and_added() -> None:
    entries = [entry(0, {"a": 1, "same": [1], "log": ["x"], "n": 1}), entry(1, {"a": 2, "new": None, "same": [1]})]
    entries += [entry(2, {"log": "y"}, folds={"log": "append"}), entry(3, {"n": 1.0})]
    difference = StateFold().over(entries[:1]).difference(entries[1:])
    assert difference == StateDifference({"a": (1, 2), "log": (["x"], ["x", "y"]), "n": (1, 1.0)}, {"new": None})
    back = difference.reversed()
    assert back == StateDifference({"a": (2, 1), "log": (["x", "y"], ["x"]), "n": (1.0, 1)}, {}, {"new": None})
    assert StateFold().over(entries[:3]).difference([]) == StateDifference()


def test_a_step_is_a_checkpoint_once_its_super_step_has_closed() -> None:
    entries = [
        entry(0, seq=None),
        entry(1, seq=1, node="a", next="b"),
        entry(2, seq=2, node="b", held=True, next="d"),
        entry(3, seq=3, node="c", held=True, next="d", applies=[2, 3], closing={}),
        entry(4, kind="paused"),
        entry(5, seq=4, node="d", ok=False),
        entry(6, seq=4, node="d", closing={}),
    ]
    found = [StateFold().over(entries[: number + 1]).checkpoint for number in range(len(entries))]
    assert found == [0, 1, 1, 3, 3, 3, 6]


def test_what_a_newer_release_added_to_a_step_is_ignored() -> None:
    assert state_after([entry(0, {"k": 1}, of_the_future=True)]) == {"k": 1}


def test_a_value_that_was_left_out_is_read_if_an_update_comes_after_it_and_else_only_named() -> None:
    asked: list[tuple[str, str]] = []

    def read(key: str, text: str) -> str:
        asked.append((key, text))
        return '["long"]'

    fold = StateFold(read_left_out=read)
    entries = [entry(0, {"x": 1, "log": 2, "old": 3}), entry(1, {"log": ["more"]}, folds={"log": "append"})]
    entries = [
        entries[0].replace("1\n", "=0\n").replace("2\n", "=1\n").replace("\n3", "\n=2"),
        entries[1],
        entry(2, {"old": 4}),
    ]
    assert fold.over(entries).texts() == {"x": "=0", "log": '["long", "more"]', "old": "4"}
    assert asked == [("log", "=1")]

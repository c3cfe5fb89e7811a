"""Cards of runs, tags, and what a filter accepts, without a Redis."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sleipnir.errors import UsageError
from sleipnir.runs import cards
from sleipnir.runs.budgets import Budget
from sleipnir.runs.run import Breakpoint, Hold, QueuedTurn, RunSpec, RunView, Slot
from sleipnir.runs.run_filters import ListPosition, RunFilter
from sleipnir.runs.visits import Backoff, Body, Child, ChildWait, Delay, Fan, Question, SignalWait, Visit, Work

SPEC = RunSpec("agent", "0123456789abcdef")
WORK = Work("scripts")


def view(status: Any, *bodies: Body, **more: Any) -> RunView:
    frontier = {number: Visit(number, "a", "script", 1, 5, body=body) for number, body in enumerate(bodies)}
    return RunView("r", SPEC, status, frontier=frontier, **more)


@pytest.mark.parametrize(
    ("run", "standing"),
    [
        (view("submitted"), "submitted"),
        (view("submitted", queued=QueuedTurn()), "submitted:turn"),
        (view("running", WORK), "running"),
        (view("running", slot=Slot("k", 1, 1)), "running:slot"),
        (view("running", WORK, slot=Slot("k", 1, 1, granted=True)), "running"),
        (view("waiting", Delay(5)), "waiting:timer"),
        (view("waiting", Delay(5), Question()), "waiting:person"),
        (view("waiting", SignalWait("s", 5), ChildWait(Child("c", "agent"))), "waiting:event"),
        (view("waiting", Fan(1, 3), Backoff(WORK, 5)), "waiting:retry"),
        (view("waiting", Backoff(WORK, 5, limited=True)), "waiting:limit"),
        (view("waiting", Fan(1, 3)), "waiting:other"),
        (view("paused", WORK, holds=(Hold("ann", 1),)), "paused:person"),
        (view("paused", WORK, holds=(Hold("ann", 1, owner="parent"),)), "paused:parent"),
        (view("paused", holds=(Hold("b", 1, breakpoint=Breakpoint("before", ("a",))),)), "paused:breakpoint"),
        (view("paused", budget=Budget(asked=3)), "paused:budget"),
        (view("completed"), "completed"),
        (view("failed", Question()), "failed"),
    ],
)
def test_the_standing_of_a_run_is_its_status_and_why_it_waits(run: RunView, standing: str) -> None:
    assert cards.standing_of(run) == standing
    assert standing in cards.STANDINGS


def test_a_commit_moves_a_run_only_if_its_standing_changes() -> None:
    assert not cards.is_moved(view("running", WORK), view("running", WORK, WORK))
    assert not cards.is_moved(view("waiting", Delay(5)), view("waiting", Delay(6), Fan(1, 2)))
    assert cards.is_moved(view("waiting", Delay(5)), view("waiting", Question()))
    assert cards.is_moved(view("running", slot=Slot("k", 1, 1)), view("running", slot=Slot("k", 1, 1, granted=True)))
    assert cards.is_moved(view("running", WORK), view("completed"))


def test_a_card_says_little_of_a_plain_run() -> None:
    assert json.loads(cards.card_text(SPEC, "submitted")) == {"s": "submitted", "a": "agent", "d": "0123456789ab"}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("no order 17", "no order 9,000.5"),
        ("no file '/tmp/a b'", "no file '/x'"),
        ('KeyError: "a"', 'KeyError: "b c"'),
        ("run k3v9m2xw7d4a is gone", "run 0z9m2xw7d4ab is gone"),
        ("at 0xdeadbeef", "at 0x1f"),
        ("took  3 s\n", "took 4 s"),
    ],
)
def test_messages_that_differ_in_numbers_ids_and_quoted_values_are_alike(one: str, other: str) -> None:
    fields = [cards.failure_fields("agent", f"at node 'a': {text}", None) for text in (one, other)]
    assert [fields[0][name] for name in "fmn"] == [fields[1][name] for name in "fmn"]
    assert fields[0]["n"] == "a"


def test_a_failure_is_found_by_its_words_and_by_what_is_quoted_in_it() -> None:
    card = {**json.loads(cards.card_text(SPEC, "failed")), "c": 1}
    card |= cards.failure_fields("agent", "at node 'a': KeyError: \"no tariff 'ACME-2027'\" for 3 orders", None)
    for text in ("for 9 orders", "keyerror", "acme-2027", "Acme", "no tariff"):
        assert RunFilter(text=text).fits(card), text
    assert not RunFilter(text="globex").fits(card)
    older = {name: value for name, value in card.items() if name != "q"}
    assert not RunFilter(text="acme").fits(older) and RunFilter(text="keyerror").fits(older)
    assert len(cards.failure_fields("agent", f"'{'x' * 500}'", None)["q"]) == cards.MOST_QUOTED
    assert "q" not in cards.failure_fields("agent", "it broke", None)


def test_other_words_nodes_and_agents_are_other_failures() -> None:
    fields = {
        cards.failure_fields(agent, error, node)["f"]
        for agent in ("x", "y")
        for node in ("a", "b", None)
        for error in ("it broke", "it is broken", "")
    }
    assert len(fields) == 18


@pytest.mark.parametrize("text", ["", "k", "=v", "a b=v", "k=", "k=  ", "k=a\nb", "-k=v", f"k={'x' * 201}"])
def test_what_is_no_tag_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        cards.tag_of(text)


def test_tags_are_kept_in_order_and_bounded() -> None:
    assert list(cards.checked_tags({"b": "1", "a": "=é ="})) == ["a", "b"]
    assert cards.checked_tags(None) == {}
    with pytest.raises(UsageError, match="at most 16"):
        cards.checked_tags({f"k{number}": "v" for number in range(17)})
    with pytest.raises(UsageError, match="a mapping"):
        cards.checked_tags(["a=b"])  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "*", "a:b", "a b", "-a", "x" * 64, 5, None])
def test_what_is_no_namespace_is_refused(name: object) -> None:
    with pytest.raises(UsageError):
        cards.checked_namespace(name)


@pytest.mark.parametrize(
    "wrong", [{"statuses": {"gone"}}, {"reasons": {"x"}}, {"cost_min": -1.0}, {"cost_max": float("nan")}]
)
def test_a_filter_that_no_run_can_fit_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        RunFilter(**wrong)


def test_runs_are_narrowed_by_agent_time_and_batch() -> None:
    """Finding U16 of the second review."""
    known = {
        "row": {"s": "running", "a": "a", "d": "v1", "c": 40, "k": "row", "b": "b1"},
        "new": {"s": "running", "a": "a", "d": "v1", "c": 30},
        "other": {"s": "running", "a": "b", "d": "v2", "c": 20},
        "old": {"s": "running", "a": "a", "d": "v1", "c": 10},
    }

    def ids(**wanted: Any) -> list[str]:
        return [name for name, card in known.items() if RunFilter(**wanted).fits(card)]

    assert ids() == ["row", "new", "other", "old"]
    assert ids(with_rows=False) == ["new", "other", "old"]
    assert ids(agents=frozenset({"b"})) == ids(version="v2") == ["other"]
    assert ids(since_ms=20, before_ms=40) == ["new", "other"]
    assert ids(batch="b1") == ["row"]
    assert ids(statuses=frozenset({"failed"})) == []


def test_a_cursor_is_a_position() -> None:
    assert ListPosition.of(ListPosition(5, "r1").cursor) == ListPosition(5, "r1")
    assert ListPosition(5, "b") > ListPosition(5, "a") > ListPosition(4, "z")

"""What the page of a comparison says: numbers in words, texts and paths in lines with signs."""

from __future__ import annotations

from sleipnir.runs.comparison import ComparedRun, compared
from sleipnir_console.pages import comparisons
from sleipnir_console.pages.comparisons import FactRow
from sleipnir_console.pages.text_difference import ChangedLine

A = ComparedRun(
    "a", "completed", "one\ntwo", tokens=1_000, cost_usd=0.5, took_ms=2_000, path=("x", "y"), visits=2,
    state={"n": "1", "gone": '"g"', "same": "[]"},
)  # fmt: skip
B = ComparedRun(
    "b", "failed", None, "broken", tokens=1_500, cost_usd=None, took_ms=1_000, path=("x", "z", "y"), visits=3,
    state={"n": "2", "new": "{}", "same": "[]"},
)  # fmt: skip


def test_numbers_are_compared_in_words() -> None:
    assert comparisons.facts_of(A, B) == [
        FactRow("State", "completed", "failed", "differs"),
        FactRow("Cost", "$0.500", "–", "not known"),
        FactRow("Tokens", "1,000", "1,500", "500 more (+50 %)"),
        FactRow("Took", "2.0 s", "1.0 s", "1.0 s less (-50 %)"),
        FactRow("Visits", "2", "3", "1 more (+50 %)"),
    ]
    assert all(fact.words == "" for fact in comparisons.facts_of(A, A))


def test_a_title_says_what_differs() -> None:
    assert comparisons.changed_in_words(compared(A, B)) == "status, output, error, state, path differ"
    assert comparisons.changed_in_words(compared(A, A)) == "the same"
    assert comparisons.changed_in_words(compared(A, None)) == "only in the first"
    assert comparisons.changed_in_words(compared(None, B)) == "only in the second"


def test_paths_and_texts_have_signs() -> None:
    assert comparisons.path_difference(A, B).lines == (
        ChangedLine("same", "x"), ChangedLine("add", "z"), ChangedLine("same", "y"),
    )  # fmt: skip
    found = comparisons.text_difference("\n".join(map(str, range(20))), "\n".join(map(str, range(19))))
    assert found.lines == (
        ChangedLine("cut", "17 equal lines"), ChangedLine("same", "17"), ChangedLine("same", "18"),
        ChangedLine("del", "19"),
    )  # fmt: skip
    assert comparisons.text_difference("same", "same").is_same
    assert not found.is_same


def test_the_keys_of_the_state_that_differ_are_named() -> None:
    found = comparisons.state_differences(compared(A, B))
    assert [(each.name, each.words) for each in found] == [
        ("gone", "only in the first"), ("n", "differs"), ("new", "only in the second"),
    ]  # fmt: skip
    assert found[1].difference.lines == (ChangedLine("del", "1"), ChangedLine("add", "2"))


def test_very_long_texts_are_cut() -> None:
    found = comparisons.text_difference("x\n" * 100_000, "y" * 100_000)
    assert found.is_cut
    assert len(found.lines) <= 2 * comparisons.MOST_LINES

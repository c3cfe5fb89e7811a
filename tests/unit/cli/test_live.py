"""What models are saying, as lines: which texts, how much of each, and broken where."""

from __future__ import annotations

from typing import Any

import pytest
from rich.cells import cell_len

from sleipnir.cli.terminal.live import ModelTexts, TextLines, wrapped
from sleipnir.runs.views import RunEvent


def event(type_: str, **data: Any) -> RunEvent:
    return RunEvent("1-0", 0, type_, data)


def text(seq: int, words: str, node: str = "ask", **data: Any) -> RunEvent:
    usual = {"seq": seq, "attempt": 1, "turn": 0, "draft": 1, "node": node, "piece": 0, "lost": 0, "last": False}
    return event("text", **(usual | {"text": words} | data))


def texts(*events: RunEvent) -> ModelTexts:
    made = ModelTexts()
    for each in events:
        made.see(each)
    return made


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        ("", []),
        ("one two three", ["one two ", "three"]),
        ("one     two", ["one     ", "two"]),
        ("a\n\nb\n", ["a\n", "\n", "b\n"]),
        ("abcdefghijklmno", ["abcdefgh", "ijklmno"]),
        ("a bcdefghijklmno", ["a ", "bcdefghi", "jklmno"]),
        ("日本語のテキスト", ["日本語の", "テキスト"]),
    ],
)
def test_text_is_broken_between_words_and_no_line_is_too_long(words: str, lines: list[str]) -> None:
    assert wrapped(words, 8) == lines
    assert "".join(lines) == words
    assert all(cell_len(line.rstrip()) <= 8 for line in lines)


def test_the_end_of_one_text_is_shown_without_empty_lines() -> None:
    made = texts(*(text(1, f"line {number}\n\n") for number in range(10)))
    assert made.lines(80, 20) == [f"      line {number}" for number in range(4, 10)]
    assert made.lines(80, 2) == ["      line 8", "      line 9"], "a low terminal"


def test_lines_break_at_the_same_places_in_a_text_of_any_length() -> None:
    made, whole = ModelTexts(), ""
    for number in range(4_000):
        made.see(text(1, f"{number} "))
        whole += f"{number} "
        if number % 100 == 0:
            expected = [f"      {line.rstrip()}" for line in wrapped(whole, 34)][-6:]
            assert made.lines(40, 20) == expected
    (kept,) = made._texts.values()
    assert len(kept.text) < 2_500, "what cannot be seen any more is not kept"


def test_several_texts_are_named_and_show_two_lines_each() -> None:
    made = texts(text(1, "a\nb\nc"), text(2, "d", "sum"), text(3, "e", "sum"))
    assert made.lines(80, 20) == ["      ask: b", "           c", "      sum#2: d", "      sum#3: e"]


def test_the_most_recent_of_many_texts_are_shown_and_the_others_are_counted() -> None:
    made = texts(*(text(seq, f"t{seq}", f"n{seq}") for seq in range(1, 9)), text(1, "!", "n1"))
    assert made.lines(80, 20) == [
        "      n1: t1!",
        "      n6: t6",
        "      n7: t7",
        "      n8: t8",
        "      ... and 4 more",
    ]
    assert made.lines(80, 3) == ["      n1: t1!", "      ... and 7 more"]


def test_a_text_that_starts_again_replaces_the_earlier_one() -> None:
    for change in ({"attempt": 2}, {"draft": 2}, {"turn": 1}):
        assert texts(text(1, "old "), text(1, "new", **change)).lines(80, 20) == ["      new"]


def test_a_text_goes_with_its_visit_and_what_comes_later_is_not_shown() -> None:
    for type_ in ("visit_closed", "visit_retrying", "worker_lost", "visit_handed_back"):
        assert len(texts(text(1, "a"), event(type_, seq=1))) == 0
    assert len(texts(text(1, "a"), text(2, "b"), event("run_ended", status="failed"))) == 0
    assert len(texts(event("visit_closed", seq=1), text(1, "late"))) == 0


def test_a_text_that_is_over_stays_until_the_next_of_its_node_or_until_something_ends() -> None:
    over = [text(1, "first turn", last=True), text(2, "other node", "sum", last=True)]
    assert len(texts(*over)) == 2
    assert texts(*over, text(3, "second turn")).lines(80, 20) == ["      sum: other node", "      ask: second turn"]
    assert len(texts(*over, event("visit_closed", seq=9))) == 0
    assert len(texts(*over, event("map_progress", seq=9))) == 0


def test_control_characters_are_spelt_out_and_gaps_are_marked() -> None:
    made = texts(text(1, "a\x1b[2Jb\tc", lost=1200))
    assert made.lines(80, 20) == ["      a\\x1b[2Jb    c [1,200 characters are missing]"]


def lines(*events: RunEvent) -> list[str]:
    made = TextLines()
    return [line for each in events for line in made.see(each)]


def test_in_a_log_lines_are_written_when_they_are_complete() -> None:
    made = TextLines()
    assert made.see(text(1, "one")) == []
    assert made.see(text(1, " line\n\nand")) == ["      one line"]
    assert made.see(text(1, " more", last=True)) == ["      and more"]
    assert made.see(event("visit_closed", seq=1)) == []


def test_for_a_log_the_rest_is_written_when_the_visit_or_the_run_ends() -> None:
    assert lines(text(1, "half"), event("visit_closed", seq=1), text(1, "late\n")) == ["      half"]
    assert lines(text(1, "half"), event("run_ended")) == ["      half"]


def test_in_a_log_concurrent_texts_are_named_and_a_restart_is_marked() -> None:
    assert lines(text(1, "a"), text(2, "b\n", "sum"), text(3, "c\n", "sum"), text(1, "A\n", attempt=2)) == [
        "      sum: b",
        "      sum#3: c",
        "      ask: a",
        "      ask: (begins anew)",
        "      ask: A",
    ]

"""The bottom of a terminal: bars of maps, and what models are saying."""

from __future__ import annotations

import io
import re
import sys
from typing import Any

import pytest

from sleipnir.cli.terminal.status_area import StatusArea
from sleipnir.runs.views import RunEvent
from tests.processes import wait_until


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def event(type_: str, **data: Any) -> RunEvent:
    return RunEvent("1-0", 0, type_, data)


def progress(done: int, total: int, failed: int = 0) -> RunEvent:
    return event("map_progress", seq=3, node="fan[x]", done=done, total=total, failed=failed)


def terminal_of(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Not a fixture: pytest gives every phase of a test another stderr."""
    fake = Terminal()
    monkeypatch.setattr(sys, "stderr", fake)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    return fake


def text(seq: int, node: str, text: str, **data: Any) -> RunEvent:
    usual = {"seq": seq, "attempt": 1, "turn": 0, "draft": 1, "node": node, "piece": 0, "lost": 0, "last": False}
    return event("text", **(usual | {"text": text} | data))


class Screen:
    """What a terminal shows that understands just what is used: line ends, cursor up, erase line."""

    def __init__(self, written: str) -> None:
        self.lines, self._row = [""], 0
        for erase, up, end, words in re.findall(
            r"(\x1b\[2K)|\x1b\[(\d+)A|(\n)|\x1b\[[?\d;]*[a-zA-Z]|\r|([^\x1b\r\n]+)", written
        ):
            if erase:
                self.lines[self._row] = ""
            elif up:
                self._row -= int(up)
            elif end:
                self._row += 1
                self.lines += [""] * (self._row + 1 - len(self.lines))
            else:
                self.lines[self._row] += words

    def shown(self) -> list[str]:
        return [line.rstrip() for line in self.lines if line.strip()]


def test_a_map_has_a_bar_with_its_count_and_its_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_of(monkeypatch)
    with StatusArea() as bottom:
        bottom.see(progress(237, 500, failed=2))
        with bottom.hidden():  # draws once more
            pass
    assert "map fan[x]" in terminal.getvalue()
    assert "237/500" in terminal.getvalue()
    assert "2 failed" in terminal.getvalue()


def test_lines_and_questions_are_written_to_the_terminal_itself_once_no_bar_is_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = terminal_of(monkeypatch)
    with StatusArea() as bottom:
        bottom.see(progress(1, 2))
        assert sys.stderr is not terminal, "what is printed goes above the bar"
        with bottom.hidden():
            assert sys.stderr is terminal
        assert sys.stderr is not terminal
        bottom.see(progress(2, 2))
        assert sys.stderr is terminal


@pytest.mark.parametrize("last", [event("visit_closed", seq=3), event("run_ended", status="cancelled")])
def test_no_bar_outlives_its_map(monkeypatch: pytest.MonkeyPatch, last: RunEvent) -> None:
    terminal = terminal_of(monkeypatch)
    with StatusArea() as bottom:
        bottom.see(progress(1, 2))
        bottom.see(last)
        assert sys.stderr is terminal


def test_an_interrupt_leaves_no_bar_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_of(monkeypatch)
    with pytest.raises(KeyboardInterrupt), StatusArea() as bottom:
        bottom.see(progress(1, 2))
        raise KeyboardInterrupt
    assert sys.stderr is terminal


def test_away_from_a_terminal_nothing_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = io.StringIO()
    monkeypatch.setattr(sys, "stderr", fake)
    with StatusArea() as bottom:
        bottom.see(progress(1, 2))
    assert fake.getvalue() == ""


def test_a_text_is_below_the_line_of_its_node_until_the_node_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_of(monkeypatch)
    with StatusArea() as bottom:
        bottom.see(event("visit_opened", seq=1, node="ask"), ["▸ ask (llm)"])
        bottom.see(text(1, "ask", "word " * 30))
        wait_until(lambda: "word" in terminal.getvalue(), "it is drawn")
        shown = Screen(terminal.getvalue()).shown()
        assert shown[0] == "▸ ask (llm)"
        assert shown[1:] == ["      " + " ".join(["word"] * 19), "      " + " ".join(["word"] * 11)]
        bottom.see(event("visit_closed", seq=1, node="ask"), ["▸   merged: answer"])
    assert Screen(terminal.getvalue()).shown() == ["▸ ask (llm)", "▸   merged: answer"]


def test_lines_above_and_texts_below_leave_no_trace_of_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads draw. Were they not kept apart, lines would be erased that are not of the bottom."""
    terminal = terminal_of(monkeypatch)
    with StatusArea() as bottom:
        for number in range(60):
            for seq in (1, 2, 3):
                bottom.see(text(seq, f"n{seq}", f"{number} more words\n"))
            bottom.see(progress(number % 9, 10), [f"line {number}"])
    assert Screen(terminal.getvalue()).shown() == [f"line {number}" for number in range(60)]


def test_away_from_a_terminal_texts_are_lines_if_they_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    for as_lines, expected in ((False, "▸ done\n"), (True, "      one\n      two\n▸ done\n")):
        fake = io.StringIO()
        monkeypatch.setattr(sys, "stderr", fake)
        with StatusArea(as_lines=as_lines) as bottom:
            bottom.see(text(1, "ask", "one\ntwo"))
            bottom.see(event("visit_closed", seq=1), ["▸ done"])
        assert fake.getvalue() == expected

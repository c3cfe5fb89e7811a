"""Bars for maps at the bottom of a terminal."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest

from sleipnir.cli.progress import MapBars
from sleipnir.views import RunEvent


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


def test_a_map_has_a_bar_with_its_count_and_its_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_of(monkeypatch)
    with MapBars() as bars:
        bars.see(progress(237, 500, failed=2))
        with bars.hidden():  # draws once more
            pass
    assert "map fan[x]" in terminal.getvalue()
    assert "237/500" in terminal.getvalue()
    assert "2 failed" in terminal.getvalue()


def test_lines_and_questions_are_written_to_the_terminal_itself_once_no_bar_is_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = terminal_of(monkeypatch)
    with MapBars() as bars:
        bars.see(progress(1, 2))
        assert sys.stderr is not terminal, "what is printed goes above the bar"
        with bars.hidden():
            assert sys.stderr is terminal
        assert sys.stderr is not terminal
        bars.see(progress(2, 2))
        assert sys.stderr is terminal


@pytest.mark.parametrize("last", [event("visit_closed", seq=3), event("run_ended", status="cancelled")])
def test_no_bar_outlives_its_map(monkeypatch: pytest.MonkeyPatch, last: RunEvent) -> None:
    terminal = terminal_of(monkeypatch)
    with MapBars() as bars:
        bars.see(progress(1, 2))
        bars.see(last)
        assert sys.stderr is terminal


def test_an_interrupt_leaves_no_bar_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_of(monkeypatch)
    with pytest.raises(KeyboardInterrupt), MapBars() as bars:
        bars.see(progress(1, 2))
        raise KeyboardInterrupt
    assert sys.stderr is terminal


def test_away_from_a_terminal_nothing_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = io.StringIO()
    monkeypatch.setattr(sys, "stderr", fake)
    with MapBars() as bars:
        bars.see(progress(1, 2))
    assert fake.getvalue() == ""

"""Who wants something, as text."""

from __future__ import annotations

import getpass
import socket

import pytest

from sleipnir.errors import RecordUnreadable
from sleipnir.runs.actor import MOST, Actor, Change, change_text, changes_of


def test_a_user_a_host_and_the_way_in_are_recorded() -> None:
    """Item 5 of the issue, finding S10."""
    assert str(Actor("ann", "desk", "cli")) == "ann@desk (cli)"
    assert str(Actor("ann@example.org", "", "api")) == "ann@example.org (api)"
    assert Actor.here("python") == Actor(getpass.getuser(), socket.gethostname(), "python")


def test_a_user_without_a_name_is_recorded_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> str:
        raise KeyError("getpwuid(): uid not found: 4711")

    monkeypatch.setattr(getpass, "getuser", unknown)
    assert Actor.here("cli").user.startswith("uid ")


def test_names_reach_no_terminal_as_escape_sequences_and_no_record_at_any_length() -> None:
    assert str(Actor("ann\x1b[2J\n", "desk", "cli")) == "ann?[2J?@desk (cli)"
    assert len(str(Actor("a" * 10_000, "desk", "cli"))) == MOST


def test_changes_are_read_in_the_order_of_time_and_those_of_other_releases_too() -> None:
    pause, answer = Change("paused", "ann@desk (cli)", 7, "costs"), Change("answered", "", 5, answer="yes")
    texts = {
        "status": "paused",
        "by:paused": change_text(pause),
        "by:answered": change_text(answer),
        "by:retried": None,
    }
    assert changes_of(texts) == (answer, pause)
    newer = {"by:paused": '{"by":"ann","at_ms":3,"mood":"good"}'}
    assert changes_of(newer) == (Change("paused", "ann", 3),)
    with pytest.raises(RecordUnreadable):
        changes_of({"by:paused": "ann"})

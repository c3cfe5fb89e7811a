"""What people type in their first hour, and the messages they get for it. Finding U16 of the second review."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

import click
import pytest

from sleipnir import Client
from sleipnir.cli import main
from sleipnir.cli.options import MOMENT, Seconds
from sleipnir.cli.runs.gate_answers import refuse_unknown
from sleipnir.cli.runs.ps import UNFINISHED, _none_found
from sleipnir.errors import ConfigError, UsageError
from sleipnir.graph.duration import seconds
from sleipnir.graph.findings import closest
from sleipnir.settings import Settings


def test_an_answer_to_a_node_that_does_not_exist_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"--answer aks=\.\.\.: agent 'triage' has no node 'aks'\. Did you mean \"ask\"\?"
    ):
        refuse_unknown([("aks", "Redo")], {"ask", "done"}, "triage")
    refuse_unknown([("ask", "Redo"), ("budget", "yes")], {"ask"}, "triage")


def test_a_client_of_a_url_reports_what_to_write() -> None:
    url: Any = "redis://:secret@localhost:6379/0"
    with pytest.raises(TypeError, match=r"write Client\(Settings\(redis_url=\.\.\.\)\)") as refused:
        Client(url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("typed", "known", "meant"),
    [
        ("edges", ["reducers", "nodes", "state"], None),
        ("aks", ["ask", "parse"], "ask"),
        ("clasify", ["classify", "clarify"], "classify"),
        ("instruction", ["instructions"], "instructions"),
        ("Timeout_s", ["timeout", "retry"], "timeout"),
        ("nexts", ["next", "nodes"], "next"),
    ],
)
def test_a_suggestion_is_a_slip_away(typed: str, known: list[str], meant: str | None) -> None:
    assert closest(typed, known) == meant


@pytest.mark.parametrize(
    ("written", "read"),
    [("30s", 30), ("5m", 300), ("1.5s", 1.5), ("2h", 7200), ("30", "30"), (30, 30), ("soon", "soon"), (True, True)],
)
def test_a_duration_in_seconds_may_have_a_unit(written: object, read: object) -> None:
    assert seconds(written) == read


def test_durations_in_settings_and_options_may_have_a_unit() -> None:
    assert Settings.from_env({"SLEIPNIR_LEASE_S": "30s", "SLEIPNIR_RETENTION_S": "2h"}).lease_s == 30
    with pytest.raises(ConfigError, match="SLEIPNIR_LEASE_S"):
        Settings.from_env({"SLEIPNIR_LEASE_S": "soon"})
    assert Seconds(min=0).convert("5m", None, None) == 300
    assert Seconds(min=0).convert("2.5", None, None) == 2.5
    for text in ("-1s", "inf", "soon"):
        with pytest.raises(click.BadParameter):
            Seconds(min=0).convert(text, None, None)


def test_a_moment_is_a_time_ago_or_a_date() -> None:
    now_ms = time.time() * 1000
    for text, ago_s in (("90s", 90), ("2h", 7200), ("3d", 259_200)):
        assert abs(now_ms - ago_s * 1000 - MOMENT.convert(text, None, None)) < 60_000
    assert MOMENT.convert("2026-11-22T10:00", None, None) == datetime(2026, 11, 22, 10).timestamp() * 1000
    for text in ("yesterday", "", "99999999999d", "12", "2026-13-01"):
        with pytest.raises(click.BadParameter, match="neither a time ago"):
            MOMENT.convert(text, None, None)


def test_a_service_logs_what_is_set_and_not_what_is_not() -> None:
    settings = Settings.from_env({"SLEIPNIR_LEASE_S": "20", "SLEIPNIR_REDIS_URL": "redis://:secret@db/0"})
    assert settings.to_log() == {"lease_s": 20.0}


def test_several_runs_are_answered_by_node_and_not_by_number(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["answer", "aaaaaaaaaaaa,bbbbbbbbbbbb", "3", "yes"]) == 2
    assert (
        "the number of a visit belongs to one run; for several runs name the question by its node"
        in capsys.readouterr().err
    )


def test_without_active_runs_the_command_for_ended_runs_is_printed() -> None:
    ended, other = "all runs have ended; `sleipnir ps --all` lists them", "--rows lists rows of batches too"
    assert _none_found(set(UNFINISHED), 3, narrowed=False) == f"{ended}; {other}"
    assert _none_found(set(UNFINISHED), 0, narrowed=False) == f"no runs; {other}"
    assert _none_found({"failed"}, 3, narrowed=False) == f"no such runs; `sleipnir ps --all` lists all; {other}"
    assert _none_found({"failed"}, 3, narrowed=True) == "no such runs"


@pytest.mark.parametrize("group", ["batch", "kb", "sessions"])
def test_a_group_without_its_command_prints_its_page_and_no_error(
    group: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([group]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"Usage: sleipnir {group}") and "Commands:" in said
    assert "error:" not in said and said.count("Usage:") == 1


@pytest.mark.parametrize("written", ["5x", "1s5", "soon"])
def test_an_invalid_duration_is_refused_with_examples(written: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["wait", "--timeout", written, "a-run"]) == 2
    assert f"{written!r} is not a duration; write 30s, 5m, 2h or a number of seconds." in capsys.readouterr().err

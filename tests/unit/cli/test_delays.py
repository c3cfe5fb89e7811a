"""What is said to who waits for a run that nothing moves."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sleipnir.cli.options import GlobalOptions
from sleipnir.cli.runs.delays import AFTER_S, AFTER_START_S, DelayNotice, missing_in_words, patience_s
from sleipnir.cli.runs.follow import follow
from sleipnir.cli.terminal.status_area import StatusArea
from sleipnir.errors import StoreUnavailable
from sleipnir.runs.views import MissingProcesses, RunEvent


def test_without_a_scheduler_or_a_worker_it_reports_which_and_how_to_start_one() -> None:
    """Finding U11 of the second review."""
    options = GlobalOptions(redis_url="redis://:secret@db:6379/0")
    lines = missing_in_words(MissingProcesses(True, {"rag": "search", "llm": "ask of run 0zd6m3p3250y"}), options)
    assert lines[0].startswith("no scheduler is running, so no run advances; `sleipnir --redis-url ")
    assert lines[0].endswith(" scheduler` starts one") and len(lines) == 3
    assert lines[1].startswith("no worker serves queue 'llm', which ask of run 0zd6m3p3250y waits for; `sleipnir ")
    assert lines[2].endswith("worker -Q rag` starts one")
    assert "secret" not in "".join(lines)


def test_without_delays_nothing_is_printed() -> None:
    assert missing_in_words(MissingProcesses(False, {})) == []


def test_a_private_stack_is_given_time_to_start_and_names_its_logs(tmp_path: Path) -> None:
    """Finding U11 of the second review."""
    private = GlobalOptions(home=tmp_path)
    assert (patience_s(private), patience_s(None)) == (AFTER_START_S, AFTER_S)
    assert missing_in_words(MissingProcesses(True, {}), private) == [
        f"no scheduler is running, so no run advances; look into {tmp_path}/logs"
    ]


def notice(answers: list[Any]) -> tuple[DelayNotice, list[Sequence[str]]]:
    said: list[Sequence[str]] = []

    def look() -> Sequence[str]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, list)
        return answer

    return DelayNotice(look, said.append), said


def test_a_reason_is_printed_once_until_it_changes() -> None:
    delays, said = notice([["a"], ["a"], ["a", "b"], [], ["a"]])
    for _ in range(5):
        delays.look_now()
    assert said == [["a"], ["a", "b"], ["a"]]


def test_a_redis_that_is_away_is_not_its_business() -> None:
    delays, said = notice([StoreUnavailable("away"), ["a"]])
    delays.look_now()
    delays.look_now()
    assert said == [["a"]]


def test_what_moved_meanwhile_is_no_delay() -> None:
    said: list[Sequence[str]] = []

    def look() -> Sequence[str]:
        delays.moved()
        return ["too late"]

    delays = DelayNotice(look, said.append)
    delays.look_now()
    assert said == []


def test_a_person_who_follows_a_delayed_run_gets_the_reason(capsys: Any, monkeypatch: Any) -> None:
    """Finding U11 of the second review."""
    told = threading.Event()

    class Waiting:
        id = "r1"

        def missing(self) -> MissingProcesses:
            return MissingProcesses(False, {"rag": "search"})

        def stream(self, modes: Any) -> Any:
            assert told.wait(30)
            yield RunEvent("1-0", 0, "run_ended", {"status": "completed", "took_ms": 10})

    monkeypatch.setattr("sleipnir.cli.runs.follow.patience_s", lambda options: 0.05)
    say = StatusArea.say

    def say_and_tell(bottom: StatusArea, lines: Sequence[str]) -> None:
        say(bottom, lines)
        told.set()

    monkeypatch.setattr(StatusArea, "say", say_and_tell)
    follow(Waiting(), lambda gate: None, stream=False)  # type: ignore[arg-type]
    assert "no worker serves queue 'rag', which search waits for" in capsys.readouterr().err

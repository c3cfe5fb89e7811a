"""The narration of a run, event by event."""

from typing import Any

import pytest

from sleipnir.cli.narrate import narrate
from sleipnir.views import RunEvent


def event(type_: str, **data: Any) -> RunEvent:
    return RunEvent(id="1-0", at_ms=1_700_000_000_000, type=type_, data=data)


def closed(**data: Any) -> RunEvent:
    usual = {"seq": 1, "node": "parse", "kind": "script", "ok": True, "next": None, "took_ms": 12, "notes": []}
    return event("visit_closed", **(usual | {"error": None} | data))


RECORDED = [
    event("run_started", graph="Log triage", start="parse", agent="log-triage"),
    event("visit_opened", seq=1, node="parse", kind="script"),
    event("visit_started", seq=1, node="parse", attempt=1, worker="scripts@host"),
    closed(next="approve", notes=["running script 'scripts/parse.py'", "merged: hits, level"]),
    event("visit_opened", seq=2, node="approve", kind="approval"),
    event(
        "gate_opened", seq=2, node="approve", kind="approval", question="Send it?", options=["yes", "no"], default=None
    ),
    event("gate_answered", seq=2, node="approve", answer="yes"),
    closed(seq=2, node="approve", kind="approval", next="done"),
    event("visit_opened", seq=3, node="done", kind="end"),
    closed(seq=3, node="done", kind="end"),
    event("run_ended", status="completed", error=None, took_ms=1234, output_bytes=20),
]


@pytest.mark.conformance("B01")
def test_a_whole_run_reads_like_lokis_narration() -> None:
    lines = [line for recorded in RECORDED for line in narrate(recorded)]
    assert lines == [
        "▸ graph: Log triage (start: parse)",
        "▸ parse (script)",
        "▸   running script 'scripts/parse.py'",
        "▸   merged: hits, level",
        "▸ parse -> approve",
        "▸ approve (approval)",
        "▸   waiting for an answer: Send it?",
        "▸   options: yes, no",
        "▸   answered: yes",
        "▸ approve -> done",
        "▸ done (end)",
        "▸ graph done in 1.23s",
    ]


def test_a_failed_visit_says_why_and_where_it_goes_on() -> None:
    assert narrate(closed(ok=False, error="script exited with code 1", next="repair")) == [
        "▸   failed: script exited with code 1",
        "▸ parse -> repair",
    ]


@pytest.mark.parametrize(
    ("status", "line"),
    [
        ("completed", "▸ graph done in 61.50s"),
        ("failed", "▸ graph failed after 61.50s"),
        ("cancelled", "▸ graph cancelled after 61.50s"),
    ],
)
def test_the_last_line_says_how_the_run_ended(status: str, line: str) -> None:
    assert narrate(event("run_ended", status=status, error=None, took_ms=61_500, output_bytes=0)) == [line]


def test_only_a_second_attempt_is_worth_a_line() -> None:
    assert narrate(event("visit_started", seq=1, node="parse", attempt=1, worker="a@h")) == []
    assert narrate(event("visit_started", seq=1, node="parse", attempt=2, worker="b@h")) == [
        "▸   attempt 2 started by b@h"
    ]


def test_a_lost_worker_and_a_late_result_are_shown() -> None:
    lost = event("worker_lost", seq=1, node="parse", attempt=1, worker="a@h")
    late = event("late_result", seq=1, node="parse", attempt=1, worker="a@h")
    assert narrate(lost) == ["▸   attempt 1 was lost with its worker a@h"]
    assert narrate(late) == ["▸   late result refused: attempt 1 from a@h"]


def test_what_continues_a_note_is_indented_and_cut_after_twelve_lines() -> None:
    prompt = "\n".join(f"line {number}" for number in range(1, 16))
    lines = narrate(closed(notes=[f"spawning agent 'x' with prompt:\n{prompt}"]))
    assert lines[0] == "▸   spawning agent 'x' with prompt:"
    assert lines[1:13] == [f"      line {number}" for number in range(1, 13)]
    assert lines[13:] == ["      ... (3 more lines)"]


def test_of_a_long_question_only_the_first_line_is_narrated() -> None:
    opened = event(
        "gate_opened", seq=1, node="ask", kind="input", question="Name?\nBe brief.", options=[], default=None
    )
    assert narrate(opened) == ["▸   waiting for an answer: Name? …"]


def test_an_event_of_a_newer_release_is_not_narrated() -> None:
    assert narrate(event("visit_teleported", seq=1)) == []


def test_control_sequences_from_agents_cannot_reach_the_terminal() -> None:
    (line,) = narrate(closed(notes=["merged: \x1b[2J\x9b1m evil"]))
    assert line == "▸   merged: \\x1b[2J\\x9b1m evil"


def test_every_line_is_one_line() -> None:
    for text in ("", "a\nb", "a\r\nb", "a\x0bb", "a\x85b", "a\u2028b"):
        assert all("\n" not in line and "\r" not in line for line in narrate(closed(notes=[text])))

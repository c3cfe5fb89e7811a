"""The narration of a run, event by event."""

from typing import Any

import pytest

from sleipnir.cli.runs.narrate import Narrator
from sleipnir.runs.views import RunEvent


def event(type_: str, **data: Any) -> RunEvent:
    return RunEvent(id="1-0", at_ms=1_700_000_000_000, type=type_, data=data)


def narrate(*events: RunEvent, every_tenth: bool = True) -> list[str]:
    narrator = Narrator(every_tenth=every_tenth)
    return [line for recorded in events for line in narrator.lines(recorded)]


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
def test_the_narration_of_a_run_equals_lokis() -> None:
    assert narrate(*RECORDED) == [
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


def test_a_run_that_asks_for_a_slot_of_its_agent_reports_which() -> None:
    asked = event("slot_asked", agent="triage", key="acme", limit=5)
    assert narrate(asked) == ["▸ waits for a slot of triage 'acme', limit 5"]


def test_the_frame_of_an_agent_that_is_one_loop_can_be_left_out() -> None:
    narrator = Narrator(brief=True)
    events = [
        event("run_started", graph="Friend", start="agent", agent="friend"),
        event("visit_opened", seq=1, node="agent", kind="llm"),
        event("tool_called", seq=1, node="agent", call="c1", name="look"),
        closed(node="agent", next="done", notes=["llm call: model=m tools=look", "the session is summarised"]),
        closed(node="agent", ok=False, error="no model"),
        event("run_ended", status="completed", error=None, took_ms=1234, output_bytes=20),
    ]
    assert [line for each in events for line in narrator.lines(each)] == [
        "▸   calling look", "▸   the session is summarised", "▸   failed: no model",
    ]  # fmt: skip


def test_a_failed_visit_reports_why_and_where_it_continues() -> None:
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
def test_the_last_line_reports_how_the_run_ended(status: str, line: str) -> None:
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


def test_the_end_of_a_long_output_of_a_failure_is_kept() -> None:
    """Finding U12 of the second review: the cause is in the last line."""
    output = "\n".join(f"line {number}" for number in range(1, 16))
    lines = narrate(closed(ok=False, error=f"Script 'a.py' failed with exit code 1:\n{output}"))
    assert lines[1] == "      ... (4 more lines)"
    assert lines[2:13] == [f"      line {number}" for number in range(5, 16)]


def test_only_the_first_line_of_a_long_question_is_narrated() -> None:
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


def opened(seq: int, node: str, kind: str = "script") -> RunEvent:
    return event("visit_opened", seq=seq, node=node, kind=kind)


def progress(done: int, total: int, failed: int = 0, seq: int = 3) -> RunEvent:
    return event("map_progress", seq=seq, node="fan", done=done, total=total, failed=failed)


def test_calls_in_loops_of_items_are_not_printed() -> None:
    of_loop = {"seq": 4, "node": "ask", "name": "look", "call": "c1", "ok": False, "took_ms": 10}
    told = ["▸   ask: calling look", "▸   ask: look failed after 0.01s"]
    events = [event(type_, **of_loop) for type_ in ("tool_called", "tool_ended")]
    assert narrate(opened(1, "fan", "map"), *events)[1:] == told
    events = [event(type_, **of_loop, item=0) for type_ in ("tool_called", "tool_ended")]
    assert narrate(opened(1, "fan", "map"), *events)[1:] == []


def test_what_belongs_to_one_of_parallel_visits_names_it() -> None:
    lines = narrate(
        opened(1, "split"),
        closed(seq=1, node="split", next=["a", "b", "fan"], notes=["merged: x"]),
        opened(2, "a"),
        opened(4, "b", "approval"),
        opened(3, "fan", "map"),
        event("gate_opened", seq=4, node="b", question="Well?", options=["y"], default=None),
        event("visit_retrying", seq=9, node="work", attempt=1, max_attempts=3, error="Boom", delay_ms=500),
        progress(50, 50),
        closed(seq=3, node="fan", kind="map"),
        event("gate_answered", seq=4, node="b", answer="y"),
        closed(seq=4, node="b", kind="approval"),
        closed(seq=2, node="a", notes=["merged: x\ny"], next="meet"),
        event("routed", node="b", next=["meet"]),
        event("routed", node="fan", next=["meet"]),
        opened(5, "meet"),
        closed(seq=5, node="meet", notes=["merged: z"], next="done"),
    )
    assert lines == [
        "▸ split (script)",
        "▸   merged: x",
        "▸ split -> a, b, fan",
        "▸ a (script)",
        "▸ b (approval)",
        "▸ fan (map)",
        "▸   b: waiting for an answer: Well?",
        "▸   b: options: y",
        "▸   work: attempt 1 of 3 failed: Boom",
        "▸   work: trying again in 0.50s",
        "▸   fan: map 50/50",
        "▸   b: answered: y",
        "▸   a: merged: x",
        "      y",
        "▸ a -> meet",
        "▸ b -> meet",
        "▸ fan -> meet",
        "▸ meet (script)",
        "▸   merged: z",
        "▸ meet -> done",
    ]


def test_parallel_visits_of_one_node_are_distinguished_by_their_numbers() -> None:
    lines = narrate(opened(1, "work"), opened(2, "work"), closed(seq=2, node="work", notes=["merged: r"], next="meet"))
    assert lines == ["▸ work (script)", "▸ work#2 (script)", "▸   work#2: merged: r", "▸ work#2 -> meet"]


def test_a_retried_run_drops_visits_that_its_failure_ended() -> None:
    ended = event("run_ended", status="failed", error="late", took_ms=0)
    retried = event("run_retried", node="a, b")
    lines = narrate(opened(1, "a"), opened(2, "b"), ended, retried, opened(3, "a"), closed(seq=3, notes=["merged: x"]))
    assert lines[-3:] == ["▸ retried at a, b", "▸ a (script)", "▸   merged: x"]


def test_a_continued_child_is_reported() -> None:
    assert narrate(opened(1, "call"), event("child_retried", seq=1, node="call", child="4kq0", agent="helper"))[1:] == [
        "▸   run 4kq0 of agent helper continues"
    ]


def test_a_map_reports_its_progress_ten_times_and_only_its_end_next_to_a_bar() -> None:
    events = [progress(done, 500, failed=done // 250) for done in range(5, 501, 5)]
    lines = narrate(*events)
    assert len(lines) == 10
    assert (lines[0], lines[-1]) == ("▸   map 50/500", "▸   map 500/500, 2 failed")
    assert narrate(*events, every_tenth=False) == ["▸   map 500/500, 2 failed"]


def test_a_run_that_its_step_limit_stopped_reports_it() -> None:
    assert narrate(event("max_steps", limit=20, what="super-steps")) == [
        "▸ stopped after 20 super-steps (limits.max_steps)"
    ]


def test_a_join_that_lacks_sources_at_the_end_is_reported() -> None:
    assert narrate(event("join_starved", message="the join can never fire")) == ["▸ the join can never fire"]


def test_a_tool_call_is_reported_and_its_end_only_if_it_failed() -> None:
    call = {"seq": 4, "node": "ask", "call": "c1", "name": "fs_cat"}
    narrator = Narrator()
    assert narrator.lines(event("tool_called", **call)) == ["▸   calling fs_cat"]
    assert narrator.lines(event("tool_ended", **call, ok=True, took_ms=120)) == []
    assert narrator.lines(event("tool_ended", **call, ok=False, took_ms=120)) == ["▸   fs_cat failed after 0.12s"]


def test_a_continued_turn_is_reported_except_for_items() -> None:
    turn = {"seq": 4, "node": "agent", "turn": 2, "took_ms": 120}
    narrator, note = Narrator(), "📋 Auto-continuing (1/10): 2 incomplete todo(s) remain"
    assert narrator.lines(event("turn_ended", **turn, calls=["look"])) == []
    assert narrator.lines(event("turn_ended", **turn, calls=[], goes_on=True, notes=[note])) == [f"▸   {note}"]
    assert narrator.lines(event("turn_ended", **turn, calls=[], goes_on=True, notes=[note], item=0)) == []


def test_events_that_are_not_kept_any_more_are_missed_and_texts_are_not() -> None:
    assert Narrator().lines(event("gap", lost=None)) == ["▸ (earlier events are no longer kept)"]
    assert Narrator().lines(event("gap", lost=12)) == []
    assert Narrator().lines(event("text", seq=1, node="ask", text="Hello")) == []

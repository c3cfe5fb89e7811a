"""Visits as they are stored: those of an earlier release are read, and written as that release writes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sleipnir import decoding
from sleipnir.errors import RecordUnreadable
from sleipnir.messages import WAITS, InterruptQuestion, ResultHeader, VisitResult, WaitRequest
from sleipnir.runs.visits import (
    AgentFunction,
    Backoff,
    Call,
    ChildWait,
    Commands,
    Delay,
    Doubt,
    Ended,
    Failed,
    Fan,
    Item,
    Loop,
    Question,
    Ready,
    Receipt,
    SignalWait,
    Turn,
    WholeRun,
    Work,
)
from sleipnir.store.visit_records import read_visit, visit_text

STORED = (Path(__file__).parents[1] / "fixtures" / "stored_runs" / "visits.jsonl").read_text().splitlines()
STORED += ['{"seq":1,"node":"pause","kind":"wait","attempt":1,"opened_ms":5,"v":1,"group":1,"wake_ms":30005}']
STORED += [
    '{"seq":1,"node":"pause","kind":"wait","attempt":1,"opened_ms":5,"v":3,"wake_ms":9,'
    '"signal":{"name":"paid","since_ms":4,"one":true}}',
    '{"seq":1,"node":"a","kind":"interrupt","attempt":2,"opened_ms":5,"v":3,"wake_ms":9,"interrupt":{"kind":"function",'
    '"asked":{"name":"a#0","wait":{"for_ms":4}},"work":{"queue":"functions"}}}',
    '{"seq":1,"node":"a","kind":"interrupt","attempt":2,"opened_ms":5,"v":3,"signal":{"name":"e","since_ms":4},'
    '"interrupt":{"kind":"function","asked":{"name":"k","key":"k","wait":{"event":"e"}},"work":{"queue":"functions"}}}',
]


@pytest.mark.parametrize("text", STORED)
def test_a_stored_visit_is_written_as_it_was_read(text: str) -> None:
    visit = read_visit(text)
    assert read_visit(visit_text(visit)) == visit
    assert json.loads(visit_text(visit)) == json.loads(text)


def test_every_place_and_every_body_is_among_the_stored_visits() -> None:
    visits = list(map(read_visit, STORED))
    places = {type(visit.place) for visit in visits}
    bodies = {type(visit.body) for visit in visits}
    assert places >= {Item, Turn, Call, AgentFunction, WholeRun}
    assert bodies == {
        Backoff, ChildWait, Commands, Delay, Doubt, Ended, Failed, Fan, Loop, Question, Ready, Receipt,
        SignalWait, Work,
    }  # fmt: skip


def test_an_older_scheduler_parks_the_run_of_a_wait_that_it_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also that of a wait of a node's code, which it would ask a person about."""
    asked = InterruptQuestion("a#0", wait=WaitRequest(event="paid"))
    header = ResultHeader.of(VisitResult.asking(asked), worker="w", started_ms=1, took_ms=1)
    assert ResultHeader.from_json(json.loads(json.dumps(header.to_json()))) == header
    monkeypatch.setattr(decoding, "READS", WAITS - 1)
    waits = [text for text in STORED if '"v":3' in text]
    assert len(waits) == 3
    for text in waits:
        with pytest.raises(RecordUnreadable, match="written by a newer release"):
            read_visit(text)
    with pytest.raises(RecordUnreadable, match="written by a newer release"):
        ResultHeader.from_json(json.loads(json.dumps(header.to_json())))

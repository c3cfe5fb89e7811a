"""Visits as they are stored: those of an earlier release are read, and written as that release writes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

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
    Turn,
    WholeRun,
    Work,
)
from sleipnir.store.visit_records import read_visit, visit_text

STORED = (Path(__file__).parents[1] / "fixtures" / "stored_runs" / "visits.jsonl").read_text().splitlines()
STORED += ['{"seq":1,"node":"pause","kind":"wait","attempt":1,"opened_ms":5,"v":1,"group":1,"wake_ms":30005}']


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
        Backoff, ChildWait, Commands, Delay, Doubt, Ended, Failed, Fan, Loop, Question, Ready, Receipt, Work,
    }  # fmt: skip

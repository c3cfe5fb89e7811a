"""Records of visits that an earlier release has stored are read, and written again as they were.

`visits.jsonl` has one of each shape that runs in every kind of state have (tests/fixtures/stored_runs/record.py).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sleipnir.runs.run import Visit
from sleipnir.store.record_text import record

VISITS = Path(__file__).parents[1] / "fixtures" / "stored_runs" / "visits.jsonl"


@pytest.mark.parametrize("text", VISITS.read_text().splitlines())
def test_a_stored_visit_is_read_and_written_as_it_was(text: str) -> None:
    assert json.loads(record(Visit.from_json(text))) == json.loads(text)

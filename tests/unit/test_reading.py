"""Stored records are read tolerantly, or refused with one error. Finding C1 of the second review."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sleipnir import decoding, messages
from sleipnir.batches import records
from sleipnir.decoding import decoded, read, read_text
from sleipnir.errors import RecordUnreadable
from sleipnir.runs import budgets, run, transitions, views
from sleipnir.store.holds import hold_fields, holds_of
from sleipnir.store.record_text import record
from sleipnir.store.visit_records import read_visit
from tests.unreadable import Unreadable, cases

KINDS: dict[str, Callable[[str, str], Any]] = {
    "run_spec": lambda text, key: read_text(run.RunSpec, text, "run_spec", key),
    "visit": read_visit,
    "gate": lambda text, key: read_text(run.Gate, text, "gate", key),
}
STORED = [
    run.RunSpec, run.Hold, run.Slot, run.Gate, messages.ResultHeader, messages.VisitCall,
    messages.Usage, transitions.Step, budgets.Budget, records.BatchPlan, views.WorkerInfo, views.ArchiveState,
    *transitions._EFFECTS.values(),
]  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@dataclass(frozen=True)
class Kept:
    at_ms: int
    keys: tuple[str, ...] = ()


@pytest.mark.parametrize("case", [case for kind in KINDS for case in cases(kind)], ids=str)
def test_a_record_of_the_corpus_is_refused_with_its_key_and_the_reason(case: Unreadable) -> None:
    """Finding C1."""
    text = case.of("run000000001").decode(errors="surrogateescape")
    with pytest.raises(RecordUnreadable, match=f"^{case.kind} of run000000001 cannot be read: ") as caught:
        KINDS[case.kind](text, "run000000001")
    assert caught.value.newer == (case.why == "newer")


@given(st.sampled_from(STORED), st.data())
def test_any_json_is_read_or_refused(kind: type[Any], data: st.DataObject) -> None:
    """Finding C1: what is in the place of a field does not end in another error."""
    names = st.sampled_from([*kind.__dataclass_fields__, "more"])
    junk = data.draw(JSON | st.dictionaries(names, JSON))
    try:
        found = read_text(kind, json.dumps(junk), "record", "k")
    except RecordUnreadable as error:
        assert str(error).startswith("record of k cannot be read: ")
        str(error).encode()
    else:
        assert type(found) is kind


@given(st.text() | st.binary())
def test_any_text_is_json_or_refused(text: str | bytes) -> None:
    """Finding C1."""
    try:
        decoded(text, "record")
    except RecordUnreadable:
        return
    json.loads(text)


def test_fields_of_a_newer_release_are_ignored_and_missing_ones_have_their_defaults() -> None:
    """Finding C1: a field that is added needs no new version."""
    spec = read(run.RunSpec, {"agent": "a", "bundle": "b", "colour": "red", "v": 1})
    assert spec == run.RunSpec("a", "b")
    assert read(run.RunSpec, {"agent": "a", "bundle": "b"}) == spec


def test_a_newer_version_is_refused_until_the_release_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Finding C1."""
    newer = {"agent": "a", "bundle": "b", "v": decoding.READS + 1}
    with pytest.raises(RecordUnreadable, match="written by a newer release: version 5, this release reads up to 4"):
        read(run.RunSpec, newer)
    monkeypatch.setattr(decoding, "READS", decoding.READS + 1)
    assert read(run.RunSpec, newer).v == decoding.READS


def test_what_lua_has_encoded_is_read() -> None:
    """Its encoder writes an empty list as an empty object, and may write whole numbers with a point."""

    assert read(Kept, {"at_ms": 5.0, "keys": {}}) == Kept(5, ())


def test_a_tuple_that_a_newer_release_has_made_longer_is_cut() -> None:
    """Finding C1: a tool call that a newer worker says more of."""
    step = read(transitions.Step, {"step": 1, "kind": "tool", "at_ms": 1, "item": [1, 2, "more"]})
    assert step.item == (1, 2)


def test_only_a_spec_with_breakpoints_of_its_own_is_of_version_2() -> None:
    """A release that knows none would pass them: it parks the run."""
    spec = run.RunSpec("a", "b")
    assert record(spec) == record(spec.stopping(None, None))
    assert json.loads(record(spec)).keys().isdisjoint(["interrupt_before", "interrupt_after"])
    stopping = spec.stopping(["pay"], [])
    stored = json.loads(record(stopping))
    assert (stored["interrupt_before"], stored["interrupt_after"]) == (["pay"], [])
    assert (json.loads(record(spec))["v"], stored["v"]) == (1, 2)
    assert read_text(run.RunSpec, record(stopping)) == stopping


def test_the_hold_of_a_breakpoint_is_one_that_a_person_ends_for_a_release_that_knows_none() -> None:
    point = run.Breakpoint("after", ("b",), ("c", "d"), ("d",))
    held = (run.Hold("breakpoint", 5, owner="person", breakpoint=point), run.Hold("ann", 7, owner="person"))
    fields = hold_fields(held)
    assert holds_of(fields["paused"], fields["holds"]) == held
    earlier = [
        {name: value for name, value in hold.items() if name != "breakpoint"} for hold in json.loads(fields["holds"])
    ]
    assert [read(run.Hold, hold).ends_with("person") for hold in earlier] == [True, True]

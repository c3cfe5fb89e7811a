"""What nodes emit: forms, limits, and that nothing of it fails a node."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import Any, TypedDict

import pytest

from sleipnir import START, StateGraph, emit, emit_progress, emit_text, get_stream_writer
from sleipnir.python_graph.emitters import emission_sink, form_of


class State(TypedDict, total=False):
    done: bool


def emitted(act: Callable[[], Any]) -> list[Any]:
    """What a node emits in this process."""

    def node(state: State) -> dict[str, Any]:
        act()
        return {"done": True}

    return list(StateGraph(State).add_node(node).add_edge(START, "node").compile().stream({}, stream_mode="custom"))


@pytest.mark.conformance("EM-01")
def test_an_emission_has_its_type_and_payload() -> None:
    assert emitted(lambda: emit("found", {"at": [1, 2]})) == [
        {"category": "custom", "type": "found", "payload": {"at": [1, 2]}}
    ]


@pytest.mark.conformance("EM-02")
@pytest.mark.parametrize(
    ("given", "percent"), [(-5, 0), (0, 0), (40, 40), (99.5, 99.5), (140, 100), ("7", 7), (float("nan"), 0)]
)
def test_progress_is_clamped(given: Any, percent: float) -> None:
    assert emitted(lambda: emit_progress(given, "x")) == [{"category": "progress", "progress": percent, "message": "x"}]


def test_progress_that_is_no_number_is_dropped() -> None:
    assert emitted(lambda: emit_progress("half")) == []  # type: ignore[arg-type]


@pytest.mark.conformance("EM-03")
def test_text_is_emitted_as_it_is_and_an_empty_one_not_at_all() -> None:
    def act() -> None:
        emit_text("Hel")
        emit_text("")
        emit_text("lo\n")

    assert [each["text"] for each in emitted(act)] == ["Hel", "lo\n"]


@pytest.mark.conformance("EM-05")
def test_outside_of_a_node_emitters_do_nothing_and_there_is_no_writer() -> None:
    emit("a")
    emit_progress(1)
    emit_text("a")
    with pytest.raises(RuntimeError, match="outside of a runnable context"):
        get_stream_writer()


@pytest.mark.conformance("EM-06")
def test_a_sink_that_raises_does_not_fail_the_node() -> None:
    def broken(_: Any) -> None:
        raise OSError("no sink")

    token = emission_sink.set(broken)
    try:
        emit("a")
        emit_progress(1)
        emit_text("a")
    finally:
        emission_sink.reset(token)


def test_in_process_emissions_come_in_order_with_what_the_writer_got() -> None:
    def act() -> None:
        emit_text("a")
        get_stream_writer()({"mine": 1})
        emit("b")

    assert [each.get("category", each) for each in emitted(act)] == ["text", {"mine": 1}, "custom"]


@pytest.mark.parametrize(
    ("line", "emission"),
    [
        ({"progress": 40, "message": "half"}, {"category": "progress", "progress": 40.0, "message": "half"}),
        ({"progress": 140}, {"category": "progress", "progress": 100.0, "message": ""}),
        ({"text": "x"}, {"category": "text", "text": "x"}),
        ({"type": "t", "payload": [1]}, {"category": "custom", "type": "t", "payload": [1]}),
        ({"type": "t"}, {"category": "custom", "type": "t", "payload": None}),
    ],
)
def test_a_line_of_a_script_with_the_keys_of_an_emitter_is_what_that_emits(line: Any, emission: Any) -> None:
    assert form_of(line) == emission


@pytest.mark.parametrize("line", [{"progress": "40"}, {"progress": 1, "more": 2}, {"text": 1}, {"type": 1}, {}, [1], 3])
def test_any_other_line_is_a_chunk(line: Any) -> None:
    assert form_of(line) == {"chunk": line}


def test_a_thread_of_a_node_that_copies_its_context_emits_for_it() -> None:
    def act() -> None:
        thread = threading.Thread(target=contextvars.copy_context().run, args=(emit_text, "from a thread"))
        thread.start()
        thread.join()

    assert emitted(act) == [{"category": "text", "text": "from a thread"}]

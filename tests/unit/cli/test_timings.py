"""The performance summary that `sleipnir -v run` prints."""

from __future__ import annotations

from typing import Any

from sleipnir.cli.runs.timings import summary
from sleipnir.runs.views import RunEvent


def event(type_: str, **data: Any) -> RunEvent:
    return RunEvent(id="1-0", type=type_, at_ms=0, data=data)


def test_the_slowest_node_comes_first() -> None:
    """Finding U8 of the second review: only the scheduler's log had it."""
    events = [
        event("visit_opened", node="a"),
        event("visit_closed", node="a", took_ms=10),
        event("visit_closed", node="b", took_ms=40),
        event("visit_closed", node="a", took_ms=21),
        event("visit_closed", node="c", took_ms=99, path=["a"]),
    ]
    assert summary("mine", events) == [
        "[graph:mine] performance summary (slowest first):",
        "[graph:mine]   b: 1 visit(s), total 40ms, avg 40ms, max 40ms",
        "[graph:mine]   a: 2 visit(s), total 31ms, avg 15ms, max 21ms",
    ]
    assert summary("mine", events[:1]) == []

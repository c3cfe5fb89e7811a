"""The performance summary of a run that was followed with `-v`: the duration of each node, slowest first.

The words are those of Loki's log record (spec/graph-agents.md 2.13), which schedulers write at info. For a run with
more events than are kept (about a thousand), only the last visits count.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sleipnir.runs.views import RunEvent


def summary(agent: str, events: Iterable[RunEvent]) -> list[str]:
    """The lines; none for a run without ended visits."""
    took_ms: dict[str, list[int]] = {}
    for event in events:
        if event.type == "visit_closed" and "took_ms" in event.data and "path" not in event.data:
            took_ms.setdefault(event.data["node"], []).append(event.data["took_ms"])
    slowest_first = sorted(took_ms.items(), key=lambda item: (-sum(item[1]), item[0]))
    lines = [
        f"[graph:{agent}]   {node}: {len(each)} visit(s), total {sum(each)}ms, avg {sum(each) // len(each)}ms, "
        f"max {max(each)}ms"
        for node, each in slowest_first
    ]
    return [f"[graph:{agent}] performance summary (slowest first):", *lines] if lines else []

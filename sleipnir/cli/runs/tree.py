"""A run and its descendants, as lines that draw a tree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sleipnir.cli.terminal.render import as_json
from sleipnir.runs.plain_text import duration
from sleipnir.runs.reasons import failed_in_words

if TYPE_CHECKING:
    from sleipnir.runs.views import RunTree

MOST = 20  # children of one run that are drawn; of the others, how many there are


def lines_of(tree: RunTree, now_ms: int) -> Iterator[str]:
    """A line for each descendant of `tree`: `├─ 4kq0... writer  completed  3.2s`."""
    shown, rest = tree.children[:MOST], tree.children[MOST:]
    for place, child in enumerate(shown, start=1):
        is_last = place == len(shown) and not rest
        yield f"{'└─' if is_last else '├─'} {child.id} {child.agent}  {_how(child, now_ms)}"
        for line in lines_of(child, now_ms):
            yield f"{'  ' if is_last else '│ '} {line}"
    if rest:
        counts = Counter(child.info.status if child.info else "expired" for child in rest)
        yield f"└─ and {len(rest):,} more: " + ", ".join(f"{count:,} {status}" for status, count in counts.items())


def data_of(tree: RunTree) -> list[dict[str, Any]]:
    """The descendants, for `--json`."""
    return [
        {"id": child.id, "agent": child.agent, "run": child.info and as_json(child.info), "children": data_of(child)}
        for child in tree.children
    ]


def _how(tree: RunTree, now_ms: int) -> str:
    info = tree.info
    if info is None:
        return "expired"
    if info.started_ms is None:
        return info.status
    failed = f", {failed_in_words(info, with_errors=False)}" if info.failed_visits.count else ""
    return f"{info.status}{failed}  {duration(max(0, (info.ended_ms or now_ms) - info.started_ms))}"

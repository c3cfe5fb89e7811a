"""A narration of several runs: the lines of a run below begin with the path to it.

    ▸ worker (agent)
    ▸ worker: think (llm)
    ▸   worker: llm call: model=openai:gpt-4o
    ▸ worker: think -> done

Each run has a narration of its own (narrate.py), as visits of several runs have the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, TypeGuard

from sleipnir.cli.runs.narrate import Narrator
from sleipnir.cli.terminal.terminal import MARK
from sleipnir.runs.plain_text import printable

if TYPE_CHECKING:
    from sleipnir.runs.views import StreamEvent, TreeEvent


class ChildrenNarrator:
    """Makes lines of the events of runs below another one, of which each has a narration of its own."""

    def __init__(self, *, every_tenth: bool = True) -> None:
        self._every_tenth = every_tenth
        self._narrators: dict[str, Narrator] = {}

    def lines(self, event: TreeEvent) -> list[str]:
        """As Narrator.lines."""
        narrator = self._narrators.setdefault(event.run, Narrator(every_tenth=self._every_tenth))
        path = printable("/".join(event.path))
        lines = narrator.lines(event)
        if event.type == "run_ended":
            del self._narrators[event.run]
        return [_with_path(path, line) for line in lines]


def _with_path(path: str, line: str) -> str:
    """The line with the path after its mark and its indentation; a line that continues another has none."""
    if not line.startswith(MARK):
        return line
    words = line.removeprefix(MARK).lstrip()
    return f"{line[: len(line) - len(words)]}{path}: {words}"


def is_below(event: StreamEvent) -> TypeGuard[TreeEvent]:
    """Whether an event is of a run below the one that is followed."""
    return bool(getattr(event, "path", ()))


def as_at_the_top(event: TreeEvent) -> TreeEvent:
    """An event of a run below, with its run and its path in the data, as the run at the top tells it."""
    data: Mapping[str, object] = {**event.data, "run": event.run, "path": list(event.path)}
    return replace(event, data=data)

"""The streamed text of models, and what nodes emit, in this process: from the threads of visits to the
caller that follows the run."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from sleipnir.runs.views import StreamMode
from sleipnir_workers.execution.execution import Execution

Piece: TypeAlias = tuple[StreamMode, dict[str, Any]]


class StreamedTexts:
    """Pieces that are not taken yet: the mode and the data of a views.StreamEvent. `run` is the one that is followed:
    of those below it, there are no emissions."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._pieces: deque[Piece] = deque()

    def taken(self) -> Iterator[Piece]:
        """Take the pieces so far, in order."""
        while self._pieces:
            yield self._pieces.popleft()

    @contextmanager
    def open(self, execution: Execution) -> Iterator[_ModelText]:
        """Takes the text of one visit, until the block ends."""
        text = _ModelText(self._pieces, execution)
        try:
            yield text
        finally:
            text.close()

    def emissions(self, execution: Execution) -> _Emissions | None:
        """Takes what one visit emits."""
        return _Emissions(self._pieces, execution) if execution.run == self._run else None


class _Emissions:
    """What one visit emits: all of it, because the caller takes it as it comes."""

    has_room = True

    def __init__(self, pieces: deque[Piece], execution: Execution) -> None:
        self._about = {"seq": execution.seq, "attempt": execution.attempt, "node": execution.node.id}
        self._pieces = pieces

    def write(self, text: str) -> None:
        self._pieces.append(("custom", {**self._about, "lost": 0, **json.loads(text)}))

    def skip(self, count: int) -> None:
        self._pieces.append(("custom", {**self._about, "lost": count}))


class _ModelText:
    """The text of one visit. A deque may be appended to from several threads."""

    def __init__(self, pieces: deque[Piece], execution: Execution) -> None:
        turn = execution.part.turn if execution.part is not None else 0
        self._about = {"seq": execution.seq, "attempt": execution.attempt, "node": execution.node.id, "turn": turn}
        self._pieces, self._draft, self._number = pieces, 1, 0

    def write(self, text: str) -> None:
        if text:
            self._add(text)

    def restart(self) -> None:
        self._draft, self._number = self._draft + 1, 0

    def close(self) -> None:
        if self._number:
            self._add("", last=True)

    def _add(self, text: str, *, last: bool = False) -> None:
        piece = {**self._about, "draft": self._draft, "piece": self._number, "text": text, "lost": 0, "last": last}
        self._pieces.append(("messages", piece))
        self._number += 1

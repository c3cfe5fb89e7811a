"""The streamed text of models in this process: from the threads of visits to the caller that follows the run."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sleipnir_workers.execution.execution import Execution


class StreamedTexts:
    """Pieces that are not taken yet, with the fields of views.StreamEvent's `messages`."""

    def __init__(self) -> None:
        self._pieces: deque[dict[str, Any]] = deque()

    def taken(self) -> Iterator[dict[str, Any]]:
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


class _ModelText:
    """The text of one visit. A deque may be appended to from several threads."""

    def __init__(self, pieces: deque[dict[str, Any]], execution: Execution) -> None:
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
        self._pieces.append(piece)
        self._number += 1

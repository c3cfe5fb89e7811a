"""The input lines of a chat, from a terminal or a pipe.

Rules. On a terminal a line can be edited, and earlier lines recalled; Ctrl-C drops the line, Ctrl-D ends the input.
Prompts go to the terminal and never into a pipe.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

from sleipnir.cli.terminal import terminal

HISTORY_LINES = 1_000


class InputLines:
    """The lines of standard input. `history` is the file of earlier lines, None: none are kept; `words` are completed
    by the tab key."""

    def __init__(self, prompt: str, *, history: Path | None = None, words: Sequence[str] = ()) -> None:
        self._prompt = prompt
        self._has_person = terminal.can_ask()
        self._editor = _editor() if self._has_person and sys.stdout.isatty() else None
        self._history = history
        if self._editor is not None:
            self._begin(self._editor, words)

    def read(self) -> str | None:
        """The next line, without its line end; None at the end of the input."""
        while True:
            try:
                return self._read()
            except KeyboardInterrupt:
                if not self._has_person:
                    raise
                terminal.note("\n(Ctrl-D or .exit leaves)")

    def _read(self) -> str | None:
        if self._editor is not None:
            try:
                return input(self._prompt)
            except EOFError:
                terminal.note("")
                return None
        if self._has_person:
            sys.stderr.write(self._prompt)
            sys.stderr.flush()
        line = sys.stdin.readline()
        return line.rstrip("\r\n") if line else None

    def close(self) -> None:
        """Store the lines, if possible."""
        if self._editor is None or self._history is None:
            return
        with contextlib.suppress(OSError):
            self._history.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._history.touch(mode=0o600)
            self._editor.write_history_file(self._history)

    def _begin(self, editor: ModuleType, words: Sequence[str]) -> None:
        editor.set_history_length(HISTORY_LINES)
        if self._history is not None:
            with contextlib.suppress(OSError):
                editor.read_history_file(self._history)
        editor.set_completer(_completer(words))
        editor.parse_and_bind("tab: complete")


def _completer(words: Sequence[str]) -> Callable[[str, int], str | None]:
    def complete(begun: str, number: int) -> str | None:
        fitting = [word for word in words if begun and word.startswith(begun)]
        return fitting[number] if number < len(fitting) else None

    return complete


def _editor() -> ModuleType | None:
    """Importing readline makes input() edit lines. Not every Python has it."""
    try:
        import readline
    except ImportError:
        return None
    return readline

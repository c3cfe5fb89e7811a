"""The bottom of the terminal while a run is followed: streamed text of models and nodes, and bars of
its maps and of nodes that report progress.

Rules. Lines of the narration are written above it, and the text that they replace is removed in the same write. It is
redrawn only after a change, at most ten times a second. Without a terminal it is not drawn, and texts are lines, if
requested. rich is imported for the first drawing. It is removed at the end.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from sleipnir.cli.terminal import terminal
from sleipnir.cli.terminal.bars import Bars
from sleipnir.cli.terminal.live import ModelTexts, TextLines

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.live import Live

    from sleipnir.runs.views import RunEvent

ROWS_LEFT = 6  # for the narration, on a low terminal
PER_S = 10


class StatusArea:
    """A context manager. `as_lines`: write texts as lines if redrawing is not possible."""

    def __init__(self, *, as_lines: bool = False) -> None:
        self._can_draw = terminal.can_redraw()
        self._texts, self._bars = ModelTexts(), Bars()
        self._lines = TextLines() if as_lines and not self._can_draw else None
        self._live: Live | None = None
        self._stopped = threading.Event()
        self._is_changed = False
        # The display and its drawing, from two threads. rich's own refresh could run between a line above and the
        # redraw below, and erase too much.
        self._lock = threading.RLock()

    def see(self, event: RunEvent, lines: Sequence[str] = ()) -> None:
        """Draw the changes of an event, and write the lines of its narration above."""
        if not self._can_draw:
            terminal.narrate_lines([*(self._lines.see(event) if self._lines else ()), *lines])
            return
        with self._lock:
            self._is_changed |= any([self._texts.see(event), self._bars.see(event)])
            if not self._texts and not self._bars:
                self._stop()
            elif self._live is None:
                self._start()
            with self._live.console if self._live and lines else contextlib.nullcontext():  # all of it in one write
                terminal.narrate_lines(lines)

    def narrate(self, lines: Sequence[str]) -> None:
        """Write lines of a narration above it."""
        with self._lock, self._live.console if self._live and lines else contextlib.nullcontext():
            terminal.narrate_lines(lines)

    def say(self, lines: Sequence[str]) -> None:
        """Write lines above it, from any thread."""
        with self._lock, self._live.console if self._live else contextlib.nullcontext():
            for line in lines:
                terminal.note(line)

    @contextlib.contextmanager
    def hidden(self) -> Iterator[None]:
        """Hide it during a question."""
        was_drawn = self._live is not None
        self._stop()
        try:
            yield
        finally:
            if was_drawn:
                self._start()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        rows = max(1, console.size.height - ROWS_LEFT - len(self._bars))
        lines = self._texts.lines(options.max_width, rows)
        self._is_changed = False
        if lines:
            yield Text("\n".join(lines), style="dim", no_wrap=True, overflow="crop")
        if self._bars:
            yield self._bars.drawn()

    def _start(self) -> None:
        from rich.console import Console
        from rich.live import Live

        console = Console(stderr=True, color_system="auto" if terminal.wants_colour(sys.stderr) else None)
        self._live, self._stopped = Live(self, console=console, transient=True, auto_refresh=False), threading.Event()
        self._live.start(refresh=True)
        threading.Thread(target=self._redraw, args=(self._live, self._stopped), name="bottom", daemon=True).start()

    def _redraw(self, live: Live, stopped: threading.Event) -> None:
        """Draws only changes: a terminal flickers if the same is redrawn."""
        while not stopped.wait(1 / PER_S):
            with self._lock:
                if self._is_changed and not stopped.is_set():
                    live.refresh()

    def _stop(self) -> None:
        with self._lock:
            self._stopped.set()
            if self._live is not None:
                self._live.stop()
            self._live = None

    def __enter__(self) -> StatusArea:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

"""Reports why a run does not advance: no scheduler, or no worker for a queue.

Without it a user cannot distinguish a slow step from a missing process. Rules. The time is measured from the last
event. Each reason is reported once, until it changes. The code that follows the run handles a Redis that does not
answer.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from sleipnir.cli.terminal import terminal
from sleipnir.errors import SleipnirError

if TYPE_CHECKING:
    from sleipnir.cli.options import GlobalOptions
    from sleipnir.runs.views import MissingProcesses

AFTER_S = 2.0
AFTER_START_S = 15.0  # a private stack may just be starting; its supervisor restarts what ends
AGAIN_MOST_S = 15.0


class DelayNotice:
    """A context manager. `look` returns the lines, in a separate thread, and `say` prints them.

    `after_s` is the time without an event before the first look; it doubles up to AGAIN_MOST_S.
    """

    def __init__(
        self, look: Callable[[], Sequence[str]], say: Callable[[Sequence[str]], None], after_s: float = AFTER_S
    ) -> None:
        self._look, self._say, self._after_s = look, say, after_s
        self._again_s = after_s
        self._moved_s = time.monotonic()
        self._last_delays: Sequence[str] = ()
        self._over = threading.Event()
        self._speaking = threading.Lock()
        self._thread = threading.Thread(target=self._watch, name="delays", daemon=True)

    def moved(self) -> None:
        """An event has arrived."""
        self._moved_s, self._again_s = time.monotonic(), self._after_s

    @contextlib.contextmanager
    def silent(self) -> Iterator[None]:
        """Print nothing during a question."""
        with self._speaking:
            yield
            self.moved()

    def look_now(self) -> None:
        """Print the lines, unless they were printed last time or an event has arrived meanwhile."""
        before_s = self._moved_s
        try:
            delays = self._look()
        except SleipnirError:
            return
        with self._speaking:
            if self._moved_s != before_s or self._over.is_set():
                return
            if delays and delays != self._last_delays:
                self._say(delays)
            self._last_delays = delays

    def _watch(self) -> None:
        while not self._over.wait(max(0.1, self._moved_s + self._again_s - time.monotonic())):
            if time.monotonic() >= self._moved_s + self._again_s:
                self.look_now()
                waited_s = time.monotonic() - self._moved_s
                self._again_s = waited_s + min(AGAIN_MOST_S, waited_s)

    def __enter__(self) -> DelayNotice:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(timeout=0.5)  # one look at most; a Redis that hangs does not delay the end


def notes(lines: Sequence[str]) -> None:
    """For output without a status area."""
    for line in lines:
        terminal.note(line)


def patience_s(options: GlobalOptions | None) -> float:
    """The time without an event before the first look."""
    return AFTER_START_S if options is not None and options.is_embedded else AFTER_S


def missing_in_words(missing: MissingProcesses, options: GlobalOptions | None = None) -> list[str]:
    """A line for each missing process that the run needs."""
    if options is not None and options.is_embedded:
        where = f"look into {options.settings().home}/logs"
        scheduler, worker = where, where
    else:
        scheduler = _start(options, "scheduler")
        worker = ""
    lines = [f"no scheduler is running, so no run advances; {scheduler}"] if missing.scheduler else []
    for queue, place in sorted(missing.queues.items()):
        how = worker or _start(options, "worker", "-Q", queue)
        lines.append(f"no worker serves queue {queue!r}, which {place} waits for; {how}")
    return lines


def _start(options: GlobalOptions | None, *words: str) -> str:
    return f"`{options.command(*words) if options is not None else ' '.join(('sleipnir', *words))}` starts one"

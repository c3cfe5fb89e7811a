"""The progress of a run, as progress notifications to the client that waits for it.

Rules. Each has a larger number than the one before, as the protocol demands. The first BURST are all sent; then at most
one every INTERVAL_S, because a run may have a million visits. If nothing happens, the last one is repeated every
ALIVE_S, so that clients which wait for progress do not give up.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import anyio

from sleipnir.runs.plain_text import one_line
from sleipnir.runs.views import RunEvent, TreeEvent

BURST: Final = 100
INTERVAL_S: Final = 0.5
ALIVE_S: Final = 15.0
MOST_CHARACTERS: Final = 300

Send = Callable[[float, float | None, str | None], Awaitable[None]]


class ProgressMessages:
    """Those of one call; `send` has the parameters of ServerSession.report_progress."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._count = 0
        self._last_s = anyio.current_time()
        self._message = "started"

    async def report(self, message: str) -> None:
        """Send a message, unless there were many."""
        self._message = one_line(message, MOST_CHARACTERS)
        if self._count < BURST or anyio.current_time() - self._last_s >= INTERVAL_S:
            await self._notify()

    async def report_event(self, event: RunEvent) -> None:
        """Send what happened in the run, if it is worth it."""
        if (message := message_of(event)) is not None:
            await self.report(message)

    async def keep_alive(self) -> None:
        """Repeat the last message while nothing happens; until cancelled."""
        while True:
            left_s = ALIVE_S - (anyio.current_time() - self._last_s)
            if left_s <= 0:
                await self._notify()
            else:
                await anyio.sleep(left_s)

    async def _notify(self) -> None:
        self._count, self._last_s = self._count + 1, anyio.current_time()
        await self._send(float(self._count), None, self._message)


def message_of(event: RunEvent) -> str | None:
    """One line about an event; None for those that are not reported."""
    data = event.data
    text = _text(event.type, data)
    if text is None or "node" not in data:
        return text
    path = event.path if isinstance(event, TreeEvent) else ()
    return f"{'/'.join((*path, data['node']))}{text}"


def _text(kind: str, data: Mapping[str, Any]) -> str | None:
    """What happened, to follow the name of the node."""
    match kind:
        case "visit_opened":
            return f" ({data['kind']})"
        case "visit_closed" if not data["ok"]:
            return f" failed: {data.get('error') or 'no reason given'}"
        case "visit_retrying":
            return f" is tried again after: {data.get('error') or 'no reason given'}"
        case "map_progress":
            return f": {data['done']:,} of {data['total']:,} items"
        case "tool_called":
            return f" calls {data['name']}"
        case "custom" if data.get("category") == "progress":
            return f": {data['progress']:.0f} % {data['message']}".rstrip()
        case "gate_opened":
            return f" asks: {data['question']}"
        case "run_paused":
            return f"paused by {data['by']}" if "node" not in data else None
    return None

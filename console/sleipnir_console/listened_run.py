"""Follow a run for a protocol that waits for its answer: the text of its model as it streams, and where the run stands
when it has ended or asks a person.

Rule. Of several texts at once the first one is passed, and the others only with the output, because a reader has one
text. A text that begins anew (another attempt) follows what was said before, after an empty line. What was said ends
with the output of the run in any case.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from sleipnir.client.async_client import AsyncRun
from sleipnir.runs.views import GateInfo, RunInfo, StreamMode, TreeEvent
from sleipnir_console.problems import HttpProblem

LOOK_AGAIN_S: Final = 15.0
"""Without news of a run its questions are looked at again after so long; a listener gets a sign of life."""
STOP_LOOK_S: Final = 0.5
"""How soon a server that is being stopped lets go of a run."""
MOST_ANSWERS: Final = 2_000
"""Requests that wait for runs at once: each holds a connection to Redis."""
PAUSE: Final = "\n\n"
_MODES: Final[tuple[StreamMode, ...]] = ("messages", "updates", "events")
_STOPS: Final = frozenset(("gate_opened", "run_paused", "run_stopped", "run_ended", "gap"))

Place = tuple[str, int, int, int]


def place_of(gate: GateInfo) -> Place:
    """What tells a question from all others, also from an earlier one of its visit."""
    return gate.run, gate.seq, gate.attempt, gate.opened_ms


class AnswerSlots:
    """How many runs the requests of a server may wait for at once."""

    def __init__(self, most: int = MOST_ANSWERS) -> None:
        self._most, self._taken = most, 0

    def check(self) -> None:
        """Raises HttpProblem if there is no room."""
        if self._taken >= self._most:
            raise HttpProblem("too-many-requests", f"{self._most:,} requests wait for runs here")

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """While a request waits."""
        self._taken += 1
        try:
            yield
        finally:
            self._taken -= 1


@dataclass(frozen=True)
class RunStanding:
    """A run at one moment: `gates` are its open questions, `output` that of a completed run."""

    info: RunInfo
    gates: tuple[GateInfo, ...] = ()
    output: str = ""


@dataclass
class SpokenText:
    """What a reader was told: that of one text at a time."""

    said: str = ""
    _place: tuple[int, int, int, int] | None = None
    _is_open: bool = False
    _has_spoken: bool = False

    def more(self, data: Mapping[str, Any]) -> str:
        """What a piece adds."""
        place = (data["seq"], data["attempt"], data["turn"], data["draft"])
        if place != self._place:
            is_of_other = self._place is None or self._place[0] != place[0]
            if data["piece"] != 0 or (self._is_open and is_of_other):
                return ""
            self._place, self.said = place, ""
        self._is_open = not data["last"]
        return self._say(data["text"])

    def rest(self, text: str) -> str:
        """What is still to be said, so that it ends with this text."""
        if self.said.strip() and self.said.strip() == text.strip():
            return ""
        if text.startswith(self.said):
            text, self._place = text[len(self.said) :], self._place or (0, 0, 0, 0)
        else:
            self.said = ""
        return self._say(text)

    def _say(self, text: str) -> str:
        if not text:
            return ""
        pause = PAUSE if self._has_spoken and not self.said else ""
        self.said, self._has_spoken = self.said + text, True
        return pause + text


@dataclass
class ListenedRun:
    """One run for one request. What happened before `since_ms` is not told; questions with an answer that no scheduler
    has seen yet (`answered`) do not count."""

    run: AsyncRun
    is_stopping: Callable[[], bool]
    since_ms: int = 0
    answered: set[Place] = field(default_factory=set)
    spoken: SpokenText = field(default_factory=SpokenText)

    async def now(self) -> RunStanding:
        """The run as it is now, whether it goes on by itself or not."""
        info = await self.run.info()
        if info.is_final:
            output = await self.run.output() if info.status == "completed" else None
            return RunStanding(info, output=output or "")
        return RunStanding(info, tuple(gate for gate in await self.run.gates() if place_of(gate) not in self.answered))

    async def standing(self) -> RunStanding | None:
        """None: the run goes on by itself."""
        now = await self.now()
        return now if now.info.is_final or now.gates else None

    async def until_it_may_have_ended(self) -> None:
        """Return when the run has ended, or after LOOK_AGAIN_S."""
        async with contextlib.aclosing(self._events()) as events:
            async for event in events:
                if event is None or (event.type == "run_ended" and not event.path):
                    return

    async def news(self) -> AsyncGenerator[str | RunStanding]:
        """What the run says, and in the end where it stands; an empty text every LOOK_AGAIN_S. Raises SleipnirError,
        and HttpProblem `stopping`."""
        standing = await self.standing() if self.since_ms else None
        while standing is None:
            async with contextlib.aclosing(self._events()) as events:
                async for event in events:
                    if event is None:
                        standing = await self.standing()
                        yield ""
                    elif event.at_ms < self.since_ms:
                        continue
                    elif event.type == "text":
                        if not event.path and (text := self.spoken.more(event.data)):
                            yield text
                    elif _may_stop(event):
                        standing = await self.standing()
                    if standing is not None:
                        break
                else:
                    standing = await self.standing()
        yield standing

    async def _events(self) -> AsyncGenerator[TreeEvent | None]:
        """The events of the run and of those below it; None every LOOK_AGAIN_S without one."""
        stream = self.run.stream(_MODES, subgraphs=True, terminal_only=True)
        events = cast(AsyncGenerator[TreeEvent], stream)
        silent_s = 0.0
        next_one = asyncio.ensure_future(anext(events, None))
        try:
            while True:
                await asyncio.wait((next_one,), timeout=STOP_LOOK_S)
                if next_one.done():
                    if (event := next_one.result()) is None:
                        return
                    next_one, silent_s = asyncio.ensure_future(anext(events, None)), 0.0
                    yield event
                    continue
                if self.is_stopping():
                    raise HttpProblem("stopping", f"the server is being stopped; run {self.run.id} goes on")
                silent_s += STOP_LOOK_S
                if silent_s >= LOOK_AGAIN_S:
                    silent_s = 0.0
                    yield None
        finally:
            next_one.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await next_one
            await events.aclose()


def _may_stop(event: TreeEvent) -> bool:
    """Whether the run may have ended after an event, or may ask."""
    return event.type in _STOPS and (event.type != "run_ended" or not event.path)

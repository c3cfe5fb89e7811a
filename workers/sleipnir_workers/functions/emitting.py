"""What the code of a node emits, to what takes the emissions of its visit: objects of functions, lines of scripts.

Nothing here fails the node. What cannot be taken is counted; when too much is held already, it is not even read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

from pydantic_core import to_json

from sleipnir.graph.plain import first_not_json
from sleipnir.python_graph.emitters import Emission, emission_sink, form_of
from sleipnir.python_graph.objects import plain_of
from sleipnir.python_graph.runtime import StreamWriter
from sleipnir_workers.execution.execution import Emissions, Execution

MOST_IN_TEXT = 500  # characters of one emission; a longer text becomes several
MOST_IN_LINE = 16_384  # bytes; a longer line is dropped


def emitting(execution: Execution) -> AbstractContextManager[None]:
    """What the code in the block emits is that of the visit."""
    return nullcontext() if execution.emissions is None else _taken_by(execution.emissions)


@contextmanager
def _taken_by(emissions: Emissions) -> Iterator[None]:
    token = emission_sink.set(partial(take, emissions))
    try:
        yield
    finally:
        emission_sink.reset(token)


def chunk_writer(emissions: Emissions) -> StreamWriter:
    """The stream writer of a node."""
    return lambda value: take(emissions, {"chunk": value})


def take(emissions: Emissions, emission: Emission) -> None:
    """Pass on an emission. One that JSON cannot hold is counted."""
    if not emissions.has_room:
        emissions.skip(1)
        return
    try:
        text = emission.get("text")
        if text is not None and len(text) > MOST_IN_TEXT:
            for start in range(0, len(text), MOST_IN_TEXT):
                emissions.write(_as_json({**emission, "text": text[start : start + MOST_IN_TEXT]}))
        else:
            emissions.write(_as_json(emission))
    except Exception:  # an object of the node's own may raise anything; watching it does not fail it
        emissions.skip(1)


def _as_json(emission: Emission) -> str:
    """Raises for objects that JSON cannot hold."""
    try:
        return to_json(emission, fallback=plain_of, inf_nan_mode="null").decode()
    except ValueError:  # half of a surrogate pair, which JSON allows only as an escape
        return json.dumps(emission, default=plain_of, allow_nan=False, separators=(",", ":"))


class EmittedLines:
    """The lines that a script writes to its descriptor 3: JSON (emitters.form_of), or else text. `hide` removes
    secrets."""

    def __init__(self, emissions: Emissions, hide: Callable[[Emission], Emission]) -> None:
        self._emissions, self._hide = emissions, hide
        self._rest, self._is_too_long = b"", False

    def feed(self, written: bytes) -> None:
        """Take the next bytes."""
        *lines, rest = (self._rest + written).split(b"\n")
        if lines and self._is_too_long:
            del lines[0]  # its end
            self._is_too_long = False
        for place, line in enumerate(lines):
            if not self._emissions.has_room:
                self._emissions.skip(len(lines) - place)
                break
            self._take(line)
        if len(rest) > MOST_IN_LINE or self._is_too_long:
            if not self._is_too_long:
                self._emissions.skip(1)
            rest, self._is_too_long = b"", True
        self._rest = rest

    def close(self) -> None:
        """The last line needs no end."""
        if self._rest:
            self.feed(b"\n")

    def _take(self, line: bytes) -> None:
        if len(line) > MOST_IN_LINE:
            self._emissions.skip(1)
        elif line:
            take(self._emissions, self._hide(_meant(line)))


def _meant(line: bytes) -> Emission:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return {"category": "text", "text": f"{line.decode(errors='replace')}\n"}
    return form_of(value) if first_not_json(value) is None else {"category": "text", "text": f"{line.decode()}\n"}

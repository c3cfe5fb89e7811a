"""How the holds of a run are stored: `paused` is the oldest one as releases before knew it, `holds` all of them.

Releases that know only `paused` see that the run is held, and end all of its holds when they resume it. So `holds`
counts only beside the `paused` that was written with it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sleipnir.decoding import decoded, read, read_text
from sleipnir.errors import RecordUnreadable
from sleipnir.runs.run import Hold

FIELDS = ("paused", "holds")
"""Of a run's hash."""


def holds_of(paused: str | None, holds: str | None, key: str = "") -> tuple[Hold, ...]:
    """The holds of a run, oldest first. Raises RecordUnreadable."""
    if not paused:
        return ()
    oldest = read_text(Hold, paused, "hold", key)
    if not holds:
        return (oldest,)
    listed = decoded(holds, "holds", key)
    if not isinstance(listed, list):
        raise RecordUnreadable("holds", key, "damaged: a list is needed")
    found = tuple(read(Hold, each, "hold", key) for each in listed)
    is_current = bool(found) and (found[0].by, found[0].at_ms) == (oldest.by, oldest.at_ms)
    return found if is_current else (oldest,)


def hold_fields(holds: Sequence[Hold]) -> dict[str, str]:
    """What is stored of at least one hold."""
    stored = [{name: value for name, value in vars(hold).items() if value} for hold in holds]
    oldest = {name: value for name, value in stored[0].items() if name != "owner"}
    return {"paused": _text(oldest), "holds": _text(stored)}


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

"""The stored form of a run's holds: `paused` is the oldest hold in the form of earlier releases, `holds` are all.

Releases that know only `paused` see that the run is held, and end all of its holds when they resume it. So `holds`
is valid only with the `paused` that was written with it.
"""

from __future__ import annotations

from collections.abc import Sequence

from sleipnir.decoding import decoded, read, read_text
from sleipnir.errors import RecordUnreadable
from sleipnir.runs.run import Hold
from sleipnir.store.record_text import dumps, fields_set

FIELDS = ("paused", "holds")
"""The fields of a run's hash."""


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
    held = tuple(read(Hold, each, "hold", key) for each in listed)
    is_current = bool(held) and (held[0].by, held[0].at_ms) == (oldest.by, oldest.at_ms)
    return held if is_current else (oldest,)


def hold_fields(holds: Sequence[Hold]) -> dict[str, str]:
    """The stored fields for at least one hold."""
    stored = [{name: value for name, value in fields_set(hold).items() if value} for hold in holds]
    oldest = {name: value for name, value in stored[0].items() if name != "owner"}
    return {"paused": dumps(oldest), "holds": dumps(stored)}

"""Numbers, times and texts as pages show them: filters of the templates."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, Final

from sleipnir.runs.plain_text import TURNS

MOST_SHOWN: Final = 65_536
"""Characters of one value in a page."""
_INVISIBLE: Final = {code: f"\\u{code:04x}" for code in TURNS} | {
    code: "\ufffd" for code in range(0x20) if chr(code) not in "\n\t"
}


def duration(ms: float | None) -> str:
    """`68 ms`, `38.2 s`, `2 min 50 s`, `5 h 2 min`, `3 d 4 h`; `–` for none."""
    if ms is None:
        return "–"
    if ms < 1_000:
        return f"{max(0, round(ms))} ms"
    if ms < 60_000:
        return f"{max(0, ms) / 1000:.1f} s"
    seconds = int(ms) // 1000
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    if seconds < 86_400:
        return f"{seconds // 3600} h {seconds % 3600 // 60} min"
    return f"{seconds // 86_400} d {seconds % 86_400 // 3600} h"


def rounded(ms: float | None) -> str:
    """The larger unit of a duration alone: `3 d`, `14 min`."""
    text = duration(ms)
    parts = text.split(" ")
    return text if ms is None or ms < 60_000 else f"{parts[0]} {parts[1]}"


def count(number: int) -> str:
    """`14,382`."""
    return f"{number:,}"


def short_count(number: int) -> str:
    """`812`, `14.4k`, `1.04M`."""
    if number < 10_000:
        return f"{number:,}"
    return f"{number / 1000:.1f}k" if number < 1_000_000 else f"{number / 1_000_000:.2f}M"


def cost(usd: float | None) -> str:
    """`$0.012` below a dollar, else `$1.84`; `–` if it is not known."""
    if usd is None:
        return "–"
    return "$0.00" if usd == 0 else f"${usd:,.3f}" if usd < 1 else f"${usd:,.2f}"


def size(of_bytes: int) -> str:
    """`812 B`, `64.0 KiB`, `9.8 GiB`."""
    number = float(of_bytes)
    for unit in ("B", "KiB", "MiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} GiB"


def clock(ms: int | None, now_ms: int) -> str:
    """`10:02:29` of today, else `22 Nov 10:02`, in UTC."""
    if ms is None:
        return "–"
    at, now = datetime.fromtimestamp(ms / 1000, UTC), datetime.fromtimestamp(now_ms / 1000, UTC)
    if at.date() == now.date():
        return at.strftime("%H:%M:%S")
    return at.strftime("%-d %b %H:%M") if at.year == now.year else at.strftime("%-d %b %Y")


def instant(ms: int | None) -> str:
    """The whole time, for `<time title>`: `2026-11-23 10:02:29 UTC`."""
    return "" if ms is None else datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def visible(text: object) -> str:
    """A text of others without characters that hide, reorder or end what follows."""
    return str(text).translate(_INVISIBLE)


def json_text(value: Any) -> str:
    """A JSON value as indented text; a text as it is."""
    return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)


def beginning(text: str) -> str:
    """At most MOST_SHOWN characters."""
    return text[:MOST_SHOWN]

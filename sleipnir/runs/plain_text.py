"""Texts for people: durations, and texts that an agent, a model or another person wrote, without control characters."""

from __future__ import annotations

from typing import Final

TURNS: Final = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""Characters that change the text direction: with them a text may display differently from its content."""
_SHOWN_AS = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}
_SHOWN_AS |= {code: f"\\u{code:04x}" for code in TURNS}


def printable(text: str) -> str:
    """The text with control characters spelt out (`\\x1b`); newlines and tabs stay."""
    return text.translate(_SHOWN_AS)


def one_line(text: str, limit: int = 0) -> str:
    """The text on one line, control characters escaped; shortened with `…` to `limit` characters (0: never)."""
    flat = printable(" ".join(text.split()))
    return flat if not limit or len(flat) <= limit else flat[: limit - 1] + "…"


def duration(ms: int) -> str:
    """`850ms`, `2.41s`, `3m12s`, `2h05m`, `3d04h`."""
    if ms < 1000:
        return f"{ms}ms"
    seconds = ms // 1000
    if seconds < 60:
        return f"{ms / 1000:.2f}s" if ms < 59_995 else "60.00s"
    if seconds < 3600:
        return f"{seconds // 60}m{seconds % 60:02}s"
    if seconds < 86_400:
        return f"{seconds // 3600}h{seconds % 3600 // 60:02}m"
    return f"{seconds // 86_400}d{seconds % 86_400 // 3600:02}h"

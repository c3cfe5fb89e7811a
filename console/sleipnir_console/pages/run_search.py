"""The text of the search field of runs as parameters of its URL: `agent:triage state:failed cost:>1 account`."""

from __future__ import annotations

import re
from typing import Final

from sleipnir.messages import STATUSES
from sleipnir.runs.cards import REASONS

NAMES: Final = {
    "agent": "agent", "state": "status", "status": "status", "reason": "reason", "tag": "tag", "version": "version",
    "batch": "batch", "thread": "thread", "parent": "parent", "node": "node", "fingerprint": "fingerprint",
    "text": "text",
}  # fmt: skip
"""Words before a colon, and the parameter that each is."""
RUN_ID: Final = re.compile(r"[0-9a-hjkmnp-tv-z]{6,40}", re.ASCII)
_TOKEN: Final = re.compile(r'(\w+):(?:"([^"]*)"|(\S+))|"([^"]*)"|(\S+)')


def parameters_of(text: str) -> list[tuple[str, str]]:
    """The parameters of a search. Words without a key are the text of failures; an unknown key is such a word too."""
    found, words = list[tuple[str, str]](), list[str]()
    for match in _TOKEN.finditer(text[:1_000]):
        key, value = (match[1] or "").lower(), match[2] or match[3]
        if key == "cost" and value and (pair := _cost(value)):
            found.append(pair)
        elif key in NAMES and value:
            found.append(_named(key, value))
        elif key == "is" and value in (STATUSES | set(REASONS)):
            found.append(("status" if value in STATUSES else "reason", value))
        else:
            words.append(match[4] or match[5] or match[0])
    return [*found, *([("text", " ".join(words))] if words else [])]


def may_be_run(text: str) -> bool:
    """Whether the text may be the id of a run, or the beginning of one."""
    return RUN_ID.fullmatch(text.strip()) is not None and any(letter.isdigit() for letter in text)


def _named(key: str, value: str) -> tuple[str, str]:
    name = NAMES[key]
    return ("reason", value) if name == "status" and value not in STATUSES and value in REASONS else (name, value)


def _cost(value: str) -> tuple[str, str] | None:
    match = re.fullmatch(r"([<>]?)(\d+(?:\.\d+)?)", value)
    return None if match is None else ("cost_max" if match[1] == "<" else "cost_min", match[2])

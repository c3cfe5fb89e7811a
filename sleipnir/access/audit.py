"""Entries of the audit: what was changed, by whom, from where, what it was before and after, and why.

The entry of a change is written by the script that makes it, into a stream beside what is changed: one for users and
tokens, and one for the runs of each partition. Readers merge them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sleipnir.graph.plain import compact_json

MOST_ENTRIES: Final = 100_000
"""Of one stream of the audit. With more the oldest go, also within the retention."""
KEEP_MS: Final = 365 * 24 * 3600 * 1000
"""How long an entry is kept if no setting says so."""
MOST_REASON: Final = 1_000
"""Characters of a reason."""


@dataclass(frozen=True)
class AuditEntry:
    """`id` orders the entries of its stream. `what` is the change (`user added`), `on` its subject (`user ann`), `by`
    the actor as text (runs/actor.py), which says where it came from: `ann@desk (cli)`. `before` and `after` are JSON;
    None: there was, or is, nothing. No secret and no hash is in them."""

    id: str
    at_ms: int
    what: str
    on: str
    by: str
    before: Any = None
    after: Any = None
    reason: str | None = None


def audit_text(what: str, on: str, by: str, *, before: Any = None, after: Any = None, reason: str | None = None) -> str:
    """The stored form of an entry; its time and id are those of the stream."""
    fields: Mapping[str, Any] = {"before": before, "after": after, "reason": reason[:MOST_REASON] if reason else None}
    given = {name: value for name, value in fields.items() if value is not None}
    return compact_json({"v": 1, "what": what, "on": on, "by": by, **given})

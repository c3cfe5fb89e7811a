"""Groups of failures that a person has dealt with: what Client.discard_failures does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sleipnir.access.audit import audit_text
from sleipnir.errors import UsageError
from sleipnir.runs.run_filters import ANY_NAMESPACE, MOST_NOTE, DiscardNote, FailureGroup, RunFilter

if TYPE_CHECKING:
    from sleipnir.settings import Settings
    from sleipnir.store.store import Store

MOST_TRIES: Final = 20
_KEPT_MS: Final = 3_600_000
"""A note lives at least so long."""


def with_notes(store: Store, namespace: str, groups: Sequence[FailureGroup]) -> list[FailureGroup]:
    """The groups with the notes that no later failure has made out of date. Those of all namespaces have none."""
    if namespace == ANY_NAMESPACE:
        return list(groups)
    notes = store.access.discard_notes(namespace, {group.fingerprint for group in groups})
    return [
        replace(group, discarded=found.value)
        if (found := notes.get(group.fingerprint)) is not None and found.value.at_ms >= group.last_ms
        else group
        for group in groups
    ]


def discard(store: Store, settings: Settings, namespace: str, fingerprint: str, note: str | None, by: str) -> None:
    """Note that the failures of a group up to now are dealt with; None: that they are not. Raises UsageError."""
    note = None if note is None else note.strip()
    if note is not None and not 0 < len(note) <= MOST_NOTE:
        raise UsageError(f"say in 1 to {MOST_NOTE:,} characters what was done about these failures")
    wanted = RunFilter(namespace, statuses=frozenset({"failed"}), fingerprint=fingerprint)
    if note is not None and not store.runs.count_found(wanted, 1):
        raise UsageError(f"no failed run has the fingerprint {fingerprint!r:.80}; `sleipnir failures` lists the groups")
    ttl_ms = max(_KEPT_MS, int(settings.retention_s * 1000))
    for _ in range(MOST_TRIES):
        was = store.access.discard_notes(namespace, [fingerprint]).get(fingerprint)
        if was is None and note is None:
            return
        after = None if note is None else DiscardNote(note, by, store.now_ms())
        what = "failures reopened" if note is None else "failures discarded"
        entry = audit_text(what, f"failures {fingerprint}", by, after={"namespace": namespace}, reason=note)
        if store.access.change_discard_note(namespace, fingerprint, was, after, ttl_ms=ttl_ms, entry=entry):
            return
    raise UsageError(f"the note on failures {fingerprint!r:.80} changes all the time; try again")

"""As whom people answer gates, and what they say with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sleipnir.errors import UsageError
from sleipnir.runs.handling import MOST_COMMENT

if TYPE_CHECKING:
    from sleipnir.runs.views import GateInfo
    from sleipnir.store.store import Store


def checked_comment(text: str | None) -> str | None:
    """A comment as it is stored; None for one without any letter. Raises UsageError."""
    if text is None or not (said := text.strip()):
        return None
    if len(said) > MOST_COMMENT:
        raise UsageError(f"the comment has {len(said):,} characters; at most {MOST_COMMENT:,} fit")
    try:
        said.encode()
    except UnicodeEncodeError:
        raise UsageError("the comment has half of a surrogate pair, which cannot be stored") from None
    return said


def role_of(store: Store, gate: GateInfo) -> str | None:
    """The access role in which the person of this store answers a gate that names a role. Who has the password of Redis
    has the role of the user of that name, where the run is; if there is no such user, that of an operator. None: the
    role does not matter, or the HTTP API has said it."""
    person = store.person
    if person.role is not None or gate.rules is None or gate.rules.role is None:
        return None
    found = store.access.user(person.name)
    if found is None:
        return "operator"
    from sleipnir.access.records import Identity

    if found.value.disabled:
        return None
    namespace = store.runs.spec(gate.run).namespace
    return Identity(found.value.name, found.value.roles, "login").role_in(namespace)

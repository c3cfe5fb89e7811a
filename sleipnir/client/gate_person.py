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
    """The access role in which the person of this store answers a gate that names a role. None: the role does not
    matter, or the HTTP API has said it."""
    person = store.person
    if person.role is not None or gate.rules is None or gate.rules.role is None:
        return None
    return role_of_person(store, gate, person.name)


def role_of_person(store: Store, gate: GateInfo, name: str) -> str | None:
    """The access role of a person where the run of a gate is."""
    return role_in(store, name, store.runs.spec(gate.run).namespace)


def role_in(store: Store, name: str, namespace: str) -> str | None:
    """The access role of a person in a namespace: that of the user of this name; if there is no such user, that of an
    operator, as who has the password of Redis. None: none."""
    found = store.access.user(name)
    if found is None:
        return "operator"
    from sleipnir.access.records import Identity

    if found.value.disabled:
        return None
    return Identity(found.value.name, found.value.roles, "login").role_in(namespace)

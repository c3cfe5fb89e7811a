"""Users whom a login provider knows (OpenID Connect): their names, and what their groups may do. Pure.

Rules. Their names begin with `oidc:`, which no name of another user does. A name belongs to the subject that first came
with it: names at a provider can pass to somebody else, subjects cannot.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from sleipnir.access.records import rank, refuse_namespaces, refuse_role
from sleipnir.errors import UsageError

PREFIX: Final = "oidc:"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,58}")


@dataclass(frozen=True)
class ProvidedUser:
    """What a provider has proved: `name` with its prefix, `subject` (issuer and `sub`), access roles by namespace."""

    name: str
    subject: str
    roles: Mapping[str, str]


@dataclass(frozen=True)
class GroupRole:
    """The members of `group` have the access role `role` in `namespace` (`*`: all)."""

    group: str
    role: str
    namespace: str


def is_provided(name: str) -> bool:
    """Whether a name is that of a provider's user."""
    return name.startswith(PREFIX)


def provided_name(claim: object) -> str:
    """The name of the user with this name at the provider. Raises UsageError for one that cannot be used."""
    if not isinstance(claim, str) or not _NAME.fullmatch(claim):
        raise UsageError(
            f"the login provider's name {str(claim)[:80]!r} is no name for a user here: up to 59 letters, digits and "
            ". _ @ + -, beginning with a letter or a digit; SLEIPNIR_OIDC_USER names the claim that is used"
        )
    return PREFIX + claim


def group_roles(text: str) -> tuple[GroupRole, ...]:
    """Of `GROUP=ROLE@NAMESPACE`, with semicolons between; groups may have commas and `=` in them. Raises UsageError."""
    found = []
    for part in filter(None, (each.strip() for each in text.split(";"))):
        group, is_given, grant = part.rpartition("=")
        role, has_namespace, namespace = grant.strip().partition("@")
        if not is_given or not has_namespace or not group.strip():
            raise UsageError(f"{part[:80]!r} is not GROUP=ROLE@NAMESPACE, as in ops=operator@default or admins=admin@*")
        refuse_role(role)
        refuse_namespaces([namespace])
        found.append(GroupRole(group.strip(), role, namespace))
    return tuple(found)


def roles_of(groups: Collection[str], granted: Collection[GroupRole]) -> dict[str, str]:
    """The access roles of a member of these groups by namespace; of several in one the highest."""
    roles: dict[str, str] = {}
    for each in granted:
        if each.group in groups and rank(each.role) > rank(roles.get(each.namespace, "")):
            roles[each.namespace] = each.role
    return roles

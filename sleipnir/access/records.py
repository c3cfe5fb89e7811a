"""Users, access tokens and logins, as they are stored, and what an access role allows.

A user has one access role in each of some namespaces; that for EVERY applies in all. A token or a login acts for its
user, with at most the role that the user has now.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from sleipnir.errors import UsageError

AccessRole: TypeAlias = Literal["viewer", "approver", "operator", "admin"]
"""`viewer` reads; `approver` answers questions too; `operator` starts and steers runs too; `admin` changes users,
tokens and limits too."""

ACCESS_ROLES: Final[tuple[AccessRole, ...]] = ("viewer", "approver", "operator", "admin")
"""Each may do what those before it may."""

EVERY: Final = "*"
"""All namespaces, those to come too."""

IDLE_MS: Final = 12 * 3600 * 1000
"""A login that is not used for so long has ended."""
LOGIN_MS: Final = 7 * 24 * 3600 * 1000
"""The longest life of a login."""
MOST_LOGINS: Final = 20
"""Of one user; the oldest ends when there are more."""
SEEN_EVERY_MS: Final = 60_000
"""The last use of a login or a token is written this often at most."""

_USER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}")
_NAMESPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class User:
    """`password` is an argon2id hash; empty: no password is accepted, as for users that only a proxy names. `roles` are
    access roles by namespace. `changed` is a random text that each change replaces. `subject` is what the login
    provider knows one of its users by (access/provided_users.py); empty for others."""

    name: str
    roles: Mapping[str, str]
    password: str = ""
    disabled: bool = False
    created_ms: int = 0
    changed: str = ""
    subject: str = ""
    v: int = 1


@dataclass(frozen=True)
class AccessToken:
    """A token for programs. `hash` is the SHA-256 of its secret. `namespaces` and `role` bound what it may do;
    `expires_ms`: None for no end. `used_ms` is its last use, to the minute."""

    id: str
    user: str
    hash: str
    role: str
    namespaces: tuple[str, ...]
    created_ms: int
    expires_ms: int | None = None
    label: str = ""
    used_ms: int | None = None
    v: int = 1


@dataclass(frozen=True)
class Login:
    """The right of a browser to act for a user. It ends IDLE_MS after its last use (`seen_ms`, to the minute), and at
    `until_ms`."""

    created_ms: int
    seen_ms: int
    until_ms: int
    address: str = ""
    v: int = 1

    @staticmethod
    def id_of(digest: str) -> str:
        """The id of a login in lists, from the hash of its secret."""
        return digest[:12]

    def is_over(self, now_ms: int) -> bool:
        return now_ms >= min(self.until_ms, self.seen_ms + IDLE_MS)


@dataclass(frozen=True)
class Identity:
    """Who a request comes from. `bound` and `namespaces` are those of its token; without a token they bound nothing.
    `csrf` is what a request that changes something must repeat in a header; None where no cookie authenticates.
    `expires_ms` is that of a token; None: it does not expire by itself."""

    user: str
    roles: Mapping[str, str]
    via: Literal["login", "token", "proxy"]
    token: str | None = None
    bound: str = "admin"
    namespaces: tuple[str, ...] = (EVERY,)
    csrf: str | None = None
    expires_ms: int | None = None

    def role_in(self, namespace: str) -> AccessRole | None:
        """The access role in a namespace, or with EVERY the one in all of them. None: it sees nothing there."""
        if EVERY not in self.namespaces and namespace not in self.namespaces:
            return None
        ranks = [rank(self.roles[name]) for name in {namespace, EVERY} & self.roles.keys()]
        return (
            ACCESS_ROLES[min(max(ranks), rank(self.bound))] if ranks and max(ranks) >= 0 <= rank(self.bound) else None
        )

    def may(self, role: AccessRole, namespace: str) -> bool:
        """Whether it has this access role there, or a higher one."""
        found = self.role_in(namespace)
        return found is not None and rank(found) >= rank(role)

    def visible(self) -> frozenset[str] | None:
        """The namespaces in which it has any access role. None: all."""
        if self.role_in(EVERY) is not None:
            return None
        named = self.namespaces if EVERY in self.roles else self.roles
        return frozenset(name for name in named if self.role_in(name) is not None)


def rank(role: str) -> int:
    """The place of an access role; -1 for one that a newer release has, which allows nothing."""
    return ACCESS_ROLES.index(role) if role in ACCESS_ROLES else -1


def refuse_user(name: str) -> None:
    """Raise UsageError for what cannot be the name of a user."""
    if not _USER.fullmatch(name):
        raise UsageError(
            f"{name[:80]!r} is no name for a user: up to 64 letters, digits and . _ @ + -, beginning with a letter or "
            "a digit"
        )


def refuse_role(role: str) -> None:
    """Raise UsageError for an unknown access role."""
    if role not in ACCESS_ROLES:
        raise UsageError(f"there is no role {role[:80]!r}; the roles are {', '.join(ACCESS_ROLES)}")


def refuse_namespaces(names: Collection[str]) -> None:
    """Raise UsageError for what cannot be the name of a namespace, and for none."""
    if not names:
        raise UsageError(f"name at least one namespace, or {EVERY!r} for all")
    for name in names:
        if name != EVERY and not _NAMESPACE.fullmatch(name):
            raise UsageError(
                f"{name[:80]!r} is no name for a namespace: up to 64 letters, digits and . _ -, beginning with a "
                f"letter or a digit; {EVERY!r} means all"
            )

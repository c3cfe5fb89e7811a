"""What users may change of users and access tokens: nobody gives more than they have, nor changes those who have more.

Each function is asked about the record on which the change is based, so that a change that comes first is seen.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeAlias

from sleipnir.access.records import EVERY, AccessRole, AccessToken, Identity, User
from sleipnir.errors import UsageError

Maker: TypeAlias = Identity | None
"""Who asks; None: everybody on this machine, who is an admin until there are users."""


class NotGranted(UsageError):
    """The maker of a change has less than what the change gives, or than whom it concerns."""


def manages(maker: Maker, user: User) -> bool:
    """Whether it may change this user: it is an admin wherever the user has a role."""
    return maker is None or all(maker.may("admin", namespace) for namespace in user.roles or (EVERY,))


def sees(maker: Maker, user: User) -> bool:
    """Whether the user is there for it: it is an admin in one of the user's namespaces, or everywhere."""
    return maker is None or any(maker.may("admin", namespace) for namespace in (*user.roles, EVERY))


def refuse_unmanaged(maker: Maker, user: User) -> None:
    """Raise NotGranted for a user whom the maker may not change."""
    if not manages(maker, user):
        raise NotGranted(f"{user.name!r} has a role where you are no admin")


def refuse_grant(maker: Maker, role: AccessRole, namespaces: Collection[str]) -> None:
    """Raise NotGranted for a role in a namespace in which the maker has less."""
    for namespace in namespaces:
        if maker is not None and not maker.may(role, namespace):
            raise NotGranted(f"you do not have the role {role} in {namespace!r}, so you cannot give it")


def refuse_admin_grant(maker: Maker, namespaces: Collection[str]) -> None:
    """Raise NotGranted for a namespace in which the maker is no admin: only admins give and take roles."""
    refuse_grant(maker, "admin", namespaces)


def refuse_longer(maker: Maker, expires_ms: int | None) -> None:
    """Raise NotGranted for a token that lives longer than the one that makes it."""
    if maker is None or maker.expires_ms is None:
        return
    if expires_ms is None or expires_ms > maker.expires_ms:
        raise NotGranted("a token makes none that expires later than itself")


def may_revoke(maker: Maker, token: AccessToken, owner: User | None) -> bool:
    """Whether it may revoke a token: of itself, but a token no other ones; or of a user whom it manages."""
    if maker is not None and maker.user == token.user and maker.token in (None, token.id):
        return True
    return maker is None or maker.may("admin", EVERY) or (owner is not None and manages(maker, owner))


def is_admin_everywhere(user: User) -> bool:
    """Whether this user can change everything over HTTP."""
    return not user.disabled and user.roles.get(EVERY) == "admin"

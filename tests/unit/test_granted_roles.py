"""Nobody gives more than they have, nor changes those who have more."""

from __future__ import annotations

import pytest

from sleipnir.access.granted_roles import (
    NotGranted,
    is_admin_everywhere,
    manages,
    may_revoke,
    refuse_grant,
    refuse_longer,
    sees,
)
from sleipnir.access.records import ACCESS_ROLES, EVERY, AccessRole, AccessToken, Identity, User, rank

ROOT = Identity("root", {EVERY: "admin"}, "login")
ANN = Identity("ann", {"a": "admin"}, "login")
BOUND = Identity("root", {EVERY: "admin"}, "token", token="t", bound="viewer", namespaces=("a",), expires_ms=1_000)


def user(name: str = "bob", **roles: str) -> User:
    return User(name, {EVERY if where == "every" else where: role for where, role in roles.items()})


def token(of: str, id_: str = "t") -> AccessToken:
    return AccessToken(id_, of, "", "admin", (EVERY,), 0)


@pytest.mark.parametrize(
    ("of", "ann_sees", "ann_manages"),
    [
        (user(a="admin"), True, True),
        (user(a="viewer", b="viewer"), True, False),
        (user(a="viewer", every="viewer"), True, False),
        (user(b="viewer"), False, False),
        (user(every="admin"), False, False),
        (user(), False, False),
    ],
)
def test_an_admin_manages_whom_it_is_an_admin_of_everywhere(of: User, ann_sees: bool, ann_manages: bool) -> None:
    assert (sees(ANN, of), manages(ANN, of)) == (ann_sees, ann_manages)
    assert sees(ROOT, of) and manages(ROOT, of) and manages(None, of)
    assert not sees(BOUND, of) and not manages(BOUND, of)


@pytest.mark.parametrize("has", ACCESS_ROLES)
@pytest.mark.parametrize("gives", ACCESS_ROLES)
def test_a_role_is_given_by_those_who_have_it_there(has: AccessRole, gives: AccessRole) -> None:
    maker = Identity("x", {"a": has}, "login")
    if rank(gives) <= rank(has):
        refuse_grant(maker, gives, ["a"])
    else:
        with pytest.raises(NotGranted, match=gives):
            refuse_grant(maker, gives, ["a"])
    for namespaces in (["b"], [EVERY], ["a", "b"]):
        with pytest.raises(NotGranted):
            refuse_grant(maker, gives, namespaces)


def test_the_bounds_of_a_token_bound_what_it_gives() -> None:
    refuse_grant(BOUND, "viewer", ["a"])
    for role, namespaces in (("approver", ["a"]), ("viewer", ["b"]), ("viewer", [EVERY])):
        with pytest.raises(NotGranted):
            refuse_grant(BOUND, role, namespaces)  # type: ignore[arg-type]
    refuse_longer(BOUND, 1_000)
    for expires_ms in (1_001, None):
        with pytest.raises(NotGranted, match="later than itself"):
            refuse_longer(BOUND, expires_ms)
        refuse_longer(ROOT, expires_ms)


def test_a_token_revokes_itself_and_users_their_own() -> None:
    root = user("root", every="admin")
    assert may_revoke(BOUND, token("root"), root) and not may_revoke(BOUND, token("root", "other"), root)
    assert may_revoke(ANN, token("ann"), user("ann", a="admin")) and not may_revoke(ANN, token("root"), root)
    assert may_revoke(ROOT, token("gone"), None) and not may_revoke(ANN, token("gone"), None)


def test_an_admin_everywhere_is_one_who_is_not_disabled() -> None:
    assert is_admin_everywhere(user(every="admin"))
    assert not is_admin_everywhere(User("x", {EVERY: "admin"}, disabled=True))
    assert not is_admin_everywhere(user(a="admin")) and not is_admin_everywhere(user(every="operator"))

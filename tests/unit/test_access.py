"""Access roles and their bounds, the texts of tokens and cookies, and passwords."""

from __future__ import annotations

import pytest

from sleipnir.access import credentials, passwords
from sleipnir.access.records import (
    ACCESS_ROLES,
    EVERY,
    IDLE_MS,
    LOGIN_MS,
    AccessRole,
    Identity,
    Login,
    refuse_namespaces,
    refuse_role,
    refuse_user,
)
from sleipnir.cli.access.users import ROLES
from sleipnir.errors import UsageError

PASSWORD = "correct horse battery"


def test_the_command_line_offers_the_roles_that_there_are() -> None:
    assert ROLES == ACCESS_ROLES


@pytest.mark.parametrize("has", ACCESS_ROLES)
@pytest.mark.parametrize("needs", ACCESS_ROLES)
def test_a_role_may_do_what_those_below_it_may(has: AccessRole, needs: AccessRole) -> None:
    identity = Identity("ann", {"team": has}, "login")
    assert identity.may(needs, "team") == (ACCESS_ROLES.index(has) >= ACCESS_ROLES.index(needs))
    assert not identity.may("viewer", "other")
    assert not identity.may("viewer", EVERY)


def test_the_higher_of_the_roles_everywhere_and_in_a_namespace_counts() -> None:
    identity = Identity("ann", {EVERY: "viewer", "team": "operator"}, "login")
    assert identity.role_in("team") == "operator"
    assert identity.role_in("other") == "viewer"
    assert identity.visible() is None


def test_a_token_bounds_the_role_and_the_namespaces_of_its_user() -> None:
    token = Identity("ann", {EVERY: "admin"}, "token", bound="viewer", namespaces=("team",))
    assert token.role_in("team") == "viewer"
    assert token.role_in("other") is None
    assert token.role_in(EVERY) is None
    assert token.visible() == {"team"}


def test_a_token_gives_no_role_that_its_user_has_lost() -> None:
    token = Identity("ann", {"team": "viewer"}, "token", bound="admin", namespaces=("team", "other"))
    assert token.role_in("team") == "viewer"
    assert token.role_in("other") is None
    assert Identity("ann", {}, "token").role_in("team") is None
    assert token.visible() == {"team"}


def test_a_role_of_a_newer_release_allows_nothing() -> None:
    assert Identity("ann", {"team": "owner"}, "login").role_in("team") is None
    assert Identity("ann", {"team": "admin"}, "token", bound="owner").role_in("team") is None


@pytest.mark.parametrize("name", ["", "a b", "-ann", "ann:x", "ann\n", "é", "a" * 65, "../x"])
def test_a_name_that_could_be_mistaken_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="no name for a user"):
        refuse_user(name)


@pytest.mark.parametrize("names", [[], [""], ["a b"], ["**"], ["a/b"]])
def test_namespaces_need_names(names: list[str]) -> None:
    with pytest.raises(UsageError, match="namespace"):
        refuse_namespaces(names)


def test_an_unknown_role_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(UsageError, match="viewer, approver, operator, admin"):
        refuse_role("root")


def test_a_token_and_a_cookie_are_read_as_they_were_made() -> None:
    for made, text, read in (
        (*credentials.new_token(), credentials.of_token),
        (*credentials.new_login("ann@example.org"), credentials.of_cookie),
    ):
        found = read(text)
        assert found == made
        assert found.is_of(made.hash)
        assert made.secret not in made.hash and made.secret not in repr(made)
        assert read(text + "x") is None


def test_the_csrf_text_is_bound_to_its_login() -> None:
    first, second = credentials.new_login("ann")[0], credentials.new_login("ann")[0]
    assert first.csrf != second.csrf
    assert first.csrf not in (first.secret, first.hash)


@pytest.mark.parametrize("text", ["", "slp_", "slp_0123456789ab_short", "Bearer x", "slp_0123456789ab_" + "é" * 43])
def test_another_text_is_no_token(text: str) -> None:
    assert credentials.of_token(text) is None
    assert credentials.of_cookie(text) is None


def test_a_password_is_recognised_and_its_hash_is_argon2id() -> None:
    stored = passwords.hashed(PASSWORD)
    assert stored.startswith("$argon2id$")
    assert passwords.is_right(PASSWORD, stored)
    assert not passwords.is_right(PASSWORD + "x", stored)
    assert not passwords.is_right(PASSWORD, "")
    assert not passwords.is_right(PASSWORD, "damaged")


def test_letters_that_two_keyboards_write_differently_are_the_same_password() -> None:
    stored = passwords.hashed("Stra\u00dfencaf\u00e9 1234")
    assert passwords.is_right("Stra\u00dfencafe\u0301 1234", stored)


@pytest.mark.parametrize("password", ["", "short", "x" * 11, "x" * 1001])
def test_a_weak_or_an_endless_password_is_refused(password: str) -> None:
    with pytest.raises(UsageError, match="12 to 1,000 characters"):
        passwords.hashed(password)


def test_the_password_of_an_unknown_user_is_compared_with_a_hash_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """An attempt takes as long whether there is the user or not."""
    compared: list[str] = []
    matches = passwords._matches
    monkeypatch.setattr(passwords, "_matches", lambda word, stored: compared.append(stored) or matches(word, stored))
    assert not passwords.is_right(PASSWORD, "")
    [stored] = compared
    assert (
        stored.rpartition("$")[0].rpartition("$")[0] == passwords.hashed(PASSWORD).rpartition("$")[0].rpartition("$")[0]
    )


def test_a_login_ends_when_it_is_idle_and_when_it_is_old() -> None:
    login = Login(0, 0, LOGIN_MS)
    assert not login.is_over(IDLE_MS - 1)
    assert login.is_over(IDLE_MS)
    assert Login(0, LOGIN_MS - 1, LOGIN_MS).is_over(LOGIN_MS)

"""Users, access tokens, logins and the audit, on a real Redis."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import replace

import pytest

from sleipnir.access.records import EVERY, IDLE_MS, LOGIN_MS, MOST_LOGINS, Login
from sleipnir.client.access import Access, LoginRefused
from sleipnir.client.async_client import AsyncClient
from sleipnir.errors import UsageError
from sleipnir.runs.actor import Actor
from sleipnir.settings import Settings
from sleipnir.store import access as stored
from sleipnir.store.store import Store

PASSWORD = "correct horse battery"
BY = "root@desk (cli)"


@pytest.fixture
def access(store: Store) -> Access:
    """With the user ann, who operates in `team`."""
    found = Access(store, BY)
    found.add_user("ann", PASSWORD, {"team": "operator"}, reason="new")
    return found


def everything(store: Store) -> str:
    """All that is stored under the prefix, as text."""
    client, texts = store._client, []
    for key in client.scan_iter(f"{store.keys.prefix}:*"):
        kind = client.type(key)
        read = {"hash": client.hgetall, "stream": lambda key: client.xrange(key, "-", "+"), "string": client.get}
        texts.append(json.dumps([key, read[kind](key) if kind in read else None]))
    return "\n".join(texts)


# Users.


def test_a_user_is_added_once(access: Access) -> None:
    with pytest.raises(UsageError, match="there is a user 'ann' already"):
        access.add_user("ann", PASSWORD, {EVERY: "admin"})
    [user] = access.users()
    assert (user.name, user.roles, user.disabled) == ("ann", {"team": "operator"}, False)


def test_roles_change_one_namespace(access: Access) -> None:
    access.set_role("ann", EVERY, "viewer")
    access.set_role("ann", "team", None)
    assert access.users()[0].roles == {EVERY: "viewer"}
    with pytest.raises(UsageError, match="no user 'bob'"):
        access.set_role("bob", EVERY, "viewer")


def test_two_changes_at_once_are_both_made(access: Access) -> None:
    """Neither overwrites what the other has changed since it was read."""
    failures: list[Exception] = []

    def give(number: int) -> None:
        try:
            access.set_role("ann", f"ns{number}", "viewer")
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=give, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert set(access.users()[0].roles) == {"team", "ns0", "ns1", "ns2", "ns3"}
    assert len(list(access.audit(what="role changed"))) == 4


def test_no_secret_is_stored(access: Access, store: Store) -> None:
    token = access.create_token("ann").text
    login = access.log_in("ann", PASSWORD)
    found = everything(store)
    assert PASSWORD not in found
    assert token.split("_", 2)[2] not in found
    assert login.cookie.rpartition(":")[2] not in found
    assert login.csrf not in found
    [hashed] = [user.password for user in access.users()]
    assert hashed not in json.dumps([entry.after for entry in access.audit()])


# Tokens.


def test_a_token_acts_for_its_user_within_its_bounds(access: Access) -> None:
    made = access.create_token("ann", role="viewer", namespaces=["team"], label="ci")
    identity = access.of_token(made.text)
    assert identity is not None
    assert (identity.user, identity.token, identity.role_in("team")) == ("ann", made.info.id, "viewer")
    assert identity.role_in("other") is None


def test_a_wrong_secret_of_a_known_token_is_refused(access: Access) -> None:
    first, second = access.create_token("ann").text, access.create_token("ann").text
    mixed = first.rpartition("_")[0] + "_" + second.rpartition("_")[2]
    assert access.of_token(mixed) is None
    assert access.of_token(second) is not None


def test_expired_and_revoked_tokens_are_refused(access: Access) -> None:
    assert access.of_token(access.create_token("ann", expires_s=0).text) is None
    made = access.create_token("ann", expires_s=60)
    assert access.of_token(made.text) is not None
    access.revoke_token(made.info.id)
    assert access.of_token(made.text) is None
    with pytest.raises(UsageError, match="no token"):
        access.revoke_token(made.info.id)


def test_the_last_use_of_a_token_is_kept_and_a_revoked_one_is_not_brought_back(access: Access, store: Store) -> None:
    made = access.create_token("ann")
    was = store.access.token(made.info.id)
    assert was is not None and was.value.used_ms is None
    access.of_token(made.text)
    [used] = access.tokens()
    assert used.used_ms is not None
    access.revoke_token(made.info.id)
    assert not store.access.change_token(was, replace(was.value, used_ms=1))
    assert access.tokens() == []


def test_a_disabled_user_s_tokens_are_refused_until_it_is_enabled(access: Access) -> None:
    token = access.create_token("ann").text
    access.set_disabled("ann", True)
    assert access.of_token(token) is None
    access.set_disabled("ann", False)
    assert access.of_token(token) is not None


def test_a_role_that_is_taken_applies_to_the_next_request(access: Access) -> None:
    token = access.create_token("ann").text
    access.set_role("ann", "team", None)
    identity = access.of_token(token)
    assert identity is not None and identity.role_in("team") is None


# Logins.


def test_a_login_ends_by_logging_out(access: Access) -> None:
    login = access.log_in("ann", PASSWORD, "10.0.0.1")
    identity = access.of_cookie(login.cookie)
    assert identity is not None
    assert (identity.user, identity.csrf, identity.via) == ("ann", login.csrf, "login")
    access.log_out(login.cookie)
    assert access.of_cookie(login.cookie) is None
    access.log_out("nonsense")


def test_a_new_login_replaces_that_of_the_browser(access: Access) -> None:
    first = access.log_in("ann", PASSWORD)
    second = access.log_in("ann", PASSWORD, replaces=first.cookie)
    assert first.cookie != second.cookie
    assert access.of_cookie(first.cookie) is None
    assert access.of_cookie(second.cookie) is not None


@pytest.mark.parametrize("act", ["password", "disable"])
def test_all_logins_of_a_user_end(access: Access, act: str) -> None:
    cookies = [access.log_in("ann", PASSWORD).cookie for _ in range(2)]
    if act == "password":
        access.set_password("ann", PASSWORD + "!")
        assert access.log_in("ann", PASSWORD + "!")
    else:
        access.set_disabled("ann", True)
    assert [access.of_cookie(cookie) for cookie in cookies] == [None, None]


def test_a_login_whose_password_was_changed_while_it_was_compared_is_refused(access: Access, store: Store) -> None:
    owner = store.access.user("ann")
    assert owner is not None
    access.set_password("ann", PASSWORD + "!")
    assert not store.access.add_login(owner, "digest", Login(1, 1, LOGIN_MS), "")
    assert store.access.logins("ann") == {}


def test_a_login_that_is_over_is_refused(access: Access, store: Store) -> None:
    login = access.log_in("ann", PASSWORD)
    [(digest, record)] = store.access.logins("ann").items()
    for over in (
        replace(record, seen_ms=record.seen_ms - IDLE_MS),
        replace(record, until_ms=record.created_ms),
    ):
        text = json.dumps({**vars(over)})
        store._client.hset(store.keys.access.logins("ann"), digest, text)
        assert access.of_cookie(login.cookie) is None


def test_a_user_has_a_bounded_number_of_logins(access: Access, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sleipnir.access.passwords.is_right", lambda password, hashed: True)
    for _ in range(MOST_LOGINS + 2):
        access.log_in("ann", PASSWORD)
    assert len(store.access.logins("ann")) == MOST_LOGINS
    assert store._client.pttl(store.keys.access.logins("ann")) > 0


@pytest.mark.parametrize("name", ["ann", "nobody", "bob"])
def test_a_wrong_password_an_unknown_user_and_a_disabled_one_are_refused_alike(access: Access, name: str) -> None:
    access.add_user("bob", PASSWORD, {"team": "viewer"})
    access.set_disabled("bob", True)
    with pytest.raises(LoginRefused, match=r"^the user or the password is wrong$") as refused:
        access.log_in(name, PASSWORD + ("?" if name == "ann" else ""))
    assert refused.value.retry_after_ms == 0


def test_a_user_without_a_password_cannot_log_in(access: Access) -> None:
    access.add_user("proxied", None, {"team": "viewer"})
    for password in ("", PASSWORD):
        with pytest.raises(LoginRefused):
            access.log_in("proxied", password)
    assert access.of_proxy("proxied") is not None
    assert access.of_proxy("nobody") is None


@pytest.mark.parametrize("name", ["ann", "nobody"])
def test_failed_logins_slow_down_further_ones_of_the_user(store: Store, name: str) -> None:
    waits = [store.access.attempt(name, f"10.0.0.{number}", f"a{number}") for number in range(stored.USER_FREE + 2)]
    assert waits[: stored.USER_FREE + 1] == [0] * (stored.USER_FREE + 1)
    assert 0 < waits[-1] <= 1000
    assert store.access.attempt("other", "10.0.0.1", "b") == 0


def test_failed_logins_slow_down_further_ones_from_the_address(store: Store) -> None:
    users = [f"user{number}" for number in range(stored.ADDRESS_FREE + 2)]
    waits = [store.access.attempt(user, "10.0.0.1", user) for user in users]
    assert waits[:-1] == [0] * (stored.ADDRESS_FREE + 1)
    assert waits[-1] > 0
    assert store.access.attempt("user0", "10.0.0.2", "b") == 0


def test_a_login_that_succeeds_forgets_the_failures_of_its_user(access: Access, store: Store) -> None:
    for number in range(stored.USER_FREE):
        assert store.access.attempt("ann", "10.0.0.1", f"a{number}") == 0
    access.log_in("ann", PASSWORD, "10.0.0.1")
    for number in range(stored.USER_FREE):
        assert store.access.attempt("ann", "10.0.0.1", f"b{number}") == 0
    of_address = store._client.hgetall(store.keys.access.failed("address", "10.0.0.1"))
    assert int(of_address["failures"]) == 2 * stored.USER_FREE


def test_a_refused_attempt_is_not_looked_at(access: Access, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []
    monkeypatch.setattr("sleipnir.access.passwords.is_right", lambda password, hashed: bool(compared.append(password)))
    for _ in range(stored.USER_FREE + 1):
        with pytest.raises(LoginRefused):
            access.log_in("ann", "wrong")
    looked_at = len(compared)
    with pytest.raises(LoginRefused, match="too many failed logins; try again in 1 s") as refused:
        access.log_in("ann", PASSWORD)
    assert refused.value.retry_after_ms > 0
    assert len(compared) == looked_at


def test_failures_of_any_number_of_names_take_a_bounded_number_of_keys(store: Store) -> None:
    keys = {store.keys.access.failed("user", f"name{number}") for number in range(200_000)}
    assert len(keys) <= 65_536
    store.access.attempt("x", "y", "a")
    failed = list(store._client.scan_iter(f"{store.keys.prefix}:{{access}}:failed:*"))
    assert len(failed) == 2
    assert all(0 < store._client.pttl(key) <= stored.FAILED_MS for key in failed)


# The audit.


def test_each_change_says_who_what_before_and_after_and_why(access: Access) -> None:
    access.set_role("ann", "team", "viewer", reason="left the team", by="eve@10.0.0.9 (api)")
    token = access.create_token("ann", label="ci").info
    access.revoke_token(token.id, reason="leaked")
    added, changed, created, revoked = access.audit()
    assert (added.what, added.on, added.by, added.reason) == ("user added", "user ann", BY, "new")
    assert added.before is None and added.after == {"roles": {"team": "operator"}, "disabled": False, "password": True}
    assert (changed.what, changed.by, changed.reason) == ("role changed", "eve@10.0.0.9 (api)", "left the team")
    assert changed.before["roles"] == {"team": "operator"} and changed.after["roles"] == {"team": "viewer"}
    assert (created.on, created.after["label"]) == (f"token {token.id}", "ci")
    assert (revoked.what, revoked.reason, revoked.after) == ("token revoked", "leaked", None)
    assert next(entry.what for entry in access.audit(newest_first=True)) == "token revoked"
    assert [entry.what for entry in access.audit(by="eve")] == ["role changed"]
    assert [entry.what for entry in access.audit(on="token ")] == ["token created", "token revoked"]


def test_what_was_refused_is_not_in_the_audit(access: Access) -> None:
    with pytest.raises(UsageError):
        access.add_user("ann", None, {EVERY: "admin"})
    with pytest.raises(LoginRefused):
        access.log_in("ann", "wrong")
    assert [entry.what for entry in access.audit()] == ["user added"]


def test_entries_older_than_the_retention_are_gone(access: Access, store: Store) -> None:
    keys = store.keys.access
    store._client.delete(keys.audit)
    for number in range(300):
        store._client.xadd(keys.audit, {"e": json.dumps({"what": "old", "on": "x", "by": "y"})}, id=f"{number + 1}-0")
    assert list(access.audit()) == []
    access.set_role("ann", "team", "viewer")
    assert [entry.what for entry in access.audit()] == ["role changed"]
    assert store._client.xlen(keys.audit) < 300


def test_a_damaged_entry_hides_no_other(access: Access, store: Store) -> None:
    store._client.xadd(store.keys.access.audit, {"e": "{"})
    access.set_role("ann", "team", "viewer")
    assert [entry.what for entry in access.audit()] == ["user added", "unreadable", "role changed"]


# In an event loop.


def test_an_event_loop_has_the_same_operations(access: Access, store: Store) -> None:
    async def scenario() -> None:
        settings = Settings(
            redis_url=store.url,
            broker_url=store._settings.broker_url,
            key_prefix=store.keys.prefix,
            partitions=store.keys.partitions,
        )
        async with AsyncClient(settings, by=Actor("console", "", "api")) as client:
            assert await client.access.has_users()
            login = await client.access.log_in("ann", PASSWORD)
            found = await client.access.of_cookie(login.cookie)
            assert found is not None and found.user == "ann"
            assert [entry.what async for entry in client.access.audit()] == ["user added", "logged in"]

    asyncio.run(scenario())

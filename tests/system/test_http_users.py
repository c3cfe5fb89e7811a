"""Users and tokens over HTTP: what admins of one and of all namespaces may change, what users change of their own, and
that nobody gets more than they have."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.cookies import SimpleCookie
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pytest

from sleipnir.access.records import EVERY
from sleipnir.errors import UsageError
from tests.console import Answer, Console, console_of
from tests.processes import RedisServer, Stack

PASSWORD = "correct horse battery"
OTHER = "another long password"


@pytest.fixture
def stack(redis_server: RedisServer, tmp_path: Path) -> Iterator[Stack]:
    with Stack(redis_server, tmp_path / "home", key_prefix=f"users-{tmp_path.name}") as found:
        yield found


@pytest.fixture
def console(stack: Stack) -> Iterator[Console]:
    with console_of(stack) as running:
        yield running


@pytest.fixture
def tokens(stack: Stack) -> dict[str, str]:
    """Of the admin of all namespaces, of that of `default`, of an operator, and of an admin of another namespace."""
    users = {
        "root": {EVERY: "admin"}, "ann": {"default": "admin"}, "olaf": {"default": "operator"},
        "both": {"default": "viewer", "other": "viewer"}, "eve": {"other": "admin"},
    }  # fmt: skip
    with stack.client() as client:
        for name, roles in users.items():
            client.access.add_user(name, PASSWORD, roles)
        return {name: client.access.create_token(name).text for name in users}


def ask(console: Console, token: str, method: str, path: str, body: Any = None) -> Answer:
    return console.request(method, path, body, {"Authorization": f"Bearer {token}"})


def log_in(console: Console, user: str, password: str = PASSWORD) -> dict[str, str]:
    answer = console.request("POST", "/login", {"user": user, "password": password}, {})
    assert answer.status == 200, answer.body
    cookie = SimpleCookie(answer.headers["Set-Cookie"])["sleipnir_login"].value
    return {"Cookie": f"sleipnir_login={cookie}", "X-CSRF-Token": answer.data["csrf"]}


def names(answer: Answer, field: str = "name") -> list[str]:
    return [each[field] for each in answer.data["items"]]


def test_the_first_user_is_an_admin_who_can_log_in(console: Console) -> None:
    for body in (
        {"name": "ann", "roles": {"default": "admin"}, "password": PASSWORD},
        {"name": "ann", "roles": {EVERY: "viewer"}, "password": PASSWORD},
        {"name": "ann", "roles": {EVERY: "admin"}},
    ):
        assert console.request("POST", "/users", body, {}).status == 422
    body = {"name": "ann", "roles": {EVERY: "admin"}, "password": PASSWORD}
    assert console.request("POST", "/users", body, {}).status == 201
    assert console.get("/users").status == 401
    assert console.get("/users", **log_in(console, "ann")).data["items"][0]["name"] == "ann"


def test_an_admin_of_all_namespaces_manages_everybody(console: Console, stack: Stack, tokens: dict[str, str]) -> None:
    root = tokens["root"]
    made = ask(console, root, "POST", "/users", {"name": "new", "roles": {"other": "viewer"}, "password": PASSWORD})
    assert made.status == 201 and made.data["has_password"] and "password" not in made.data
    assert names(ask(console, root, "GET", "/users?limit=3")) == ["ann", "both", "eve"]
    assert names(ask(console, root, "GET", "/users?limit=3&after=eve")) == ["new", "olaf", "root"]
    role = {"namespace": EVERY, "role": "operator", "reason": "on duty"}
    assert ask(console, root, "POST", "/users/new/role", role).data["roles"] == {"other": "viewer", EVERY: "operator"}
    assert ask(console, root, "POST", "/users/new/password", {"password": OTHER}).status == 200
    log_in(console, "new", OTHER)
    token = ask(console, root, "POST", "/tokens", {"role": "viewer", "user": "new", "namespaces": ["other"]})
    assert token.status == 201 and token.headers["Cache-Control"] == "no-store"
    assert ask(console, token.data["token"], "GET", "/me").data["user"] == "new"
    listed = ask(console, root, "GET", "/tokens?limit=500")
    assert token.data["info"]["id"] in names(listed, "id") and token.data["token"] not in listed.body.decode()
    assert ask(console, root, "DELETE", f"/tokens/{token.data['info']['id']}?reason=lost").status == 204
    assert ask(console, token.data["token"], "GET", "/me").status == 401
    assert ask(console, root, "POST", "/users/new/disable", {"reason": "left"}).data["disabled"]
    assert not ask(console, root, "POST", "/users/new/enable").data["disabled"]
    lines = [json.loads(line) for line in ask(console, root, "GET", "/audit").body.decode().splitlines()]
    mine = [(line["what"], line["reason"]) for line in lines if line["by"].startswith("root/")]
    assert mine == [
        ("user added", None), ("role changed", "on duty"), ("password changed", None), ("token created", None),
        ("token revoked", "lost"), ("user disabled", "left"), ("user enabled", None),
    ]  # fmt: skip
    log = json.dumps(lines) + stack.log("console")
    assert not any(secret in log for secret in (PASSWORD, OTHER, token.data["token"], root))


def test_an_admin_of_one_namespace_gets_no_further(console: Console, stack: Stack, tokens: dict[str, str]) -> None:
    ann = tokens["ann"]
    assert names(ask(console, ann, "GET", "/users")) == ["ann", "both", "olaf"]
    new = {"name": "new", "password": PASSWORD}
    for namespace in (EVERY, "other"):
        answer = ask(console, ann, "POST", "/users", {**new, "roles": {"default": "viewer", namespace: "viewer"}})
        assert (answer.status, answer.problem) == (403, "forbidden")
        for who in ("ann", "olaf"):
            body = {"namespace": namespace, "role": "admin"}
            assert ask(console, ann, "POST", f"/users/{who}/role", body).status == 403
    assert ask(console, ann, "POST", "/users", {**new, "roles": {"default": "admin"}}).status == 201
    # Those who are elsewhere are not there; those who are here too have more than she manages.
    for name, status in (("root", 404), ("eve", 404), ("both", 403)):
        assert ask(console, ann, "POST", f"/users/{name}/password", {"password": OTHER}).status == status
        for path in ("/disable", "/enable"):
            assert ask(console, ann, "POST", f"/users/{name}{path}").status == status, (name, path)
        assert ask(console, ann, "POST", "/tokens", {"role": "viewer", "user": name}).status == status
    assert ask(console, ann, "GET", "/users/root").status == 404
    assert ask(console, ann, "POST", "/users/both/role", {"namespace": "default", "role": None}).status == 200
    assert ask(console, ann, "GET", "/users/both").status == 404
    root_token = tokens["root"].split("_")[1]
    assert ask(console, ann, "DELETE", f"/tokens/{root_token}").status == 404
    assert ask(console, tokens["root"], "GET", "/me").status == 200
    assert ask(console, ann, "POST", "/users/olaf/disable").status == 200
    assert ask(console, tokens["olaf"], "GET", "/me").status == 401
    log_in(console, "root")
    log_in(console, "eve")


def test_a_token_gives_no_more_than_its_maker_has(console: Console, stack: Stack, tokens: dict[str, str]) -> None:
    with stack.client() as client:
        bound = client.access.create_token("root", role="viewer", namespaces=["default"], expires_s=3600).text
        short = client.access.create_token("root", expires_s=3600).text
    for token, wanted in (
        (tokens["olaf"], {"role": "admin"}), (tokens["olaf"], {"role": "viewer", "namespaces": [EVERY]}),
        (tokens["olaf"], {"role": "viewer", "namespaces": ["default", "other"]}),
        (tokens["ann"], {"role": "admin", "namespaces": [EVERY]}),
        (bound, {"role": "admin", "days": 0.01}), (bound, {"role": "viewer", "namespaces": [EVERY], "days": 0.01}),
        (bound, {"role": "viewer"}), (short, {"role": "viewer"}),
    ):  # fmt: skip
        answer = ask(console, token, "POST", "/tokens", wanted)
        assert (answer.status, answer.problem) == (403, "forbidden"), wanted
    assert ask(console, bound, "POST", "/tokens", {"role": "viewer", "user": "ann", "days": 0.01}).status == 404
    made = ask(console, bound, "POST", "/tokens", {"role": "viewer", "days": 0.01})
    assert made.status == 201 and made.data["info"]["namespaces"] == ["default"]
    assert ask(console, made.data["token"], "POST", "/users/olaf/disable").status == 403
    # It revokes itself, and no other token of its user.
    assert ask(console, bound, "DELETE", f"/tokens/{tokens['root'].split('_')[1]}").status == 404
    assert ask(console, bound, "DELETE", f"/tokens/{bound.split('_')[1]}").status == 204
    assert ask(console, bound, "GET", "/me").status == 401
    assert ask(console, tokens["root"], "POST", "/me/password", {"current": PASSWORD, "new": OTHER}).status == 422
    reset = ask(console, tokens["root"], "POST", "/users/root/password", {"password": OTHER})
    assert reset.status == 422


def test_users_change_their_own_password_logins_and_tokens(console: Console, tokens: dict[str, str]) -> None:
    first, second = log_in(console, "olaf"), log_in(console, "olaf")
    logins = console.get("/me/logins", **second).data
    assert [login["is_this"] for login in logins].count(True) == 1 and len(logins) == 2
    other = next(login["id"] for login in logins if not login["is_this"])
    ended = console.request("DELETE", f"/me/logins/{other}", None, second)
    assert ended.status == 204
    assert (console.get("/me", **first).status, console.get("/me", **second).status) == (401, 200)
    eve = log_in(console, "eve")
    [hers] = console.get("/me/logins", **eve).data
    assert console.request("DELETE", f"/me/logins/{hers['id']}", None, second).status == 404
    own = console.request("POST", "/tokens", {"role": "operator"}, second)
    assert own.status == 201
    listed = console.get("/tokens", **second)
    assert set(names(listed, "user")) == {"olaf"} and own.data["info"]["id"] in names(listed, "id")
    assert console.request("DELETE", f"/tokens/{own.data['info']['id']}", None, second).status == 204

    wrong = console.request("POST", "/me/password", {"current": "wrong", "new": OTHER}, second)
    assert (wrong.status, wrong.problem) == (401, "unauthenticated")
    weak = console.request("POST", "/me/password", {"current": PASSWORD, "new": "short"}, second)
    assert weak.status == 422
    changed = console.request("POST", "/me/password", {"current": PASSWORD, "new": OTHER}, second)
    assert changed.status == 200 and "Set-Cookie" in changed.headers
    assert console.get("/me", **second).status == 401
    log_in(console, "olaf", OTHER)


def test_the_last_admin_stays(console: Console, stack: Stack, tokens: dict[str, str]) -> None:
    root = tokens["root"]
    down = {"namespace": EVERY, "role": "viewer"}
    for path, body in (("disable", None), ("role", down), ("role", {**down, "role": None})):
        answer = ask(console, root, "POST", f"/users/root/{path}", body)
        assert answer.status == 422 and "the last admin" in answer.data["detail"]
    with stack.client() as client:
        client.access.add_user("second", PASSWORD, {EVERY: "admin"})
        second = client.access.create_token("second").text
    barrier, statuses = Barrier(2), []

    def disable(token: str, name: str) -> None:
        barrier.wait(30)
        statuses.append(ask(console, token, "POST", f"/users/{name}/disable").status)

    threads = [Thread(target=disable, args=each) for each in ((root, "second"), (second, "root"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert statuses.count(200) == 1
    with stack.client() as client:
        enabled = [name for name in ("root", "second") if not client.access.user(name).disabled]
        assert len(enabled) == 1
        with pytest.raises(UsageError, match="the last admin"):
            client.access.set_disabled(enabled[0], True, keeps_admin=True)

"""Logging in through OpenID Connect, against a provider in a process of its own: whom it lets in with which roles, and
what of hostile or failing providers and browsers lets nobody in."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from email.message import Message
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import pytest

from sleipnir.errors import UsageError
from sleipnir.store.connect import connect
from tests.console import Console, console_of
from tests.login_provider import CLIENT, SECRET, RunningProvider, login_provider
from tests.processes import RedisServer, Stack

PASSWORD = "correct horse battery"
PUBLIC = "http://127.0.0.1:1"  # where browsers are sent back; the tests go to the server instead


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Message
    text: str


@dataclass
class Browser:
    """Keeps cookies, and follows no redirect by itself."""

    console: Console
    cookies: dict[str, str] = field(default_factory=dict)

    def ask(self, path: str, form: Mapping[str, str] | None = None) -> Answer:
        headers = {"Accept": "text/html", "Cookie": "; ".join(f"{name}={text}" for name, text in self.cookies.items())}
        body = None if form is None else urlencode(form).encode()
        if body is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        connection = self.console.connection()
        try:
            connection.request("GET" if form is None else "POST", path, body, headers)
            response = connection.getresponse()
            answer = Answer(response.status, response.headers, response.read().decode())
        finally:
            connection.close()
        for line in answer.headers.get_all("Set-Cookie") or ():
            for name, morsel in SimpleCookie(line).items():
                if morsel["max-age"] == "0":
                    self.cookies.pop(name, None)
                else:
                    assert morsel["httponly"] and morsel["samesite"] == "lax"
                    self.cookies[name] = morsel.value
        return answer

    def begin(self, provider: RunningProvider, next: str = "/runs") -> str:
        """The path by which the provider sends the browser back."""
        answer = self.ask(f"/login/oidc?{urlencode({'next': next})}")
        assert answer.status == 303, answer.text
        back = provider.back(answer.headers["Location"])
        assert back.startswith(f"{PUBLIC}/login/oidc/callback?")
        return back.removeprefix(PUBLIC)

    def log_in(self, provider: RunningProvider) -> Answer:
        return self.ask(self.begin(provider))

    def user(self) -> Any:
        answer = self.console.get("/me", Cookie="; ".join(f"{name}={text}" for name, text in self.cookies.items()))
        return answer.data if answer.status == 200 else None


@pytest.fixture(scope="module")
def provider() -> Iterator[RunningProvider]:
    with login_provider() as running:
        yield running


@pytest.fixture(autouse=True)
def honest(provider: RunningProvider) -> None:
    provider.control(person={"sub": "1001", "preferred_username": "ann", "groups": ["ops"]})


@pytest.fixture
def stack(redis_server: RedisServer, tmp_path: Path) -> Iterator[Stack]:
    with Stack(redis_server, tmp_path / "home", key_prefix=f"oidc-{tmp_path.name}") as found:
        with found.client() as client:
            client.access.add_user("ann", PASSWORD, {"default": "viewer"})
        yield found


def variables(provider: RunningProvider, folder: Path, **more: str) -> dict[str, str]:
    secret = folder / "oidc.secret"
    secret.write_text(SECRET + "\n")
    secret.chmod(0o600)
    return {
        "SLEIPNIR_OIDC_ISSUER": provider.issuer, "SLEIPNIR_OIDC_CLIENT": CLIENT, "SLEIPNIR_OIDC_SECRET": str(secret),
        "SLEIPNIR_OIDC_ROLES": "ops=operator@default; cn=leads,dc=acme=admin@*; readers=viewer@default",
        "SLEIPNIR_CONSOLE_URL": PUBLIC, **more,
    }  # fmt: skip


@pytest.fixture
def console(stack: Stack, provider: RunningProvider, tmp_path: Path) -> Iterator[Console]:
    with console_of(stack, **variables(provider, tmp_path)) as running:
        yield running


def test_a_user_of_the_provider_logs_in_and_is_no_local_user(
    console: Console, stack: Stack, provider: RunningProvider
) -> None:
    browser = Browser(console)
    page = browser.ask("/login?next=/runs%3Fstatus%3Dfailed")
    assert 'href="/login/oidc?next=/runs%3Fstatus%3Dfailed"' in page.text
    begun = browser.ask("/login/oidc?next=/runs%3Fstatus%3Dfailed")
    asked = parse_qs(urlsplit(begun.headers["Location"]).query)
    assert asked["response_type"] == ["code"] and asked["code_challenge_method"] == ["S256"]
    assert asked["redirect_uri"] == [f"{PUBLIC}/login/oidc/callback"] and "openid" in asked["scope"][0]
    answer = browser.ask(provider.back(begun.headers["Location"]).removeprefix(PUBLIC))
    assert (answer.status, answer.headers["Location"]) == (303, "/runs?status=failed")
    assert set(browser.cookies) == {"sleipnir_login"}
    me = browser.user()
    assert (me["user"], me["via"], me["roles"], me["permission"]) == (
        "oidc:ann", "login", {"default": "operator"}, "operator",
    )  # fmt: skip
    with stack.client() as client:
        users = {user.name: user for user in client.access.users()}
        assert set(users) == {"ann", "oidc:ann"}
        assert users["ann"].roles == {"default": "viewer"}
        entries = [(entry.what, entry.on, entry.by) for entry in client.access.audit(on="oidc:ann")]
        assert entries == [
            ("user added", "user oidc:ann", "oidc:ann@127.0.0.1 (api)"),
            ("logged in", "user oidc:ann", "oidc:ann@127.0.0.1 (api)"),
        ]
        # The login ends after the provider's time, not after that of passwords.
        (login,) = client.access.logins("oidc:ann").values()
        assert login.until_ms - login.created_ms == 28_800_000
    direct = connect(stack.redis.url)
    stored = json.dumps([direct.hgetall(key) for key in direct.scan_iter("*:users", count=1000)])
    direct.close()
    assert "oidc:ann" in stored and SECRET not in stored + stack.log("console")
    assert "code-" not in stack.log("console")


def test_what_belongs_to_the_provider_is_not_given_here(
    console: Console, stack: Stack, provider: RunningProvider
) -> None:
    browser = Browser(console)
    assert browser.log_in(provider).status == 303
    with stack.client() as client:
        for change in (
            lambda: client.access.add_user("oidc:eve", PASSWORD, {"*": "admin"}),
            lambda: client.access.set_password("oidc:ann", PASSWORD),
            lambda: client.access.set_role("oidc:ann", "*", "admin"),
            lambda: client.access.log_in("oidc:ann", ""),
        ):
            with pytest.raises(UsageError):
                change()
        assert client.access.of_proxy("oidc:ann") is None


def test_groups_are_roles_at_each_login(console: Console, stack: Stack, provider: RunningProvider) -> None:
    first, second, third = Browser(console), Browser(console), Browser(console)
    provider.control(person={"groups": ["readers", "ops", "cn=leads,dc=acme", "others"]})
    assert first.log_in(provider).status == 303
    assert first.user()["roles"] == {"default": "operator", "*": "admin"}
    provider.control(person={"groups": "readers"})
    assert second.log_in(provider).status == 303
    assert second.user()["roles"] == {"default": "viewer"} == first.user()["roles"]
    provider.control(person={"groups": ["others"]})
    answer = third.log_in(provider)
    assert answer.status == 403 and "none of your groups" in answer.text and third.user() is None
    assert first.user()["roles"] == {}  # nor may the older logins do anything
    provider.control(person={"sub": "2002", "preferred_username": "nobody"})
    assert third.log_in(provider).status == 403
    with stack.client() as client:
        assert [user.name for user in client.access.users()] == ["ann", "oidc:ann"]


def test_a_disabled_user_stays_out(console: Console, stack: Stack, provider: RunningProvider) -> None:
    browser = Browser(console)
    assert browser.log_in(provider).status == 303
    with stack.client() as client:
        client.access.set_disabled("oidc:ann", True)
    assert browser.user() is None
    answer = browser.log_in(provider)
    assert answer.status == 403 and "is disabled here" in answer.text
    with stack.client() as client:
        client.access.set_disabled("oidc:ann", False)
    assert browser.log_in(provider).status == 303


def test_a_name_does_not_pass_on_to_another_subject(console: Console, stack: Stack, provider: RunningProvider) -> None:
    assert Browser(console).log_in(provider).status == 303
    provider.control(person={"sub": "1002", "groups": ["cn=leads,dc=acme"]})
    other = Browser(console)
    answer = other.log_in(provider)
    assert answer.status == 403 and "was somebody else" in answer.text and other.user() is None
    with stack.client() as client:
        assert client.access.user("oidc:ann").roles == {"default": "operator"}


def test_a_new_login_replaces_the_old_one_and_changes_need_its_csrf_text(
    console: Console, stack: Stack, provider: RunningProvider
) -> None:
    browser = Browser(console)
    browser.log_in(provider)
    old = dict(browser.cookies)
    browser.log_in(provider)
    assert browser.cookies != old and Browser(console, old).user() is None
    assert browser.ask("/logout", {"csrf": "wrong"}).status == 403
    left = browser.ask("/logout", {"csrf": browser.user()["csrf"]})
    assert left.headers["Location"] == "/login?left=provider" and browser.user() is None
    assert 'href="/login/oidc/logout"' in browser.ask("/login?left=provider").text
    away = browser.ask("/login/oidc/logout").headers["Location"]
    assert away.startswith(f"{provider.issuer}/leave?")
    assert dict(parse_qsl(urlsplit(away).query)) == {
        "client_id": CLIENT, "post_logout_redirect_uri": f"{PUBLIC}/login",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("lies", "claim"),
    [
        ({"claims": {"nonce": "of another login"}}, "nonce"),
        ({"claims": {"nonce": None}}, "nonce"),
        ({"claims": {"aud": "another-client"}}, "aud"),
        ({"claims": {"aud": [CLIENT, "another-client"]}}, "azp"),
        ({"claims": {"aud": [CLIENT, "another-client"], "azp": "another-client"}}, "azp"),
        ({"claims": {"iss": "https://evil.example"}}, "iss"),
        ({"claims": {"exp": 1}}, "expired"),
        ({"claims": {"exp": None}}, "exp"),
        ({"claims": {"sub": ""}}, "sub"),
        ({"claims": {"iat": 99_999_999_999}}, "iat"),
        ({"claims": {"at_hash": "AAAA"}}, "at_hash"),
        ({"alg": "none"}, "not valid"),
        ({"alg": "HS256"}, "not valid"),
        ({"forged": True}, "not valid"),
        ({"claims": {"groups": {"ops": True}}}, "list of groups"),
        ({"claims": {"preferred_username": "an/n"}}, "no name for a user"),
        ({"untold": ["groups"], "userinfo": {"sub": "1002"}}, "another user"),
    ],
)  # fmt: skip
def test_a_wrong_token_lets_nobody_in(
    console: Console, stack: Stack, provider: RunningProvider, lies: dict[str, Any], claim: str
) -> None:
    browser = Browser(console)
    provider.control(lies=lies)
    answer = browser.log_in(provider)
    assert answer.status == 401 and claim in answer.text and "nobody logged in" not in answer.text
    assert browser.cookies == {}
    with stack.client() as client:
        assert [user.name for user in client.access.users()] == ["ann"]
    provider.control()
    assert browser.log_in(provider).status == 303


def test_clocks_may_differ_a_little(console: Console, provider: RunningProvider) -> None:
    provider.control(lies={"claims": {"exp": int(time.time()) - 10, "iat": int(time.time()) + 30}})
    assert Browser(console).log_in(provider).status == 303


def test_groups_may_be_told_on_request_alone(console: Console, provider: RunningProvider) -> None:
    provider.control(lies={"untold": ["groups", "preferred_username"]})
    browser = Browser(console)
    assert browser.log_in(provider).status == 303
    assert browser.user()["roles"] == {"default": "operator"}


def test_an_answer_is_of_use_once_and_in_its_browser_alone(console: Console, provider: RunningProvider) -> None:
    provider.control(lies={"codes twice": True})
    browser, stranger = Browser(console), Browser(console)
    back = browser.begin(provider)
    begun = dict(browser.cookies)
    assert stranger.ask(back).status == 400 and stranger.user() is None
    stranger.begin(provider)
    assert stranger.ask(back).status == 400 and stranger.user() is None  # the state is of another browser
    forged = dict(parse_qsl(urlsplit(stranger.begin(provider)).query))
    stolen = {**forged, "code": dict(parse_qsl(urlsplit(back).query))["code"]}
    answer = stranger.ask(f"/login/oidc/callback?{urlencode(stolen)}")  # nor is the code: its challenge is another one
    assert answer.status == 401 and "invalid_grant" in answer.text and stranger.user() is None
    assert browser.ask(back).status == 303
    assert browser.ask(back).status == 400  # the cookie is gone
    again = Browser(console, begun)
    answer = again.ask(back)  # with the cookie of before, and a provider that takes a code twice
    assert answer.status == 403 and "used already" in answer.text and again.user() is None


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"error": "access_denied"}, "access_denied"), ({}, "no code"), ({"code": "x"}, "invalid_grant"),
        ({"code": "x", "iss": "https://evil.example"}, "another login provider"),
    ],
)  # fmt: skip
def test_a_refusal_is_told(console: Console, provider: RunningProvider, query: dict[str, str], words: str) -> None:
    browser = Browser(console)
    state = dict(parse_qsl(urlsplit(browser.begin(provider)).query))["state"]
    answer = browser.ask(f"/login/oidc/callback?{urlencode({'state': state, **query})}")
    assert answer.status == 401 and words in answer.text and browser.cookies == {}


def test_nothing_leads_to_a_foreign_page(console: Console, provider: RunningProvider) -> None:
    for wanted in ("https://evil.example/", "//evil.example", "/\\evil.example"):
        browser = Browser(console)
        assert browser.ask(browser.begin(provider, wanted)).headers["Location"] == "/"
    connection = console.connection()
    connection.request("GET", "/login/oidc", headers={"Host": "localhost", "X-Forwarded-Host": "evil.example"})
    asked = parse_qs(urlsplit(connection.getresponse().headers["Location"]).query)
    assert asked["redirect_uri"] == [f"{PUBLIC}/login/oidc/callback"]
    connection.close()


def test_a_new_key_is_found_and_a_withdrawn_one_is_read_once(console: Console, provider: RunningProvider) -> None:
    assert Browser(console).log_in(provider).status == 303
    provider.control()
    assert Browser(console).log_in(provider).status == 303
    assert "/keys" not in provider.control(rotate=True)  # they are known
    assert Browser(console).log_in(provider).status == 303
    assert provider.control().count("/keys") == 1


def test_a_provider_that_is_away_is_named_and_passwords_are_taken(
    stack: Stack, provider: RunningProvider, tmp_path: Path
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        gone = RunningProvider(f"http://127.0.0.1:{closed.getsockname()[1]}")
        env = variables(gone, tmp_path, SLEIPNIR_OIDC_NAME="Acme")
        with console_of(stack, **env) as console:
            browser = Browser(console)
            assert "Log in with <bdi>Acme</bdi>" in browser.ask("/login").text
            for path in ("/login/oidc", "/login/oidc/logout"):
                answer = browser.ask(path)
                assert answer.status == 503 and "Acme does not answer as it should" in answer.text
            answer = browser.ask("/login", {"user": "ann", "password": PASSWORD, "next": "/runs"})
            assert (answer.status, answer.headers["Location"]) == (303, "/runs")
            assert browser.user()["user"] == "ann"
            assert "the login provider fails" in stack.log("console")


@pytest.mark.parametrize(
    "lies",
    [
        {"away": True}, {"issuer": "https://evil.example"}, {"description": {"token_endpoint": "http://evil.example/"}},
        {"description": {"jwks_uri": None}},
    ],
)  # fmt: skip
def test_a_provider_that_answers_wrongly_is_used_when_it_is_right_again(
    console: Console, provider: RunningProvider, lies: dict[str, Any]
) -> None:
    provider.control(lies=lies)
    answer = Browser(console).ask("/login/oidc")
    assert answer.status == 503 and "A password is taken as always" in answer.text
    provider.control()
    assert Browser(console).log_in(provider).status == 303


def test_refused_answers_slow_down_further_ones(console: Console, provider: RunningProvider) -> None:
    statuses = []
    for _ in range(8):
        browser = Browser(console)
        state = dict(parse_qsl(urlsplit(browser.begin(provider)).query))["state"]
        statuses.append(browser.ask(f"/login/oidc/callback?{urlencode({'state': state, 'code': 'x'})}").status)
    assert statuses[:5] == [401] * 5 and 429 in statuses
    assert Browser(console).ask("/login").status == 200


def test_nobody_is_an_admin_without_a_name_where_a_provider_knows_people(
    redis_server: RedisServer, provider: RunningProvider, tmp_path: Path
) -> None:
    with (
        Stack(redis_server, tmp_path / "home", key_prefix=f"oidc-{tmp_path.name}") as stack,
        console_of(stack, **variables(provider, tmp_path)) as console,
    ):
        assert console.get("/runs").status == 401
        browser = Browser(console)
        assert browser.log_in(provider).status == 303
        assert browser.user()["permission"] == "operator"

"""Who may see which page, and send which form: every route of pages, with every role; and what logging in, forms,
errors and static files do without a browser."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.message import Message
from http.cookies import SimpleCookie
from typing import Final
from urllib.parse import urlencode

import pytest

from sleipnir.access.records import ACCESS_ROLES, EVERY
from sleipnir_console.app import page_routes
from sleipnir_console.pages.static_files import digest, url_of
from sleipnir_console.permissions import RANKS, Permission
from tests.console import Console, console_of
from tests.processes import RedisServer, Stack

PASSWORD = "correct horse battery"
NO_RUN = "z" * 12


@dataclass(frozen=True)
class Row:
    """A route: who may ask it, a request, and the status of its answer to who may ask."""

    permission: Permission
    method: str
    path: str
    status: int


ROWS: Final[Mapping[str, Row]] = {
    "get_static_file": Row("public", "GET", "/static/x/console.css", 200),
    "show_login": Row("public", "GET", "/login", 200),
    "send_login": Row("public", "POST", "/login", 401),
    "begin_provider_login": Row("public", "GET", "/login/oidc", 404),
    "finish_provider_login": Row("public", "GET", "/login/oidc/callback", 404),
    "leave_provider": Row("public", "GET", "/login/oidc/logout", 404),
    "choose_theme": Row("public", "POST", "/theme", 303),
    "show_overview": Row("viewer", "GET", "/", 200),
    "show_menu": Row("user", "GET", "/menu", 200),
    "show_runs": Row("viewer", "GET", "/runs", 200),
    "show_run": Row("viewer", "GET", f"/runs/{NO_RUN}", 404),
    "choose_compared_run": Row("viewer", "GET", f"/runs/{NO_RUN}/compare?other=x", 303),
    "show_run_comparison": Row("viewer", "GET", f"/runs/{NO_RUN}/compare/{NO_RUN}", 404),
    "show_jobs": Row("viewer", "GET", "/jobs", 200),
    "show_job": Row("viewer", "GET", "/jobs/nothing", 404),
    "send_job_stop": Row("operator", "POST", "/jobs/nothing/stop", 404),
    "show_new_job": Row("operator", "GET", "/new-job?action=retry&all=true", 200),
    "send_new_job": Row("operator", "POST", f"/new-job?action=retry&run={NO_RUN}", 422),
    "show_batches": Row("viewer", "GET", "/batches", 200),
    "show_new_batch": Row("operator", "GET", "/new-batch", 200),
    "send_new_batch": Row("operator", "POST", "/new-batch", 422),
    "show_batch": Row("viewer", "GET", "/batches/nothing", 404),
    "steer_batch": Row("operator", "POST", "/batches/nothing/cancel", 404),
    "choose_compared_batch": Row("viewer", "GET", "/batches/nothing/compare?other=x", 303),
    "show_batch_comparison": Row("viewer", "GET", "/batches/nothing/compare/nothing", 404),
    "show_inbox": Row("viewer", "GET", "/inbox", 303),
    "show_inbox_view": Row("viewer", "GET", "/inbox/all", 200),
    "show_decisions": Row("viewer", "GET", "/decisions", 303),
    "show_decision": Row("viewer", "GET", f"/decisions/{NO_RUN}/1", 404),
    "send_answer": Row("approver", "POST", f"/decisions/{NO_RUN}/1/answer", 404),
    "show_linked_decision": Row("public", "GET", "/d/none", 404),
    "send_linked_answer": Row("public", "POST", "/d/none/answer", 404),
    "handle_decision": Row("approver", "POST", f"/decisions/{NO_RUN}/1/claim", 404),
    "steer_run": Row("operator", "POST", f"/runs/{NO_RUN}/cancel", 404),
    "show_failures": Row("viewer", "GET", "/failures", 200),
    "show_failure_group": Row("viewer", "GET", "/failures/none", 404),
    "send_discard": Row("operator", "POST", "/failures/none/discard", 422),
    "send_reopen": Row("operator", "POST", "/failures/none/reopen", 303),
    "show_schedules": Row("viewer", "GET", "/schedules", 200),
    "show_new_schedule": Row("operator", "GET", "/new-schedule", 200),
    "send_new_schedule": Row("operator", "POST", "/new-schedule", 422),
    "show_schedule": Row("viewer", "GET", "/schedules/none", 404),
    "steer_schedule": Row("operator", "POST", "/schedules/none/pause", 404),
    "show_threads": Row("viewer", "GET", "/threads", 200),
    "show_thread": Row("viewer", "GET", "/threads/nobody/none", 404),
    "send_thread_removal": Row("operator", "POST", "/threads/nobody/none/remove", 404),
    "show_webhooks": Row("admin", "GET", "/webhooks", 200),
    "show_new_webhook": Row("admin", "GET", "/new-webhook", 200),
    "send_new_webhook": Row("admin", "POST", "/new-webhook", 422),
    "show_webhook": Row("admin", "GET", "/webhooks/none", 404),
    "steer_webhook": Row("admin", "POST", "/webhooks/none/pause", 404),
    "send_redelivery": Row("admin", "POST", "/webhooks/none/deliveries/none/redeliver", 404),
    "show_hooks": Row("admin", "GET", "/incoming", 200),
    "show_new_hook": Row("admin", "GET", "/new-hook", 200),
    "send_new_hook": Row("admin", "POST", "/new-hook", 422),
    "show_hook": Row("admin", "GET", "/incoming/none", 404),
    "send_hook_rotation": Row("admin", "POST", "/incoming/none/rotate", 404),
    "send_hook_removal": Row("admin", "POST", "/incoming/none/remove", 404),
    "show_fleet": Row("viewer", "GET", "/fleet", 200),
    "send_limit": Row("operator", "POST", "/fleet/limits/set", 422),
    "send_limit_reset": Row("operator", "POST", "/fleet/limits/reset", 422),
    "show_incident": Row("viewer", "GET", "/incident", 200),
    "switch_deployment": Row("operator", "POST", "/incident/deployment/resume-rate", 422),
    "switch_namespace": Row("operator", "POST", "/incident/namespaces/default/resume-agents", 422),
    "show_agents": Row("viewer", "GET", "/agents", 200),
    "show_agent": Row("viewer", "GET", "/agents/none", 404),
    "show_playground": Row("viewer", "GET", "/playground/none", 404),
    "show_conversation": Row("viewer", "GET", "/playground/none/one", 404),
    "send_message": Row("operator", "POST", "/playground/none/one", 404),
    "start_agent": Row("operator", "POST", "/agents/none/start", 404),
    "show_audit": Row("admin", "GET", "/audit", 200),
    "show_users": Row("admin", "GET", "/users", 200),
    "show_new_user": Row("admin", "GET", "/new-user", 200),
    "send_new_user": Row("admin", "POST", "/new-user", 422),
    "show_user": Row("admin", "GET", "/users/nobody", 404),
    "change_user": Row("admin", "POST", "/users/nobody/disable", 404),
    "show_account": Row("user", "GET", "/me", 200),
    "send_password": Row("user", "POST", "/me/password", 401),
    "send_token": Row("user", "POST", "/me/tokens", 422),
    "send_end_of_login": Row("user", "POST", "/me/logins/none/end", 404),
    "send_token_revocation": Row("user", "POST", "/tokens/none/revoke", 404),
    "send_logout": Row("user", "POST", "/logout", 303),
}
"""One row for each route of a page, by its operation id. What it needs is not read from the code."""


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Message
    text: str


@dataclass(frozen=True)
class Login:
    cookie: str
    csrf: str


@pytest.fixture(scope="module")
def stack(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with Stack(redis_server, tmp_path_factory.mktemp("pages"), key_prefix="pageaccess") as found:
        with found.client() as client:
            for role in ACCESS_ROLES:
                client.access.add_user(role, PASSWORD, {EVERY: role})
            client.access.add_user("foreigner", PASSWORD, {"other": "admin"})
        yield found


@pytest.fixture(scope="module")
def console(stack: Stack) -> Iterator[Console]:
    with console_of(stack) as running:
        yield running


def ask(
    console: Console, method: str, path: str, form: Mapping[str, str] | None = None, login: Login | None = None,
    **headers: str,
) -> Answer:  # fmt: skip
    """A request as a browser sends it, with the CSRF text of the login in the form."""
    given = {"Accept": "text/html", **headers}
    fields = dict(form or {})
    if login is not None:
        given["Cookie"] = f"sleipnir_login={login.cookie}"
        fields.setdefault("csrf", login.csrf)
    body = None
    if method == "POST":
        body = urlencode(fields).encode()
        given.setdefault("Content-Type", "application/x-www-form-urlencoded")
    connection = console.connection()
    try:
        connection.request(method, path, body, given)
        response = connection.getresponse()
        return Answer(response.status, response.headers, response.read().decode())
    finally:
        connection.close()


def log_in(console: Console, user: str) -> Login:
    answer = ask(console, "POST", "/login", {"user": user, "password": PASSWORD, "next": "/runs"})
    assert (answer.status, answer.headers["Location"]) == (303, "/runs")
    cookie = SimpleCookie(answer.headers["Set-Cookie"])["sleipnir_login"]
    assert (cookie["httponly"], cookie["samesite"]) == (True, "lax")
    csrf = console.get("/me", Cookie=f"sleipnir_login={cookie.value}").data["csrf"]
    return Login(cookie.value, csrf)


def test_every_page_has_a_row() -> None:
    assert {str(route.operation_id) for route in page_routes()} == set(ROWS)


@pytest.mark.parametrize("name", ROWS)
def test_who_is_not_logged_in_is_led_to_the_login(console: Console, name: str) -> None:
    row = ROWS[name]
    answer = ask(console, row.method, row.path)
    if row.permission == "public":
        assert answer.status == row.status
    elif row.method == "GET":
        assert answer.status == 303
        assert answer.headers["Location"].startswith("/login")
    else:
        assert answer.status == 401
        assert "text/html" in answer.headers["Content-Type"]


@pytest.mark.parametrize("role", ACCESS_ROLES)
def test_a_role_opens_its_pages_and_no_other(console: Console, role: Permission) -> None:
    for name, row in ROWS.items():
        if name in ("send_login", "send_logout"):
            continue
        answer = ask(console, row.method, row.path, login=log_in(console, role))
        if RANKS[role] >= RANKS[row.permission]:
            assert answer.status == row.status, name
        else:
            assert answer.status == 403, name
            assert f"needs <b>{row.permission}</b>" in answer.text, name


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if RANKS[row.permission] >= RANKS["viewer"]])
def test_another_namespace_is_not_there(console: Console, name: str) -> None:
    row = ROWS[name]
    answer = ask(console, row.method, row.path, login=log_in(console, "foreigner"))
    assert answer.status == 404
    assert "there is nothing here that you may see" in answer.text


def test_the_runs_of_all_namespaces_have_no_numbers_that_count_one(console: Console) -> None:
    login = log_in(console, "viewer")
    one, every = (ask(console, "GET", f"/runs{query}", login=login) for query in ("", "?namespace=*"))
    assert (one.status, every.status) == (200, 200)
    assert 'id="count-' in one.text
    assert 'id="count-' not in every.text


@pytest.mark.parametrize(
    "name", [name for name, row in ROWS.items() if row.method == "POST" and row.permission != "public"]
)
def test_a_form_without_the_csrf_of_its_login_changes_nothing(console: Console, name: str) -> None:
    login, other = log_in(console, "admin"), log_in(console, "admin")
    for csrf in ("", "x", other.csrf):
        answer = ask(console, "POST", ROWS[name].path, {"csrf": csrf}, login)
        assert answer.status == 403
        assert "Nothing was changed" in answer.text
    assert ask(console, "GET", "/runs", login=login).status == 200


def test_pages_forbid_what_could_run_in_them(console: Console) -> None:
    login = log_in(console, "admin")
    for path in ("/runs", f"/runs/{NO_RUN}", "/login"):
        answer = ask(console, "GET", path, login=login)
        policy = answer.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'self';")
        assert "unsafe" not in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Cache-Control"] == "no-store"
        assert "style=" not in answer.text
        assert "<style" not in answer.text


def test_a_login_that_is_refused_keeps_the_name_and_leads_nowhere_else(console: Console) -> None:
    answer = ask(console, "POST", "/login", {"user": '"><b>ann', "password": "wrong", "next": "//evil.example/"})
    assert answer.status == 401
    assert 'value="&#34;&gt;&lt;b&gt;ann"' in answer.text
    assert "evil.example" not in answer.text
    for wanted in ("//evil.example", "https://evil.example", "/\\evil.example", "/a\nb"):
        answer = ask(console, "POST", "/login", {"user": "admin", "password": PASSWORD, "next": wanted})
        assert (answer.status, answer.headers["Location"]) == (303, "/")


def test_logging_out_ends_the_login(console: Console) -> None:
    login = log_in(console, "viewer")
    answer = ask(console, "POST", "/logout", login=login)
    assert (answer.status, answer.headers["Location"]) == (303, "/login")
    assert ask(console, "GET", "/runs", login=login).status == 303


def test_the_theme_is_in_a_cookie_and_in_the_page(console: Console) -> None:
    answer = ask(console, "POST", "/theme", {"theme": "dark", "here": "/runs?status=failed"})
    assert (answer.status, answer.headers["Location"]) == (303, "/runs?status=failed")
    assert SimpleCookie(answer.headers["Set-Cookie"])["sleipnir_theme"].value == "dark"
    assert '<html lang="en" data-theme="dark">' in ask(console, "GET", "/login", Cookie="sleipnir_theme=dark").text
    assert "data-theme" not in ask(console, "GET", "/login", Cookie='sleipnir_theme="><b>').text


def test_static_files_are_kept_by_their_digest(console: Console) -> None:
    kept = ask(console, "GET", url_of("console.css"), **{"Accept-Encoding": "identity"})
    assert kept.headers["Cache-Control"] == "public, max-age=31536000, immutable"
    assert kept.headers["Content-Type"] == "text/css; charset=utf-8"
    assert "light-dark(" in kept.text
    assert ask(console, "GET", "/static/older/console.css").headers["Cache-Control"] == "no-store"
    for path in (f"/static/{digest()}/../app.py", f"/static/{digest()}/none.js", f"/static/{digest()}/%2e%2e/app.py"):
        assert ask(console, "GET", path).status == 404


def test_a_page_is_json_for_who_asks_for_it(console: Console) -> None:
    login = log_in(console, "viewer")
    answer = ask(console, "GET", "/runs?status=failed", login=login, Accept="application/json")
    assert (answer.status, answer.headers["Location"]) == (307, "/api/v1/runs?status=failed")


def test_a_search_becomes_filters_in_the_url(console: Console) -> None:
    login = log_in(console, "viewer")
    answer = ask(console, "GET", "/runs?agent=triage&q=state:failed+cost:%3E1+account+closed", login=login)
    assert answer.status == 303
    wanted = "/runs?agent=triage&status=failed&cost_min=1&text=account+closed"
    assert answer.headers["Location"] == wanted


def test_a_filter_that_no_run_can_have_is_said(console: Console) -> None:
    login = log_in(console, "viewer")
    for path in ("/runs?status=nonsense", "/runs?reason=nonsense", "/runs?after=nonsense", "/runs?unknown=1"):
        answer = ask(console, "GET", path, login=login)
        assert answer.status == 422, path
        assert "text/html" in answer.headers["Content-Type"]


def test_a_body_that_is_no_form_is_refused(console: Console) -> None:
    login = log_in(console, "admin")
    answer = ask(console, "POST", f"/runs/{NO_RUN}/cancel", login=login, **{"Content-Type": "text/plain"})
    assert answer.status == 415

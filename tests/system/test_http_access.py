"""Who may ask what of the HTTP API: every route, with every role, and with no, wrong, expired, revoked and foreign
credentials; logins, their cookies and CSRF; proxies; TLS; and when a server does not start."""

from __future__ import annotations

import http.client
import itertools
import json
import re
import ssl
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http.cookies import Morsel, SimpleCookie
from pathlib import Path
from typing import Any

import pytest

from sleipnir.access.records import ACCESS_ROLES, EVERY
from sleipnir.client.access import Access
from sleipnir.runs.run import RunSpec
from sleipnir.runs.sessions import SessionName
from sleipnir_console.app import api_routes
from sleipnir_console.permissions import RANKS, Permission
from tests.console import BASE, Answer, Console, console_of
from tests.processes import RedisServer, Stack, write_agent
from tests.tls import make_certificates
from tests.waiting import wait_until

PASSWORD = "correct horse battery"
NO_RUN = "z" * 12
ASKING = """
name: asking
version: sleipnir/1
start: sure
nodes:
  sure: {type: approval, question: "sure?", options: [yes, no], routes: {yes: done, no: done}, on_other: done}
  done: {type: end, output: done}
"""
CHAT = {"model": "nobody", "messages": [{"role": "user", "content": "hi"}]}
UNSEEN = "there is nothing here that you may see"


@dataclass(frozen=True)
class Row:
    """A route: who may ask it, where `everywhere` is the whole deployment; a request, and the status of its answer to
    who may ask."""

    permission: Permission
    method: str
    path: str
    status: int
    body: Any = None
    everywhere: bool = False
    base: str = BASE


ROWS: Mapping[str, Row] = {
    "get_liveness": Row("public", "GET", "/health/live", 200),
    "get_readiness": Row("public", "GET", "/health/ready", 200),
    "get_openapi": Row("public", "GET", "/openapi.json", 200),
    "log_in": Row("public", "POST", "/login", 422, {}),
    "get_me": Row("user", "GET", "/me", 200),
    "log_out": Row("user", "POST", "/logout", 204),
    "get_health": Row("viewer", "GET", "/health", 200),
    "list_agents": Row("viewer", "GET", "/agents", 200),
    "get_agent": Row("viewer", "GET", "/agents/nobody", 404),
    "get_agent_source": Row("viewer", "GET", "/agents/nobody/source", 404),
    "get_agent_structure": Row("viewer", "GET", "/agents/nobody/structure", 404),
    "draw_agent": Row("viewer", "GET", "/agents/nobody/drawing", 404),
    "submit_run": Row("operator", "POST", "/runs", 404, {"agent": "nobody"}),
    "list_runs": Row("viewer", "GET", "/runs", 200),
    "count_runs": Row("viewer", "GET", "/runs/count", 200),
    "get_run_standings": Row("viewer", "GET", "/runs/standings", 200),
    "list_failures": Row("viewer", "GET", "/failures", 200),
    "discard_failures": Row("operator", "POST", "/failures/none/discard", 422, {"note": "known"}),
    "reopen_failures": Row("operator", "POST", "/failures/none/reopen", 204),
    **{
        name: Row("viewer", "GET", f"/runs/{NO_RUN}{path}", 404)
        for name, path in {
            "get_run": "",
            "get_run_history": "/history",
            "get_run_state": "/state",
            "get_run_trace": "/trace",
            "compare_run_states": "/state/difference?first=0&second=1",
            "get_run_tree": "/tree",
            "get_run_lineage": "/lineage",
            "get_run_source": "/source",
            "list_late_results": "/late-results",
            "list_execution_errors": "/execution-errors",
            "draw_run": "/drawing",
            "follow_run": "/events",
            "compare_runs": f"/compare/{NO_RUN}",
            "list_run_gates": "/gates",
        }.items()
    },
    "export_run": Row("operator", "GET", f"/runs/{NO_RUN}/export", 404),
    "cancel_run": Row("operator", "POST", f"/runs/{NO_RUN}/cancel", 404),
    "pause_run": Row("operator", "POST", f"/runs/{NO_RUN}/pause", 404),
    "resume_run": Row("operator", "POST", f"/runs/{NO_RUN}/resume", 404),
    "retry_run": Row("operator", "POST", f"/runs/{NO_RUN}/retry", 404),
    "skip_visit": Row("operator", "POST", f"/runs/{NO_RUN}/skip", 404, {"node": "a"}),
    "fork_run": Row("operator", "POST", f"/runs/{NO_RUN}/fork", 404),
    "update_run_state": Row("operator", "POST", f"/runs/{NO_RUN}/update", 404, {"values": {}}),
    "rewind_run": Row("operator", "POST", f"/runs/{NO_RUN}/rewind", 404, {}),
    "list_gates": Row("viewer", "GET", "/gates", 200),
    "get_gate": Row("viewer", "GET", f"/gates/{NO_RUN}/1", 404),
    "count_gates": Row("viewer", "GET", "/gates/counts", 200),
    "list_ways_on": Row("viewer", "GET", f"/gates/{NO_RUN}/1/ways-on", 404),
    "claim_gate": Row("approver", "POST", f"/gates/{NO_RUN}/1/claim", 404),
    "release_gate": Row("approver", "POST", f"/gates/{NO_RUN}/1/release", 404),
    "assign_gate": Row("approver", "POST", f"/gates/{NO_RUN}/1/assign", 404, {"person": "anna"}),
    "snooze_gate": Row("approver", "POST", f"/gates/{NO_RUN}/1/snooze", 404, {"until_ms": None}),
    "comment_gate": Row("approver", "POST", f"/gates/{NO_RUN}/1/comment", 404, {"text": "known"}),
    "make_link": Row("admin", "POST", f"/gates/{NO_RUN}/1/link", 404, {"person": "anna"}),
    "answer_gate": Row("approver", "POST", f"/gates/{NO_RUN}/1/answer", 404, {"answer": "yes"}),
    "submit_batch": Row("operator", "POST", "/batches?agent=nobody", 415),
    "list_batches": Row("viewer", "GET", "/batches", 200),
    "get_batch": Row("viewer", "GET", "/batches/nothing", 404),
    "list_batch_errors": Row("viewer", "GET", "/batches/nothing/errors", 404),
    "list_batch_rows": Row("viewer", "GET", "/batches/nothing/rows", 404),
    "get_batch_grid": Row("viewer", "GET", "/batches/nothing/grid", 404),
    "list_batch_ended_rows": Row("viewer", "GET", "/batches/nothing/ended-rows", 404),
    "compare_batches": Row("viewer", "GET", "/batches/nothing/compare/nothing", 404),
    "fork_batch": Row("operator", "POST", "/batches/nothing/fork", 404),
    "read_batch_results": Row("viewer", "GET", "/batches/nothing/results", 404),
    "pause_batch": Row("operator", "POST", "/batches/nothing/pause", 404),
    "resume_batch": Row("operator", "POST", "/batches/nothing/resume", 404),
    "set_batch_parallel": Row("operator", "POST", "/batches/nothing/parallel", 404, {"parallel": 1}),
    "retry_failed_rows": Row("operator", "POST", "/batches/nothing/retry-failed", 404),
    "cancel_batch": Row("operator", "POST", "/batches/nothing/cancel", 404),
    "preview_job": Row("operator", "POST", "/jobs/preview", 200, {"action": "cancel"}),
    "submit_job": Row("operator", "POST", "/jobs", 422, {"action": "cancel", "runs": [NO_RUN]}),
    "list_jobs": Row("viewer", "GET", "/jobs", 200),
    "get_job": Row("viewer", "GET", "/jobs/nothing", 404),
    "list_job_refusals": Row("viewer", "GET", "/jobs/nothing/refusals", 404),
    "stop_job": Row("operator", "POST", "/jobs/nothing/stop", 404),
    "list_schedules": Row("viewer", "GET", "/schedules", 200),
    "get_schedule": Row("viewer", "GET", "/schedules/nothing", 404),
    "add_schedule": Row("operator", "POST", "/schedules", 404, {"name": "s", "agent": "nobody", "every": "1h"}),
    "change_schedule": Row("operator", "PATCH", "/schedules/nothing", 404, {"every": "1h"}),
    "pause_schedule": Row("operator", "POST", "/schedules/nothing/pause", 404),
    "resume_schedule": Row("operator", "POST", "/schedules/nothing/resume", 404),
    "fire_schedule": Row("operator", "POST", "/schedules/nothing/run-now", 404),
    "remove_schedule": Row("operator", "DELETE", "/schedules/nothing", 404),
    "list_threads": Row("viewer", "GET", "/threads", 200),
    "get_thread": Row("viewer", "GET", "/threads/nobody/none", 404),
    "list_thread_runs": Row("viewer", "GET", "/threads/nobody/none/runs", 404),
    "update_thread_state": Row("operator", "POST", "/threads/nobody/none/update", 404, {"values": {}}),
    "remove_thread": Row("operator", "DELETE", "/threads/nobody/none", 404),
    "list_sessions": Row("viewer", "GET", "/sessions", 200),
    "get_session": Row("viewer", "GET", "/sessions/nobody/none", 404),
    "remove_session": Row("operator", "DELETE", "/sessions/nobody/none", 404),
    "list_queues": Row("viewer", "GET", "/queues", 200),
    "list_workers": Row("viewer", "GET", "/workers", 200),
    "list_limits": Row("viewer", "GET", "/limits", 200),
    "set_limit": Row("operator", "POST", "/limits/set", 422, {"pattern": "none", "max_parallel": 1}, everywhere=True),
    "reset_limit": Row("operator", "POST", "/limits/reset", 422, {"pattern": "none"}, everywhere=True),
    "get_throughput": Row("viewer", "GET", "/throughput", 200),
    "list_cached_results": Row("viewer", "GET", "/cache", 200),
    "clear_cache": Row("operator", "DELETE", "/cache", 200, everywhere=True),
    "send_signal": Row("operator", "POST", "/signals", 200, {"name": "paid"}),
    "list_signals": Row("viewer", "GET", "/signals", 200),
    "get_deployment_hold": Row("viewer", "GET", "/deployment/hold", 200),
    "pause_deployment": Row("operator", "POST", "/deployment/pause", 202, everywhere=True),
    "resume_deployment": Row("operator", "POST", "/deployment/resume", 202, everywhere=True),
    "resume_part_of_deployment": Row("operator", "POST", "/deployment/resume-part", 422, {}, everywhere=True),
    "list_holds": Row("viewer", "GET", "/holds", 200),
    "pause_namespace": Row("operator", "POST", "/namespaces/default/pause", 202),
    "resume_part_of_namespace": Row("operator", "POST", "/namespaces/default/resume-part", 422, {}),
    "resume_namespace": Row("operator", "POST", "/namespaces/default/resume", 202),
    "list_models": Row("viewer", "GET", "/models", 200, base="/v1"),
    "get_model": Row("viewer", "GET", "/models/nobody", 404, base="/v1"),
    "create_chat_completion": Row("operator", "POST", "/chat/completions", 404, CHAT, base="/v1"),
    "list_webhooks": Row("admin", "GET", "/webhooks", 200, everywhere=True),
    "add_webhook": Row(
        "admin", "POST", "/webhooks", 422, {"name": "w", "url": "x", "on": ["run_ended"]}, everywhere=True
    ),
    "get_webhook": Row("admin", "GET", "/webhooks/none", 404, everywhere=True),
    "remove_webhook": Row("admin", "DELETE", "/webhooks/none", 404, everywhere=True),
    "pause_webhook": Row("admin", "POST", "/webhooks/none/pause", 404, everywhere=True),
    "resume_webhook": Row("admin", "POST", "/webhooks/none/resume", 404, everywhere=True),
    "list_webhook_deliveries": Row("admin", "GET", "/webhooks/none/deliveries", 404, everywhere=True),
    "redeliver_webhook": Row("admin", "POST", "/webhook-deliveries/none/redeliver", 404, everywhere=True),
    "list_hooks": Row("admin", "GET", "/hooks", 200, everywhere=True),
    "add_hook": Row("admin", "POST", "/hooks", 422, {"name": "h"}, everywhere=True),
    "get_hook": Row("admin", "GET", "/hooks/none", 404, everywhere=True),
    "remove_hook": Row("admin", "DELETE", "/hooks/none", 404, everywhere=True),
    "rotate_hook": Row("admin", "POST", "/hooks/none/rotate", 404, everywhere=True),
    "receive_hook": Row("public", "POST", "/none", 404, {}, base="/hooks"),
    "get_agent_card": Row("viewer", "GET", "/nobody/.well-known/agent-card.json", 404, base="/a2a"),
    "call_agent": Row("operator", "POST", "/nobody", 404, {}, base="/a2a"),
    "list_users": Row("admin", "GET", "/users", 200),
    "get_user": Row("admin", "GET", "/users/nobody", 404),
    "add_user": Row("admin", "POST", "/users", 422, {}),
    "set_role": Row("admin", "POST", "/users/nobody/role", 404, {"namespace": "default", "role": None}),
    "reset_password": Row("admin", "POST", "/users/nobody/password", 404, {"password": "x" * 12}),
    "disable_user": Row("admin", "POST", "/users/nobody/disable", 404),
    "enable_user": Row("admin", "POST", "/users/nobody/enable", 404),
    "change_password": Row("user", "POST", "/me/password", 422, {}),
    "list_logins": Row("user", "GET", "/me/logins", 200),
    "end_login": Row("user", "DELETE", "/me/logins/none", 404),
    "list_tokens": Row("user", "GET", "/tokens", 200),
    "create_token": Row("user", "POST", "/tokens", 422, {}),
    "revoke_token": Row("user", "DELETE", "/tokens/none", 404),
    "export_audit": Row("admin", "GET", "/audit", 200, everywhere=True),
}
"""One row for each route, by its operation id. The permission is not read from the code: this is what it must be."""


@pytest.fixture(scope="module")
def stack(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    home = tmp_path_factory.mktemp("access")
    with Stack(redis_server, home, key_prefix="httpaccess", log_level="info", log_format="json") as found:
        yield found


@dataclass(frozen=True)
class Credentials:
    """Tokens by the role of their user in the runs' namespace, by that in all namespaces, and those that are none."""

    here: Mapping[str, str]
    everywhere: Mapping[str, str]
    foreign: str
    bound: str
    invalid: Mapping[str, str]


@pytest.fixture(scope="module")
def credentials(stack: Stack) -> Credentials:
    with stack.client() as client:
        return _made(client.access)


def _made(access: Access) -> Credentials:
    here, everywhere = {}, {}
    for role in ACCESS_ROLES:
        access.add_user(f"{role}-here", None, {"default": role})
        access.add_user(f"{role}-everywhere", None, {EVERY: role})
        here[role] = access.create_token(f"{role}-here").text
        everywhere[role] = access.create_token(f"{role}-everywhere").text
    access.add_user("foreigner", None, {"other": "admin"})
    access.add_user("gone", None, {EVERY: "admin"})
    gone = access.create_token("gone").text
    access.set_disabled("gone", True)
    revoked = access.create_token("admin-everywhere")
    access.revoke_token(revoked.info.id)
    for name, roles in (("ann", {EVERY: "admin"}), ("vic", {"default": "viewer"})):
        access.add_user(name, PASSWORD, roles)
    return Credentials(
        here,
        everywhere,
        access.create_token("foreigner").text,
        access.create_token("admin-everywhere", role="viewer", namespaces=["default"]).text,
        {
            "expired": f"Bearer {access.create_token('admin-everywhere', expires_s=0).text}",
            "revoked": f"Bearer {revoked.text}",
            "of a disabled user": f"Bearer {gone}",
            "unknown": "Bearer slp_0123456789ab_" + "x" * 43,
            "no token": "Bearer x",
            "empty": "",
            "another scheme": "Basic YW5uOnBhc3N3b3Jk",
        },
    )


@pytest.fixture(scope="module")
def console(stack: Stack, credentials: Credentials) -> Iterator[Console]:
    with console_of(stack) as running:
        yield running


def ask(console: Console, row: Row, **headers: str) -> Answer:
    return console.request(row.method, row.path, row.body, headers, base=row.base)


def is_right(answer: Answer, row: Row) -> bool:
    """Whether the route did its work; one that looks up what is nowhere says so as it would to a stranger."""
    return answer.status == row.status and (row.status == 404 or UNSEEN.encode() not in answer.body)


# The matrix.


def test_every_route_has_a_row() -> None:
    assert {str(route.operation_id) for route in api_routes()} == set(ROWS)


@pytest.mark.parametrize("name", ROWS)
def test_without_a_valid_credential_a_route_is_closed(console: Console, credentials: Credentials, name: str) -> None:
    row = ROWS[name]
    cookies = {"unknown": "sleipnir_login=ann:" + "x" * 43, "damaged": "sleipnir_login=x"}
    for what, headers in (
        ("none", {}),
        *((what, {"Authorization": text}) for what, text in credentials.invalid.items()),
        *((what, {"Cookie": text}) for what, text in cookies.items()),
        ("a header that only a proxy may send", {"X-User": "ann", "X-Forwarded-For": "127.0.0.1"}),
    ):
        answer = ask(console, row, **headers)
        if row.permission == "public":
            assert is_right(answer, row), what
        else:
            assert (answer.status, answer.problem) == (401, "unauthenticated"), what
            assert answer.headers["WWW-Authenticate"] == 'Bearer realm="sleipnir"', what


@pytest.mark.parametrize("role", ACCESS_ROLES)
@pytest.mark.parametrize("name", ROWS)
def test_a_role_opens_what_it_may_and_nothing_else(
    console: Console, credentials: Credentials, name: str, role: Permission
) -> None:
    row = ROWS[name]
    may = RANKS[role] >= RANKS[row.permission]
    of_all = ask(console, row, Authorization=f"Bearer {credentials.everywhere[role]}")
    of_runs = ask(console, row, Authorization=f"Bearer {credentials.here[role]}")
    for answer, opens in ((of_all, may), (of_runs, may and not row.everywhere)):
        if opens:
            assert is_right(answer, row)
        else:
            assert (answer.status, answer.problem) == (403, "forbidden")
            assert answer.facts["permission"] == row.permission


@pytest.mark.parametrize("name", ROWS)
def test_another_namespace_is_not_there(console: Console, credentials: Credentials, name: str) -> None:
    row = ROWS[name]
    answer = ask(console, row, Authorization=f"Bearer {credentials.foreign}")
    if RANKS[row.permission] <= RANKS["user"]:
        assert is_right(answer, row)
    else:
        assert (answer.status, answer.problem) == (404, "not-found")
        assert answer.facts.get("detail", answer.facts.get("message")) == UNSEEN


@pytest.mark.parametrize("name", ROWS)
def test_a_token_has_no_more_than_it_is_bound_to(console: Console, credentials: Credentials, name: str) -> None:
    row = ROWS[name]
    answer = ask(console, row, Authorization=f"Bearer {credentials.bound}")
    if RANKS["viewer"] >= RANKS[row.permission] and not row.everywhere:
        assert is_right(answer, row)
    else:
        assert (answer.status, answer.problem) == (403, "forbidden")


# Logins.


def log_in(console: Console, user: str, password: str = PASSWORD, **headers: str) -> Answer:
    return console.request("POST", "/login", {"user": user, "password": password}, headers)


def cookie_of(answer: Answer) -> Morsel[str]:
    return SimpleCookie(answer.headers["Set-Cookie"])["sleipnir_login"]


def with_login(answer: Answer, *, csrf: str | None = None) -> dict[str, str]:
    headers = {"Cookie": f"sleipnir_login={cookie_of(answer).value}"}
    return headers if csrf is None else {**headers, "X-CSRF-Token": csrf}


@pytest.mark.parametrize("name", [name for name in ROWS if name not in ("log_out", "log_in")])
def test_a_cookie_opens_what_the_role_of_its_user_may(console: Console, name: str) -> None:
    row = ROWS[name]
    for user, role in (("ann", "admin"), ("vic", "viewer")):
        login = log_in(console, user)
        assert login.status == 200
        answer = ask(console, row, **with_login(login, csrf=login.data["csrf"]))
        if RANKS[role] >= RANKS[row.permission]:
            assert is_right(answer, row)
        else:
            assert (answer.status, answer.problem) == (403, "forbidden")


CHANGING = [name for name, row in ROWS.items() if row.method != "GET" and row.permission != "public"]
"""What a cookie could change: neither logging in nor requests of hooks count one."""


@pytest.mark.parametrize("name", CHANGING)
def test_a_cookie_alone_changes_nothing(console: Console, name: str) -> None:
    login, other = log_in(console, "ann"), log_in(console, "ann")
    for csrf in (None, "", "x", other.data["csrf"]):
        answer = ask(console, ROWS[name], **with_login(login, csrf=csrf))
        assert (answer.status, answer.problem) == (403, "csrf")
    assert console.get("/me", **with_login(login)).status == 200


def test_a_login_has_a_cookie_that_scripts_and_other_sites_do_not_get(console: Console) -> None:
    first = log_in(console, "ann")
    cookie = cookie_of(first)
    assert (cookie["httponly"], cookie["samesite"], cookie["secure"], cookie["path"]) == (True, "lax", "", "/")
    assert first.headers["Cache-Control"] == "no-store"
    second = log_in(console, "ann", **with_login(first))
    assert cookie_of(second).value != cookie.value
    assert console.get("/me", **with_login(first)).status == 401
    me = console.get("/me", **with_login(second)).data
    assert me == {
        "user": "ann", "via": "login", "permission": "admin", "roles": {"*": "admin"}, "csrf": second.data["csrf"],
    }  # fmt: skip
    assert console.post("/logout", **with_login(second, csrf=me["csrf"])).status == 204
    assert console.get("/me", **with_login(second)).status == 401


def test_another_site_cannot_log_a_browser_in(console: Console) -> None:
    answer = log_in(console, "ann", Origin="https://evil.example")
    assert (answer.status, answer.problem) == (403, "cross-origin")


def test_logins_that_fail_are_refused_alike_and_then_slowed_down(console: Console) -> None:
    for user in ("vic", "nobody"):
        answer = log_in(console, user, "wrong")
        assert (answer.status, answer.data["detail"]) == (401, "the user or the password is wrong")
        assert "Set-Cookie" not in answer.headers
    wait_until(lambda: log_in(console, "nobody", "wrong").status == 429, "further attempts are slowed down")
    slow = log_in(console, "nobody", "wrong")
    assert (slow.problem, int(slow.headers["Retry-After"]) >= 1) == ("too-many-attempts", True)


def test_the_audit_and_the_log_name_the_user_and_no_secret(console: Console, credentials: Credentials) -> None:
    login = log_in(console, "ann")
    token = credentials.here["viewer"]
    console.get("/health", Authorization=f"Bearer {token}", **{"X-Request-ID": "by-token"})
    lines = console.get("/audit", **with_login(login)).body.decode().splitlines()
    last = json.loads(lines[-1])
    assert (last["what"], last["by"], last["after"]) == ("logged in", "ann@127.0.0.1 (api)", {"address": "127.0.0.1"})
    line = wait_until(
        lambda: next((x for x in console.stack.log("console").splitlines() if '"by-token"' in x), None), "it is logged"
    )
    assert json.loads(line)["by"] == f"viewer-here/{token.split('_')[1]}@127.0.0.1 (api)"
    log = console.stack.log("console") + "\n".join(lines)
    for secret in (PASSWORD, token, cookie_of(login).value, login.data["csrf"]):
        assert secret not in log


def test_an_answer_over_http_is_in_the_audit_with_the_user_and_its_token(
    console: Console, credentials: Credentials, tmp_path: Path
) -> None:
    token = credentials.here["approver"]
    console.stack.start_scheduler()
    with console.stack.client() as client:
        run = client.submit(write_agent(tmp_path / "asking", ASKING))
        [gate] = wait_until(run.gates, "it asks")
        for name, status in (("viewer", 403), ("approver", 200)):
            headers = {"Authorization": f"Bearer {credentials.here[name]}"}
            answer = console.request("POST", f"/gates/{run.id}/{gate.seq}/answer", {"answer": "yes"}, headers)
            assert answer.status == status, answer.body
        assert run.wait(60).status == "completed"
        [entry] = client.access.audit(on=f"run {run.id}")
    assert (entry.what, entry.by) == ("run answered", f"approver-here/{token.split('_')[1]}@127.0.0.1 (api)")
    assert (entry.before, entry.after["answer"]) == ({"status": "waiting"}, "yes")


def test_a_run_of_another_namespace_is_not_there(console: Console, credentials: Credentials, tmp_path: Path) -> None:
    with console.stack.client() as client:
        agent = write_agent(tmp_path / "asking", ASKING)
        other, own = client.submit(agent, namespace="other", tags={"who": "n"}), client.submit(agent, tags={"who": "n"})
        batch = client.batch(agent, [{"prompt": "x"}], namespace="other")
    for token, seen in ((credentials.here["admin"], (404, 200)), (credentials.everywhere["viewer"], (200, 200))):
        for run, status in zip((other, own), seen, strict=True):
            answer = console.get(f"/runs/{run.id}", Authorization=f"Bearer {token}")
            assert answer.status == status
            assert status == 200 or answer.data["detail"] == UNSEEN
    here = {"Authorization": f"Bearer {credentials.here['admin']}"}
    everywhere = {"Authorization": f"Bearer {credentials.everywhere['viewer']}"}
    for path, found in (
        ("/runs?tag=who=n", [own.id]),
        (f"/runs?batch={batch.id}", []),
        ("/runs?namespace=*&tag=who=n", [own.id]),
    ):
        assert [run["id"] for run in console.get(path, **here).data["items"]] == found
    assert console.get("/runs/count?tag=who=n", **here).data["count"] == 1
    for path in (
        "/runs?namespace=other",
        "/runs/count?namespace=other",
        "/runs/standings?namespace=other",
        "/failures?namespace=other",
    ):
        assert console.get(path, **here).status == 404
        assert console.get(path, **everywhere).status == 200
    seen = console.get("/runs?namespace=*&tag=who=n", **everywhere).data["items"]
    assert {run["id"] for run in seen} == {own.id, other.id}, "in any order: both may be of one millisecond"


def test_a_thread_and_a_session_of_another_namespace_are_not_there(
    console: Console, credentials: Credentials, tmp_path: Path
) -> None:
    with console.stack.client() as client:
        agent = write_agent(tmp_path / "asking", ASKING)
        other = client.submit(agent, namespace="other", thread="talk")
        name = SessionName("chatty", "desk", "other")
        spec = RunSpec("chatty", "digest", namespace="other", session="desk").naming_in_its_namespace()
        partition = client.store.keys.partition_of(str(name))
        ids = (f"run{number:09}" for number in itertools.count())
        client.store.runs.create(next(run for run in ids if client.store.keys.partition_of(run) == partition), spec, {})
    here = {"Authorization": f"Bearer {credentials.here['admin']}"}
    viewer = {"Authorization": f"Bearer {credentials.everywhere['viewer']}"}
    paths = {
        "/threads/asking/talk": "agent 'asking' has no thread 'talk'",
        "/threads/asking/talk/runs": "agent 'asking' has no thread 'talk'",
        "/sessions/chatty/desk": "agent 'chatty' has no session 'desk'",
    }
    for path, nowhere in paths.items():
        for of, detail in (("", nowhere), ("?namespace=other", UNSEEN), ("?namespace=nowhere", UNSEEN)):
            answer = console.get(path + of, **here)
            assert (answer.status, answer.data["detail"]) == (404, detail)
        assert console.get(f"{path}?namespace=other", **viewer).status == 200
        assert console.get(path, **viewer).status == console.get(f"{path}?namespace=nowhere", **viewer).status == 404
    for path in ("/threads/asking/talk", "/sessions/chatty/desk"):
        for of, headers, status in (
            ("", here, 404),
            ("?namespace=other", here, 404),
            ("?namespace=other", viewer, 403),
        ):
            assert console.request("DELETE", path + of, None, headers).status == status
    for path in ("/threads", "/sessions"):
        assert console.get(path, **here).data == console.get(f"{path}?namespace=*", **here).data
        assert console.get(path, **here).data == {"items": [], "after": None}
        assert console.get(f"{path}?namespace=other", **here).status == 404
        [found] = console.get(f"{path}?namespace=other", **viewer).data["items"]
        assert (found["namespace"], found["run"] is not None) == ("other", True)
    with console.stack.client() as client:
        assert client.run(other.id).info().thread == "talk"


# Proxies, TLS, and servers that do not start.


def test_a_trusted_proxy_names_the_user_and_the_address(stack: Stack, credentials: Credentials) -> None:
    env = {"SLEIPNIR_CONSOLE_PROXIES": "127.0.0.0/8", "SLEIPNIR_CONSOLE_USER_HEADER": "X-User"}
    with console_of(stack, "proxied", **env) as proxied:
        host = {"Host": "sleipnir.example"}
        assert proxied.get("/me", **host).status == 401
        for name in ("nobody", "gone"):
            assert proxied.get("/me", **host, **{"X-User": name}).status == 401
        me = proxied.get("/me", **host, **{"X-User": "vic"}).data
        assert (me["user"], me["via"], me["permission"]) == ("vic", "proxy", "viewer")
        login = log_in(proxied, "ann", **host, **{"X-Forwarded-For": "6.6.6.6, 203.0.113.9, 127.0.0.2"})
        assert cookie_of(login)["secure"]
        with stack.client() as client:
            entry = next(client.access.audit(newest_first=True))
        assert (entry.by, entry.after) == ("ann@203.0.113.9 (api)", {"address": "203.0.113.9"})


def test_a_server_that_others_can_reach_needs_users_and_tls(redis_server: RedisServer, tmp_path: Path) -> None:
    with Stack(redis_server, tmp_path / "home", key_prefix=f"bare-{tmp_path.name}") as bare:

        def refusal(*words: str, **settings: str) -> str:
            done = bare.sleipnir("console", "--port", "0", *words, **settings)
            assert done.returncode == 1 and "Traceback" not in done.stderr
            return done.stderr

        assert "passwords and tokens would be sent in clear text" in refusal("--host", "0.0.0.0")
        assert "there are no users" in refusal("--host", "0.0.0.0", "--behind-proxy", "10.0.0.1")
        assert "there are no users" in refusal("--behind-proxy", "127.0.0.1")
        assert "lists addresses or networks" in refusal("--behind-proxy", "proxy.example")
        assert "given together" in refusal(SLEIPNIR_CONSOLE_TLS_CERT=str(tmp_path / "cert.pem"))
        assert "from these addresses only" in refusal(SLEIPNIR_CONSOLE_USER_HEADER="X-User")


def test_a_server_with_tls_listens_for_others_and_its_cookies_are_secure(
    stack: Stack, credentials: Credentials, tmp_path: Path
) -> None:
    files = make_certificates(tmp_path)
    env = {
        "SLEIPNIR_CONSOLE_HOST": "0.0.0.0", "SLEIPNIR_CONSOLE_PORT": "0",
        "SLEIPNIR_CONSOLE_TLS_CERT": str(files.certificate), "SLEIPNIR_CONSOLE_TLS_KEY": str(files.key),
    }  # fmt: skip
    stack.start("tls", [sys.executable, "-m", "sleipnir_console"], env)
    pattern = re.compile(r"https://0\.0\.0\.0:(\d+)")
    port = int(wait_until(lambda: pattern.search(stack.log("tls")), "it listens", 60)[1])
    context = ssl.create_default_context(cafile=str(files.authority))

    def connect() -> http.client.HTTPSConnection:
        connection = http.client.HTTPSConnection("localhost", port, timeout=60, context=context)
        connection.connect()
        return connection

    connection = wait_until(lambda: _unless_refused(connect), "it answers", 60)
    body = json.dumps({"user": "ann", "password": PASSWORD})
    connection.request("POST", "/api/v1/login", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    assert response.status == 200
    assert SimpleCookie(response.headers["Set-Cookie"])["sleipnir_login"]["secure"]
    connection.close()


def _unless_refused(connect: Callable[[], http.client.HTTPSConnection]) -> http.client.HTTPSConnection | None:
    try:
        return connect()
    except ConnectionRefusedError:
        return None

"""Hooks with real processes: requests of other programs that start runs and send signals, repeated, forged, too many,
and a server that is killed before it answers."""

from __future__ import annotations

import hashlib
import hmac
import json
import signal
from base64 import b64decode
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from sleipnir.failpoints import VARIABLE
from sleipnir.webhooks.signatures import headers as signed_headers
from tests.console import Answer, Console, console_of
from tests.processes import RedisServer, Stack, write_agent
from tests.waiting import wait_until

ECHO = """
name: echo
version: sleipnir/1
start: done
initial_state: {number: 0}
nodes:
  done: {type: end, output: "{{initial_prompt}} {{number}}"}
"""
WAITS = """
name: waits
version: sleipnir/1
start: paid
nodes:
  paid: {type: wait, event: "order.17.paid", state_updates: {amount: "{{event.data.amount}}"}, next: done}
  done: {type: end, output: "{{amount}}"}
"""


@pytest.fixture(scope="module")
def stack(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("hooks")
    write_agent(folder / "agents" / "echo", ECHO)
    write_agent(folder / "agents" / "waits", WAITS)
    given = {"agents_dir": folder / "agents", "log_level": "info", "log_format": "json"}
    with Stack(redis_server, folder / "home", key_prefix="hooks", owner_ttl_s=0.5, **given) as found:
        found.start_scheduler()
        yield found


@pytest.fixture(scope="module")
def api(stack: Stack) -> Iterator[Console]:
    with console_of(stack) as found:
        yield found


def added(stack: Stack, *words: str) -> str:
    done = stack.sleipnir("hooks", "add", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def sent(api: Console, name: str, body: Any, headers: Mapping[str, str]) -> Answer:
    return api.request("POST", f"/{name}", headers={"Content-Type": "application/json", **headers},
                       raw=json.dumps(body).encode(), base="/hooks")  # fmt: skip


def signed(stack: Stack, secret: str, id_: str, body: Any) -> dict[str, str]:
    with stack.client() as client:
        now_ms = client.now_ms()
    return signed_headers(b64decode(secret.removeprefix("whsec_")), id_, now_ms, json.dumps(body).encode())


def test_a_request_starts_one_run_however_often_it_comes(stack: Stack, api: Console) -> None:
    secret = added(stack, "one", "--agent", "echo", "--prompt", "{{body.title}}", "--input", "number={{body.number}}")
    body = {"title": "red", "number": 7}
    answers = [sent(api, "one", body, signed(stack, secret, "msg_1", body)) for _ in range(3)]
    assert [each.status for each in answers] == [202] * 3, answers[0].body
    assert len({each.data["id"] for each in answers}) == 1
    other = sent(api, "one", body, signed(stack, secret, "msg_2", body))
    assert other.data["id"] != answers[0].data["id"]
    with stack.client() as client:
        run = client.run(answers[0].data["id"])
        assert run.wait(60).status == "completed"
        assert run.output == "red 7"
    changed = {"title": "green", "number": 8}
    refused = sent(api, "one", changed, signed(stack, secret, "msg_1", changed))
    assert (refused.status, refused.problem) == (422, "refused"), "the id is that of another request"
    missing = sent(api, "one", {}, signed(stack, secret, "msg_3", {}))
    assert (missing.status, missing.problem) == (422, "refused")
    assert "does not fit the inputs" in missing.data["detail"]
    assert secret not in stack.log("console")


def test_a_request_without_the_secret_starts_nothing_and_slows_down_only_others_of_its_kind(
    stack: Stack, api: Console
) -> None:
    secret = added(stack, "guarded", "--agent", "echo")
    body = {"n": 1}
    good = signed(stack, secret, "msg_1", body)
    wrong = {**good, "webhook-signature": "v1," + "A" * 43 + "="}
    first = sent(api, "guarded", body, wrong)
    assert (first.status, first.problem) == (401, "unauthenticated")
    assert sent(api, "guarded", body, {}).problem == "unauthenticated"
    assert sent(api, "guarded", {"n": 2}, good).problem == "unauthenticated"
    slowed = next(each for _ in range(50) if (each := sent(api, "guarded", body, wrong)).status == 429)
    assert slowed.problem == "too-many-attempts"
    assert int(slowed.headers["Retry-After"]) >= 1
    assert sent(api, "guarded", body, good).status == 202, "a stranger keeps no sender out"
    assert "wrong proof" in stack.log("console")
    assert "A" * 43 not in stack.log("console")
    assert sent(api, "nothing", body, good).problem == "not-found"
    old = signed_headers(
        b64decode(secret.removeprefix("whsec_")), "msg_9", 1_000_000_000_000, json.dumps(body).encode()
    )
    assert sent(api, "guarded", body, old).status in (401, 429)


@pytest.mark.parametrize("point", ["create_run.before", "create_run.after", "hook_received.after"])
def test_a_server_dies_before_it_answers_and_the_repeated_request_is_one_run(
    stack: Stack, api: Console, point: str
) -> None:
    name = f"kill-{point.replace('_', '-')}"
    secret = added(stack, name, "--agent", "echo", "--prompt", name)
    body = {"n": 1}
    with console_of(stack, name, **{VARIABLE: f"{point}=kill"}) as victim:
        process = stack.processes[name]
        with pytest.raises(OSError):
            sent(victim, name, body, signed(stack, secret, "msg_1", body))
        wait_until(lambda: process.poll() is not None, "it comes to its failpoint")
        assert process.returncode == -signal.SIGKILL
    again = sent(api, name, body, signed(stack, secret, "msg_1", body))
    assert again.status == 202, again.body
    with stack.client() as client:
        runs = [client.run(info.id) for info in client.runs(500, agents=["echo"])]
        assert all(run.wait(60).status == "completed" for run in runs)
        assert [run.output for run in runs].count(f"{name} 0") == 1


def test_a_request_sends_a_signal_once(stack: Stack, api: Console) -> None:
    secret = added(stack, "pay", "--signal", "order.{{body.order}}.paid", "--form", "token", "--id-field", "event.id")
    with stack.client() as client:
        run = client.submit("waits")
        wait_until(run.active, "it waits")
    body = {"order": 17, "amount": "12.50", "event": {"id": 4711}}
    bearer = {"Authorization": f"Bearer {secret}"}
    first, second = (sent(api, "pay", body, bearer) for _ in range(2))
    assert (first.status, second.status) == (202, 202), first.body
    assert first.data == second.data
    assert first.data["signal"] == "order.17.paid"
    with stack.client() as client:
        assert client.run(run.id).wait(60).status == "completed"
        assert client.run(run.id).output == "12.50"
        assert len([each for each in client.signals(100) if each.id == first.data["id"]]) == 1
    assert sent(api, "pay", {"order": 17}, bearer).problem == "refused", "it has no id"


def test_a_secret_that_the_sender_has_chosen_is_in_a_file_alone(stack: Stack, api: Console) -> None:
    done = stack.sleipnir("hooks", "add", "hub", "--agent", "echo", "--form", "github", "--own-secret")
    assert (done.returncode, done.stdout) == (0, "")
    body = {"n": 1}
    text = json.dumps(body).encode()
    proof = "sha256=" + hmac.new(b"chosen", text, hashlib.sha256).hexdigest()
    given = {"X-Hub-Signature-256": proof, "X-GitHub-Delivery": "72d3162e-cc78-11e3-81ab-4c9367dc0958"}
    assert sent(api, "hub", body, given).problem == "internal", "its file is not there"
    file: Path = stack.settings.home / "hooks" / "hub"
    file.parent.mkdir(mode=0o700, exist_ok=True)
    file.write_text("other\nchosen\n")
    file.chmod(0o644)
    assert sent(api, "hub", body, given).problem == "internal", "others can read it"
    file.chmod(0o600)
    assert sent(api, "hub", body, given).status == 202
    assert stack.sleipnir("hooks", "rotate", "hub").returncode == 2
    assert "chosen" not in stack.log("console")


def test_a_hook_takes_so_many_requests_a_minute(stack: Stack, api: Console) -> None:
    secret = added(stack, "slow", "--signal", "tick", "--per-minute", "2")
    answers = [sent(api, "slow", {}, signed(stack, secret, f"msg_{n}", {})) for n in range(6)]
    refused = [each for each in answers if each.status == 429]
    assert 2 <= len(refused) <= 4, "at most two minutes were begun"
    assert {each.problem for each in refused} == {"too-many-requests"}
    assert 1 <= int(refused[0].headers["Retry-After"]) <= 60


def test_an_admin_adds_rotates_and_removes_a_hook_and_its_secret_is_not_in_redis(stack: Stack, api: Console) -> None:
    made = api.post("/hooks", {"name": "over", "agent": "echo", "reason": "orders"})
    assert made.status == 201, made.body
    secret = made.data["secret"]
    assert api.post("/hooks", {"name": "over", "agent": "echo"}).problem == "refused"
    assert "over" in [each["name"] for each in api.get("/hooks").data]
    assert secret not in api.get("/hooks/over").body.decode()
    rotated = api.post("/hooks/over/rotate", {"overlap_s": 60})
    assert rotated.status == 200
    second = rotated.data["secret"]
    for number, each in enumerate((secret, second)):
        assert sent(api, "over", {}, signed(stack, each, f"msg_{number}", {})).status == 202
    third = json.loads(stack.sleipnir("hooks", "rotate", "over", "--json").stdout)["secret"]
    for number, each in enumerate((secret, second)):
        assert sent(api, "over", {}, signed(stack, each, f"msg_{number}", {})).status in (401, 429)
    assert sent(api, "over", {}, signed(stack, third, "msg_3", {})).status == 202
    with stack.client() as client:
        stored = json.dumps(client.store._client.hgetall("hooks:{access}:hooks"))
        whats = [entry.what for entry in client.access.audit() if entry.on == "hook over"]
    assert "over" in stored
    assert not [each for each in (secret, second, third) if each.removeprefix("whsec_") in stored]
    assert whats.count("hook rotated") == 2
    assert "over" in stack.sleipnir("hooks", "ls").stdout
    assert api.request("DELETE", "/hooks/over").status == 204
    assert sent(api, "over", {}, signed(stack, third, "msg_4", {})).problem == "not-found"
    assert stack.sleipnir("hooks", "rm", "over").returncode == 2

"""Webhooks with real processes: the command line, the HTTP API, schedulers, and senders that are killed at each
step."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sleipnir.client.async_client import AsyncClient
from sleipnir.client.client import Client
from sleipnir.errors import HookNotFound, NotServed, UsageError, WebhookNotFound
from sleipnir.failpoints import VARIABLE
from tests.console import console_of
from tests.processes import RedisServer, Stack, write_agent
from tests.receiver import Receiver, receiver
from tests.waiting import wait_until

ASKS = """
name: asks
version: sleipnir/1
start: ask
nodes:
  ask: {type: input, question: "who?", state_updates: {who: "{{input}}"}, next: done}
  done: {type: end, output: "{{who}}"}
"""
SEND = [sys.executable, "-m", "sleipnir.webhook_sender"]


@pytest.fixture
def own_stack(redis_server: RedisServer, tmp_path: Path) -> Iterator[Stack]:
    write_agent(tmp_path / "agents" / "asks", ASKS)
    fast = {
        "owner_ttl_s": 0.5,
        "agents_dir": tmp_path / "agents",
        "webhook_networks": "127.0.0.0/8",
        "webhook_timeout_s": 2.0,
    }
    with Stack(redis_server, tmp_path / "home", key_prefix=f"wh-{tmp_path.name}", **fast) as stack:
        yield stack


@pytest.fixture
def target() -> Iterator[Receiver]:
    with receiver() as found:
        yield found


def sleipnir(stack: Stack, *words: str) -> str:
    done = stack.sleipnir(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_person_adds_watches_pauses_repeats_and_removes_a_webhook(own_stack: Stack, target: Receiver) -> None:
    stack = own_stack
    stack.start_scheduler()
    words = ("--on", "run_ended", "--on", "gate_opened", "--agent", "asks")
    added = stack.sleipnir("webhooks", "add", "w", target.url, *words)
    secret = added.stdout.strip()
    assert "no process sends webhooks" in added.stderr
    stack.start("sender", SEND)
    with stack.client() as client:
        run = client.submit("asks")
        wait_until(run.gates, "it asks")
        run.answer("Ann")
        wait_until(lambda: len(target.got) == 2, f"both are delivered\n{stack.log('sender')}")
        wait_until(lambda: client.webhooks.get("w").delivered == 2, "and noted")
        assert client.webhooks.senders()
    assert [each["type"] for each in target.bodies()] == ["gate_opened", "run_ended"]
    assert all(each.is_signed(secret) for each in target.got)
    [listed] = json.loads(sleipnir(stack, "webhooks", "ls", "--json"))
    assert (listed["name"], listed["on"]) == ("w", ["run_ended", "gate_opened"])
    assert (listed["delivered"], listed["waiting"]) == (2, 0)
    assert secret not in sleipnir(stack, "webhooks", "show", "w")
    assert "active" in sleipnir(stack, "webhooks", "ls")
    last, first = json.loads(sleipnir(stack, "webhooks", "deliveries", "w", "--json"))
    assert (first["occasion"], last["occasion"], last["status_code"]) == ("gate_opened", "run_ended", 204)
    assert first["id"] in sleipnir(stack, "webhooks", "deliveries", "w")
    sleipnir(stack, "webhooks", "redeliver", first["id"])
    wait_until(lambda: len(target.got) == 3, "it comes again")
    assert (target.got[2].id, target.got[2].body) == (target.got[0].id, target.got[0].body)
    sleipnir(stack, "webhooks", "pause", "w", "--reason", "it moves")
    assert "it moves" in sleipnir(stack, "webhooks", "show", "w")
    sleipnir(stack, "webhooks", "resume", "w")
    sleipnir(stack, "webhooks", "rm", "w")
    assert stack.sleipnir("webhooks", "show", "w").returncode == 2
    whats = [json.loads(line)["what"] for line in sleipnir(stack, "audit", "export", "--on", "webhook w").splitlines()]
    assert whats == [
        "webhook added", "webhook delivery repeated", "webhook paused", "webhook resumed", "webhook removed"
    ]  # fmt: skip


SCRIPTS = ("webhook_add", "webhook_take", "webhook_tried")
POINTS = [f"{script}.{side}" for script in SCRIPTS for side in ("before", "after")]


@pytest.mark.parametrize("point", [*POINTS, "webhook_sent.after"])
def test_a_sender_dies_at_a_point_and_another_one_delivers(own_stack: Stack, target: Receiver, point: str) -> None:
    stack = own_stack
    stack.start_scheduler()
    with stack.client() as client:
        made = client.webhooks.add("w", target.url, ["gate_opened", "run_ended"])
        stack.start("victim", SEND, {VARIABLE: f"{point}=kill"})
        run = client.submit("asks")
        wait_until(run.gates, "it asks")
        run.answer("Ann")
        wait_until(lambda: run.info().is_final, "it ends")
        process = stack.processes.pop("victim")
        wait_until(lambda: process.poll() is not None, f"it comes to its failpoint\n{stack.log('victim')}")
        assert process.returncode == -signal.SIGKILL
        stack.start("second", SEND)
        wait_until(lambda: client.webhooks.get("w").delivered == 2, f"both are delivered\n{stack.log('second')}", 120)
    ids = list(dict.fromkeys(each.id for each in target.got))
    assert len(ids) == 2
    firsts = [next(each for each in target.got if each.id == id_) for id_ in ids]
    assert [each.data["type"] for each in firsts] == ["gate_opened", "run_ended"]
    assert len(target.got) <= 3, "what was sent and not noted comes once more"
    assert all(each.is_signed(made.secret) for each in target.got)


def test_an_admin_adds_and_removes_a_webhook_over_http(own_stack: Stack, target: Receiver) -> None:
    with console_of(own_stack) as api:
        body = {"name": "w", "url": target.url, "on": ["run_ended"], "tags": {"customer": "acme"}, "reason": "orders"}
        made = api.post("/webhooks", body)
        assert made.status == 201, made.body
        assert made.data["secret"].startswith("whsec_")
        assert made.data["webhook"]["tags"] == {"customer": "acme"}
        again = api.post("/webhooks", body)
        assert (again.status, again.problem) == (422, "refused")
        assert [each["name"] for each in api.get("/webhooks").data] == ["w"]
        assert "secret" not in api.get("/webhooks/w").data
        assert api.post("/webhooks/w/pause", {"reason": "it moves"}).data["paused_by"].endswith("(api)")
        assert api.post("/webhooks/w/resume").data["paused_by"] is None
        assert api.get("/webhooks/w/deliveries").data == []
        assert api.request("DELETE", "/webhooks/w").status == 204
        assert api.get("/webhooks/w").problem == "not-found"
        assert api.post("/webhooks", {**body, "on": ["started"]}).status == 422


def test_a_client_over_http_has_the_webhooks_of_its_server(own_stack: Stack, target: Receiver) -> None:
    with console_of(own_stack) as api, Client(f"http://127.0.0.1:{api.port}") as client, own_stack.client() as direct:
        webhooks = client.webhooks
        made = webhooks.add("w", target.url, ["run_ended"], tags={"customer": "acme"}, reason="orders")
        assert made.secret.startswith("whsec_")
        [stored] = direct.webhooks.all()
        hidden = {"token": "", "key": "", "changed": ""}
        assert webhooks.all() == [made.info] == [replace(stored, webhook=replace(stored.webhook, **hidden))]
        with pytest.raises(UsageError, match="there is a webhook 'w' already"):
            webhooks.add("w", target.url, ["run_ended"])
        paused = webhooks.pause("w", reason="it moves").paused
        assert paused == direct.webhooks.get("w").webhook.paused and paused is not None and paused.reason == "it moves"
        assert webhooks.resume("w").paused is None
        assert webhooks.deliveries("w") == []
        with pytest.raises(NotServed, match="with `reason`"):
            webhooks.remove("w", reason="over")
        assert webhooks.remove("w").name == "w"
        for missing in (webhooks.get, webhooks.pause, webhooks.remove, webhooks.deliveries):
            with pytest.raises(WebhookNotFound):
                missing("w")
        with pytest.raises(UsageError, match="delivery"):
            webhooks.redeliver("msg_000000000000000000000000")


def test_a_client_over_http_has_the_hooks_of_its_server(own_stack: Stack) -> None:
    with console_of(own_stack) as api, Client(f"http://127.0.0.1:{api.port}") as client, own_stack.client() as direct:
        made = client.hooks.add("paid", signal="order.{{body.order}}.paid", inputs={}, id_field="event.id")
        stored = direct.hooks.get("paid")
        hidden = {"token": "", "changed": "", "secrets": (), "header": stored.proof_header}
        assert client.hooks.all() == [made.hook] == [replace(stored, **hidden)]
        rotated = client.hooks.rotate("paid", overlap_s=60)
        assert made.secret and rotated.secret and made.secret != rotated.secret
        assert client.hooks.remove("paid").name == "paid"
        for missing in (client.hooks.get, client.hooks.rotate, client.hooks.remove):
            with pytest.raises(HookNotFound):
                missing("paid")


@pytest.mark.parametrize("networks", ["", "10.0.0.0/8"])
def test_a_private_address_gets_nothing_unless_it_is_allowed(own_stack: Stack, target: Receiver, networks: str) -> None:
    stack = own_stack
    stack.start_scheduler()
    stack.start("sender", SEND, {"SLEIPNIR_WEBHOOK_NETWORKS": networks})
    with stack.client() as client:
        client.webhooks.add("w", target.url, ["gate_opened"])
        client.submit("asks")
        [tried] = wait_until(lambda: [each for each in client.webhooks.deliveries("w") if each.attempts], "it is tried")
    assert tried.error == "127.0.0.1 is not a public address: SLEIPNIR_WEBHOOK_NETWORKS names those that are allowed"
    assert target.got == []


def test_programs_in_an_event_loop_have_the_same_operations(own_stack: Stack, target: Receiver) -> None:
    async def program() -> None:
        async with AsyncClient(own_stack.settings) as client:
            made = await client.webhooks.add("w", target.url, ["batch_done"])
            assert made.secret not in repr(made)
            await client.webhooks.pause("w")
            assert [info.webhook.paused is not None for info in await client.webhooks.all()] == [True]
            await client.webhooks.remove("w")
            assert await client.webhooks.all() == []

    asyncio.run(program())

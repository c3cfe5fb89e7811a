"""Waits and events on a real scheduler, real workers and a real Redis, with kills while they wait."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.chaos import verdict
from sleipnir.client.async_client import AsyncClient
from sleipnir.errors import UsageError
from tests.processes import RedisServer, Stack, wait_until, write_agent

WAITS = """
name: waits
version: sleipnir/1
start: split
state: {got: {type: list, reducer: append}}
nodes:
  split: {type: router, next: [paid, sent, nap]}
  paid: {type: wait, event: "order.{{id}}.paid", state_updates: {amount: "{{event.data.amount}}"}, next: join}
  sent: {type: function, call: "f.py:sent", next: join}
  nap: {type: wait, until: "1", next: join}
  join: {type: join, wait_for: [paid, sent, nap], next: done}
  done: {type: end, output: "{{amount}} {{got}}"}
"""
FUNCTIONS = """
from pathlib import Path

from sleipnir import wait

def sent(state):
    with Path(FOLDER, "sent").open("a") as file:
        file.write("x")
    wait("10ms")
    event = wait(event=f"order.{state['id']}.sent", filter="event.data.to == state.id", consume="one", key="sent")
    try:
        wait(event="never", timeout=0.01)
    except TimeoutError:
        return {"got": [event["data"]["to"], "late"]}
"""


@pytest.fixture
def own_stack(redis_server: RedisServer, tmp_path: Path) -> Iterator[Stack]:
    fast = {"owner_ttl_s": 0.5}
    with Stack(redis_server, tmp_path / "home", key_prefix=f"sig-{tmp_path.name}", **fast) as stack:
        stack.start_scheduler("scheduler")
        stack.start_worker("first")
        yield stack


def sleipnir(stack: Stack, *words: str) -> str:
    done = stack.sleipnir(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_events_reach_waits_of_nodes_and_of_code_once_though_everything_is_killed(
    own_stack: Stack, tmp_path: Path
) -> None:
    functions = FUNCTIONS.replace("FOLDER", repr(str(tmp_path)))
    agent = write_agent(tmp_path / "waits", WAITS, f_py=functions)
    with own_stack.client() as client:
        keys = [client.store.keys.of_signals(f"order.17.{what}") for what in ("paid", "sent")]
        redis = client.store._client
        run = client.submit(agent, state={"id": 17})
        wait_until(lambda: redis.exists(keys[0].every) and redis.exists(keys[1].one), "both waits are registered")
        wait_until(lambda: run.status == "waiting", "no visit is on a worker")
        reasons = {visit.node: visit.reason for visit in run.info().visits}
        assert {node: (reason.code, reason.event) for node, reason in reasons.items() if node != "nap"} == {
            "paid": ("event", "order.17.paid"),
            "sent": ("event", "order.17.sent"),
        }
        assert "waits for event order.17.paid" in sleipnir(own_stack, "show", run.id)
        own_stack.kill("first")
        own_stack.kill("scheduler")
        told = json.loads(
            sleipnir(own_stack, "signal", "order.17.paid", "--data", '{"amount": 12}', "--id", "a", "--json")
        )
        assert (told["id"], told["reached"], told["is_new"]) == ("a", 1, True)
        again = sleipnir(own_stack, "signal", "order.17.paid", "--data", '{"amount": 13}', "--id", "a")
        assert again.strip() == "a"
        client.signal("order.17.sent", {"to": 16})
        client.signal("order.17.sent", {"to": 17})
        own_stack.start_scheduler("other")
        own_stack.start_worker("second")
        assert run.wait(60).status == "completed", own_stack.log("other")
        assert run.output == '12 [17,"late"]'
        assert (tmp_path / "sent").read_text() == "xxxx"
        names = [each["name"] for each in json.loads(sleipnir(own_stack, "signals", "ls", "--json"))]
        assert Counter(names) == {"order.17.sent": 2, "order.17.paid": 1}
        wait_until(lambda: list(verdict.leaks(client, redis)) == [], "nothing is left")


def test_what_is_no_event_is_refused_before_anything_is_sent(own_stack: Stack) -> None:
    with own_stack.client() as client:
        for name, data, id_ in (("a b", 1, None), ("a", {1}, None), ("a", "x" * 70_000, None), ("a", 1, "")):
            with pytest.raises(UsageError):
                client.signal(name, data, id=id_)
        assert client.signals() == []


async def _send(stack: Stack) -> tuple[int, list[str]]:
    async with AsyncClient(stack.settings) as client:
        receipt = await client.signal("nobody", 1)
        return receipt.reached, [each.name for each in await client.signals()]


def test_the_async_client_sends_and_lists_events(own_stack: Stack) -> None:
    import asyncio

    assert asyncio.run(_send(own_stack)) == (0, ["nobody"])

"""What an operator sees in Flower of a run, what nobody sees there, and what nobody can do there."""

from __future__ import annotations

import json
import urllib.error
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from sleipnir.client.client import Run
from sleipnir.store.connect import connect
from tests import starter
from tests.flower import PASSWORD, USER, Flower, command, free_port, start_flower
from tests.processes import RedisServer, Stack, wait_until, write_agent
from tests.system.test_task_events import celery_app, events_of

PLANTED = {
    "the password of Redis": "planted-0-redis-password",
    "a worker's environment": "planted-1-in-the-environment",
    "a secret that an agent variable names": "planted-2-in-the-secrets-file",
    "the prompt": "planted-3-in-the-prompt",
    "a large value of the state": "planted-4-in-a-large-value",
    "a value of the state that an error quotes": "planted-5-customer-name",
}
GRAPH = """
name: orders
start: fetch
variables: [{name: token, description: "Of the shop", default: "{{SHOP_TOKEN}}"}]
nodes:
  fetch: {type: script, script: scripts/fetch.py, next: charge}
  charge: {type: script, script: scripts/charge.py, next: done, fallback: apologise}
  apologise: {type: function, call: "letters.py:apologise", next: done}
  done: {type: end, output: "{{letter}}"}
"""
FETCH = f"""
import json
print(json.dumps({{"document": "{PLANTED["a large value of the state"]} " * 80_000,
                  "customer": {{"name": "{PLANTED["a value of the state that an error quotes"]}"}}}}))
"""
CHARGE = """
import json, os, sys
with open(os.environ["GRAPH_STATE_FILE"]) if "GRAPH_STATE_FILE" in os.environ else sys.stdin as file:
    name = json.load(file)["customer"]["name"]
sys.exit(f"card of {name} refused, token {os.environ['LLM_AGENT_VAR_TOKEN']}")
"""
LETTERS = "def apologise(state):\n    return {'letter': 'sorry'}\n"


@dataclass(frozen=True)
class Fleet:
    stack: Stack
    flower: Flower
    run: Run
    events: list[dict[str, Any]]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A run that has ended."""
    folder = tmp_path_factory.mktemp("flower")
    password, environment, secret, prompt, *_ = PLANTED.values()
    port = free_port()
    redis = RedisServer("--port", str(port))
    try:
        connect(redis.url).config_set("requirepass", password)
        redis.url = f"redis://:{password}@127.0.0.1:{port}/0"
        secrets = folder / "secrets.env"
        secrets.write_text(f"SHOP_TOKEN={secret}\n")
        secrets.chmod(0o600)
        with Stack(redis, folder / "home", key_prefix="flower", lease_s=15, secrets=secrets) as stack:
            stack.start_scheduler()
            stack.start_worker("one", env={"OPENAI_API_KEY": environment})
            flower = start_flower(stack)
            agent = write_agent(
                folder / "orders", GRAPH, letters_py=LETTERS, scripts__fetch_py=FETCH, scripts__charge_py=CHARGE
            )
            with events_of(celery_app(redis, folder, "flower")) as events, stack.client() as client:
                run = client.submit(agent, prompt=prompt)
                assert run.wait(60).status == "completed", run.info().error
                flower.ended(f"args:run={run.id}", 3)
                wait_until(lambda: str(events).count("letter") >= 1, "the events arrive")
                # Flower asks the workers once as it starts, and a busy machine answers too late.
                wait_until(lambda: flower.json("/api/workers?refresh=true"), "Flower knows the worker", 60)
                yield Fleet(stack, flower, run, events)
    finally:
        redis.stop()


def test_the_visits_of_a_run_are_found_by_its_id_with_names_arguments_states_queues_and_results(fleet: Fleet) -> None:
    run = fleet.run.id
    rows = {row["uuid"]: row for row in fleet.flower.rows(f"args:run={run}")}
    assert list(rows) == [f"{run}:fetch:1:1", f"{run}:charge:2:1", f"{run}:apologise:3:1"]
    shown = [(row["name"], row["state"], row["routing_key"], row["root_id"]) for row in rows.values()]
    assert shown == [
        ("orders.fetch", "SUCCESS", "scripts", run),
        ("orders.charge", "FAILURE", "scripts", run),
        ("orders.apologise", "SUCCESS", "functions", run),
    ]
    assert [row["args"] for row in rows.values()] == [
        f"run={run} node={node} visit={number} attempt=1 agent=orders"
        for number, node in enumerate(("fetch", "charge", "apologise"), 1)
    ]
    assert rows[f"{run}:fetch:1:1"]["result"] == "{'keys': ['customer', 'document'], 'next': 'charge'}"
    for search in (f"{run} state:FAILURE", "args:node=charge", "name:orders.charge"):
        assert [row["uuid"] for row in fleet.flower.rows(search)] == [f"{run}:charge:2:1"], search


def test_a_failed_node_is_a_failed_task_with_the_node_s_error(fleet: Fleet) -> None:
    task = fleet.flower.json(f"/api/task/info/{fleet.run.id}:charge:2:1")
    assert task["state"] == "FAILURE"
    assert task["exception"].startswith("exit: Script 'scripts/charge.py' failed")
    assert "card of <customer> refused, token [redacted]" in task["exception"]
    assert task["result"] == "{'keys': ['_error', 'last_error'], 'next': None}"
    page = fleet.flower.read(f"/task/{fleet.run.id}:charge:2:1")
    assert "FAILURE" in page
    assert "card of &lt;customer&gt; refused" in page
    assert f"{fleet.run.id}:fetch:1:1" not in page


def test_a_failed_task_is_acknowledged_like_any_other(fleet: Fleet) -> None:
    assert [step.attempt for step in fleet.run.history() if step.node == "charge"] == [1]
    assert {event["type"] for event in fleet.events if event.get("uuid", "").startswith(f"{fleet.run.id}:charge")} == {
        "task-received", "task-started", "task-failed"
    }  # fmt: skip


def test_no_secret_and_no_value_of_the_state_is_on_any_page_or_in_any_event(fleet: Fleet) -> None:
    worker = quote(next(iter(fleet.flower.json("/api/workers"))))
    tasks = [f"{kind}/{row['uuid']}" for row in fleet.flower.rows("") for kind in ("/task", "/api/task/info")]
    pages = [
        "/", "/workers", "/workers?json=1", "/tasks", "/broker", "/metrics", f"/worker/{worker}",
        "/api/workers?refresh=true", "/api/tasks", "/api/task/types", "/api/queues/length", *tasks,
    ]  # fmt: skip
    seen = {page: fleet.flower.read(page) for page in pages}
    seen["the table of tasks"] = json.dumps(fleet.flower.rows(""))
    seen["the raw events"] = json.dumps(fleet.events)
    seen["the log of Flower"] = fleet.stack.log("flower")
    assert "charge.py" in seen[f"/task/{fleet.run.id}:charge:2:1"], "there is something on these pages"
    assert "broker_url" in seen[f"/worker/{worker}"], "a worker's settings are on its page"
    found = [(place, what) for place, text in seen.items() for what, value in PLANTED.items() if value in text]
    assert found == []


def test_flower_refuses_every_request_without_a_password(fleet: Fleet) -> None:
    for page in ("/", "/tasks", "/broker", "/api/tasks", "/api/workers", f"/task/{fleet.run.id}:fetch:1:1"):
        with pytest.raises(urllib.error.HTTPError, match="401"):
            fleet.flower.read(page, login=False)


ACTIONS = (
    "worker/shutdown/WORKER", "worker/pool/restart/WORKER", "worker/pool/grow/WORKER", "worker/pool/shrink/WORKER",
    "worker/pool/autoscale/WORKER", "worker/queue/add-consumer/WORKER", "worker/queue/cancel-consumer/WORKER",
    "task/revoke/TASK", "task/timeout/TASK", "task/rate-limit/TASK", "task/apply/sleipnir.visit",
    "task/async-apply/sleipnir.visit", "task/send-task/sleipnir.visit", "task/abort/TASK",
)  # fmt: skip


def test_nothing_can_be_changed_from_flower(fleet: Fleet) -> None:
    worker = quote(next(iter(fleet.flower.json("/api/workers"))))
    for action in ACTIONS:
        path = action.replace("WORKER", worker).replace("TASK", f"{fleet.run.id}:fetch:1:1")
        with pytest.raises(urllib.error.HTTPError, match="403"):
            fleet.flower.read(f"/api/{path}", post={"n": "1"})


def test_no_page_has_a_button_that_would_change_anything(fleet: Fleet) -> None:
    worker = quote(next(iter(fleet.flower.json("/api/workers"))))
    pages = fleet.flower.read(f"/worker/{worker}") + fleet.flower.read(f"/task/{fleet.run.id}:fetch:1:1")
    for button in ("worker-shutdown", "worker-pool-restart", "worker-pool-grow", "task-timeout-soft", "task-revoke"):
        assert f'id="{button}"' not in pages


@pytest.mark.parametrize("users", [None, "ops:pass,nobody"])
def test_flower_does_not_start_without_users(redis_server: RedisServer, tmp_path: Path, users: str | None) -> None:
    stack = Stack(redis_server, tmp_path / "home")
    environment = stack.environment() | ({} if users is None else {"FLOWER_BASIC_AUTH": users})
    ended = starter.run(command(free_port()), environment)
    assert ended.returncode == 1
    assert "set FLOWER_BASIC_AUTH=user:password" in ended.stderr
    assert f"{USER}:{PASSWORD}" not in ended.stderr

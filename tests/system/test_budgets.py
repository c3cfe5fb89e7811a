"""Budgets of runs, on real processes: a turn of the model costs 0.02 USD, by the prices of config.yaml."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from sleipnir.client.client import Client, Run
from sleipnir.errors import UsageError
from sleipnir.runs.views import GateInfo
from sleipnir.testing import Call, ModelServer, Reply, Request
from tests.processes import RedisServer, Stack, wait_until, write_agent

TURNS = 5
LOOP = """
name: loop
start: ask
nodes:
  ask: {type: llm, model: "mine:gpt", prompt: hi, tools: [mark], state_updates: {said: "{{output}}"}, next: e}
  e: {type: end, output: "{{said}}"}
"""
TREE = """
name: tree
start: child
nodes:
  child: {type: agent, agent: loop, prompt: hi, state_updates: {said: "{{output}}"}, next: more}
  more: {type: llm, model: "mine:gpt", prompt: hi, next: e}
  e: {type: end, output: "{{said}}"}
"""
TOOLS = '''
def mark():
    """Leave a mark."""
    return {}
'''


def replies(request: Request) -> Reply:
    """Without tools it is the node `more`."""
    if not request.tools or request.turn == TURNS:
        return Reply("done")
    return Reply(calls=[Call("mark")])


@pytest.fixture(scope="module")
def own(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("budgets")
    write_agent(folder / "agents" / "loop", LOOP, tools_py=TOOLS)
    write_agent(folder / "agents" / "tree", TREE)
    with ModelServer(replies, models=["gpt"]) as model:
        client = {"type": "openai-compatible", "name": "mine", "api_base": model.url, "api_key": "sk-of-the-test"}
        config = {"clients": [client | {"models": [{"name": "gpt", "supports_function_calling": True}]}]}
        config["prices"] = {"mine:gpt": {"input": 1000, "output": 2000}}  # type: ignore[assignment]
        (folder / "config.yaml").write_text(json.dumps(config))
        settings: dict[str, Any] = {"agents_dir": folder / "agents", "owner_ttl_s": 0.5}
        with Stack(redis_server, folder / "home", key_prefix="budgets", **settings) as stack:
            stack.start_scheduler()
            stack.start_worker("w", "llm,scripts", env={"LOKI_CONFIG_DIR": str(folder)}, ready=False)
            stack.wait_for_worker("w", 90)
            yield stack


@pytest.fixture
def client(own: Stack) -> Iterator[Client]:
    with own.client() as opened:
        yield opened


def asked(run: Run, about: str) -> GateInfo:
    """The question, once nothing but it goes on."""
    [gate] = wait_until(run.gates, "the run asks")
    assert (gate.node, gate.kind, gate.question.split("\n")[0]) == (
        "budget",
        "budget",
        f"The run has {about}. Continue?",
    )
    return gate


def test_a_run_over_its_budget_waits_and_follows_the_answer(own: Stack, client: Client) -> None:
    began = own.sleipnir("run", "loop", "--max-cost", "0.03")
    assert began.returncode == 3, began.stderr
    [info] = client.runs(1)
    run = client.run(info.id)
    asked(run, "cost 0.04 USD of 0.03 (30 tokens)")
    for answer in ("yes", "no", "'a number'"):
        assert f"answer {run.id} budget {answer}" in began.stderr
    shown = json.loads(own.sleipnir("show", run.id, "--json").stdout)
    assert (shown["status"], shown["max_cost_usd"], shown["max_tokens"]) == ("paused", 0.03, None)
    assert "paused by its budget" in own.sleipnir("show", run.id).stdout
    assert own.sleipnir("wait", run.id, "--timeout", "0").returncode == 3
    [listed] = json.loads(own.sleipnir("gates", "--json").stdout)
    assert (listed["run"], listed["kind"], listed["options"]) == (run.id, "budget", ["yes", "no"])
    with pytest.raises(UsageError, match="the answer must be 'yes', 'no' or a number of more than 0, not 'perhaps'"):
        run.answer("perhaps")

    own.kill("scheduler")
    own.start_scheduler()
    run.pause("ann")
    run.answer("yes")
    wait_until(lambda: not run.gates() and run.status == "paused" and run.info().max_cost_usd == 0.07, "ann holds it")
    run.resume()
    asked(run, "cost 0.08 USD of 0.07 (60 tokens)")
    run.answer("no")
    ended = run.wait(60)
    assert ended.status == "failed"
    assert ended.error is not None
    assert ended.error.endswith("over budget: it has cost 0.08 USD of 0.07 (60 tokens)")
    run.retry()
    asked(run, "cost 0.10 USD of 0.07 (75 tokens)")
    run.answer("9.99")
    assert (run.wait(60).status, run.output) == ("completed", "done")
    assert run.info().max_cost_usd == 9.99


def test_answers_of_the_command_line_are_for_budgets_too(own: Stack) -> None:
    ended = own.sleipnir("run", "loop", "--max-tokens", "20", "--answer", "budget=yes")
    assert (ended.returncode, ended.stdout) == (0, "done\n"), ended.stderr
    for asked_at in ("used 30 tokens of 20 (0.04 USD)", "used 60 tokens of 50 (0.08 USD)"):
        assert f"▸   budget: waiting for an answer: The run has {asked_at}. Continue?" in ended.stderr
    assert ended.stderr.count("▸   budget: answered: yes\n") == 2


def test_what_child_runs_have_cost_counts_when_they_end(client: Client) -> None:
    run = client.submit("tree", max_cost_usd=0.05)
    asked(run, "cost 0.10 USD of 0.05 (75 tokens)")
    [child] = run.tree().children
    assert child.info is not None
    assert (child.info.status, child.info.max_cost_usd) == ("completed", None)
    run.answer("yes", "budget")
    assert (run.wait(60).status, run.info().usage.cost_usd) == ("completed", 0.12)


def test_a_webhook_is_told_when_a_budget_is_used_up(client: Client) -> None:
    client.webhooks.add("budget", "https://receiver.invalid", ["budget_reached"])
    run = client.submit("loop", max_cost_usd=0.03)
    asked(run, "cost 0.04 USD of 0.03 (30 tokens)")
    queues, webhooks = client.store.webhooks, client.store.access.webhooks()
    wait_until(lambda: queues.queue_noted(webhooks, client.now_ms()), "the commit has noted it")
    [delivery] = client.webhooks.deliveries("budget")
    body = json.loads(delivery.body)
    assert (body["type"], body["data"]["run"], body["data"]["cost_usd"]) == ("budget_reached", run.id, 0.04)
    client.webhooks.remove("budget")
    run.cancel()

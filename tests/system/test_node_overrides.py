"""Overrides and patches of nodes on real processes: what the model was asked, of the run, its child and its fork."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sleipnir.client.client import Client
from sleipnir.errors import UsageError
from sleipnir.testing import ModelServer, Reply
from tests.processes import RedisServer, Stack, write_agent

PARENT = """
version: sleipnir/1
name: parent
start: ask
nodes:
  ask: {type: llm, model: "openai:one", prompt: "parent", instructions: "Be long.", next: expert}
  expert: {type: agent, agent: child, prompt: "go", next: done}
  done: {type: end, output: "over"}
"""
CHILD = """
version: sleipnir/1
name: child
start: ask
nodes:
  ask: {type: llm, model: "openai:one", prompt: "child", next: done}
  done: {type: end, output: "over"}
"""
TOOLS = '''
def look(where: str):
    """Look somewhere."""
    return "nothing"
'''


@pytest.fixture
def model() -> Iterator[ModelServer]:
    with ModelServer(lambda request: Reply("yes")) as server:
        yield server


@pytest.fixture
def own(redis_server: RedisServer, tmp_path: Path, model: ModelServer) -> Iterator[Stack]:
    agents = tmp_path / "agents"
    write_agent(agents / "parent", PARENT, tools_py=TOOLS)
    write_agent(agents / "child", CHILD)
    with Stack(redis_server, tmp_path / "home", key_prefix="overrides", agents_dir=agents) as stack:
        stack.start_scheduler()
        stack.start_worker("all", "llm,scripts,functions", env=model.env(), ready=False)
        stack.wait_for_worker("all")
        yield stack


def asked(model: ModelServer) -> list[dict[str, Any]]:
    """The bodies of the requests since the last look."""
    found = [dict(request.body) for request in model.requests]
    model.requests.clear()
    return found


def ended(client: Client, run_id: str) -> Any:
    run = client.run(run_id)
    assert run.wait(60).status == "completed", run.error
    return run


@pytest.mark.conformance("EX-31")
def test_a_run_its_child_and_its_fork_use_their_overrides_and_no_other_run_does(
    own: Stack, model: ModelServer, tmp_path: Path
) -> None:
    words = tmp_path / "words.txt"
    words.write_text("Be brief.")
    options = [
        *("--override", "*.temperature=0.5", "--override", "expert/ask.max_tokens=7"),
        *("--override", "expert.model=openai:two", "--patch", f"ask#instruction=@{words}", "--patch", "ask#tools=look"),
    ]
    submitted = own.sleipnir("submit", "parent", "hi", *options)
    assert submitted.returncode == 0, submitted.stderr
    with own.client() as client:
        run = ended(client, submitted.stdout.strip())
        first, second = asked(model)
        assert (first["model"], first["temperature"], first.get("max_tokens")) == ("one", 0.5, None)
        assert first["messages"][0] == {"role": "system", "content": "Be brief."}
        assert [tool["function"]["name"] for tool in first["tools"]] == ["look"]
        assert (second["model"], second["temperature"], second["max_tokens"]) == ("two", 0.5, 7)
        assert run.info().overrides["expert/ask"] == {"max_tokens": 7}
        shown = own.sleipnir("show", run.id).stdout
        assert "expert/ask.max_tokens=7" in shown and "ask#instruction (9 characters)" in shown

        fork = run.fork(at=0, overrides={"ask": {"temperature": 0.9}})
        ended(client, fork.id)
        again, _ = asked(model)
        assert again["temperature"] == 0.9 and again["messages"][0]["content"] == "Be brief."
        assert fork.info().overrides["*"] == {"temperature": 0.5}
        assert "*.temperature=0.5" in own.sleipnir("lineage", run.id).stdout
        assert "ask.temperature=0.9" in own.sleipnir("history", fork.id).stdout
        assert "ask.temperature=0.9" in own.sleipnir("compare", run.id, fork.id).stdout
        fresh = run.fork(at=0, agent="parent", model="openai:three")
        ended(client, fresh.id)
        assert [(each["model"], each.get("temperature")) for each in asked(model)] == [("three", None)] * 2

        plain = client.submit("parent", "hi")
        ended(client, plain.id)
        assert [each.get("temperature") for each in asked(model)] == [None, None], "no graph that is kept was changed"
        assert not plain.info().overrides

        batch = client.batch("parent", [{"prompt": "hi"}], overrides={"ask": {"top_p": 0.25}})
        assert batch.wait(60).is_over
        assert [each.get("top_p") for each in asked(model)] == [0.25, None]
        forks = own.sleipnir("batch", "fork", batch.id, "--at", "0", "--override", "expert/ask.top_p=0.75", "--json")
        assert forks.returncode == 0, forks.stderr
        made = client.open_batch(json.loads(forks.stdout)["id"])
        assert made.wait(60).is_over
        assert [each.get("top_p") for each in asked(model)] == [0.25, 0.75]


def test_what_does_not_fit_is_refused_before_anything_runs(own: Stack, model: ModelServer) -> None:
    for option, why in (
        (("--override", "aks.temperature=0"), 'Did you mean "ask"?'),
        (("--override", "expert/ask.heat=0"), "there is no 'heat'"),
        (("--override", "ask.temperature=warm"), "must be a number"),
        (("--override", "ask"), "is not of the form"),
        (("--patch", "ask#tools+=lok"), 'Did you mean "look"?'),
        (("--patch", "expert/ask#tools=look"), "unknown tool 'look'"),
        (("--patch", "ask#instruction=@missing"), "cannot be read"),
        (("--patch", "ask#few_shot=[{]"), "the examples are not JSON"),
        (("--patch", 'ask#few_shot=[{"role": "usr", "content": "x"}]'), "'usr' is no role of an example"),
    ):
        refused = own.sleipnir("submit", "parent", "hi", *option)
        assert refused.returncode == 2 and why in refused.stderr, refused.stderr
    with own.client() as client:
        run = client.submit("parent", "hi")
        ended(client, run.id)
        with pytest.raises(UsageError, match="no node of the run's definition has the tool 'look'"):
            run.fork(at=0, patches={"ask#tools": ["look"]})
        with pytest.raises(UsageError, match="has no node 'aks'"):
            run.fork(at=0, overrides={"aks": {"seed": 1}})
        assert client.runs()[0].id == run.id, "nothing was submitted after it"

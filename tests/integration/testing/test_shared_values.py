"""Values of users and agents for all their runs, in one process (spec/graph-package.md F21, F51)."""

from __future__ import annotations

from pathlib import Path

import pytest

from sleipnir.errors import UsageError
from sleipnir.runs.shared_values import MOST_BYTES
from sleipnir.testing import MemoryValues, ModelServer, run
from tests.processes import write_agent

COUNTING = """
name: counter
version: sleipnir/1
start: count
ENGINE
state: {"user:visits": int, "app:visits": int, both: {type: list, reducer: append}}
nodes:
  count: {type: script, script: count.py, next: [a, b]}
  a: {type: router, state_updates: {both: a}, next: e}
  b: {type: router, state_updates: {both: b}, next: e}
  e: {type: end, wait_for: [a, b], output: "done"}
"""
COUNT = """
import json, os
state = json.loads(os.environ["GRAPH_STATE"])
print(json.dumps({"user:visits": state["user:visits"] + 1, "app:visits": state["app:visits"] + 1, "temp:x": 1}))
"""
ASKING = """
name: asking
version: sleipnir/1
start: ask
model: openai:gpt-test
state: {messages: messages, research_topics: string}
nodes:
  ask: {type: llm, placeholders: trpc, instructions: "TEXT"}
"""


@pytest.mark.parametrize("engine", ["", "engine: dag"])
def test_values_of_a_user_and_of_an_agent_go_from_run_to_run(tmp_path: Path, engine: str) -> None:
    agent, values = (
        write_agent(tmp_path / "counter", COUNTING.replace("ENGINE", engine), count_py=COUNT),
        MemoryValues(),
    )
    for user in ("ann", "bob", "ann"):
        result = run(agent, user=user, values=values)
        assert result.status == "completed", result.error
    assert (values.get("counter", "ann"), values.get("counter", "bob")) == ({"visits": 2}, {"visits": 1})
    assert values.get("counter") == {"visits": 3}
    assert values.get("other") == {}


def test_without_a_user_only_those_of_the_agent_are_written_back(tmp_path: Path) -> None:
    agent, values = write_agent(tmp_path / "counter", COUNTING.replace("ENGINE", ""), count_py=COUNT), MemoryValues()
    values.set("counter", {"visits": 7})
    result = run(agent, values=values)
    assert (result.state["user:visits"], result.state["app:visits"]) == (1, 8)
    assert values.get("counter") == {"visits": 8}


def test_given_values_are_of_the_run_alone(tmp_path: Path) -> None:
    agent, values = write_agent(tmp_path / "asking", ASKING.replace("TEXT", "[{user:topics}]")), MemoryValues()
    values.set("asking", {"topics": "bells"}, "ann")
    with ModelServer(["yes", "yes"]) as model:
        run(agent, "hi", user="ann", state={"user:topics": "tin"}, values=values, model=model)
        run(agent, "hi", user="ann", values=values, model=model)
    assert [request.messages[0]["content"] for request in model.requests] == ["[tin]", "[bells]"]


@pytest.mark.conformance("LL-27", "EX-10")
def test_placeholders_read_all_scopes(tmp_path: Path) -> None:
    text = "{research_topics}|{user:topics?}|{app:banner?}|{temp:t}|{user:tier?}|{app:missing?}|{user:gone}|{{app:no}}"
    agent, values = write_agent(tmp_path / "asking", ASKING.replace("TEXT", text)), MemoryValues()
    values.set("asking", {"topics": ["bells"]}, "ann")
    values.set("asking", {"banner": '"quoted" {user:topics}'})
    state = {"research_topics": "quantum", "temp:t": "now"}
    with ModelServer(["yes", "yes"]) as model:
        run(agent, "hi", user="ann", state=state, values=values, model=model)
        run(agent, "hi", state={"research_topics": "quantum"}, values=MemoryValues(), model=model)
    assert [request.messages[0]["content"] for request in model.requests] == [
        'quantum|["bells"]|"quoted" {user:topics}|now|||{user:gone}|{{app:no}}',
        "quantum|||{temp:t}|||{user:gone}|{{app:no}}",
    ]


def test_values_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    agent, values = write_agent(tmp_path / "counter", COUNTING.replace("ENGINE", ""), count_py=COUNT), MemoryValues()
    values.set("counter", {"visits": "many"}, "ann")
    with pytest.raises(UsageError, match="'user:visits' must be int, not string"):
        run(agent, user="ann", values=values)
    with pytest.raises(UsageError, match="cannot name a user"):
        run(agent, user="a/b", values=values)
    with pytest.raises(UsageError, match=r"would be 1 with 1,048,\d+ bytes"):
        values.set("counter", {"a": "x" * MOST_BYTES})
    with pytest.raises(UsageError, match="must be JSON"):
        values.set("counter", {"a": {1}})
    assert values.get("counter") == {}


def test_an_agent_of_a_config_has_no_values(tmp_path: Path) -> None:
    (tmp_path / "loop").mkdir()
    (tmp_path / "loop" / "config.yaml").write_text("name: loop\ninstructions: Talk.\n")
    with pytest.raises(UsageError, match=r"config\.yaml"):
        run(tmp_path / "loop", "hi", user="ann")

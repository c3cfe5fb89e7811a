"""Tools that start agents, as a model on a server gets and calls them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sleipnir.graph.model import LlmNode, LoopAgent
from sleipnir.graph.tools import SPAWN_TOOLS
from sleipnir.messages import AGENTS, RESULT, ToolCall, VisitResult
from sleipnir.runs.conversation import StoredConversation
from sleipnir.runs.visits import Part
from sleipnir.testing import Call, ModelServer, Reply
from sleipnir_workers.llm.turn import run_turn
from tests.unit.workers.visits import host, visit


def turn(folder: Path, *calls: Call, spawns: bool = True) -> tuple[VisitResult, ModelServer]:
    """A turn of an agent that may start agents, or not, whose model replies with calls."""
    tools = list(SPAWN_TOOLS) if spawns else ["user__ask"]
    node = LlmNode(id="agent", prompt="hello", model="openai:gpt-test", tools=tools)
    graph: dict[str, Any] = {"loop": LoopAgent(can_spawn_agents=spawns)}
    with ModelServer([Reply(calls=list(calls))]) as server:
        env = {**server.env(), "LOKI_CONFIG_DIR": str(folder / "loki")}
        at = visit(node, folder, graph=graph, role="turn", part=Part(7, 0), talk=StoredConversation())
        return run_turn(node, at, host(env)), server


def refused(result: VisitResult, number: int = 0) -> str:
    assert result.calls[number].where == ""
    return str(result.delta[f"{RESULT}.{number}"]["tool_call_error"])


def test_calls_about_agents_are_for_the_scheduler_to_answer(tmp_path: Path) -> None:
    spawn = Call("agent__spawn", {"agent": "coder", "prompt": "go"}, id="c1")
    result, server = turn(tmp_path, spawn, Call("agent__list_running", {}, id="c2"))
    assert result.calls == (ToolCall("c1", "agent__spawn", AGENTS), ToolCall("c2", "agent__list_running", AGENTS))
    assert server.requests[0].tools == list(SPAWN_TOOLS)
    function = server.requests[0].body["tools"][0]["function"]
    assert (function["parameters"]["type"], function["parameters"]["required"]) == ("object", ["agent", "prompt"])


def test_calls_that_lack_something_are_refused_at_once(tmp_path: Path) -> None:
    result, _ = turn(
        tmp_path,
        Call("agent__spawn", {"prompt": "go"}),
        Call("agent__spawn", {"agent": "coder", "prompt": 3}),
        Call("agent__collect", {}),
        Call("agent__task_create", {"agent": "coder"}),
        Call("agent__task_create", {"subject": "x", "agent": "coder"}),
    )
    assert [refused(result, number) for number in range(5)] == [
        "Supervisor tool failed: 'agent' is required",
        "Supervisor tool failed: 'prompt' is required",
        "Supervisor tool failed: 'id' is required",
        "Supervisor tool failed: 'subject' is required",
        "Supervisor tool failed: 'prompt' is required when 'agent' is set",
    ]


@pytest.mark.conformance("W07", "W14")
def test_an_agent_that_may_not_spawn_has_none_of_these_tools(tmp_path: Path) -> None:
    result, server = turn(tmp_path, Call("agent__spawn", {"agent": "coder", "prompt": "go"}), spawns=False)
    assert server.requests[0].tools == ["user__ask"]
    assert refused(result) == "Supervisor tool failed: No supervisor active; Agent spawning not enabled"

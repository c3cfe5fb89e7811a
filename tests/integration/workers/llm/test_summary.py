"""Summaries of what agents have said, against a real HTTP server (spec/graph-agents.md 6.5)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sleipnir.graph.model import LlmNode, LoopAgent
from sleipnir.messages import RESULT, VisitResult
from sleipnir.runs.conversation import StoredConversation
from sleipnir.runs.visits import Part
from sleipnir.testing import ModelServer, Reply
from sleipnir_workers.llm.summary import run_summary
from tests.unit.workers.visits import host, visit

pytestmark = pytest.mark.filterwarnings("ignore:Item 'summary' on TypedDict class:UserWarning")

COLLECTED = {"status": "completed", "id": "agent_x_1", "agent": "x", "exit_status": "Completed", "output": "so much"}


def summary(folder: Path, reply: Any) -> tuple[VisitResult, ModelServer]:
    node = LlmNode(id="agent", prompt="", model="openai:gpt-test", tools=[])
    agent = LoopAgent(can_spawn_agents=True, summarization_model="openai:gpt-small")
    with ModelServer([reply]) as server:
        place: dict[str, Any] = {
            "role": "summary",
            "part": Part(7, 0, 0),
            "talk": StoredConversation(json.dumps(COLLECTED)),
        }
        return run_summary(node, visit(node, folder, graph={"loop": agent}, **place), host(server.env())), server


@pytest.mark.conformance("W11")
def test_the_output_is_replaced_by_what_the_model_for_summaries_makes_of_it(tmp_path: Path) -> None:
    result, server = summary(tmp_path, "little")
    assert (result.ok, result.delta) == (True, {RESULT: COLLECTED | {"output": "little"}})
    [request] = server.requests
    assert request.body["model"] == "gpt-small"
    assert request.prompt == "Summarize the following sub-agent output from 'x':\n\nso much"
    assert result.usage is not None
    assert result.usage.calls == 1


def test_a_model_that_cannot_be_asked_fails_the_summary_alone(tmp_path: Path) -> None:
    result, _ = summary(tmp_path, Reply(status=400))
    assert (result.ok, result.delta) == (False, {})
    assert "400" in str(result.error)

"""What a model is asked when something was found in the documents of its agent (spec 8.7)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sleipnir.graph.model import LlmNode, LoopAgent
from sleipnir.messages import SessionAddition, VisitResult
from sleipnir.runs.conversation import StoredConversation
from sleipnir.runs.visits import Part
from sleipnir.testing import ModelServer
from sleipnir_workers.llm.turn import run_turn
from tests.unit.workers.visits import host, visit

pytestmark = pytest.mark.filterwarnings("ignore:Item 'summary' on TypedDict class:UserWarning")

FOUND = {"_context": "[Source: /d/stones.md]\nGranite is __INPUT__.", "_sources": '["/d/stones.md", "/d/hills.md"]'}


def turn(folder: Path, state: dict[str, Any], **more: Any) -> tuple[VisitResult, list[dict[str, Any]]]:
    node = LlmNode(id="agent", prompt="{{initial_prompt}}", model="openai:gpt-test", tools=["agent:*"])
    place = {"role": "turn", "part": Part(7, 0), "graph": {"loop": LoopAgent(documents=["d"])}, **more}
    state = {"initial_prompt": "How hard?", **state}
    with ModelServer(["Hard."]) as server:
        result = run_turn(node, visit(node, folder, state=state, **place), host(server.env()))
        return result, [dict(message) for message in server.requests[0].messages]


@pytest.mark.conformance("C08")
def test_the_question_is_put_with_what_was_found(tmp_path: Path) -> None:
    _, [message] = turn(tmp_path, FOUND)
    text = message["content"]
    assert "<context>\n[Source: /d/stones.md]\nGranite is __INPUT__.\n</context>" in text
    assert "<sources>\n- /d/stones.md\n- /d/hills.md\n</sources>" in text
    assert text.endswith("<user_query>\nHow hard?\n</user_query>")


@pytest.mark.conformance("C08")
@pytest.mark.parametrize("state", [{}, {"_context": "", "_sources": "[]"}])
def test_the_question_is_put_alone_when_nothing_was_found(tmp_path: Path, state: dict[str, Any]) -> None:
    _, [message] = turn(tmp_path, state)
    assert message["content"] == "How hard?"


def test_the_session_keeps_the_question_alone(tmp_path: Path) -> None:
    result, _ = turn(tmp_path, FOUND, session="desk", talk=StoredConversation(history=json.dumps([])))
    assert result.said == SessionAddition(
        ({"role": "user", "content": "How hard?"}, {"role": "assistant", "content": "Hard."})
    )

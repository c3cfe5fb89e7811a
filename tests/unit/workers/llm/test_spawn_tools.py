"""The tools by which a model starts agents, as the worker of a turn sees them (spec/graph-agents.md 6.2)."""

from __future__ import annotations

import pytest

from sleipnir.graph.tools import SPAWN_TOOLS
from sleipnir_workers.llm import spawn_tools

pytestmark = pytest.mark.filterwarnings("ignore:Item 'summary' on TypedDict class:UserWarning")


def test_a_message_needs_a_receiver_under_either_name() -> None:
    assert spawn_tools.problem("agent__send_message", '{"message": "m"}') == "'id' is required"
    assert spawn_tools.problem("agent__send_message", '{"to": "a"}') == "'message' is required"
    assert spawn_tools.problem("agent__send_message", '{"to": "a", "message": "m"}') is None


@pytest.mark.parametrize("name", SPAWN_TOOLS)
def test_arguments_must_be_an_object(name: str) -> None:
    assert spawn_tools.problem(name, "[]") == "the arguments are no JSON object"
    assert str(spawn_tools.problem(name, "{")).startswith("the arguments are not JSON: ")

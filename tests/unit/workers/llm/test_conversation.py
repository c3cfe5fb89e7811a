"""The messages a conversation begins with, and how they are sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sleipnir.errors import NodeFailed
from sleipnir.graph.model import LlmNode
from sleipnir_workers.llm.clients import ModelTraits
from sleipnir_workers.llm.conversation import as_sent, capped, first_messages, refuse_too_long, tool_message
from sleipnir_workers.llm.failures import CallFailed
from tests.unit.workers.visits import host, visit

SYSTEM = {"role": "system", "content": "be brief"}
USER = {"role": "user", "content": "hello"}


def begun(node: LlmNode, **state: Any) -> list[dict[str, Any]]:
    return list(map(dict, first_messages(node, visit(node, Path(), state=state), host())))


@pytest.mark.conformance("M01", "M14")
def test_a_conversation_begins_with_instructions_and_prompt() -> None:
    node = LlmNode(id="ask", prompt="about {{topic}}", instructions="be {{how}}")
    assert begun(node, topic="wheels", how="brief") == [SYSTEM, {**USER, "content": "about wheels"}]
    assert begun(LlmNode(id="ask", prompt="hello")) == [USER]


@pytest.mark.conformance("M15")
def test_a_missing_key_is_a_failure_of_the_node() -> None:
    with pytest.raises(NodeFailed, match=r"llm node prompt: .*'topic' not found in state"):
        begun(LlmNode(id="ask", prompt="{{topic}}"))


def test_thinking_in_earlier_answers_is_not_sent_back() -> None:
    thought = {"role": "assistant", "content": "<think>hm</think>\n\nyes <think>no</think>"}
    sent = as_sent([USER, thought, tool_message("a", "<think>x</think>")], ModelTraits())
    assert [message["content"] for message in sent] == ["hello", "yes <think>no</think>", "<think>x</think>"]
    assert thought["content"].startswith("<think>"), "what is recorded stays as it was"


@pytest.mark.conformance("CY20", "CY21", "CY22")
def test_results_of_tools_are_cut_between_characters_and_nothing_else_is() -> None:
    result, asked = tool_message("a", "äöü"), {"role": "assistant", "content": None, "tool_calls": [{"id": "a"}]}
    told = [USER, asked, result]
    assert capped(told, 3) == [USER, asked, {**result, "content": "[cut: these are the first 3 of 6 bytes]\nä"}]
    assert capped(told, 6) == told == capped(told, 0)


def test_calls_without_text_are_sent_as_they_are() -> None:
    asked = {"role": "assistant", "content": None, "tool_calls": [{"id": "a"}]}
    assert as_sent([asked], ModelTraits()) == [asked]


@pytest.mark.parametrize(
    ("traits", "messages", "sent"),
    [
        (ModelTraits(), [SYSTEM, USER], [SYSTEM, USER]),
        (ModelTraits(no_system_message=True), [SYSTEM, USER], [{**USER, "content": "be brief\n\nhello"}]),
        (ModelTraits(no_system_message=True), [SYSTEM], [{**USER, "content": "be brief"}]),
        (ModelTraits(no_system_message=True), [USER], [USER]),
        (ModelTraits(system_prompt_prefix="first"), [SYSTEM, USER], [{**SYSTEM, "content": "first\n\nbe brief"}, USER]),
        (ModelTraits(system_prompt_prefix="first"), [USER], [{**SYSTEM, "content": "first"}, USER]),
        (
            ModelTraits(system_prompt_prefix="first", no_system_message=True),
            [SYSTEM, USER],
            [{**USER, "content": "first\n\nbe brief\n\nhello"}],
        ),
    ],
)
def test_system_messages_are_sent_as_the_model_takes_them(
    traits: ModelTraits, messages: list[dict[str, Any]], sent: list[dict[str, Any]]
) -> None:
    assert as_sent(messages, traits) == sent


def test_more_than_the_model_takes_is_refused_before_it_is_sent() -> None:
    refuse_too_long([USER], None)
    refuse_too_long([{**USER, "content": "one two three"}], 5)
    for text in ("one two three four", "größenwahnsinnige"):
        with pytest.raises(CallFailed, match="Exceed max_input_tokens limit"):
            refuse_too_long([{**USER, "content": text}], 5)

"""The rules about models that a graph names."""

from __future__ import annotations

import pytest

from sleipnir.errors import Problem
from tests.unit.graph.test_graph_check import hints, places
from tests.unit.graph.writing import checked, errors, notices


def found(model: str) -> list[Problem]:
    """The problems of a graph that names the model twice: for itself, and for a node."""
    nodes = f"a: {{type: llm, prompt: p, model: '{model}', next: b}}\nb: {{type: end}}"
    return checked(nodes, top=f"model: '{model}'")


@pytest.mark.conformance("M06")
@pytest.mark.parametrize("model", ["openai:gpt-4o-mini", "ollama:llama3:8b", "unheard:of", "my-own:model", "zai:glm"])
def test_a_model_with_a_client_is_taken(model: str) -> None:
    assert found(model) == []


@pytest.mark.parametrize("model", ["openai", "claude:"])
def test_a_known_client_alone_is_its_first_model(model: str) -> None:
    assert found(model) == []


@pytest.mark.conformance("M06")
@pytest.mark.parametrize("model", ["gpt-4o", "unheard:", ":gpt", "", " : "])
def test_a_model_without_a_client_is_unknown(model: str) -> None:
    problems = found(model)
    assert errors(problems) == [f"unknown model '{model}'", f"[a] llm node references unknown model '{model}'"]
    assert places(problems) == [(3, 1), (5, 29)]
    assert set(hints(problems)) == {"Write it as `client:model`, for example openai:gpt-4o-mini."}


@pytest.mark.parametrize(
    ("model", "meant"), [("opneai:gpt-5", "openai"), ("Claude:opus", "claude"), ("antropic:opus", "anthropic")]
)
def test_a_client_that_is_nearly_a_known_one_is_a_warning(model: str, meant: str) -> None:
    problems = found(model)
    client = model.partition(":")[0]
    message = f"model '{model}' names the client '{client}', which is not known"
    assert errors(problems) == []
    assert [notice.removeprefix("[a] ") for notice in notices(problems)] == [message] * 2
    assert hints(problems) == [f'Did you mean "{meant}"?'] * 2
    assert places(problems) == [(3, 1), (5, 29)]

"""How hard a model is asked to think: whose value counts, and what is sent of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sleipnir.errors import NodeFailed
from sleipnir.graph.model import Graph, LlmNode
from sleipnir.messages import VisitResult
from sleipnir.testing import ModelServer
from sleipnir_workers.llm import reasoning_effort
from sleipnir_workers.llm.clients import Clients, ModelTraits
from sleipnir_workers.llm.models import Endpoint
from sleipnir_workers.llm.node import run_llm
from tests.unit.workers.visits import host, visit

NOT_SENT = "reasoning_effort=high is not sent: model 'c:m' is not known to take it"
LISTED = "      reasoning_levels: [low, high]\n"


@pytest.mark.conformance("CY84")
@pytest.mark.parametrize(
    ("node", "graph", "application", "env", "expected"),
    [
        ("low", "medium", "high", {"COYOTE_REASONING_EFFORT": "max"}, "low"),
        (None, "medium", "high", {"COYOTE_REASONING_EFFORT": "max"}, "medium"),
        (None, None, "high", {"COYOTE_REASONING_EFFORT": "max"}, "max"),
        (None, None, "high", {}, "high"),
        (None, None, None, {}, None),
    ],
)
def test_the_nodes_effort_goes_before_the_graphs_and_that_before_the_applications(
    node: str | None, graph: str | None, application: str | None, env: dict[str, str], expected: str | None
) -> None:
    asking = LlmNode(id="a", prompt="p", reasoning_effort=node)
    of = Graph(name="g", start="a", nodes={}, reasoning_effort=graph)
    assert reasoning_effort.configured(asking, of, Clients(reasoning_effort=application), env) == expected


@pytest.mark.conformance("CY83")
@pytest.mark.parametrize(
    ("effort", "levels", "default", "model", "expected", "notes"),
    [
        ("high", ("low", "high"), None, "mistral/m", "high", ["reasoning_effort=high"]),
        ("high", None, None, "openai/gpt-test", "high", ["reasoning_effort=high"]),
        ("high", None, None, "openai/gpt-4o", None, [NOT_SENT]),
        (None, ("low",), "low", "mistral/m", "low", []),
        (None, None, None, "openai/gpt-test", None, []),
    ],
)
def test_sent_and_unsent_parameters_are_reported(
    effort: str | None, levels: Any, default: str | None, model: str, expected: str | None, notes: list[str]
) -> None:
    told: list[str] = []
    endpoint = Endpoint(model, traits=ModelTraits(reasoning_levels=levels, default_reasoning_effort=default))
    assert reasoning_effort.effort_to_send(effort, "c:m", endpoint, told.append) == expected
    assert told == notes


@pytest.mark.conformance("CY83")
@pytest.mark.parametrize(("levels", "listed"), [(("low", "high"), "low, high"), ((), "none")])
def test_an_effort_that_a_model_does_not_have_is_an_error_with_those_that_it_has(levels: Any, listed: str) -> None:
    with pytest.raises(NodeFailed, match=f"'max' is not one of the levels of model 'c:m': {listed} "):
        reasoning_effort.effort_to_send(
            "max", "c:m", Endpoint("openai/m", traits=ModelTraits(reasoning_levels=levels)), print
        )


@pytest.mark.conformance("CY83", "CY84")
@pytest.mark.parametrize(
    ("application", "model", "node", "expected"),
    [
        ("", "", {"reasoning_effort": "high"}, "high"),
        ("reasoning_effort: low\n", "", {}, "low"),
        ("", LISTED + "      default_reasoning_effort: low\n", {}, "low"),
        ("", "      reasoning_levels: [deep]\n", {"reasoning_effort": "deep"}, "deep"),
        ("", "", {}, None),
    ],
)
def test_the_model_gets_it(
    tmp_path: Path, application: str, model: str, node: dict[str, str], expected: str | None
) -> None:
    result, body = ask(tmp_path, application, model, "gpt-test", **node)
    assert (result.ok, body.get("reasoning_effort")) == (True, expected)


def test_a_model_without_support_in_litellm_gets_it_if_its_levels_are_configured(tmp_path: Path) -> None:
    _, body = ask(tmp_path, "", LISTED, "gpt-4o", reasoning_effort="low")
    assert body["reasoning_effort"] == "low"
    result, body = ask(tmp_path, "", "", "gpt-4o", reasoning_effort="low")
    assert result.ok and "reasoning_effort" not in body
    assert "reasoning_effort=low is not sent: model 'mine:gpt-4o' is not known to take it" in result.notes


def ask(folder: Path, application: str, model: str, name: str, **node: str) -> tuple[VisitResult, dict[str, Any]]:
    """The result of a node that asks a model of a config.yaml, and what the model was sent."""
    with ModelServer(["hi"]) as server:
        file = folder / "config.yaml"
        client = f"  - type: openai-compatible\n    name: mine\n    api_base: {server.url}\n    models:\n"
        file.write_text(f"{application}clients:\n{client}    - name: {name}\n{model}")
        asking = LlmNode(id="a", prompt="p", model=f"mine:{name}", **node)
        result = run_llm(asking, visit(asking, folder), host({"COYOTE_CONFIG_FILE": str(file)}))
    return result, dict(server.requests[0].body)

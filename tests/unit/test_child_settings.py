"""The submission of a child run: what it has of its parent, and what its node says about it."""

from __future__ import annotations

from typing import Any

import pytest

from sleipnir.errors import SleipnirError
from sleipnir.graph.load import load_graph
from sleipnir.messages import VERSION
from sleipnir.runs.child_run import ChildSettings
from sleipnir.runs.run import RETURNING, RunSpec
from sleipnir.runs.transitions import StartChild
from sleipnir_scheduler.child_run import child_run

GRAPH = "name: helper\nversion: sleipnir/1\nstart: a\nstate: {n: int}\nnodes: {a: {type: router}}\n"
FOLDED = 'name: helper\nversion: sleipnir/1\nstart: a\nstate: {n: {type: any, reducer: "graph.py:add"}}\n'
FOLDED += 'state_classes: ["graph.py:State"]\nnodes: {a: {type: router}}\n'
ABOVE = RunSpec(
    "parent", "d1", agents={"helper": "d2"}, sessions={"helper": "desk"}, config={"recursion_limit": 50, "tags": ["a"]}
)


def begun(settings: ChildSettings | None, above: RunSpec = ABOVE, graph: str = GRAPH) -> tuple[RunSpec, dict[str, Any]]:
    effect = StartChild("child", "helper", "hello", "ask", 1, 1, settings=settings)
    read = load_graph(graph, "graph.yaml", "helper")
    return child_run("run", above, effect, lambda *_: read, max_state_bytes=1_000)


def test_without_settings_a_child_is_what_it_was_before_there_were_any() -> None:
    spec, state = begun(None)
    assert (spec.returns, spec.event_scope, spec.v, spec.strict, spec.budget) == (None, None, VERSION, False, None)
    assert (spec.session, spec.config) == ("desk", {"tags": ["a"]})
    assert state == {"initial_prompt": "hello", "n": 0}


@pytest.mark.conformance("AG-03")
def test_a_child_begins_with_what_it_is_given_and_its_own_first_values() -> None:
    assert begun(ChildSettings({"n": 4, "more": [1]}))[1] == {"initial_prompt": "hello", "n": 4, "more": [1]}


def test_a_child_that_returns_values_is_of_version_2() -> None:
    """A scheduler of an earlier release would return its output only."""
    assert begun(ChildSettings(returns=()))[0].v == begun(ChildSettings(returns=("n",)))[0].v == RETURNING == 2


@pytest.mark.conformance("AG-21")
@pytest.mark.parametrize(
    ("above", "name", "scope"),
    [(None, None, None), (None, "desk", "desk"), ("top", "desk", "top/desk"), ("top", None, "top/helper")],
)
def test_a_scope_is_below_that_of_the_parent(above: str | None, name: str | None, scope: str | None) -> None:
    spec = RunSpec("parent", "d1", agents={"helper": "d2"}, event_scope=above)
    assert begun(ChildSettings(event_scope=name), spec)[0].event_scope == scope


def test_an_isolated_child_is_in_no_session() -> None:
    assert begun(ChildSettings(isolated=True))[0].session is None


@pytest.mark.conformance("AG-19")
def test_options_are_those_of_this_child_and_replace_those_of_its_parent() -> None:
    options = {"recursion_limit": 3, "max_concurrency": 2, "max_cost_usd": 0.5, "max_tokens": 10, "strict": True}
    spec, _ = begun(ChildSettings(options=options))
    assert spec.config == {"tags": ["a"], "recursion_limit": 3, "max_concurrency": 2}
    assert (spec.max_cost_usd, spec.max_tokens, spec.strict) == (0.5, 10, True)
    assert ABOVE.config["recursion_limit"] == 50


@pytest.mark.parametrize(
    ("given", "graph", "why"),
    [
        ({"n": "many"}, GRAPH, "state key 'n' must be int, not string 'many'"),
        ({"n": 1}, FOLDED, "state key 'n' of agent 'helper' has a reducer of its own"),
        ({"big": "x" * 2_000}, GRAPH, "more than SLEIPNIR_MAX_OUTPUT_BYTES"),
        ({"_next": "a"}, GRAPH, "state key '_next' cannot be given"),
    ],
)
def test_values_that_do_not_fit_are_refused_with_the_reason(given: dict[str, Any], graph: str, why: str) -> None:
    with pytest.raises(SleipnirError, match=why):
        begun(ChildSettings(given), graph=graph)

"""The spec of a child run: what it has from the run above."""

from __future__ import annotations

from sleipnir.graph.model import Graph
from sleipnir.runs.run import RunSpec
from sleipnir.runs.transitions import StartChild
from sleipnir_scheduler.child_run import child_run
from tests.model_store import graph_of

GRAPH = "name: below\nversion: sleipnir/1\nstart: a\nnodes:\n  a: {type: end}\n"


def spec_of(agent: str) -> RunSpec:
    config = {"configurable": {"who": "ann"}, "recursion_limit": 3, "max_concurrency": 2}
    context = {"class": "main.py:Who", "value": {"name": "Ada"}}
    above = RunSpec(
        "top", "digest", agents={"part": "digest", "other": "another"}, by_version=True, config=config, context=context
    )

    def graph(digest: str, agent: str, overrides: object) -> Graph:
        return graph_of(GRAPH)

    effect = StartChild("child", agent, "", node="ask", seq=1, attempt=1)
    return child_run("run", above, effect, graph, max_state_bytes=1_000)[0]


def test_a_child_run_of_the_same_program_has_the_configuration_and_the_context_of_the_run_above() -> None:
    spec = spec_of("part")
    assert spec.config == {"configurable": {"who": "ann"}, "recursion_limit": 3, "max_concurrency": 2}
    assert spec.context == {"class": "main.py:Who", "value": {"name": "Ada"}}


def test_a_run_of_another_agent_has_only_the_values_of_the_configuration() -> None:
    spec = spec_of("other")
    assert spec.config == {"configurable": {"who": "ann"}}
    assert spec.context is None

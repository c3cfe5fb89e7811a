"""Agent nodes of graphs written in Python, whose file is executed in a process of its own."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from sleipnir.testing import run

EXPERT = """
    name: expert
    version: sleipnir/1
    start: work
    nodes:
      work: {type: function, call: "steps.py:work"}
"""


def test_a_graph_written_in_python_maps_with_its_own_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLEIPNIR_AGENTS_DIR", str(tmp_path))
    (tmp_path / "expert").mkdir()
    (tmp_path / "expert" / "graph.yaml").write_text(dedent(EXPERT))
    (tmp_path / "expert" / "steps.py").write_text("def work(state):\n    return {'twice': state['n'] * 2}\n")
    (tmp_path / "typed").mkdir()
    (tmp_path / "typed" / "graph.py").write_text(
        dedent("""
            import operator
            from typing import Annotated, TypedDict

            from sleipnir import END, START, StateGraph

            class State(TypedDict):
                n: int
                log: Annotated[list[str], operator.add]

            def into(state):
                return {"n": state["n"] + 1}

            def out(state, child):
                return {"n": child["state"]["twice"], "log": [child["status"]], "unknown": 1}

            builder = StateGraph(State)
            builder.add_agent_node("ask", "expert", input_mapper=into, output_mapper=out)
            builder.add_agent_node("again", "expert", "{{n}}", input_mapper={"n": "{{n}}"},
                                   output_mapper={"n": "{{child.state.twice}}", "log": ["again"]})
            builder.add_edge(START, "ask")
            builder.add_edge("ask", "again")
            builder.add_edge("again", END)
            graph = builder.compile()
        """)
    )
    result = run(tmp_path / "typed", state={"n": 3})
    assert result.status == "completed", result.error
    assert {key: result.state[key] for key in ("n", "log")} == {"n": 16, "log": ["completed", "again"]}
    assert "unknown" not in result.state

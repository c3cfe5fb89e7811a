"""What a graph may be in size."""

from __future__ import annotations

import pytest

from sleipnir.graph import template
from sleipnir.graph.template import RenderedTooLarge, apply_updates, render, render_lenient
from tests.model_store import Driver
from tests.unit.graph.writing import checked, errors


def large(problems: list[str]) -> list[str]:
    return [each for each in problems if " at most " in each]


def test_a_node_that_names_very_many_keys_is_refused() -> None:
    """Finding S12: 9,000 placeholders broke the claim of the node on every worker."""
    prompt = " ".join(f"{{{{key{number}}}}}" for number in range(3_001))
    found = errors(checked(f"a: {{type: llm, prompt: '{prompt}', next: b}}\nb: {{type: end}}"))
    assert large(found) == ["[a] the texts of the node name 3,001 state keys, at most 3,000 are possible"]
    prompt = prompt.replace("{{key3000}}", "")
    assert large(errors(checked(f"a: {{type: llm, prompt: '{prompt}', next: b}}\nb: {{type: end}}"))) == []


def test_a_graph_of_very_many_nodes_is_refused() -> None:
    nodes = "\n".join(f"n{number}: {{type: end}}" for number in range(10_001))
    assert large(errors(checked(nodes, start="n0"))) == ["the graph has 10,001 nodes, at most 10,000 are possible"]


def test_a_state_of_very_many_keys_is_refused() -> None:
    state = "state: {" + ", ".join(f"k{number}: int" for number in range(2_001)) + "}"
    assert large(errors(checked("a: {type: end}", top=state))) == ["`state` has 2,001 keys, at most 2,000 are possible"]


def test_a_text_that_is_rendered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand placeholders of a value of 10 MB each are 10 GB, in the scheduler too."""
    monkeypatch.setattr(template, "MOST_RENDERED", 1_000)
    state = {"k": "x" * 100}
    assert len(render("{{k}}" * 10, state)) == 1_000
    for rendering in (render, render_lenient):
        with pytest.raises(RenderedTooLarge, match="more than 1,000 characters"):
            rendering("{{k}}" * 11, state)
    with pytest.raises(RenderedTooLarge):
        apply_updates({f"k{number + 1}": f"{{{{k{number}}}}}" * 2 for number in range(60)}, {"k0": "x" * 100})


GRAPH = """
name: g
version: sleipnir/1
start: ask
nodes:
  ask: {type: input, question: q, next: a, state_updates: {k: "{{input}}"}}
  a: {type: router, next: e}
  e: {type: end, output: "%s"}
"""


def test_an_output_that_is_too_large_fails_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template, "MOST_RENDERED", 1_000)
    driver = Driver(GRAPH % ("{{k}}" * 11)).start()
    driver.answers("ask", "x" * 100)
    assert driver.run.status == "failed"
    assert driver.error is not None
    assert "the text has more than 1,000 characters" in driver.error

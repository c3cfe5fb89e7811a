"""The graphs of the campaign are valid, and between them have everything that a graph can branch by."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.chaos import graphs, models
from sleipnir.graph.check import validate

COMMON = (
    '"type": "map"',
    '"type": "llm"',
    '"node":',
    '"branch":',
    '"fallback"',
    '"retry"',
    '"effect"',
    '"approval"',
    '"input"',
)
ADDED = ('"wait_for"', '"min"', '"by"', '"when"', '"call"', '"many"', '"ends"', '"router"', '"join"', "node.py:chain")
CALLED = ('"before": "node.py:before_n', '"after": ["node.py:after_', '"error": "node.py:error_all"', '"cache"')
CALLED += ('"type": "agent"', '"map_out": "node.py:out_of_', '"map_out": {"log"')


@pytest.mark.parametrize("kind", graphs.KINDS)
def test_sixty_graphs_are_valid_and_have_it_all(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLEIPNIR_AGENTS_DIR", str(tmp_path))
    effects = tmp_path / "effects"
    drawn = [graphs.write(tmp_path / f"{kind}-{seed}", seed, effects, others=True) for seed in range(60)]
    assert [str(found) for found in validate(tmp_path / models.HELPER) if found.level == "error"] == []
    for folder in drawn:
        assert [str(found) for found in validate(folder) if found.level == "error"] == []
    text = "".join((folder / name).read_text() for folder in drawn for name in ("graph.yaml", "node.py"))
    does = ("'loops'", "'sends'", "'ways'", "'stumbles'", "'flaky'")
    assert [part for part in (*COMMON, *does, *((*ADDED, *CALLED) if kind != "loki" else ())) if part not in text] == []


def test_runs_of_an_agent_have_the_same_overrides_which_fit_it(tmp_path: Path) -> None:
    found = {}
    for seed in range(20):
        folder = graphs.write(tmp_path / f"bsp-{seed}", seed, tmp_path / "effects", others=True)
        found[seed] = models.overrides(folder).get("overrides", {})
        assert found[seed] == models.overrides(folder).get("overrides", {})
    assert {path.partition("/")[2] for given in found.values() for path in given} == {"", "ask"}


def test_the_same_seed_draws_the_same_graph(tmp_path: Path) -> None:
    first, again = (graphs.write(tmp_path / place / "dag-1", 7, tmp_path / "effects") for place in ("a", "b"))
    assert (first / "graph.yaml").read_text() == (again / "graph.yaml").read_text()
    assert (first / "node.py").read_text() == (again / "node.py").read_text()

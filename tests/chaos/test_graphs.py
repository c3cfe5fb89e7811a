"""The graphs of the campaign are valid, and between them have everything that a graph can branch by."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.chaos import graphs
from sleipnir.graph.check import validate

COMMON = ('"type": "map"', '"node":', '"branch":', '"fallback"', '"retry"', '"effect"', '"approval"', '"input"')
ADDED = ('"wait_for"', '"min"', '"by"', '"when"', '"call"', '"many"', '"ends"', '"router"', '"join"', "node.py:chain")


@pytest.mark.parametrize("kind", graphs.KINDS)
def test_sixty_graphs_are_valid_and_have_it_all(kind: str, tmp_path: Path) -> None:
    drawn = [graphs.write(tmp_path / f"{kind}-{seed}", seed, tmp_path / "effects") for seed in range(60)]
    for folder in drawn:
        assert [str(found) for found in validate(folder) if found.level == "error"] == []
    text = "".join((folder / name).read_text() for folder in drawn for name in ("graph.yaml", "node.py"))
    does = ("'loops'", "'sends'", "'ways'", "'stumbles'", "'flaky'")
    assert [part for part in (*COMMON, *does, *(ADDED if kind != "loki" else ())) if part not in text] == []


def test_the_same_seed_draws_the_same_graph(tmp_path: Path) -> None:
    first, again = (graphs.write(tmp_path / place / "dag-1", 7, tmp_path / "effects") for place in ("a", "b"))
    assert (first / "graph.yaml").read_text() == (again / "graph.yaml").read_text()
    assert (first / "node.py").read_text() == (again / "node.py").read_text()

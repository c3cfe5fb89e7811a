"""Pictures that Graphviz makes. A program of its name stands in for it: what it gets, and what its failures lead to."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

import pytest

from sleipnir import START, StateGraph
from sleipnir.cli import main
from sleipnir.errors import UsageError

AGENT = """
name: small
start: done
nodes:
  done: {type: end, output: x}
"""


@pytest.fixture
def graphviz(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The program `dot` on PATH, which a test writes."""
    program = tmp_path / "bin" / "dot"
    program.parent.mkdir()
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return program


def write(program: Path, body: str) -> None:
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)


def test_graphviz_gets_the_dot_text_and_its_picture_is_written(graphviz: Path, tmp_path: Path) -> None:
    write(graphviz, 'echo "$@"; cat')
    agent = tmp_path / "graph.yaml"
    agent.write_text(AGENT)
    out = tmp_path / "small.pdf"
    assert main(["draw", str(agent), "-o", str(out), "--label", "A title"]) == 0
    first, *text = out.read_text().splitlines()
    assert (first, text[0]) == ("-Tpdf", 'digraph "small" {')
    assert 'label="A title"' in out.read_text()


@pytest.mark.parametrize(
    ("body", "why"), [("echo no fonts >&2; exit 3", "Graphviz failed: no fonts"), ("cat > /dev/null", "exit code 0")]
)
def test_a_failure_of_graphviz_is_never_a_picture(
    graphviz: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], body: str, why: str
) -> None:
    write(graphviz, body)
    agent = tmp_path / "graph.yaml"
    agent.write_text(AGENT)
    assert main(["draw", str(agent), "-o", str(tmp_path / "small.png")]) == 2
    assert why in capsys.readouterr().err
    assert not (tmp_path / "small.png").exists()


class State(TypedDict, total=False):
    x: int


def test_a_graph_in_python_has_a_png(graphviz: Path, tmp_path: Path) -> None:
    write(graphviz, 'echo "$@"; cat')
    graph = StateGraph(State).add_node("a", lambda state: {}).add_edge(START, "a").compile().get_graph()
    picture = graph.draw_png(tmp_path / "a.png")
    assert picture.startswith(b"-Tpng") and (tmp_path / "a.png").read_bytes() == picture
    graphviz.unlink()
    with pytest.raises(UsageError, match="'dot' of Graphviz was not found"):
        graph.draw_png()

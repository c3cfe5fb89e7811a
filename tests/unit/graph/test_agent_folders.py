"""What kind of agent a folder holds, and files that cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from sleipnir.errors import AgentNotFound, GraphError
from sleipnir.graph.check import validate
from sleipnir.graph.load import AgentFolder, load_file, read_agent
from tests.unit.graph.writing import yaml_graph

GRAPH = yaml_graph("a: {type: end}")


@pytest.mark.conformance("L01", "L04")
def test_a_folder_with_a_graph_is_a_graph_agent_called_like_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "greeter"
    folder.mkdir()
    (folder / "graph.yaml").write_text(GRAPH)
    agent = read_agent(folder)
    assert agent == AgentFolder(name="greeter", path=folder, kind="graph")
    assert agent.file == folder / "graph.yaml"
    loaded = load_file(folder)
    assert loaded.graph is not None
    assert (loaded.graph.name, loaded.problems) == ("g", ())


def test_a_folder_with_a_config_is_a_config_agent(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("name: x")
    agent = read_agent(tmp_path)
    assert (agent.kind, agent.file) == ("config", tmp_path / "config.yaml")
    loaded = load_file(tmp_path)
    assert loaded.graph is not None
    assert loaded.graph.loop is not None
    assert validate(tmp_path) == []


@pytest.mark.conformance("L02")
def test_a_folder_with_both_files_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "twofold"
    folder.mkdir()
    for name in ("graph.yaml", "config.yaml"):
        (folder / name).write_text(GRAPH)
    message = (
        "Agent 'twofold' has both config.yaml and graph.yaml. A graph agent is defined by graph.yaml alone; "
        "a normal agent by config.yaml alone. Remove one of the two files."
    )
    with pytest.raises(GraphError) as caught:
        read_agent(folder)
    assert str(caught.value) == message
    assert [(problem.level, problem.message) for problem in validate(folder)] == [("error", message)]


@pytest.mark.conformance("L03")
def test_a_folder_with_neither_file_is_no_agent(tmp_path: Path) -> None:
    folder = tmp_path / "hollow"
    folder.mkdir()
    message = f"Agent 'hollow' has neither a config.yaml nor a graph.yaml at '{folder}'"
    with pytest.raises(AgentNotFound) as caught:
        read_agent(folder)
    assert str(caught.value) == message
    assert [problem.message for problem in validate(folder)] == [message]


def test_a_file_of_any_name_is_loaded(tmp_path: Path) -> None:
    file = tmp_path / "draft.yml"
    file.write_text(GRAPH)
    assert validate(file) == []


def test_a_file_that_is_not_there_is_a_problem(tmp_path: Path) -> None:
    file = tmp_path / "graph.yaml"
    assert [str(problem) for problem in validate(file)] == [
        f"{file}: Failed to read graph file at '{file}': No such file or directory"
    ]


def test_a_file_that_is_not_utf_8_is_a_problem(tmp_path: Path) -> None:
    file = tmp_path / "graph.yaml"
    file.write_bytes(b"name: \xff")
    assert [problem.message for problem in validate(file)] == [
        f"Failed to read graph file at '{file}': byte 6 is not UTF-8"
    ]

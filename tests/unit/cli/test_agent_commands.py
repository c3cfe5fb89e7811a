"""`agents`, `validate` and `draw`, on folders as people write them."""

import json
from pathlib import Path

import pytest

from sleipnir.cli import main

GOOD = """\
name: greeter
start: greet
nodes:
  greet:
    type: script
    script: greet.py
    next: done
  done:
    type: end
    output: "{{greeting}}"
"""
BROKEN = GOOD.replace("next: done", "next: dnoe").replace("start: greet", "start: great")


@pytest.fixture(autouse=True)
def agents_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of agents that the command line finds first, and nothing else of this machine's set-up."""
    folder = tmp_path / "agents"
    folder.mkdir()
    monkeypatch.setenv("SLEIPNIR_AGENTS_DIR", str(folder))
    monkeypatch.setenv("SLEIPNIR_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LOKI_CONFIG_DIR", str(tmp_path / "loki"))
    return folder


def write_agent(agents_dir: Path, name: str, text: str) -> Path:
    folder = agents_dir / name
    folder.mkdir()
    (folder / "graph.yaml").write_text(text)
    (folder / "greet.py").write_text("""print('{"greeting": "hello"}')\n""")
    return folder


def test_a_sound_agent_is_ok_with_its_counts(agents_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_agent(agents_dir, "greeter", GOOD)
    for target in ("greeter", str(folder), str(folder / "graph.yaml")):
        assert main(["validate", target]) == 0
        assert capsys.readouterr().out.endswith(": 2 nodes, 1 edge, 0 warnings\n")


def test_every_problem_is_reported_with_its_place(agents_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_agent(agents_dir, "greeter", BROKEN)
    assert main(["validate", "greeter"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{folder}/graph.yaml:2:")
    assert "Start node 'great' not found" in lines[0]
    assert lines[-1].startswith(f"{folder}: ") and "error" in lines[-1]


def test_problems_as_json_are_a_list_and_keep_the_exit_code(
    agents_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_agent(agents_dir, "greeter", BROKEN)
    assert main(["validate", "--json", "greeter"]) == 1
    problems = json.loads(capsys.readouterr().out)
    assert problems[0]["level"] == "error"
    assert problems[0]["line"] == 2


def test_an_unknown_agent_is_wrong_usage_with_a_suggestion(
    agents_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_agent(agents_dir, "greeter", GOOD)
    for command in ("validate", "draw"):
        assert main([command, "greeters"]) == 2
        assert "error: no agent 'greeters'. Did you mean 'greeter'?" in capsys.readouterr().err


def test_a_graph_is_drawn_to_stdout_or_into_a_file(
    agents_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_agent(agents_dir, "greeter", GOOD)
    assert main(["draw", "greeter"]) == 0
    mermaid = capsys.readouterr().out
    assert mermaid.startswith("flowchart")
    assert main(["draw", "greeter", "-o", str(tmp_path / "g.mmd")]) == 0
    assert capsys.readouterr().out == ""
    assert (tmp_path / "g.mmd").read_text() == mermaid
    assert main(["draw", "greeter", "--format", "dot"]) == 0
    assert capsys.readouterr().out.startswith("digraph")


def test_the_name_of_the_file_decides_what_to_draw_unless_the_command_does(agents_dir: Path, tmp_path: Path) -> None:
    write_agent(agents_dir, "greeter", GOOD)
    for name, words, beginning in (
        ("g.svg", [], "<svg"),
        ("g.dot", [], "digraph"),
        ("g.gv", ["--direction", "LR"], "digraph"),
        ("g.md", [], "flowchart"),
        ("h.svg", ["--format", "mermaid"], "flowchart"),
        ("dark.svg", ["--theme", "dark"], "<svg"),
    ):
        assert main(["draw", "greeter", "-o", str(tmp_path / name), *words]) == 0
        assert (tmp_path / name).read_text().startswith(beginning)


@pytest.mark.conformance("VZ-04")
def test_without_graphviz_a_png_is_an_error_that_says_so(
    agents_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_agent(agents_dir, "greeter", GOOD)
    monkeypatch.setenv("PATH", str(tmp_path))
    for suffix in ("png", "pdf"):
        assert main(["draw", "greeter", "-o", str(tmp_path / f"g.{suffix}")]) == 2
        assert f"'dot' of Graphviz was not found, which makes {suffix.upper()} pictures" in capsys.readouterr().err
        assert not (tmp_path / f"g.{suffix}").exists()
    assert main(["draw", "greeter", "--format", "png"]) == 2
    assert "a PNG is written to a file: -o FILE.png" in capsys.readouterr().err


def test_what_dot_shows_can_be_chosen_and_other_formats_refuse_the_choice(
    agents_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_agent(agents_dir, "greeter", GOOD)
    assert main(["draw", "greeter", "--format", "dot", "--no-start-end", "--label", "Hello"]) == 0
    shown = capsys.readouterr().out
    assert 'label="Hello"' in shown and "start" not in shown and "peripheries=2" in shown
    assert main(["draw", "greeter", "--no-dotted"]) == 2
    assert "are for the formats dot, png and pdf" in capsys.readouterr().err


def test_a_broken_graph_is_not_drawn_and_names_each_problem_once(
    agents_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_agent(agents_dir, "greeter", BROKEN)
    assert main(["draw", "greeter"]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("error: ")
    assert shown.count("Start node 'great' not found") == 1
    assert "Traceback" not in shown


def test_a_picture_that_cannot_be_written_is_an_error_not_a_traceback(
    agents_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_agent(agents_dir, "greeter", GOOD)
    assert main(["draw", "greeter", "-o", str(tmp_path / "nowhere" / "g.mmd")]) == 2
    assert "cannot write" in capsys.readouterr().err


def test_agents_are_listed_with_what_is_wrong_with_them(agents_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_agent(agents_dir, "greeter", GOOD)
    (write_agent(agents_dir, "torn", GOOD) / "config.yaml").touch()
    assert main(["agents", "--json"]) == 0
    listed = {agent["name"]: agent for agent in json.loads(capsys.readouterr().out)}
    assert listed["greeter"]["kind"] == "graph"
    assert listed["torn"]["kind"] == "broken"
    assert "both config.yaml and graph.yaml" in listed["torn"]["problem"]


CONFIG = """\
name: shown
description: Helps.
global_tools: [gone]
conversation_starters:
  - Hello.
  - Tell me of {{topic}}.
"""


def write_config_agent(agents_dir: Path, text: str = CONFIG) -> Path:
    folder = agents_dir / "helper"
    folder.mkdir()
    (folder / "config.yaml").write_text(text)
    return folder


@pytest.mark.conformance("C09")
def test_one_agent_is_shown_with_what_it_suggests_to_begin_with(
    agents_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_config_agent(agents_dir)
    for target in ("helper", str(folder)):
        assert main(["agents", "show", target]) == 0
        assert capsys.readouterr().out == (
            f"agent        helper\nkind         config\nfolder       {folder}\ndescription  Helps.\n"
            "starters     1. Hello.\n             2. Tell me of {{topic}}.\n"
        )
        assert main(["agents", "show", target, "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert (shown["name"], shown["kind"], shown["problem"]) == ("helper", "config", None)
        assert shown["conversation_starters"] == ["Hello.", "Tell me of {{topic}}."]
    assert main(["agents", "show", "helpre"]) == 2
    assert "Did you mean 'helper'?" in capsys.readouterr().err


def test_a_config_agent_is_listed_validated_drawn_and_asked_for_its_tools(
    agents_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_config_agent(agents_dir)
    assert main(["agents"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["helper", "config", str(folder), "Helps."] in rows
    assert main(["validate", "helper"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{folder}/config.yaml:3:16: warning: Tool definition file not found: ")
    assert lines[-1] == f"ok: {folder}: a config.yaml agent, 1 warning"
    assert main(["draw", "helper"]) == 0
    assert "agent" in capsys.readouterr().out
    (folder / "config.yaml").write_text("name: x\n")
    (folder / "tools.py").write_text('def look():\n    """Look."""\n\n\ndef _instructions():\n    """Say."""\n')
    assert main(["tools", "helper", "--json"]) == 0
    assert [tool["name"] for tool in json.loads(capsys.readouterr().out)] == ["look"]


def test_what_is_wrong_with_a_config_yaml_is_reported_with_its_place(
    agents_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_config_agent(agents_dir, "instructions: x\nauto_continue: maybe\ninstruction: y\n")
    assert main(["validate", "helper"]) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith(" ")]
    assert [line.removeprefix(f"{folder}/config.yaml:").partition(":")[0] for line in lines[:-1]] == ["1", "2", "3"]
    assert lines[-1] == f"{folder}: 2 errors, 1 warning"


@pytest.mark.conformance("N02")
@pytest.mark.parametrize("session", [["--session", "s1"], ["--session"]])
def test_sessions_are_refused_with_lokis_words(
    session: list[str], agents_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_agent(agents_dir, "greeter", GOOD)
    for command in ("run", "submit", "chat"):
        assert main([command, "greeter", *(["hi"] if command != "chat" else []), *session]) == 2
        assert capsys.readouterr().err == (
            "error: Graph-based agent 'greeter' does not support sessions. "
            "The graph manages its own state; re-run without a session.\n"
        )


@pytest.mark.parametrize("target", ["helper", "./agents/helper"])
def test_the_environment_names_the_file_in_place_of_config_yaml(
    agents_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    target: str,
) -> None:
    (agents_dir / "helper").mkdir()
    (agents_dir / "helper" / "config.yaml").write_text("name: [broken\n")
    (tmp_path / "mine.yaml").write_text("name: mine\n")
    monkeypatch.chdir(tmp_path)
    assert main(["validate", target]) == 1
    monkeypatch.setenv("HELPER_CONFIG_FILE", "mine.yaml")
    for command in (["validate", target], ["draw", target], ["tools", target]):
        assert main(command) == 0, capsys.readouterr().err
    (tmp_path / "mine.yaml").write_text("name: mine\ntemprature: 1\n")
    assert main(["validate", target]) == 0
    assert "mine.yaml:2" in capsys.readouterr().out

"""What is said of an agent before it starts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sleipnir.agents.finding import look_up
from sleipnir.cli import main
from sleipnir.cli.runs.agent_warnings import warn
from sleipnir.settings import Settings

BOSS = "name: boss\ncan_spawn_agents: true\nspawnable_agents: [worker, graph, absent]\nhooks: {a: b}\nmemory: true\n"
GRAPH = "name: g\nstart: a\nnodes:\n  a: {type: agent, agent: boss, prompt: p, next: b}\n  b: {type: end}\n"


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("LOKI_CONFIG_DIR", str(tmp_path / "loki"))
    monkeypatch.setenv("SLEIPNIR_AGENTS_DIR", str(tmp_path / "agents"))
    return Settings(agents_dir=tmp_path / "agents", home=tmp_path / "home")


def write(folder: Path, text: str, file: str = "config.yaml") -> Path:
    folder.mkdir(parents=True)
    (folder / file).write_text(text)
    return folder


def test_unsupported_keys_are_reported_once_with_their_agents(
    settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Finding U7 of the second review: what this version lacks was left out without a word."""
    write(tmp_path / "agents" / "boss", BOSS)
    write(tmp_path / "agents" / "worker", "name: worker\nhooks: {b: c}\n")
    write(tmp_path / "agents" / "graph", GRAPH, "graph.yaml")
    warn("boss", look_up("boss", settings), settings)
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(". ")[0] for line in lines] == [
        "note: agents boss, worker: 'hooks' is ignored",
        "note: agent 'boss': 'memory' is ignored",
    ]
    assert "Hooks are part of newer releases" in lines[0]


def test_the_agent_that_runs_is_named_where_another_has_its_name(
    settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Finding U7 of the second review: a shipped namesake ran without a word."""
    used = write(tmp_path / "agents" / "mine", "name: mine\n")
    other = write(tmp_path / "loki" / "agents" / "mine", "name: other\n")
    expected = f"note: agent 'mine' is {used}; another agent of this name is not used: {other}\n"
    warn("mine", look_up("mine", settings), settings)
    assert capsys.readouterr().err == expected
    assert main(["validate", "mine"]) == 0
    assert capsys.readouterr().err == expected
    warn(str(used), look_up(str(used), settings), settings)
    assert capsys.readouterr().err == ""


def test_missing_programs_are_reported_if_the_workers_are_on_this_machine(
    settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run went on without an MCP server or a skill that its agent names, and nobody was told."""
    text = "name: one\nmcp_servers: [wiki]\nenabled_skills: [git]\n"
    write(tmp_path / "agents" / "one", text)
    one = look_up("one", settings)
    warn("one", one, settings)
    loki = tmp_path / "loki"
    assert capsys.readouterr().err.splitlines() == [
        f"note: agent 'one': MCP server 'wiki' is not in {loki}/functions/mcp.json; available: none.",
        f"note: agent 'one': skill 'git' is not installed: there is no git/SKILL.md in {loki}/skills.",
    ]
    write(loki / "skills" / "git", "Commit.", "SKILL.md")
    write(loki / "functions", '{"mcpServers": {"wiki": {"type": "stdio", "command": "wiki"}}}', "mcp.json")
    warn("one", one, settings)
    assert capsys.readouterr().err == ""
    write(tmp_path / "agents" / "two", "name: two\nmcp_servers: [other]\n")
    warn("two", look_up("two", settings), replace(settings, redis_url="redis://elsewhere"))
    assert capsys.readouterr().err == "", "workers elsewhere have a configuration of their own"


def test_all_namesakes_that_are_not_used_are_listed(
    settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    used = write(tmp_path / "agents" / "coder", "name: mine\n")
    other = write(tmp_path / "loki" / "agents" / "coder", "name: other\n")
    warn("coder", look_up("coder", settings), settings)
    line = capsys.readouterr().err
    assert line.startswith(f"note: agent 'coder' is {used}; other agents of this name are not used: {other}, ")

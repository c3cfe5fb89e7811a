"""`sleipnir tools`, on agents as people write them; calls start the workers' package as a process."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

from sleipnir.cli import main
from sleipnir.cli.app import app

GRAPH = """\
name: weather
start: ask
global_tools: [double.py]
variables:
  - {name: unit, description: "C or F", default: C}
nodes:
  ask: {type: llm, prompt: p, tools: [forecast], next: done}
  done: {type: end, output: "{{output}}"}
"""
TOOLS = '''\
import os


def forecast(city: str, days: int = 1):
    """What the weather will be.

    Args:
        city: where
    """
    print("asking")
    if city == "nowhere":
        raise ValueError("no such city")
    return {"city": city, "days": days, "unit": os.environ["LLM_AGENT_VAR_UNIT"], "cwd": os.getcwd()}


def _helper(): ...
'''
DOUBLE = 'def run(n: int):\n    """Twice n."""\n    return 2 * n\n'


@pytest.fixture(autouse=True)
def weather(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The agent `weather`, and nothing else of this machine's set-up."""
    folder = tmp_path / "agents" / "weather"
    folder.mkdir(parents=True)
    (folder / "graph.yaml").write_text(GRAPH)
    (folder / "tools.py").write_text(TOOLS)
    global_tools = tmp_path / "loki" / "functions" / "tools"
    global_tools.mkdir(parents=True)
    (global_tools / "double.py").write_text(DOUBLE)
    monkeypatch.setenv("SLEIPNIR_AGENTS_DIR", str(tmp_path / "agents"))
    monkeypatch.setenv("SLEIPNIR_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LOKI_CONFIG_DIR", str(tmp_path / "loki"))
    monkeypatch.chdir(tmp_path)
    return folder


def test_the_tools_of_an_agent_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tools", "weather"]) == 0
    assert [line.split(maxsplit=3) for line in capsys.readouterr().out.splitlines()] == [
        ["TOOL", "KIND", "PARAMETERS", "DESCRIPTION"],
        ["double", "global", "n", "Twice n."],
        ["forecast", "agent", "city,", "[days]  What the weather will be. …"],
    ]


def test_json_has_the_complete_schema_of_each_tool(weather: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tools", str(weather), "--json"]) == 0
    double, forecast = json.loads(capsys.readouterr().out)
    assert double["name"] == "double" and double["kind"] == "global"
    assert forecast == {
        "name": "forecast",
        "kind": "agent",
        "description": "What the weather will be.\n\nArgs:\n    city: where",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "where"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
        "language": "python",
        "file": str(weather / "tools.py"),
        "line": 4,
    }


def test_an_agent_without_tools_is_reported(weather: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (weather / "tools.py").unlink()
    (weather / "graph.yaml").write_text(GRAPH.replace("global_tools: [double.py]\n", ""))
    assert main(["tools", "weather"]) == 0
    assert "agent 'weather' has no tools of its own" in capsys.readouterr().err
    assert main(["tools", "--json", "weather"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_a_call_prints_what_the_model_would_get(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["tools", "call", "weather", "forecast", '{"city": "Ås"}', "--var", "unit=F"]) == 0
    printed = capfd.readouterr()
    assert json.loads(printed.out) == {"city": "Ås", "days": 1, "unit": "F", "cwd": str(tmp_path)}
    assert printed.err == "asking\n"


@pytest.mark.conformance("C06")
def test_a_tool_of_an_agent_whose_file_the_environment_names_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "agents" / "other").mkdir()
    (tmp_path / "mine.yaml").write_text("name: mine\nglobal_tools: [double.py]\n")
    monkeypatch.setenv("OTHER_CONFIG_FILE", str(tmp_path / "mine.yaml"))
    assert main(["tools", "call", "other", "double", '{"n": 4}']) == 0
    assert capfd.readouterr().out == "8\n"


def test_a_variable_of_a_call_may_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LLM_AGENT_VAR_UNIT", "K")
    assert main(["tools", "call", "weather", "forecast", '{"city": "Bergen"}']) == 0
    assert json.loads(capfd.readouterr().out)["unit"] == "K"


@pytest.mark.conformance("C07")
def test_the_function_that_writes_instructions_is_neither_listed_nor_called(
    weather: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (weather / "tools.py").write_text(TOOLS + '\n\ndef _instructions():\n    """x"""\n')
    assert main(["tools", "weather"]) == 0
    assert "_instructions" not in capfd.readouterr().out
    assert main(["tools", "call", "weather", "_instructions"]) == 2
    assert "has no tool '_instructions'" in capfd.readouterr().err


def test_a_tool_that_fails_is_exit_code_1(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["tools", "call", "weather", "forecast", '{"city": "nowhere"}']) == 1
    value = json.loads(capfd.readouterr().out)
    assert value["tool_call_error"] == "Tool call 'forecast' exited with code 1"
    assert value["stderr"].endswith("ValueError: no such city")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["forcast", "{}"], "agent 'weather' has no tool 'forcast'. Did you mean 'forecast'?"),
        (["xyz", "{}"], "agent 'weather' has no tool 'xyz'. It has: double, forecast."),
        (["double", "{n: 1}"], "the arguments of 'double' are not JSON (Expecting property name"),
        (["double", "[1]"], "the arguments of 'double' must be a JSON object: '{\"city\": \"Oslo\"}'"),
    ],
)
def test_a_call_that_was_mistyped_runs_nothing(
    words: list[str], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["tools", "call", "weather", *words]) == 2
    assert capfd.readouterr().err.startswith(f"error: {message}")


def test_an_agent_that_does_not_exist_and_a_tools_file_that_cannot_be_used(
    weather: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tools", "wether"]) == 2
    assert "no agent 'wether'. Did you mean 'weather'?" in capsys.readouterr().err
    (weather / "tools.py").write_text("def forecast(): ...\n")
    assert main(["tools", "weather"]) == 2
    assert capsys.readouterr().err == (
        f"error: {weather}/tools.py:1: Missing or empty description on function: forecast\n"
    )
    assert main(["tools"]) == 2


def completed(*words: str) -> list[str]:
    """What the tab key offers after these words, the last of which is being typed."""
    *before, incomplete = words
    found = ShellComplete(app, {}, "sleipnir", "_X").get_completions(before, incomplete)
    return [item.value for item in found]


def test_agents_and_tools_are_completed() -> None:
    assert "weather" in completed("tools", "") and "call" in completed("tools", "")
    assert completed("tools", "we") == ["weather"]
    assert "weather" in completed("tools", "call", "")
    assert completed("tools", "call", "weather", "") == ["double", "forecast"]
    assert completed("tools", "call", "weather", "fo") == ["forecast"]
    assert completed("tools", "call", "nobody", "") == []


def test_the_help_names_both_forms(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tools", "--help"]) == 0
    assert capsys.readouterr().out.startswith("Usage: sleipnir tools AGENT | call AGENT NAME [JSON]\n")
    assert isinstance(app.get_command(click.Context(app), "tools"), click.Group)

"""How errors end the process: one line for the reader, an exit code for the script."""

from pathlib import Path

import pytest

from sleipnir.cli import main
from sleipnir.cli.failures import report
from sleipnir.errors import (
    AgentNotFound,
    BundleError,
    ConfigError,
    GateError,
    GraphError,
    KnowledgeError,
    NodeFailed,
    Problem,
    RunNotFound,
    SleipnirError,
    StoreUnavailable,
    StoreUnsuitable,
    UsageError,
)


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (UsageError("x"), 2),
        (AgentNotFound("x"), 2),
        (RunNotFound("x"), 2),
        (GateError("x"), 2),
        (GraphError("x"), 2),
        (ConfigError("x"), 2),
        (BundleError("x"), 2),
        (KnowledgeError("x", "usage"), 2),
        (KnowledgeError("x", "sources"), 2),
        (KnowledgeError("x", "model"), 1),
        (KnowledgeError("x", "store"), 1),
        (KnowledgeError("x", "bug"), 1),
        (StoreUnavailable("x"), 1),
        (StoreUnsuitable("x"), 1),
        (NodeFailed("x"), 1),
    ],
)
def test_who_must_act_decides_the_exit_code(
    failure: SleipnirError, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(failure) == code
    assert capsys.readouterr().err == "error: x\n"


def test_a_graph_error_shows_every_problem_with_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    problems = [
        Problem("error", "no such node 'b'", "g.yaml", 3, 5, "a", "Did you mean 'c'?"),
        Problem("warning", "unknown key 'promt'", "g.yaml", 9, 1),
    ]
    report(GraphError("Failed to load graph.yaml for agent 'x'\n  whatever", problems))
    assert capsys.readouterr().err == (
        "error: Failed to load graph.yaml for agent 'x'\n"
        "  g.yaml:3:5: [a] no such node 'b'\n"
        "      Did you mean 'c'?\n"
        "  g.yaml:9:1: warning: unknown key 'promt'\n"
    )


def test_a_problem_that_is_the_headline_is_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    report(GraphError("both files", [Problem("error", "both files", "agents/x")]))
    assert capsys.readouterr().err == "error: both files\n"


def test_verbose_shows_where_it_came_from(capsys: pytest.CaptureFixture[str]) -> None:
    report(StoreUnavailable("down"), verbose=True)
    shown = capsys.readouterr().err
    assert "StoreUnavailable: down" in shown
    assert shown.endswith("error: down\n")


def test_a_misspelt_setting_stops_the_command_and_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLEIPNIR_LEESE_S", "45")
    assert main(["ps"]) == 2
    assert "did you mean SLEIPNIR_LEASE_S?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["run", "hello", "--answer", "yes"], "'yes' is not of the form NODE=TEXT"),
        (["run", "hello", "--var", "=x"], "'=x' is not of the form NAME=TEXT"),
        (["run", "hello", "--state", "topic"], "'topic' is not of the form NAME=JSON"),
        (["run", "hello", "--state", "topic=big bells"], "a text is written in quotes: --state 'topic=\"big bells\"'"),
        (["run", "hello", "--state", "n=[1,"], "the value of 'n' is not JSON; Expecting value"),
        (["submit", "hello", "--state", "n=NaN"], "the value of 'n' is not JSON"),
        (["run", "", "prompt"], "the agent's name is empty; `sleipnir agents` lists all agents"),
        (["answer", "abcdef", "node", "two", "words"], "put it in quotes"),
        (["worker", "-P", "gevent"], "gevent"),
        (["wait"], "RUN"),
        (["run", "hello", "--max-cost", "0"], "0.0 is not in the range x>0"),
        (["submit", "hello", "--max-cost", "cheap"], "'cheap' is not a valid float"),
        (["run", "hello", "--max-tokens", "0"], "0 is not in the range x>=1"),
        (["submit", "hello", "--max-tokens", "1.5"], "'1.5' is not a valid integer"),
    ],
)
def test_wrong_arguments_are_explained(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert complaint in capsys.readouterr().err


def test_a_prompt_file_that_is_no_text_is_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "picture").write_bytes(b"\xff\xd8\xff")
    assert main(["run", "hello", "--file", str(tmp_path / "picture")]) == 2
    assert "as UTF-8 text" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["run", "submit"])
@pytest.mark.parametrize("cost", ["nan", "inf"])
def test_a_budget_that_is_no_amount_is_refused_before_anything_starts(
    command: str, cost: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "hello", "--max-cost", cost]) == 2
    assert f"'--max-cost': '{cost}' is not a finite number" in capsys.readouterr().err


@pytest.mark.parametrize("service", [["scheduler"], ["worker"]])
def test_a_service_on_its_own_needs_a_redis(
    service: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLEIPNIR_REDIS_URL", raising=False)
    assert main(service) == 2
    assert "sleipnir up" in capsys.readouterr().err

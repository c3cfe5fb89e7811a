"""`sleipnir run --in-process`: the same output and exit codes as `run`, without Redis and workers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

import pytest

from sleipnir.cli import main

GRAPH = """
    name: letters
    variables: [{name: SIGN, description: how it ends, default: "!"}]
    start: read
    nodes:
      read: {type: function, call: "steps.py:read", next: ask}
      ask: {type: input, question: "Which bell in {{text}}?", state_updates: {bell: "{{input}}"}, next: done}
      done: {type: end, output: "{{bell}}: {{text}}"}
"""


class Done(NamedTuple):
    code: int
    out: str
    err: str


Command = Callable[..., Done]


@pytest.fixture
def letters(tmp_path: Path) -> str:
    folder = tmp_path / "letters"
    folder.mkdir()
    (folder / "graph.yaml").write_text(dedent(GRAPH))
    (folder / "steps.py").write_text(
        dedent(
            """
            def read(state):
                if state["initial_prompt"] == "bad":
                    raise ValueError("cannot be read")
                return {"text": state["initial_prompt"].upper()}
            """
        )
    )
    return str(folder)


@pytest.fixture
def command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    def run(*words: str) -> Done:
        code = main(["--home", str(tmp_path / "home"), "run", "--in-process", *words])
        out, err = capsys.readouterr()
        return Done(code, out, err)

    return run


def test_it_prints_the_result_and_narrates(command: Command, letters: str) -> None:
    done = command(letters, "a crack", "--answer", "ask=the old one")
    assert (done.code, done.out) == (0, "the old one: A CRACK\n")
    assert done.err.count("not durable") == 1
    for line in ("▸ read (function)", "waiting for an answer: Which bell in A CRACK?", "answered: the old one"):
        assert line in done.err


def test_json_is_that_of_run(command: Command, letters: str) -> None:
    done = command(letters, "a crack", "--answer", "ask=x", "--json")
    data = json.loads(done.out)
    assert done.code == 0
    assert (data["status"], data["output"], data["agent"], data["gates"]) == ("completed", "x: A CRACK", "letters", [])
    assert data["ended_ms"] >= data["started_ms"] >= data["created_ms"] > 0


def test_json_lines_with_stream(command: Command, letters: str) -> None:
    done = command(letters, "a crack", "--answer", "ask=x", "--json", "--stream")
    lines = [json.loads(line) for line in done.out.splitlines()]
    assert lines[0]["type"] == "run_started"
    assert [line["data"]["node"] for line in lines if line["type"] == "visit_closed"] == ["read", "ask", "done"]
    assert lines[-1]["type"] == "result" and lines[-1]["data"]["output"] == "x: A CRACK"


def test_without_an_answer_it_says_how_to_give_one(command: Command, letters: str) -> None:
    done = command(letters, "a crack")
    assert (done.code, done.out) == (3, "")
    assert "waited for an answer to 'ask', and is gone: Which bell in A CRACK?" in done.err
    assert "--answer ask=TEXT" in done.err


def test_at_a_breakpoint_it_says_that_the_run_is_gone(command: Command, letters: str) -> None:
    done = command(letters, "a crack", "--break-before", "ask")
    assert (done.code, done.out) == (3, "")
    assert "▸ stopped before 'ask'; next: 'ask'" in done.err
    assert "had stopped at a breakpoint before 'ask'; next: 'ask', and is gone" in done.err
    refused = command(letters, "a crack", "--break-after", "aks")
    assert (refused.code, "Interrupt node `aks` not found" in refused.err) == (2, True)


def test_a_failed_run_is_a_failed_command(command: Command, letters: str) -> None:
    done = command(letters, "bad", "--strict")
    assert (done.code, done.out) == (1, "")
    assert "cannot be read (steps.py:4" in done.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--answer", "aks=x"), "has no node 'aks'. Did you mean \"ask\"?"),
        (("--session", "monday"), "session"),
        (("--var", "SGIN=x"), "SGIN"),
        (("--state", "initial_prompt=1"), "initial_prompt"),
    ],
)
def test_mistakes_are_exit_code_2_before_anything_runs(
    command: Command, letters: str, words: tuple[str, ...], message: str
) -> None:
    done = command(letters, "a crack", *words)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert "▸ read" not in done.err


def test_an_unused_answer_is_told(command: Command, letters: str) -> None:
    done = command(letters, "a crack", "--answer", "ask=x", "--answer", "done=y")
    assert done.code == 0
    assert "--answer done=... was not used" in done.err

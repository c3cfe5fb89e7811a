"""What agents, models and other people write reaches a terminal without control sequences; programs get it as it is."""

from __future__ import annotations

import json
import os
import pty
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sleipnir.client.client import Run
from tests import starter
from tests.processes import Stack, wait_until, write_agent

HOSTILE = "\x1b]0;title\x07\x1b[2J\x1b[31mred\x9b31m\x85\x7f\u202edesrever\u2066"
BAD = re.compile(r"\x1b|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]|[\u202a-\u202e\u2066-\u2069]")
GRAPH = """
name: hostile
start: show
variables: [{name: what, description: said by all, default: x}]
nodes:
  show: {type: script, script: show.py, next: sure}
  sure: {type: approval, question: "{{text}}", options: ["yes"], routes: {yes: done}, on_other: fails}
  fails: {type: script, script: fails.py}
  done: {type: end, output: "{{text}}"}
"""
SHOW = f"import json, sys\nprint({HOSTILE!r}, file=sys.stderr)\nprint(json.dumps({{'text': {HOSTILE!r}}}))\n"
FAILS = f"import sys\nsys.exit({HOSTILE!r})\n"


@pytest.fixture(scope="module")
def runs(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """One that waits, one that has completed, one that failed, and a batch with a failed row, all with such texts."""
    folder = write_agent(tmp_path_factory.mktemp("hostile") / "hostile", GRAPH, show_py=SHOW, fails_py=FAILS)
    with stack.client() as client:

        def started() -> Run:
            run = client.submit(str(folder), HOSTILE, variables={"what": HOSTILE})
            wait_until(lambda: run.gates(), f"run {run.id} asks")
            return run

        waiting, completed, failed = started(), started(), started()
        completed.answer("yes")
        failed.answer(HOSTILE)
        batch = client.batch(str(folder), [{"prompt": HOSTILE}], name=f"b{HOSTILE}")
        (row,) = wait_until(lambda: client.runs(5, {"waiting"}, batch=batch.id), "the row asks")
        client.run(row.id).answer(HOSTILE)
        for run in (completed, failed, client.run(row.id)):
            run.wait(60)
        wait_until(lambda: batch.info().failed == 1, "the batch is over")
        yield {
            "waiting": waiting.id, "completed": completed.id, "failed": failed.id, "batch": batch.id,
            "agent": str(folder),
        }  # fmt: skip
        waiting.cancel()


def on_a_terminal(stack: Stack, words: list[str]) -> str:
    """What a terminal is sent by a command whose three streams it is."""
    mine, theirs = pty.openpty()
    env = {**stack.environment(), "NO_COLOR": "1", "TERM": "xterm", "COLUMNS": "100"}
    with open(theirs, "r+b", buffering=0) as stream:  # noqa: PTH123
        process = starter.start([sys.executable, "-m", "sleipnir", *words], env, stream, stream, stream)
    sent = b""
    while chunk := _read(mine):
        sent += chunk
    os.close(mine)
    process.wait(60)
    return sent.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other side has closed
        return b""


COMMANDS = [
    "show {waiting}", "show {completed}", "show {failed}", "show {completed} --json", "show {completed} --state",
    "watch {completed}", "watch {failed}", "watch {completed} --json", "wait {completed} {failed}", "ps --all",
    "ps --all --json", "gates", "gates --json", "history {completed}", "history {failed} --json", "export {completed}",
    "draw --run {failed}", "draw --run {waiting} --format svg", "batch ls", "batch show {batch}",
    "batch errors {batch}", "compare {completed} {failed}", "compare {completed} {failed} --json",
    "compare {batch} {batch} --judge b.output", "compare {batch} {batch} --json",
    "batch results {batch}", "batch results {batch} --format csv", "batch watch {batch}", "agents show {agent}",
    "validate {agent}",
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_a_terminal_gets_no_control_sequence_of_others(stack: Stack, runs: dict[str, str], command: str) -> None:
    """S12 of the second review: escape sequences of results reached the terminal raw."""
    sent = on_a_terminal(stack, [word.format(**runs) for word in command.split()])
    assert "No such option" not in sent
    assert "Traceback" not in sent
    without_breaks = sent.replace("\r\n", "").replace("\x1b[?25h", "").replace("\x1b[?25l", "")
    without_drawing = re.sub(r"\x1b\[[0-9]*[AK]|\r", "", without_breaks)  # a bar that is drawn again
    assert BAD.findall(without_drawing) == [], ascii(sent)


def test_a_program_gets_results_as_they_are(stack: Stack, runs: dict[str, str]) -> None:
    assert stack.sleipnir("watch", runs["completed"]).stdout == HOSTILE + "\n"
    shown = stack.sleipnir("show", runs["completed"], "--json").stdout
    assert json.loads(shown)["output"] == HOSTILE
    assert BAD.findall(shown) == []
    assert json.loads(stack.sleipnir("show", runs["completed"], "--state").stdout)["text"] == HOSTILE
    exported = stack.sleipnir("export", runs["completed"]).stdout
    assert json.loads(exported.rstrip("\n").split("\n")[-1])["output"] == HOSTILE


def test_a_run_in_the_foreground_shows_its_output_without_control_sequences(stack: Stack, tmp_path: Path) -> None:
    """S12 of the second review."""
    graph = (
        'name: one\nstart: a\nnodes: {a: {type: script, script: a.py, next: z}, z: {type: end, output: "{{text}}"}}\n'
    )
    folder = write_agent(tmp_path / "one", graph, a_py=SHOW)
    sent = on_a_terminal(stack, ["run", str(folder), HOSTILE])
    assert "\\x1b]0;title\\x07" in sent
    assert "\x1b]" not in sent and "\x9b" not in sent and "\u202e" not in sent

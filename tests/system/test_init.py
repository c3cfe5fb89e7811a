"""`sleipnir init`: what it makes works as it is, by the three commands that it prints; and the tutorial."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from sleipnir.cli.agents.init import KINDS

TUTORIAL = Path(__file__).parents[2] / "docs" / "first-agent.md"

pytestmark = pytest.mark.timeout(900)  # each test starts several stacks, one after the other

RESULTS = {
    "script": "6 words; the longest is not.\n",
    "map": "Total: 7.30\nNot read: a taxi\n",
    "loop": "Fresh bread at six\n",
    "rag": "From seven to half past ten, on Sundays until noon (breakfast.md).\n",
}
IN_THE_TUTORIAL = "llm"


class Terminal:
    """A shell with `sleipnir` and `pytest` on its PATH, in an empty folder and without a key."""

    def __init__(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "project"
        self.folder.mkdir()
        clean = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SLEIPNIR_", "PYTEST", "OPENAI_")) and "PYTEST" not in name
        }
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.env = clean | {"PATH": path, "SLEIPNIR_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)}

    def __call__(self, command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", command], cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    return Terminal(tmp_path)


def printed_commands(terminal: Terminal, agent: str, kind: str) -> list[str]:
    """The three that `sleipnir init` prints, of which the first has been run."""
    made = terminal(f"sleipnir init {agent} --template {kind}")
    assert made.returncode == 0, made.stderr
    commands = re.findall(r"^  ((?:sleipnir|pytest) .+)$", made.stderr, re.MULTILINE)
    assert [command.split()[:2] for command in commands[:2]] == [["sleipnir", "validate"], ["sleipnir", "run"]]
    validated = terminal(commands[0])
    assert (validated.returncode, validated.stdout[:3]) == (0, "ok:"), validated
    assert "0 warnings" in validated.stdout
    return commands


@pytest.mark.parametrize("kind", RESULTS)
def test_the_three_commands_that_are_printed_work(kind: str, terminal: Terminal) -> None:
    _, run, test = printed_commands(terminal, "first", kind)
    ran, tested = terminal(run), terminal(test)
    assert (ran.returncode, ran.stdout) == (0, RESULTS[kind]), ran.stderr
    assert tested.returncode == 0, tested.stdout
    assert re.search(r"^=+ \d+ passed", tested.stdout, re.MULTILINE)
    assert "warning" not in tested.stdout


def test_the_three_commands_of_an_agent_that_asks_a_model_are_those_of_the_tutorial(terminal: Terminal) -> None:
    """The tutorial runs the second and the third."""
    _, run, test = printed_commands(terminal, "desk", IN_THE_TUTORIAL)
    of_the_tutorial = [shlex.split(command) for command in re.findall(r"^\$ (.+)$", TUTORIAL.read_text(), re.MULTILINE)]
    assert shlex.split(run) in of_the_tutorial
    assert shlex.split(test.replace("pytest", "pytest -q")) in of_the_tutorial


def test_every_template_is_tried() -> None:
    assert {*RESULTS, IN_THE_TUTORIAL} == set(KINDS)


def test_the_tests_of_two_agents_run_together(terminal: Terminal) -> None:
    terminal("sleipnir init first && sleipnir init second")
    done = terminal("pytest --collect-only -q agents")
    assert done.returncode == 0, done.stdout
    assert "4 tests collected" in done.stdout


def test_the_tutorial_runs_as_it_is_written(terminal: Terminal) -> None:
    """docs/first-agent.md: its commands in their order, with what they print, and the files that it shows."""
    page = TUTORIAL.read_text()
    blocks = re.findall(r"^```(console|yaml|python)\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 8
    for language, block in blocks:
        if language == "console":
            for command, shown in re.findall(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE):
                done = terminal(command)
                assert_shown(shown, done.stdout + done.stderr, command)
        else:
            file = block.partition("\n")[0].removeprefix("# ")
            (terminal.folder / file).write_text(block)


def assert_shown(shown: str, printed: str, command: str) -> None:
    """Each line of the page but `...` is printed. Their order is not compared: they come by two streams."""
    lines = [varying(line) for line in printed.splitlines()]
    for line in shown.splitlines():
        assert line == "..." or varying(line) in lines, f"{command}\n{line}\n---\n{printed}"


def varying(line: str) -> str:
    """Without the ids and times that differ from run to run. After a minute pytest adds ` (0:01:07)`."""
    without_times = re.sub(r"\b\d[\d.]* ?m?s\b( \(\d+:\d\d:\d\d\))?", "TIME", line.strip())
    return re.sub(r"\b(?=[a-z0-9]*\d)[a-z0-9]{12}\b", "RUN", without_times)

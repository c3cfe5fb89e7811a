"""The command line as a user types it, with its private stack: exit codes, answers, and nothing left running."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from sleipnir.testing import ModelServer, Reply
from tests import starter
from tests.processes import wait_until, write_agent

FIXTURES = Path(__file__).parents[1] / "fixtures" / "agents"

ASK = """
name: ask
start: sure
nodes:
  sure: {type: approval, question: "Sure?", options: [yes, no], routes: {yes: good, no: bad}, on_other: bad}
  good: {type: end, output: "good"}
  bad: {type: script, script: bad.sh}
"""
BAD_SH = "echo broken >&2; exit 4\n"


class Shell:
    """`sleipnir ...` in a home of its own."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.agents = folder / "agents"
        self.agents.mkdir()
        keep = {name: value for name, value in os.environ.items() if not name.startswith("SLEIPNIR_")}
        self.env = keep | {"SLEIPNIR_HOME": str(self.home), "SLEIPNIR_AGENTS_DIR": str(self.agents), "NO_COLOR": "1"}

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "sleipnir", *words]

    def __call__(
        self, *words: str, env: Mapping[str, str] | None = None, text: str = ""
    ) -> subprocess.CompletedProcess[str]:
        return starter.run(self.command(*words), {**self.env, **(env or {})}, text=text, timeout_s=90)

    def processes(self) -> list[str]:
        """Command lines of processes that know this home."""
        found = []
        for process in Path("/proc").iterdir():
            try:
                if process.name.isdigit() and str(self.home).encode() in (process / "environ").read_bytes():
                    found.append((process / "cmdline").read_text().replace("\0", " "))
            except OSError:
                continue
        return found


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    made = Shell(tmp_path)
    write_agent(made.agents / "ask", ASK, bad_sh=BAD_SH)
    return made


def test_a_run_prints_its_result_narrates_on_stderr_and_leaves_nothing_running(shell: Shell) -> None:
    done = shell("run", "ask", "--answer", "sure=yes")
    assert (done.returncode, done.stdout) == (0, "good\n")
    assert "▸ graph: ask (start: sure)" in done.stderr
    assert "▸ sure -> good" in done.stderr
    assert shell.processes() == [], "nothing of the stack is left running when the command returns"


def test_the_stack_of_a_run_that_asks_no_model_has_no_worker_for_models(shell: Shell) -> None:
    assert shell("run", "ask", "--answer", "sure=no").returncode == 1
    assert sorted(log.stem for log in (shell.home / "logs").iterdir()) == [
        "redis", "scheduler", "supervisor", "worker-scripts",
    ]  # fmt: skip


def test_a_failed_run_exits_with_1_and_reports_the_node_and_the_reason(shell: Shell) -> None:
    done = shell("run", "ask", "--answer", "sure=no")
    assert (done.returncode, done.stdout) == (1, "")
    assert "failed: Script 'bad.sh' failed with exit code 4:\n      broken" in done.stderr
    assert "at node 'bad': broken (Script 'bad.sh' failed with exit code 4)\n" in done.stderr


@pytest.mark.conformance("H01")
def test_a_question_without_a_terminal_leaves_the_run_waiting_and_the_printed_command_answers_it(shell: Shell) -> None:
    done = shell("run", "ask")
    assert done.returncode == 3
    hint = next(line for line in done.stderr.splitlines() if "sleipnir" in line and " answer " in line)
    run_id = hint.split(" answer ")[1].split()[0]
    wait_until(lambda: not shell.processes(), "the stack has stopped; the run waits in Redis' file")
    assert json.loads(shell("show", run_id, "--json").stdout)["status"] == "waiting"
    assert shell("answer", run_id, "yes").returncode == 0
    finished = shell("wait", run_id)
    assert finished.returncode == 0, finished.stderr
    again = shell("answer", run_id, "no")
    assert again.returncode == 2
    assert "already answered" in again.stderr
    history = json.loads(shell("history", run_id, "--json").stdout)
    assert [step["node"] for step in history] == [None, "sure", "good"]


def test_two_runs_at_once_share_one_stack_and_the_last_one_stops_it(shell: Shell) -> None:
    slow = "name: slow\nstart: a\nnodes:\n  a: {type: script, script: a.sh, next: e}\n  e: {type: end, output: slow}\n"
    write_agent(shell.agents / "slow", slow, a_sh="sleep 2; echo '{}'\n")
    first = subprocess.Popen(
        shell.command("run", "ask", "--answer", "sure=yes"),
        env=shell.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    second = shell("run", "slow")
    out, _ = first.communicate(timeout=60)
    assert (first.returncode, out) == (0, b"good\n")
    assert (second.returncode, second.stdout) == (0, "slow\n")
    wait_until(lambda: not shell.processes(), "nothing of the stack is left running")


def test_a_person_is_asked_on_a_terminal(shell: Shell) -> None:
    mine, theirs = pty.openpty()
    process = subprocess.Popen(
        shell.command("run", "ask"), env=shell.env, stdin=theirs, stdout=subprocess.PIPE, stderr=theirs
    )
    os.close(theirs)
    seen = _read_until(mine, b"Other (custom)")
    assert b"1" in seen
    os.write(mine, b"yes\n")
    out, _ = process.communicate(timeout=60)
    os.close(mine)
    assert (process.returncode, out) == (0, b"good\n")


def _read_until(fd: int, wanted: bytes) -> bytes:
    seen = b""
    while wanted not in seen:
        seen += os.read(fd, 4096)
    return seen


BROKEN = "name: broken\nstart: a\nnodes:\n  a: {type: end\n  b: x\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "aks"], "Did you mean 'ask'?"),
        (["run", "broken"], "graph.yaml:5:"),
        (["run", "both"], "has both config.yaml and graph.yaml"),
        (["run", "ask", "--var", "x=1"], "has no variable 'x'"),
        (["run", "ask", "--session", "s"], "does not support sessions"),
        (["show", "nosuchrun123"], "no run 'nosuchrun123'"),
        (["rnu"], "run"),
    ],
)
@pytest.mark.conformance("N02", "L02")
def test_wrong_usage_exits_with_2_and_a_suggestion(shell: Shell, words: Sequence[str], said: str) -> None:
    write_agent(shell.agents / "broken", BROKEN)
    write_agent(shell.agents / "both", ASK, config_yaml="name: both\n")
    done = shell(*words)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_prompt_that_is_too_large_is_refused(shell: Shell) -> None:
    done = shell("run", "ask", "-", text="x" * 5_000_000)
    assert done.returncode == 2
    assert "SLEIPNIR_MAX_PROMPT_BYTES" in done.stderr


def test_a_home_that_cannot_be_written_is_named_with_a_way_out(shell: Shell, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    done = shell("run", "ask", env={"SLEIPNIR_HOME": str(blocked / "home")})
    assert done.returncode == 2
    assert "Set SLEIPNIR_HOME (or --home)" in done.stderr


TASK = {
    "action": "buy",
    "items": ["milk", "eggs"],
    "time_minutes": 15,
    "priority": "high",
    "details": {"urgent": True, "deadline": None},
}


@pytest.mark.conformance("O03", "O06", "T06", "M01")
def test_the_sample_graph_structured_test_runs_with_a_model(shell: Shell) -> None:
    with ModelServer([Reply(f"```json\n{json.dumps(TASK)}\n```")]) as server:
        done = shell(
            "run", str(FIXTURES / "structured-test"), "--answer", "ask_task=Buy milk and eggs, 15 minutes. Urgent.",
            env=server.env("openai", "sk-test") | {"SLEIPNIR_MODEL": "openai:gpt-test"},
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Priority: high" in done.stdout
    assert "Time: 15 min" in done.stdout
    assert "Urgent? true" in done.stdout
    assert "First item: milk" in done.stdout
    assert 'All items: ["milk","eggs"]' in done.stdout
    assert 'Parse this task description: "Buy milk and eggs, 15 minutes. Urgent."' in server.requests[0].prompt


@pytest.mark.conformance("O10")
def test_only_folders_are_listed_as_agents_not_the_extractor_s_role(shell: Shell) -> None:
    listed = json.loads(shell("agents", "--json").stdout)
    assert "ask" in [agent["name"] for agent in listed]
    assert all(Path(agent["folder"]).is_dir() for agent in listed)
    assert not [agent["name"] for agent in listed if "structured" in agent["name"]]


@pytest.mark.conformance("L05")
def test_agents_in_loki_s_configuration_directory_are_found(shell: Shell, tmp_path: Path) -> None:
    by_env, by_xdg = tmp_path / "loki", tmp_path / "xdg"
    write_agent(by_env / "agents" / "from-loki", ASK)
    write_agent(by_xdg / "loki" / "agents" / "from-xdg", ASK)
    listed = shell("agents", env={"LOKI_CONFIG_DIR": str(by_env)})
    assert "from-loki" in listed.stdout
    listed = shell("agents", env={"XDG_CONFIG_HOME": str(by_xdg)})
    assert "from-xdg" in listed.stdout

"""Commands that look at a private stack which is stopped: they start its Redis alone, for as long as they look.

Finding U13 of the second review.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sleipnir.local.home import Home
from sleipnir.local.supervisor import find_server
from tests import starter
from tests.processes import wait_until, write_agent
from tests.system.test_command_line import ASK, BAD_SH, Shell

LOOKS = (
    ["ps", "--json"],
    ["show", "RUN"],
    ["history", "RUN"],
    ["state", "RUN", "--at", "0"],
    ["compare", "RUN", "RUN"],
    ["gates"],
    ["batch", "ls"],
    ["limits"],
    ["dead-letters", "ls"],
)

COUNT_PARTITIONS = """
from sleipnir.local.stack import stack
from sleipnir.settings import Settings
from sleipnir.store.store import Store
with stack(Settings.from_env(), workers=False) as settings, Store.open(settings) as store:
    print(store.keys.partitions)
"""


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


@pytest.fixture
def run_id(shell: Shell) -> str:
    """A run that was submitted and has not begun: whatever plans would carry it on."""
    write_agent(shell.agents / "ask", ASK, bad_sh=BAD_SH)
    return shell("submit", "ask").stdout.strip()


def test_a_look_starts_redis_alone_and_leaves_nothing_running(shell: Shell, run_id: str) -> None:
    for words in LOOKS:
        looked = shell(*(run_id if word == "RUN" else word for word in words))
        assert looked.returncode == 0, (words, looked.stderr)
        assert shell.processes() == []
    assert {log.name for log in (shell.home / "logs").iterdir()} == {"redis.log", "supervisor.log"}
    [info] = json.loads(shell("ps", "--json").stdout)
    assert (info["id"], info["status"]) == (run_id, "submitted")


@pytest.mark.parametrize(("asked", "number"), [("", 16), ("32", 32)])
def test_a_private_stack_has_16_partitions_unless_it_is_asked_for_more(shell: Shell, asked: str, number: int) -> None:
    environment = shell.env | {"SLEIPNIR_PARTITIONS": asked}
    looked = starter.run([sys.executable, "-c", COUNT_PARTITIONS], environment)
    assert (looked.stdout, looked.stderr) == (f"{number}\n", "")


def test_many_looks_at_once_share_one_redis(shell: Shell, run_id: str) -> None:
    looks = [
        subprocess.Popen(shell.command("ps", "--json"), env=shell.env, stdout=subprocess.PIPE, text=True)
        for _ in range(5)
    ]
    found = [look.communicate(timeout=90)[0] for look in looks]
    assert [look.returncode for look in looks] == [0] * len(looks)
    assert [json.loads(text)[0]["id"] for text in found] == [run_id] * len(looks)
    wait_until(lambda: not shell.processes(), "the stack is gone")


SLOW_SERVER = """#!/bin/sh
[ "$1" = --version ] || until [ -e "$GO" ]; do sleep 0.05; done
exec "$SERVER" "$@"
"""


def test_commands_that_begin_together_share_a_stack_that_takes_long_to_start(
    shell: Shell, run_id: str, tmp_path: Path
) -> None:
    """The second one's supervisor finds that another one starts."""
    server, go = tmp_path / "bin" / "redis-server", tmp_path / "go"
    server.parent.mkdir()
    server.write_text(SLOW_SERVER)
    server.chmod(0o755)
    env = shell.env | {"GO": str(go), "SERVER": str(find_server()), "PATH": f"{server.parent}:{shell.env['PATH']}"}
    pipe = subprocess.PIPE
    looks = [subprocess.Popen(shell.command("ps", "--json"), env=env, stdout=pipe, stderr=pipe) for _ in range(2)]
    try:
        wait_until(lambda: len(_at_the_lock(shell)) == 2, "both supervisors have come to the lock")
    finally:
        go.touch()
        found = [look.communicate(timeout=90) for look in looks]
    assert [look.returncode for look in looks] == [0, 0], found
    assert [json.loads(out)[0]["id"] for out, _ in found] == [run_id] * 2
    wait_until(lambda: not shell.processes(), "the stack is gone")


def _at_the_lock(shell: Shell) -> set[str]:
    """The supervisors that have opened their lock."""
    found = set()
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if link.readlink() == shell.home / "supervisor.lock":
                found.add(link.parts[2])
    return found


HOLD = """
import time
from sleipnir.local.stack import stack
from sleipnir.settings import Settings
with stack(Settings.from_env(), workers=False):
    time.sleep(300)
"""


@pytest.fixture
def long_look(shell: Shell, run_id: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command that looks, and is not done yet."""
    looking = subprocess.Popen([sys.executable, "-c", HOLD], env=shell.env)
    wait_until(Home(shell.home).running, "it looks")
    yield looking
    looking.kill()
    looking.wait()


def test_a_look_that_is_killed_leaves_nothing_running(
    shell: Shell, run_id: str, long_look: subprocess.Popen[bytes]
) -> None:
    long_look.kill()
    long_look.wait()
    wait_until(lambda: not shell.processes(), "the stack is gone")
    assert run_id in shell("ps").stdout


def test_a_redis_that_outlives_its_supervisor_keeps_the_next_one_waiting(
    shell: Shell, run_id: str, long_look: subprocess.Popen[bytes]
) -> None:
    """It would write the same file, and remove the other's socket when it ends."""
    state = wait_until(Home(shell.home).running, "it looks")
    [redis] = _children(state.pid)
    os.kill(redis, signal.SIGSTOP)  # as one that waits for a slow disk
    os.kill(state.pid, signal.SIGKILL)
    long_look.kill()
    long_look.wait()
    log = shell.home / "logs" / "supervisor.log"
    with subprocess.Popen(shell.command("ps", "--json"), env=shell.env, stdout=subprocess.PIPE, text=True) as looking:
        try:
            wait_until(lambda: "still uses" in log.read_text(), "the next supervisor says what it waits for")
            assert looking.poll() is None
        finally:
            os.kill(redis, signal.SIGCONT)
        assert [info["id"] for info in json.loads(looking.communicate(timeout=90)[0])] == [run_id]
    wait_until(lambda: not shell.processes(), "the stack is gone")


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

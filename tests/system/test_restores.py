"""Redis goes back in time while runs go on: a backup is restored, a server restarts, the private stack stops."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sleipnir.client.client import Client, Run
from tests import starter
from tests.processes import RedisServer, Stack, wait_until, write_agent

ONCE = """
name: once
start: pay
nodes:
  pay: {type: script, script: pay.sh, effect: once, next: done, timeout: 600}
  done: {type: end, output: "{{paid}}"}
"""
QUICK = """
name: quick
start: done
nodes:
  done: {type: end, output: "ready"}
"""
PAYS = 'echo x >> "$PAID"; echo \'{"paid": "again"}\'\n'


@pytest.fixture
def server() -> Iterator[RedisServer]:
    made = RedisServer()
    yield made
    made.stop()


@pytest.fixture
def stack(server: RedisServer, tmp_path: Path) -> Iterator[Stack]:
    with Stack(server, tmp_path / "home") as made:
        made.start_scheduler()
        yield made


def paying(client: Client, folder: Path) -> Run:
    """A run whose payment is queued."""
    agent = write_agent(folder / "once", ONCE, pay_sh=PAYS.replace("$PAID", str(folder / "paid")))
    run = client.submit(agent)
    wait_until(lambda: run.info().visits, "the visit is queued")
    return run


def times_paid(folder: Path) -> int:
    file = folder / "paid"
    return len(file.read_text().splitlines()) if file.exists() else 0


def backup(server: RedisServer, to: Path) -> None:
    """The append-only files as they are: what Redis has acknowledged is in them."""
    to.mkdir()
    for file in server.folder.glob("appendonly*"):
        (shutil.copytree if file.is_dir() else shutil.copy)(file, to / file.name)


def restore(server: RedisServer, kept: Path) -> None:
    for file in server.folder.glob("appendonly*"):
        shutil.rmtree(file) if file.is_dir() else file.unlink()
    for file in kept.iterdir():
        (shutil.copytree if file.is_dir() else shutil.copy)(file, server.folder / file.name)
    server.start()


def test_what_must_happen_once_and_happened_after_a_backup_is_asked_about_when_that_is_restored(
    stack: Stack, server: RedisServer, tmp_path: Path
) -> None:
    """Finding C5 of the second review."""
    with stack.client() as client:
        run = paying(client, tmp_path)
        backup(server, tmp_path / "backup")
        stack.start_worker("first")
        assert run.wait(60).status == "completed"
        assert times_paid(tmp_path) == 1
        server.kill()
        restore(server, tmp_path / "backup")
        [gate] = wait_until(lambda: gates(run), "a person is asked", 60)
        assert (gate.kind, gate.node) == ("effect", "pay")
        assert "a backup was restored" in gate.question
        assert times_paid(tmp_path) == 1
        run.answer(json.dumps({"paid": "before the restore"}))
        assert (run.wait(60).status, run.output) == ("completed", "before the restore")
        assert times_paid(tmp_path) == 1


def gates(run: Run) -> list[object]:
    try:
        return list(run.gates())
    except Exception:
        return []


def test_a_person_reports_that_a_backup_was_restored(stack: Stack, tmp_path: Path) -> None:
    """Finding C5: where nothing can be noticed, as when the private stack is restored while it is down."""
    with stack.client() as client:
        run = paying(client, tmp_path)
        said = stack.sleipnir("doctor", "--after-restore")
        assert said.returncode == 0
        assert "ask a person before they run" in said.stdout
        stack.start_worker("first")
        [gate] = wait_until(lambda: gates(run), "a person is asked", 60)
        assert times_paid(tmp_path) == 0
        run.answer("run again", gate)
        assert (run.wait(60).status, run.output) == ("completed", "again")
        assert times_paid(tmp_path) == 1


def test_the_private_stack_that_is_stopped_and_started_puts_nothing_in_doubt(tmp_path: Path) -> None:
    """Finding C5: it stops Redis after all that work, so nothing can be lost."""
    agent, home = write_agent(tmp_path / "quick", QUICK), tmp_path / "home"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLEIPNIR_")}
    for _ in range(3):
        ended = starter.run([sys.executable, "-m", "sleipnir", "--home", str(home), "run", str(agent)], environment)
        assert ended.returncode == 0, ended.stderr
    log = (home / "logs" / "scheduler.log").read_text()
    assert (log.count("the deployment began"), log.count("lost nothing"), log.count("Redis restarted")) == (1, 2, 0)

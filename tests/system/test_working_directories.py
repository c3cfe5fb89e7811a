"""Where runs work, on the caller's machine and on others, and what lies beside their agents there."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sleipnir.client import agent_preparation
from sleipnir.local.same_directory import System
from sleipnir.upkeep.work_folders import UNKNOWN_S, WORK
from tests.processes import RedisServer, Stack, wait_until, write_agent

ONE = """
name: one
start: a
nodes:
  a: {type: script, script: scripts/a.sh, next: done}
  done: {type: end, output: "{{said}}"}
"""
TWO = """
name: two
start: a
nodes:
  a: {type: script, script: scripts/a.sh, next: b}
  b: {type: script, script: scripts/b.sh, next: done}
  done: {type: end, output: "{{said}}"}
"""
WRITE_SH = 'echo "$GRAPH_RUN_ID" >> notes.txt\necho "{}"\n'
SLOW = """
name: slow
start: a
nodes:
  a: {type: script, script: scripts/a.sh, next: b}
  b: {type: script, script: scripts/b.sh, next: done, timeout: 90}
  done: {type: end, output: "{{said}}"}
"""
MEET_SH = 'touch met; until [ -e go ]; do sleep 0.05; done\nprintf \'{"said": "%s"}\' "$(cat notes.txt)"\n'
BUSY_SH = 'touch begun; until [ -e go ]; do sleep 0.05; done; echo \'{"said": ""}\'\n'
READ_SH = 'printf \'{"said": "%s"}\' "$(tr "\\n" " " < notes.txt)"\n'


class Elsewhere:
    """Another machine, of which no process here sees a directory."""

    @classmethod
    def here(cls) -> System:
        return System("another boot", "another view", "another installation")


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are submitted on another machine than the workers'."""
    monkeypatch.setattr(agent_preparation, "System", Elsewhere)


def test_two_runs_side_by_side_do_not_see_each_others_files(
    redis_server: RedisServer, tmp_path: Path, elsewhere: None
) -> None:
    """Finding U6 of the second review."""
    agents = [
        write_agent(tmp_path / name, TWO.replace("two", name), scripts__a_sh=WRITE_SH, scripts__b_sh=READ_SH)
        for name in ("first", "second")
    ]
    with Stack(redis_server, tmp_path / "home", key_prefix="apart") as stack, stack.client() as client:
        stack.start_scheduler()
        stack.start_worker()
        runs = [client.submit(agent, caller_dir=tmp_path) for agent in agents]
        for run in runs:
            assert run.wait(60).status == "completed"
            assert run.output == f"{run.id} "
        assert sorted(path.name for path in (stack.home / WORK).iterdir()) == sorted(run.id for run in runs)
        assert not (tmp_path / "notes.txt").exists()


def test_runs_of_the_callers_machine_work_in_its_directory(redis_server: RedisServer, tmp_path: Path) -> None:
    """Finding U6 of the second review."""
    agent = write_agent(tmp_path / "agent", TWO, scripts__a_sh=WRITE_SH, scripts__b_sh=READ_SH)
    (tmp_path / "project").mkdir()
    with Stack(redis_server, tmp_path / "home", key_prefix="beside") as stack, stack.client() as client:
        stack.start_scheduler()
        stack.start_worker()
        run = client.submit(agent, caller_dir=tmp_path / "project")
        assert run.wait(60).status == "completed"
        assert (tmp_path / "project" / "notes.txt").read_text() == f"{run.id}\n"


def test_the_shared_folder_of_agents_is_next_to_them_on_a_worker(
    redis_server: RedisServer, tmp_path: Path, elsewhere: None
) -> None:
    """Finding U5 of the second review."""
    script = 'source "$(dirname "$0")/../../.shared/utils.sh"\nprintf \'{"said": "%s"}\' "$(greet)"\n'
    agent = write_agent(tmp_path / "agents" / "one", ONE, scripts__a_sh=script)
    (tmp_path / "agents" / ".shared").mkdir()
    (tmp_path / "agents" / ".shared" / "utils.sh").write_text("greet() { echo hello; }\n")
    with Stack(redis_server, tmp_path / "home", key_prefix="shared") as stack, stack.client() as client:
        stack.start_scheduler()
        stack.start_worker()
        run = client.submit(agent)
        assert (run.wait(60).status, run.output) == ("completed", "hello")


@pytest.mark.parametrize("warm", [True, False])
def test_an_agent_that_writes_to_its_folder_gets_an_error_with_the_right_place(
    redis_server: RedisServer, tmp_path: Path, warm: bool
) -> None:
    """Finding U6 of the second review. As root the write succeeds, and the visit fails all the same."""
    graph = ONE.replace("a.sh", "a.py").replace("next: done}", "fallback: done}").replace("{{said}}", "{{last_error}}")
    text = "import os, pathlib\npathlib.Path(os.environ['LLM_AGENT_ROOT_DIR'], 'x.txt').write_text('x')\nprint('{}')\n"
    agent = write_agent(tmp_path / "one", graph, scripts__a_py=text)
    prefix = f"writes-{warm}"
    with Stack(redis_server, tmp_path / "home", key_prefix=prefix, warm_python=warm) as stack, stack.client() as client:
        stack.start_scheduler()
        stack.start_worker()
        run = client.submit(agent, caller_dir=tmp_path)
        assert run.wait(60).status == "completed"
        assert f"is read-only: write below the working directory, '{tmp_path}'," in str(run.output)


def test_a_directory_that_no_worker_has_fails_the_visit_and_reports_it(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    """Finding U6 of the second review."""
    graph = ONE.replace("next: done}", "fallback: done}").replace("{{said}}", "{{last_error}}")
    agent = write_agent(tmp_path / "one", graph, scripts__a_sh="echo '{}'\n")
    with Stack(redis_server, tmp_path / "home", key_prefix="nowhere") as stack, stack.client() as client:
        stack.start_scheduler()
        stack.start_worker()
        run = client.submit(agent, cwd=tmp_path / "shop")
        assert run.wait(60).status == "completed"
        assert f"no working directory: '{tmp_path}/shop' was missing on the worker each time" in str(run.output)


def test_private_runs_side_by_side_work_where_each_was_started(tmp_path: Path) -> None:
    """Finding U6 of the second review."""
    write_agent(tmp_path / "agents" / "writer", SLOW, scripts__a_sh=WRITE_SH, scripts__b_sh=MEET_SH)
    keep = {name: value for name, value in os.environ.items() if not name.startswith("SLEIPNIR_")}
    env = keep | {"SLEIPNIR_HOME": str(tmp_path / "home"), "SLEIPNIR_AGENTS_DIR": str(tmp_path / "agents")}
    command = [sys.executable, "-m", "sleipnir", "run", "writer"]
    projects = [tmp_path / name for name in ("first", "second")]
    pipe = subprocess.PIPE
    with contextlib.ExitStack() as commands:
        started = []
        for project in projects:
            project.mkdir()
            process = subprocess.Popen(command, cwd=project, env=env, stdout=pipe, stderr=pipe, text=True)
            started.append(commands.enter_context(process))
            commands.callback(process.kill)
        for project in projects:
            wait_until(
                lambda project=project: (project / "met").exists() or any(process.poll() for process in started),
                f"the run in {project.name} is at its second node, or a command has failed",
            )
            assert (project / "met").exists(), [process.communicate() for process in started if process.poll()]
        for project in projects:
            (project / "go").touch()
        ended = [process.communicate(timeout=90) for process in started]
    notes = [(project / "notes.txt").read_text() for project in projects]
    assert [out.strip() for out, _ in ended] == [text.strip() for text in notes], ended
    assert len({*notes}) == 2 and all(text.count("\n") == 1 for text in notes)
    assert not list((tmp_path / "home").rglob("notes.txt"))


# How long scratch folders stay


def test_a_scratch_folder_outlives_its_worker_and_goes_once_its_run_is_over(
    redis_server: RedisServer, tmp_path: Path, elsewhere: None
) -> None:
    """Finding U6 of the second review. Any process may die on any line."""
    agent = write_agent(tmp_path / "slow", SLOW, scripts__a_sh=WRITE_SH, scripts__b_sh=MEET_SH)
    stack = Stack(redis_server, tmp_path / "home", key_prefix="outlive", work_retention_s=0)
    with stack, stack.client() as client:
        stack.start_scheduler()
        stack.start_worker("first")
        run = client.submit(agent)
        folder = stack.home / WORK / run.id
        wait_until((folder / "met").exists, "the second node has begun")
        stack.kill("first")
        (folder / "met").unlink()
        stack.start_worker("second")  # it looks for folders when it starts
        wait_until((folder / "met").exists, "the second node has begun again")
        (folder / "go").touch()
        assert (run.wait(60).status, run.output) == ("completed", run.id)
        stack.kill("second")
        stack.start_worker("third")
        wait_until(lambda: not folder.exists(), "the next worker has removed it")


def test_old_scratch_folders_of_unknown_runs_are_removed(
    redis_server: RedisServer, tmp_path: Path, elsewhere: None
) -> None:
    """Finding U6 of the second review. Of a run that is over, the retention counts from its end."""
    agent = write_agent(tmp_path / "two", TWO, scripts__a_sh=WRITE_SH, scripts__b_sh=READ_SH)
    with Stack(redis_server, tmp_path / "home", key_prefix="knows") as stack, stack.client() as client:
        stack.start_scheduler()
        stack.start_worker()
        runs = [client.submit(agent) for _ in range(2)]
        assert [run.wait(60).status for run in runs] == ["completed"] * 2
    old, new = (tmp_path / "home" / WORK / run.id for run in runs)
    long_ago = time.time() - UNKNOWN_S - 60
    for path in (*old.iterdir(), old):
        os.utime(path, (long_ago, long_ago))
    with Stack(redis_server, tmp_path / "home", key_prefix="forgot", work_retention_s=0) as stack:
        stack.start_worker()
        wait_until(lambda: not old.exists(), "the old one is removed")
        assert new.exists()


# A worker with another view of the disk


def can_unshare() -> bool:
    return subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode == 0


needs_namespaces = pytest.mark.skipif(not can_unshare(), reason="this user may not make a mount namespace")


def start_worker_elsewhere(stack: Stack, name: str, mount: str, *more: str) -> None:
    """A worker in a mount namespace of its own, in which `mount` was done before, as in a container."""
    worker = [sys.executable, "-m", "celery", "-A", "sleipnir_workers.app", "worker", "-Q", "scripts", "-P", "threads"]
    command = [*worker, "-c", "2", "-n", f"{name}@%h", "--without-gossip", "--without-mingle"]
    stack.start(name, ["unshare", "-m", "sh", "-c", f'{mount} && exec "$@"', "sh", *command])
    stack.wait_for_worker(name)


@needs_namespaces
def test_another_directory_at_the_same_path_is_not_the_callers(redis_server: RedisServer, tmp_path: Path) -> None:
    """A container, or a service with a /tmp of its own, may have one, with the machine's id."""
    agent = write_agent(tmp_path / "agent", TWO, scripts__a_sh=WRITE_SH, scripts__b_sh=READ_SH)
    (tmp_path / "project").mkdir()
    with Stack(redis_server, tmp_path / "home", key_prefix="view") as stack, stack.client() as client:
        stack.start_scheduler()
        start_worker_elsewhere(stack, "worker", f"mount -t tmpfs tmpfs {tmp_path}/project")
        run = client.submit(agent, caller_dir=tmp_path / "project")
        assert (run.wait(60).status, run.output) == ("completed", f"{run.id} ")
        assert (stack.home / WORK / run.id / "notes.txt").exists()


@needs_namespaces
def test_the_callers_directory_is_used_where_it_is_mounted(redis_server: RedisServer, tmp_path: Path) -> None:
    agent = write_agent(tmp_path / "agent", TWO, scripts__a_sh=WRITE_SH, scripts__b_sh=READ_SH)
    (tmp_path / "project").mkdir()
    with Stack(redis_server, tmp_path / "home", key_prefix="mounted") as stack, stack.client() as client:
        stack.start_scheduler()
        start_worker_elsewhere(stack, "worker", f"mount --bind {tmp_path}/project {tmp_path}/project")
        run = client.submit(agent, caller_dir=tmp_path / "project")
        assert (run.wait(60).status, run.output) == ("completed", f"{run.id} ")
        assert (tmp_path / "project" / "notes.txt").read_text() == f"{run.id}\n"


@needs_namespaces
def test_a_visit_goes_to_the_worker_that_has_the_directory(redis_server: RedisServer, tmp_path: Path) -> None:
    """Finding U6 of the second review. Also when the others are idle, and the one that has it is busy."""
    agent = write_agent(tmp_path / "one", ONE, scripts__a_sh='printf \'{"said": "%s"}\' "$PWD"\n')
    busy = write_agent(tmp_path / "busy", ONE.replace("one", "busy"), scripts__a_sh=BUSY_SH)
    shop = tmp_path / "shops" / "shop"
    shop.mkdir(parents=True)
    with Stack(redis_server, tmp_path / "home", key_prefix="either") as stack, stack.client() as client:
        stack.start_scheduler()
        stack.start_worker("has", "scripts", concurrency=1)
        first = client.submit(busy, cwd=shop)
        wait_until((shop / "begun").exists, "the worker with the directory is busy")
        start_worker_elsewhere(stack, "lacks", f"mount -t tmpfs tmpfs {tmp_path}/shops")
        runs = [client.submit(agent, cwd=shop) for _ in range(5)]
        said = "another worker may have the working directory"
        wait_until(lambda: stack.log("lacks").count(said) >= 5, "all are handed back")
        (shop / "go").touch()
        for run in (first, *runs):
            assert run.wait(60).status == "completed", run.info().error
        assert {run.output for run in runs} == {str(shop)}

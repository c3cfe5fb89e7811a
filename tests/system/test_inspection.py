"""What a script can read of the processes of its user: no secret."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from sleipnir import hardening
from sleipnir.local.supervisor import worker_command
from tests.other_user import as_user
from tests.processes import RedisServer, Stack, wait_until

PLANTED = "planted-in-the-environment"

READ = """
import json, os, sys
found = {}
for pid in sys.argv[1:]:
    for name in ("environ", "mem", "maps", "auxv", "cwd"):
        path = f"/proc/{pid}/{name}"
        try:
            os.readlink(path) if name == "cwd" else open(path, "rb").read(1)
            found[f"{pid} {name}"] = "read"
        except PermissionError:
            found[f"{pid} {name}"] = "refused"
        except OSError:  # nothing is at address 0 of a memory that may be read
            found[f"{pid} {name}"] = "read"
print(json.dumps(found))
"""


@contextlib.contextmanager
def running(command: list[str], env: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(as_user(command), env=dict(env), stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def reads(*pids: int) -> dict[str, str]:
    """What a script of that user gets of these processes."""
    done = subprocess.run(
        as_user([sys.executable, "-c", READ, *map(str, pids)]), capture_output=True, text=True, check=True
    )
    found: dict[str, str] = json.loads(done.stdout)
    return found


HOLD = "import sys; from sleipnir import hardening; {act}; print('ready', flush=True); sys.stdin.read()"


@pytest.mark.skipif(sys.platform != "linux", reason="/proc and PR_SET_DUMPABLE are Linux'")
@pytest.mark.parametrize("act", ["hardening.refuse_inspection()", "None"])
def test_a_process_that_refuses_inspection_shows_nothing_to_its_own_user(act: str) -> None:
    """Finding S3."""
    command = [sys.executable, "-c", HOLD.format(act=act)]
    env = {**os.environ, "SLEIPNIR_REDIS_URL": f"redis://:{PLANTED}@x"}
    with subprocess.Popen(
        as_user(command), env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            found = set(reads(process.pid).values())
        finally:
            process.kill()
    assert found == ({"read"} if act == "None" else {"refused"}), "without it all can be read"


def test_forks_refuse_too_and_what_is_executed_does_not() -> None:
    """Finding S3."""
    code = (
        "import os, subprocess, sys\n"
        "from sleipnir import hardening\n"
        "hardening.refuse_inspection()\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    os._exit(0 if hardening.refuses_inspection() else 1)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0\n"
        "again = 'from sleipnir import hardening; print(hardening.refuses_inspection())'\n"
        "print(subprocess.run([sys.executable, '-c', again], capture_output=True, text=True).stdout)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ("False" if sys.platform == "linux" else "")


@pytest.mark.one_redis  # whose folder and socket another user may use
@pytest.mark.skipif(sys.platform != "linux", reason="/proc and PR_SET_DUMPABLE are Linux'")
def test_scheduler_workers_and_supervisor_show_nothing_to_a_script_of_their_user(redis_server: RedisServer) -> None:
    """Finding S3."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        home = Path(folder)
        home.chmod(0o777)
        for path in (redis_server.folder, Path(redis_server.socket)):
            path.chmod(0o777)
        env = {name: value for name, value in os.environ.items() if not name.startswith("SLEIPNIR_")}
        env |= Stack(redis_server, home / "x", key_prefix="inspect").settings.to_env()
        env |= {"OPENAI_API_KEY": PLANTED, "HOME": folder}
        commands = {
            "scheduler": [sys.executable, "-m", "sleipnir_scheduler"],
            "threads": worker_command("scripts", "threads", 2),
            "prefork": [*worker_command("functions", "prefork", 2), "-P", "prefork"],
            "up": [sys.executable, "-m", "sleipnir", "up"],
        }
        pids: dict[str, int] = {}
        for name, command in commands.items():
            own = {**env, "SLEIPNIR_HOME": f"{folder}/{name}"}
            pids[name] = stack.enter_context(running(command, own)).pid
        for name, pid in pids.items():
            wait_until(lambda pid=pid: set(reads(pid).values()) == {"refused"}, f"{name} refuses", 60)
        descendants = {pid for pid in map(int, _children_of(pids["prefork"]))}
        wait_until(lambda: len(_children_of(pids["prefork"])) >= 2, "the pool has forked", 60)
        descendants = set(map(int, _children_of(pids["prefork"])))
        assert set(reads(*descendants).values()) == {"refused"}


@pytest.mark.skipif(sys.platform != "linux", reason="/proc and PR_SET_DUMPABLE are Linux'")
def test_the_probe_of_a_worker_shows_nothing_to_a_script_of_its_user() -> None:
    """A gap after finding S3: a liveness probe has the worker's environment, and starts every 20 s."""
    with socket.create_server(("127.0.0.1", 0)) as silent, tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        url = f"redis://:{PLANTED}@127.0.0.1:{silent.getsockname()[1]}/0"
        env = {name: value for name, value in os.environ.items() if not name.startswith("SLEIPNIR_")}
        env |= {"SLEIPNIR_REDIS_URL": url, "SLEIPNIR_HOME": folder, "HOME": folder}
        silent.settimeout(60)
        with running([sys.executable, "-m", "sleipnir", "worker", "--health"], env) as probe:
            connection, _ = silent.accept()
            found = set(reads(probe.pid).values())
            connection.close()
    assert found == {"refused"}


def _children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_every_program_of_ours_that_holds_secrets_refuses_inspection_first() -> None:
    """Finding S3."""
    root = Path(__file__).parents[2]
    programs = [
        "workers/sleipnir_workers/app.py", "workers/sleipnir_workers/__main__.py", "sleipnir/local/supervisor.py",
        "sleipnir/cli/__init__.py",
        "workers/sleipnir_workers/knowledge/__main__.py", "scheduler/sleipnir_scheduler/main.py",
    ]  # fmt: skip
    assert [name for name in programs if f"{hardening.__name__.split('.')[1]}" not in (root / name).read_text()] == []

"""tests/unit/conftest.py refuses what a unit test may not touch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.unit import conftest

TESTS = """
import asyncio, contextlib, multiprocessing, os, socket, subprocess, threading

def test_refused_popen(): subprocess.run(["true"])
def test_refused_system(): os.system("true")
def test_refused_fork(): os.fork() or os._exit(0)
def test_refused_posix_spawn(): os.posix_spawn("/bin/true", ["true"], {})
def test_refused_multiprocessing(): multiprocessing.get_context("spawn").Process(target=print).start()
def test_refused_tcp(): socket.create_connection(("127.0.0.1", 1))
def test_refused_unix_socket():
    with socket.socket(socket.AF_UNIX) as client: client.connect("/nowhere")
def test_refused_in_a_thread():
    thread = threading.Thread(target=start_and_ignore_errors)
    thread.start()
    thread.join()
def test_refused_where_the_error_is_handled(): start_and_ignore_errors()
def test_allowed_pair():
    left, right = socket.socketpair()
    with left, right: left.sendall(b"x")
def test_allowed_loop(): asyncio.run(asyncio.sleep(0))

def start_and_ignore_errors():
    with contextlib.suppress(BaseException): subprocess.run(["true"])
"""


def test_a_unit_test_that_starts_a_process_or_connects_a_socket_fails(tmp_path: Path) -> None:
    shutil.copy(conftest.__file__, tmp_path / "conftest.py")
    (tmp_path / "test_touching.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rA", "--tb=no", "--rootdir", "."]
    environment = {**os.environ, "PYTEST_ADDOPTS": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    outcomes: dict[str, set[str]] = {}
    for line in done.stdout.splitlines():
        outcome, _, name = line.partition(" test_touching.py::test_")
        if name:
            outcomes.setdefault(name.split()[0], set()).add(outcome)
    assert len(outcomes) == 11, done.stdout
    allowed = {name for name, seen in outcomes.items() if seen == {"PASSED"}}
    assert allowed == {"allowed_pair", "allowed_loop"}, done.stdout

"""What a command has started is dead when it has ended, wherever it went."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from sleipnir_workers.execution.execution import VisitLost
from sleipnir_workers.processes import descendants, sandbox
from tests.unit.workers.visits import PATH, When, is_gone, text_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="subreapers are Linux'")

ESCAPES = {
    "setsid": "setsid sleep 1000 & echo $! > pid",
    "setsid without environment": "env -i setsid sh -c 'echo $$ > pid; exec sleep 1000' >/dev/null 2>&1 &",
    "double fork and setsid": "(setsid sh -c 'sleep 1000 & echo $! > pid' >/dev/null 2>&1 &)",
    "a session in a session": "setsid setsid sh -c 'setsid sleep 1000 & echo $! > pid; sleep 1000' >/dev/null 2>&1 &",
    "nohup": "nohup setsid sh -c 'trap \"\" TERM HUP; echo $$ > pid; sleep 1000' >/dev/null 2>&1 &",
    "another limit": "(ulimit -q 100; setsid sh -c 'echo $$ > pid; sleep 1000' >/dev/null 2>&1 &)",
}
WAIT = "\nwhile [ ! -s pid ]; do :; done\n"


def run(
    folder: Path, text: str, *, warm: bool = False, timeout_s: float = 30.0, **fields: object
) -> sandbox.CommandOutcome:
    name = "script.py" if warm else "script.sh"
    (folder / name).write_text(text)
    argv = ["python3" if warm else "bash", str(folder / name)]
    given: dict[str, object] = {"lost": threading.Event(), "max_stdout_bytes": None, **fields}
    return sandbox.run(argv, env={"PATH": PATH}, cwd=folder, timeout_s=timeout_s, warm=warm, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("escape", ESCAPES)
@pytest.mark.parametrize("warm", [False, True])
def test_what_left_its_session_is_dead_when_the_command_has_ended(tmp_path: Path, escape: str, warm: bool) -> None:
    """Finding S12."""
    text = ESCAPES[escape] + WAIT
    if warm:
        text = f"import subprocess\nsubprocess.run(['bash', '-c', {text!r}], check=True)\n"
    assert run(tmp_path, text, warm=warm).code == 0
    assert is_gone((tmp_path / "pid").read_text().strip())


@pytest.mark.parametrize("warm", [False, True])
def test_it_is_dead_after_a_timeout_too(tmp_path: Path, warm: bool) -> None:
    """Finding S12."""
    text = f"{ESCAPES['setsid']}{WAIT}sleep 1000\n"
    if warm:
        text = f"import subprocess\nsubprocess.run(['bash', '-c', {text!r}], check=True)\n"
    assert run(tmp_path, text, warm=warm, timeout_s=1.0, grace_s=0.1).reason == "timeout"
    assert is_gone((tmp_path / "pid").read_text().strip())


def test_it_is_dead_when_the_visit_was_lost(tmp_path: Path) -> None:
    """Finding S12."""
    lost = threading.Event()
    with When(lambda: text_of(tmp_path / "pid"), lost.set), pytest.raises(VisitLost):
        run(tmp_path, f"{ESCAPES['setsid']}\nsleep 1000\n", lost=lost)
    assert is_gone(text_of(tmp_path / "pid"))


def test_a_daemon_that_forks_on_and_on_is_caught(tmp_path: Path) -> None:
    """Finding S12."""
    (tmp_path / "daemon.py").write_text(
        "import os, pathlib\n"
        "for number in range(30):\n"
        "    if os.fork():\n"
        "        os._exit(0)\n"
        "    os.setsid()\n"
        "pathlib.Path('pid').write_text(f'{os.getpid()}\\n')\n"
        "import time\n"
        "time.sleep(1000)\n"
    )
    run(tmp_path, f"python3 daemon.py >/dev/null 2>&1 &{WAIT}")
    assert is_gone(text_of(tmp_path / "pid"))


def test_processes_of_another_command_or_of_this_process_keep_running(tmp_path: Path) -> None:
    """Finding S12."""
    mine = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    (tmp_path / "long").mkdir()
    lost = threading.Event()

    def long_command() -> None:
        with pytest.raises(VisitLost):
            run(tmp_path / "long", f"{ESCAPES['double fork and setsid']}{WAIT}sleep 1000\n", lost=lost)

    thread = threading.Thread(target=long_command)
    thread.start()
    try:
        pid = descendants_pid(tmp_path / "long" / "pid")
        for _ in range(3):
            assert run(tmp_path, ESCAPES["setsid"]).code == 0
        assert not is_gone(pid)
        assert mine.poll() is None
    finally:
        lost.set()
        thread.join()
        mine.kill()
        mine.wait()
    assert is_gone(pid)


def descendants_pid(file: Path) -> str:
    from tests.waiting import wait_until

    return str(wait_until(lambda: text_of(file), "the command has started its daemon"))


def test_nothing_is_left_to_reap(tmp_path: Path) -> None:
    """Finding S12."""
    before = set(descendants._adopted())
    for _ in range(3):
        run(tmp_path, "for i in 1 2 3 4 5; do (setsid true &); sleep 1000 & done")
    assert {pid for pid in descendants._adopted() if pid not in before} <= {sandbox.group_guard.guard.companion_pid}


def test_a_forked_process_has_marks_of_its_own() -> None:
    """Finding S12."""
    first = descendants.of_this_process()
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        os.write(write, b"y" if descendants.of_this_process() is not first else b"n")
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(read, 1) == b"y"
    os.close(read)
    os.close(write)


def test_a_process_that_has_resigned_adopts_the_descendants_of_its_next_command(tmp_path: Path) -> None:
    run(tmp_path, "true\n")
    assert descendants.is_subreaper()
    descendants.resign()
    assert not descendants.is_subreaper()
    assert run(tmp_path, ESCAPES["setsid"] + WAIT).code == 0
    assert is_gone((tmp_path / "pid").read_text().strip())


def test_no_process_resigns_while_it_runs_a_command() -> None:
    instance = descendants.of_this_process()
    with instance.of_command():
        instance.resign()
        assert descendants.is_subreaper()

"""The sandbox: nothing that a visit's command started outlives the visit, and nothing it does holds us up."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sleipnir_workers.execution.execution import VisitLost
from sleipnir_workers.processes import group_guard, sandbox, warm_python
from tests.unit.workers.visits import PATH, When, is_gone, text_of
from tests.waiting import wait_until


@pytest.fixture(params=[False, True], ids=["cold", "forked"], autouse=True)
def start(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Commands start in both ways, and show no difference."""
    monkeypatch.setitem(STARTS, "warm", request.param)
    warm_python.warm_python.close()
    yield
    assert bool(warm_python.warm_python.launchers()) <= request.param
    warm_python.warm_python.close()


STARTS = {"warm": False}


def run(command: str, folder: Path, **changes: Any) -> sandbox.CommandOutcome:
    arguments: dict[str, Any] = {
        "env": {"PATH": PATH},
        "cwd": folder,
        "timeout_s": 20.0,
        "lost": threading.Event(),
        "max_stdout_bytes": 2**20,
        "grace_s": 0.1,
        **STARTS,
    }
    return sandbox.run(["bash", "-c", command], **(arguments | changes))


def test_output_and_exit_code_of_a_command(tmp_path: Path) -> None:
    outcome = run("echo out; echo err >&2; exit 3", tmp_path)
    assert outcome == sandbox.CommandOutcome("exited", 3, None, b"out\n", "err\n")


def test_a_signal_is_distinguished_from_an_exit_code(tmp_path: Path) -> None:
    outcome = run("kill -SEGV $$", tmp_path)
    assert (outcome.reason, outcome.code, outcome.signal) == ("exited", None, 11)


def test_stdin_is_empty(tmp_path: Path) -> None:
    assert run("cat; echo end", tmp_path).stdout == b"end\n"


def test_the_environment_is_exactly_the_given_one(tmp_path: Path) -> None:
    outcome = run("env", tmp_path, env={"PATH": PATH, "ANSWER": "42"})
    names = {line.partition("=")[0] for line in outcome.stdout.decode().splitlines()}
    assert names <= {"PATH", "ANSWER", "PWD", "SHLVL", "_", "LC_CTYPE"}  # bash and python add the others
    assert "ANSWER=42" in outcome.stdout.decode().splitlines()


def test_only_listed_variables_are_inherited() -> None:
    inherited = sandbox.clean_environment(
        {
            "PATH": "/bin",
            "LC_ALL": "C",
            "TZ": "UTC",
            "OPENAI_API_KEY": "k",
            "SLEIPNIR_REDIS_URL": "redis://:pw@host",
            "CELERY_BROKER_URL": "redis://:pw@host",
            "AWS_SECRET_ACCESS_KEY": "k",
            "LD_PRELOAD": "x.so",
        }
    )
    assert inherited == {"PATH": "/bin", "LC_ALL": "C", "TZ": "UTC"}


def test_the_command_leads_a_session_of_its_own(tmp_path: Path) -> None:
    own, group, session = run("echo $$; ps -o pgid= -p $$; ps -o sid= -p $$", tmp_path).stdout.split()
    assert own == group == session
    assert int(session) != os.getsid(0)


def test_core_dumps_are_off(tmp_path: Path) -> None:
    assert run("ulimit -c", tmp_path).stdout == b"0\n"


def test_too_much_output_ends_the_command(tmp_path: Path) -> None:
    started = time.monotonic()
    outcome = run("head -c 100000000 /dev/zero; sleep 60", tmp_path, max_stdout_bytes=1000)
    assert outcome.reason == "stdout_limit"
    assert len(outcome.stdout) <= 1001
    assert time.monotonic() - started < 30


def test_output_of_exactly_the_limit_is_fine(tmp_path: Path) -> None:
    outcome = run("printf 12345", tmp_path, max_stdout_bytes=5)
    assert (outcome.reason, outcome.stdout) == ("exited", b"12345")


def test_long_errors_keep_their_start_and_their_end(tmp_path: Path) -> None:
    stderr = run("echo first >&2; head -c 1000000 /dev/zero | tr '\\0' x >&2; echo last >&2", tmp_path).stderr
    assert stderr.startswith("first\n") and stderr.endswith("last\n")
    assert "bytes left out" in stderr
    assert len(stderr) < sandbox.STDERR_BYTES + 100


def test_a_flood_on_both_pipes_does_not_block(tmp_path: Path) -> None:
    outcome = run("head -c 500000 /dev/zero & head -c 500000 /dev/zero >&2; wait", tmp_path)
    assert len(outcome.stdout) == 500_000


def test_a_timeout_ends_a_command_that_obeys_sigterm(tmp_path: Path) -> None:
    command = "trap 'echo bye; exit 0' TERM; while :; do sleep 0.05; done"
    outcome = run(command, tmp_path, timeout_s=1.0, grace_s=10.0)
    assert (outcome.reason, outcome.code, outcome.stdout) == ("timeout", 0, b"bye\n")


def test_a_timeout_kills_a_command_that_ignores_sigterm(tmp_path: Path) -> None:
    started = time.monotonic()
    outcome = run("trap '' TERM; while :; do sleep 60; done", tmp_path, timeout_s=0.3)
    assert (outcome.reason, outcome.signal) == ("timeout", 9)
    assert time.monotonic() - started < 30


def test_a_timeout_kills_children_too(tmp_path: Path) -> None:
    run("sleep 60 & echo $! > child; wait", tmp_path, timeout_s=1.0)
    pid = text_of(tmp_path / "child")
    wait_until(lambda: is_gone(pid), "the child is dead")


def test_a_child_that_keeps_the_pipes_open_neither_blocks_nor_survives(tmp_path: Path) -> None:
    started = time.monotonic()
    outcome = run("sleep 60 & echo $! > child; echo done", tmp_path)
    assert (outcome.reason, outcome.code, outcome.stdout) == ("exited", 0, b"done\n")
    assert time.monotonic() - started < 30
    pid = text_of(tmp_path / "child")
    wait_until(lambda: is_gone(pid), "the background child is dead")


def test_a_daemon_that_left_the_session_does_not_block(tmp_path: Path) -> None:
    started = time.monotonic()
    outcome = run("setsid sleep 60 & echo $! > daemon; echo done", tmp_path)
    assert (outcome.reason, outcome.stdout) == ("exited", b"done\n")
    assert time.monotonic() - started < 30
    assert is_gone(text_of(tmp_path / "daemon")), "it is dead with the command"


def test_output_written_just_after_the_leader_ended_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "LINGER_S", 30.0)  # a busy machine takes longer than the real one to start `cat`
    assert run("echo late > >(sleep 0.05; cat)", tmp_path).stdout == b"late\n"


def test_a_lost_visit_kills_the_group_at_once(tmp_path: Path) -> None:
    lost = threading.Event()
    command = "trap '' TERM; sleep 60 & echo $! > child; echo $$ > leader; wait"
    with When(lambda: text_of(tmp_path / "leader"), lost.set) as trigger, pytest.raises(VisitLost):
        run(command, tmp_path, lost=lost, timeout_s=60.0)
    assert time.monotonic() - trigger.acted_at < 30
    for name in ("leader", "child"):
        pid = text_of(tmp_path / name)
        wait_until(lambda pid=pid: is_gone(pid), f"the {name} is dead")


def test_a_visit_that_is_lost_already_starts_nothing(tmp_path: Path) -> None:
    lost = threading.Event()
    lost.set()
    with pytest.raises(VisitLost):
        run("echo ran > ran", tmp_path, lost=lost)
    assert not (tmp_path / "ran").exists()


def test_no_file_descriptor_is_left_open(tmp_path: Path) -> None:
    run("true", tmp_path)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for command in ("true", "sleep 60 & echo x", "trap '' TERM; sleep 60"):
        run(command, tmp_path, timeout_s=0.3)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_command_has_the_descriptors_of_a_shell_and_no_others(tmp_path: Path) -> None:
    assert run("ls /proc/self/fd", tmp_path).stdout.split() == [b"0", b"1", b"2", b"3"]  # the last is of `ls`


def test_a_program_or_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {
        "env": {"PATH": PATH}, "timeout_s": 20.0, "lost": threading.Event(), "max_stdout_bytes": 2**20, **STARTS,
    }  # fmt: skip
    outcome = sandbox.run(["no-such-program"], cwd=tmp_path, **arguments)
    assert (outcome.code, outcome.stderr) == (
        127,
        "launch: cannot start 'no-such-program': No such file or directory\n",
    )
    with pytest.raises(FileNotFoundError):
        sandbox.run(["true"], cwd=tmp_path / "missing", **arguments)


@pytest.mark.parametrize(
    ("variables", "characters"),
    [({}, 1), ({"LANG": "C"}, 1), ({"LANG": "xx_YY.UTF-8"}, 2), ({"LC_CTYPE": "POSIX"}, 1), ({"LC_ALL": "C"}, 2)],
)
def test_text_is_utf_8_unless_another_locale_is_asked_for(
    tmp_path: Path, variables: dict[str, str], characters: int
) -> None:
    outcome = run('a="é"; echo "${#a}" "$LC_CTYPE"', tmp_path, env={"PATH": PATH, **variables})
    assert (outcome.stdout.split()[0], outcome.stderr) == (b"%d" % characters, "")


def test_words_and_variables_come_as_they_are(tmp_path: Path) -> None:
    words = ["", "a b", "\n", "é", "\udcff", "x=y", "-n"]
    env = {"PATH": PATH, "EMPTY": "", "EQUAL": "a=b", "LINES": "1\n2", "BYTES": "\udcff", "LARGE": "x" * 100_000}
    command = "import os, sys; print(sys.argv[1:], [(k, v) for k, v in sorted(os.environ.items()) if k != 'LC_CTYPE'])"
    outcome = sandbox.run(
        [sys.executable, "-c", command, *words], env=env, cwd=tmp_path, timeout_s=20.0, lost=threading.Event(),
        max_stdout_bytes=2**20, **STARTS,
    )  # fmt: skip
    assert outcome.stdout.decode() == f"{words} {sorted(env.items())}\n"
    ignored = subprocess.run(["bash", "-c", "trap"], capture_output=True, check=True, restore_signals=False)
    assert b"SIGPIPE" in ignored.stdout
    assert run("trap", tmp_path).stdout == ignored.stdout


RUN_FOR_EVER = """
import pathlib, sys, threading
from sleipnir_workers.processes import sandbox
command = "trap '' TERM HUP; sleep 60 & echo $! > child; echo $$ > leader; wait"
sandbox.run(["bash", "-c", command], env={"PATH": sys.argv[1]}, cwd=pathlib.Path(sys.argv[2]), timeout_s=60.0,
            lost=threading.Event(), max_stdout_bytes=1000, warm=WARM)
"""


def test_a_killed_worker_takes_its_commands_and_their_children_with_it(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", RUN_FOR_EVER.replace("WARM", str(STARTS["warm"])), PATH, str(tmp_path)]
    ) as worker:
        wait_until(lambda: text_of(tmp_path / "leader"), "the command runs")
        worker.kill()
    for name in ("leader", "child"):
        pid = text_of(tmp_path / name)
        wait_until(lambda pid=pid: is_gone(pid), f"the {name} is dead")


def test_the_companion_of_a_worker_is_replaced_when_it_was_killed() -> None:
    guard = group_guard.GroupGuard()
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as victim:
        guard.add(victim.pid)
        first = guard.companion_pid
        assert first is not None
        os.kill(first, 9)
        wait_until(lambda: is_gone(str(first)), "the companion is dead")
        guard.remove(0)  # nothing to tell, nobody to tell it to
        with subprocess.Popen(["true"], start_new_session=True) as next_one:
            guard.add(next_one.pid)
            guard.remove(next_one.pid)
        assert guard.companion_pid != first
        guard.close()
        assert victim.wait(60) == -9


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_a_companion_of_its_own_and_lets_go_of_its_parents(tmp_path: Path) -> None:
    run("true", tmp_path)
    parents = group_guard.guard.companion_pid
    child = os.fork()
    if child == 0:
        fresh = group_guard.guard.companion_pid is None
        run("true", tmp_path)
        os._exit(17 if fresh and group_guard.guard.companion_pid not in (None, parents) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17
    assert not is_gone(str(parents))

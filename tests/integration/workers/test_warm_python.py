"""Scripts that are forked from a ready python3 cannot tell it from a start of their own, nor can the worker."""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import venv
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sleipnir_workers.execution.execution import ProcessLost, VisitLost
from sleipnir_workers.processes import group_guard, sandbox, warm_python
from tests.integration.workers.shim_files import write_shim
from tests.unit.workers.visits import PATH, When, is_gone, text_of
from tests.waiting import wait_until

ENV = {"PATH": PATH, "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1", "GRAPH_STATE": "{}"}


@pytest.fixture(autouse=True)
def launchers_of_this_test_alone() -> Iterator[None]:
    warm_python.warm_python.close()
    yield
    warm_python.warm_python.close()


def run(
    folder: Path,
    text: str | bytes,
    *,
    name: str = "step.py",
    python: str = "python3",
    warm: bool = True,
    **changes: Any,
) -> sandbox.CommandOutcome:
    file = folder / name
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    arguments: dict[str, Any] = {
        "env": ENV,
        "cwd": folder,
        "timeout_s": 20.0,
        "lost": threading.Event(),
        "max_stdout_bytes": 2**24,
        "grace_s": 0.2,
    }
    return sandbox.run([python, str(file)], warm=warm, **(arguments | changes))


def launcher() -> warm_python.Launcher:
    (found,) = warm_python.warm_python.launchers()
    return found


def is_warm(folder: Path, **changes: Any) -> bool:
    """Whether a script with these arguments is a launcher's child."""
    outcome = run(folder, "import os, sys; print(os.getppid(), 'ctypes' in sys.modules)", **changes)
    assert outcome.code == 0, outcome
    parent, has_modules = outcome.stdout.split()
    is_child = int(parent) in [found.pid for found in warm_python.warm_python.launchers()]
    return is_child and has_modules == b"True"


SAME = {
    "arguments": "import sys; print(sys.argv, __name__, __file__, sys.orig_argv)",
    "the path of modules": "import sys; print(sys.path, sys.prefix, sys.executable, sys.flags)",
    "names in __main__": "print({k: str(v) for k, v in globals().items()})",
    "environment": "import os; print(dict(os.environ), os.environ == dict(os.environb) or len(os.environb))",
    "environment of children": "import subprocess; print(sorted(subprocess.check_output(['env']).split()))",
    "working directory": "import os; print(os.getcwd())",
    "encodings": "import sys, locale\nprint([(s.encoding, s.errors) for s in (sys.stdin, sys.stdout, sys.stderr)], "
    "sys.getfilesystemencoding(), locale.getpreferredencoding())",
    "buffering": "import sys; print([(s.line_buffering, s.write_through, s.seekable(), s.name, s.mode) "
    "for s in (sys.stdin, sys.stdout, sys.stderr)])",
    "stdin": "import sys; print(repr(sys.stdin.read()))",
    "open files": "import os; print([(f, os.path.exists(f'/proc/self/fd/{f}')) for f in os.listdir('/proc/self/fd')])",
    "session": "import os; print(os.getpid() == os.getpgid(0) == os.getsid(0))",
    # But the mark that each command has (descendants.py).
    "limits": "import resource as r; names = {n for n in dir(r) if n.startswith('RLIMIT_')} - {'RLIMIT_MSGQUEUE'}\n"
    "print([r.getrlimit(getattr(r, n)) for n in sorted(names)])",
    "signals": "import signal; print([(s, str(signal.getsignal(s))) for s in signal.valid_signals()], "
    "signal.pthread_sigmask(signal.SIG_BLOCK, []))",
    "umask": "import os; print(os.umask(0))",
    "threads": "import threading as t; print(t.main_thread() is t.current_thread(), t.active_count())",
    "scheduling": "import os; print(os.nice(0), os.sched_getaffinity(0))",
    "collector": "import gc; print(gc.isenabled(), gc.get_threshold(), gc.garbage)",
    "exit code": "import sys; print('out'); sys.exit(3)",
    "exit with a text": "import sys; print('out'); sys.exit('no disk')",
    "exit without a code": "raise SystemExit",
    "os._exit": "import os; print('lost in the buffer'); os._exit(5)",
    "exception": "def f():\n    1 / 0\nprint('before')\nf()\n",
    "exception in an exception": "try:\n    {}['a']\nexcept KeyError:\n    raise ValueError('b')\n",
    "exception with a hook": "import sys; sys.excepthook = lambda *a: print(a[0], a[2].tb_next); 1 / 0",
    "keyboard interrupt": "raise KeyboardInterrupt",
    "recursion": "def f(): f()\nf()\n",
    "syntax error": "print('never')\nx = = 1\n",
    "not utf-8": b"x = '\xff'\n",
    "coding cookie": b"# -*- coding: latin-1 -*-\nprint('\xe4')\n",
    "byte order mark": b"\xef\xbb\xbfprint('bom')\n",
    "empty": "",
    "null byte": "x = 1\0\n",
    "no newline at the end": "print(1)",
    "signal": "import os; os.kill(os.getpid(), 11)",
    "broken pipe": "import os, signal; os.write(1, b'x'); os.kill(os.getpid(), signal.SIGPIPE); print('alive')",
    "interrupt from outside": "import os, signal; os.kill(os.getpid(), signal.SIGINT)",
    "atexit": "import atexit; atexit.register(print, 'bye'); print('hello', end='')",
    "threads at the end": "import threading, time\n"
    "threading.Thread(target=lambda: (time.sleep(0.1), print('joined'))).start()\nprint('main')\n",
    "daemon threads at the end": "import threading, time\n"
    "threading.Thread(target=lambda: time.sleep(60), daemon=True).start()\nprint('main')\n",
    "unraisable": "class A:\n    def __del__(self):\n        1 / 0\nA()\n",
    "closed stdout": "import sys; sys.stdout.close()",
    "full stdout": "import sys, os; os.dup2(os.open('/dev/full', os.O_WRONLY), 1); print('x')",
    "unclosed files": "import warnings; warnings.simplefilter('always'); open(__file__); import gc; gc.collect()",
    "pickles of main": "import pickle\nclass A: pass\n"
    "print(type(pickle.loads(pickle.dumps(A()))) is A, A.__module__)\n",
    "spawned processes": "import multiprocessing as m\ndef f(x): return x * 2\n"
    "if __name__ == '__main__':\n    with m.get_context('spawn').Pool(1) as p: print(p.map(f, [1, 2]))\n",
    "forked processes": "import multiprocessing as m\ndef f(x): return x * 2\n"
    "if __name__ == '__main__':\n    with m.get_context('fork').Pool(1) as p: print(p.map(f, [1, 2]))\n",
    "subprocesses": "import subprocess, sys\n"
    "print(subprocess.run([sys.executable, '-c', 'print(1)'], capture_output=True).stdout)",
    "asyncio": "import asyncio\nasync def f(): await asyncio.sleep(0); return 1\nprint(asyncio.run(f()))",
    "ctypes": "import ctypes; print(ctypes.pythonapi.Py_GetVersion.argtypes, ctypes.get_errno())",
    "a file that nobody closes": "file = open('kept', 'w'); file.write('x' * 10)",
    "a file that cannot be written": "file = open('/dev/full', 'w'); file.write('x')",
    "a file of a function's default": "def f(file=open('kept', 'w')): file.write('default')\nf()",
    "a file that a module of the library has": "import os; os.file = open('kept', 'w'); os.file.write('library')",
    "a file of a hook": "import sys; file = open('kept', 'w'); file.write('hook')\n"
    "def hook(*_): print('hook')\nsys.excepthook = hook\n1 / 0\n",
    "a file behind a traceback": "def f():\n    file = open('kept', 'w'); file.write('frame')\n    1 / 0\nf()\n",
    "a compressed file": "import gzip; file = gzip.GzipFile('', 'wb', 9, open('kept', 'wb'), 0); file.write(b'zip')",
    "another stdout": "import sys; print('first', end=' '); sys.stdout = open('kept', 'w'); print('second')",
    "another stdout of the same file": "import sys, io; print('a', end='')\n"
    "sys.stdout = io.TextIOWrapper(sys.stdout.buffer, line_buffering=False); print('b', end='')",
    "a detached stdout": "import sys, io; print('a', end='')\n"
    "sys.stdout = io.TextIOWrapper(sys.stdout.detach(), 'utf-16'); print('b', end='')",
    "a detached file": "import io\n"
    "a = open('kept', 'w'); a.write('a'); b = io.TextIOWrapper(a.detach(), 'utf-16'); b.write('b')",
    "a library that was changed": "import gc, atexit, threading\nprint('x', end='')\ndef no(*_): raise SystemExit(7)\n"
    "gc.collect = gc.get_objects = no\n",
    "finalizers": "class A:\n    def __init__(self, name): self.name = name\n"
    "    def __del__(self): print('freed', self.name, helper())\n"
    "def helper(): return 'helped'\nb, _a = A('public'), A('private')\nb.b = b\n",
    "a finalizer of a module of the library": "import json\nclass A:\n    def __del__(self): print('freed')\n"
    "import wave; wave.a = A()\n",
    "finalizers of weak references": "import weakref\nclass A: pass\na = A(); weakref.finalize(a, print, 'over')",
    "a folder for a time": "import tempfile, os\n"
    "folder = tempfile.TemporaryDirectory(dir='.'); print(os.path.isdir(folder.name))",
    "atexit in order": "import atexit\nfor i in range(3): atexit.register(print, i)\n"
    "atexit.register(lambda: 1 / 0)\natexit.register(exit, 3)\n",
    "atexit that reads the globals": "import atexit\nx = 1\ndef f(): print('x', x)\natexit.register(f)\n",
    "pools of threads": "from concurrent.futures import ThreadPoolExecutor\n"
    "pool = ThreadPoolExecutor(2); pool.submit(print, 'in a thread')\n",
    "a thread that a finished thread has begun": "import threading\n"
    "t = threading.Thread(target=lambda: threading.Timer(0.1, print, ['late']).start()); t.start(); t.join()\n",
    "output of a library in C": "import ctypes; ctypes.CDLL(None).printf(b'from C')",
    "a logger": "import logging; logging.basicConfig(filename='kept'); logging.error('written'); logging.shutdown",
    "a queue of messages": "import multiprocessing as m; q = m.Queue(); q.put(1); print(q.get())",
    "output that cannot be written at the end": "import sys, os\n"
    "print('x'); os.dup2(os.open('/dev/full', os.O_WRONLY), 1)",
    "a closed descriptor of stdout": "import os; print('x'); os.close(1)",
    "no stdout": "import sys; sys.stdout = None; print('x')",
    "a fork that goes on to the end": "import os, sys\npid = os.fork()\nif pid: os.waitpid(pid, 0)\n"
    "print('child' if not pid else 'parent')\n",
    "site": "import site, sys; print(site.ENABLE_USER_SITE, 'site' in sys.modules, 'sleipnir' in str(sys.modules))",
}


def comparable(outcome: sandbox.CommandOutcome) -> tuple[object, ...]:
    """Without addresses of objects, and without the depth of a recursion: one frame of the launcher counts."""
    text = re.sub(r"0x[0-9a-f]+|repeated \d+ more", "_", outcome.stdout.decode("latin-1") + outcome.stderr)
    return outcome.reason, outcome.code, outcome.signal, text


@pytest.mark.parametrize("what", SAME)
def test_a_script_is_as_in_a_start_of_its_own(tmp_path: Path, what: str) -> None:
    assert is_warm(tmp_path, name="probe.py")
    kept, ends = tmp_path / "kept", []
    for is_started_warm in (True, False):
        kept.unlink(missing_ok=True)
        outcome = run(tmp_path, SAME[what], warm=is_started_warm)
        ends.append((comparable(outcome), kept.read_bytes() if kept.exists() else None, len(list(tmp_path.iterdir()))))
    assert ends[0] == ends[1]


def test_a_file_in_a_cycle_is_written_and_an_error_of_a_finalizer_is_told(tmp_path: Path) -> None:
    """A start of its own may lose the content, as a collection closes such files in any order."""
    text = (
        "class A:\n    def __del__(self): 1 / 0\na = A(); a.a = a; a.file = open('kept', 'w'); a.file.write('cycle')\n"
    )
    outcome = run(tmp_path, text)
    assert (outcome.code, (tmp_path / "kept").read_text()) == (0, "cycle")
    assert "ZeroDivisionError" in outcome.stderr and "warm_server" not in outcome.stderr


def test_no_line_of_the_launcher_is_in_a_traceback(tmp_path: Path) -> None:
    outcome = run(tmp_path, "raise ValueError('x')")
    assert outcome.stderr == (
        f'Traceback (most recent call last):\n  File "{tmp_path}/step.py", line 1, in <module>\n'
        "    raise ValueError('x')\nValueError: x\n"
    )
    assert outcome.code == 1


def test_random_numbers_differ_from_script_to_script(tmp_path: Path) -> None:
    text = "import random, uuid, secrets; print(random.random(), uuid.uuid4(), secrets.token_hex())"
    numbers = [word for _ in range(3) for word in run(tmp_path, text).stdout.split()]
    assert len(set(numbers)) == 9


def test_a_neighbour_s_module_wins_over_the_standard_library_as_in_a_cold_start(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("dumps = 'mine'")
    assert run(tmp_path, "import json; print(json.dumps)").stdout == b"mine\n"


def test_an_import_of_a_neighbour(tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text("import __main__\nvalue = __main__.first")
    assert run(tmp_path, "first = 7\nimport neighbour\nprint(neighbour.value)").stdout == b"7\n"


def test_variables_of_one_script_do_not_reach_the_next(tmp_path: Path) -> None:
    text = "import os; print(sorted(n for n in os.environ if n.startswith('GRAPH_')))"
    assert run(tmp_path, text, env=ENV | {"GRAPH_A": "1"}).stdout == b"['GRAPH_A', 'GRAPH_STATE']\n"
    assert run(tmp_path, text).stdout == b"['GRAPH_STATE']\n"
    assert len(warm_python.warm_python.launchers()) == 1


def test_another_environment_gets_another_launcher_and_no_more_than_a_few_are_kept(tmp_path: Path) -> None:
    for number in range(warm_python.MOST_LAUNCHERS + 2):
        assert is_warm(tmp_path, env=ENV | {"TZ": f"UTC-{number}"})
    assert len(warm_python.warm_python.launchers()) == warm_python.MOST_LAUNCHERS


@pytest.mark.parametrize(
    ("variables", "text", "expected"),
    [
        ({"PYTHONUTF8": "0", "LC_ALL": "C"}, "import sys; print(sys.flags.utf8_mode)", b"0\n"),
        ({"PYTHONIOENCODING": "latin-1"}, "print('\xe4')", b"\xe4\n"),
        ({"PYTHONHASHSEED": "7"}, "print(hash('a'))", None),
        ({"PYTHONPATH": "/nowhere"}, "import sys; print(sys.path)", None),
        ({"PYTHONOPTIMIZE": "1"}, "assert False\nprint(__debug__)", b"False\n"),
        ({"PYTHONSAFEPATH": "1"}, "import sys; print(sys.path)", None),
        ({"PYTHONUNBUFFERED": "1"}, "import os\nprint('seen'); os._exit(0)", b"seen\n"),
        ({"TZ": "Asia/Kolkata"}, "import time; print(time.strftime('%z', time.localtime(0)))", b"+0530\n"),
        ({"LC_ALL": "C"}, "import sys, locale; print(sys.stdout.encoding, locale.setlocale(0))", None),
    ],
)
def test_variables_that_python_reads_when_it_starts_are_honoured(
    tmp_path: Path, variables: dict[str, str], text: str, expected: bytes | None
) -> None:
    env = ENV | variables
    assert is_warm(tmp_path, env=env)
    warm, cold = (run(tmp_path, text, env=env, warm=warm) for warm in (True, False))
    assert warm == cold
    assert warm.code == 0
    assert expected is None or warm.stdout == expected


@pytest.mark.parametrize("variables", [{"PYTHONVERBOSE": "1"}, {"PYTHONINSPECT": "1"}, {"PYTHONPATH": "lib"}])
def test_what_cannot_be_honoured_starts_cold(tmp_path: Path, variables: dict[str, str]) -> None:
    assert not is_warm(tmp_path, env=ENV | variables)


def test_a_python3_that_is_a_script_starts_cold(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "python3").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (programs / "python3").chmod(0o755)
    assert not is_warm(tmp_path, env=ENV | {"PATH": f"{programs}{os.pathsep}{PATH}"})


def test_a_python3_that_is_a_shim_of_pyenv_starts_warm_with_what_it_chooses(tmp_path: Path) -> None:
    """Finding U21 of the second review."""
    shim, asked = write_shim(tmp_path)
    env = ENV | {"PATH": f"{shim.parent}{os.pathsep}{PATH}"}
    assert is_warm(tmp_path, env=env) and is_warm(tmp_path, env=env)
    assert asked.read_text() == "asked\n"


def test_the_python_of_a_virtual_environment_starts_warm_with_its_packages(tmp_path: Path) -> None:
    """Tools run with that of their working directory."""
    venv.create(tmp_path / ".venv", symlinks=True)
    python = str(tmp_path / ".venv" / "bin" / "python3")
    [packages] = (tmp_path / ".venv" / "lib").glob("python*/site-packages")
    (packages / "only_there.py").write_text("")
    text = "import only_there, sys; print(sys.path, sys.prefix, sys.executable, sys.argv, sys.orig_argv)"
    warm, cold = (run(tmp_path, text, warm=warm, python=python) for warm in (True, False))
    assert warm.code == 0 and comparable(warm) == comparable(cold)
    assert is_warm(tmp_path, python=python)


@pytest.mark.parametrize("name", ["python-of-ours", "node"])
def test_another_program_is_no_python(tmp_path: Path, name: str) -> None:
    (tmp_path / name).symlink_to(sys.executable)
    assert not is_warm(tmp_path, python=str(tmp_path / name))


def test_a_python3_that_cannot_be_a_launcher_starts_cold(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "sitecustomize.py").write_text(
        "import threading, time; threading.Thread(target=time.sleep, args=(0.5,)).start()"
    )
    assert not is_warm(tmp_path, env=ENV | {"PYTHONPATH": str(tmp_path / "lib")})


def test_a_missing_file_and_a_missing_directory_fail_as_in_a_cold_start(tmp_path: Path) -> None:
    missing = ["python3", str(tmp_path / "missing.py")]
    fields: dict[str, Any] = {
        "env": ENV, "timeout_s": 20.0, "lost": threading.Event(), "max_stdout_bytes": 1000
    }  # fmt: skip
    outcome = sandbox.run(missing, cwd=tmp_path, warm=True, **fields)
    assert (outcome.code, outcome) == (2, sandbox.run(missing, cwd=tmp_path, warm=False, **fields))
    with pytest.raises(FileNotFoundError):
        run(tmp_path, "", cwd=tmp_path / "missing")


def test_a_large_environment_starts_cold(tmp_path: Path) -> None:
    assert not is_warm(tmp_path, env=ENV | {"GRAPH_X": "x" * 100_000})
    with pytest.raises(OSError, match="too long"):
        run(tmp_path, "", env=ENV | {"GRAPH_X": "x" * 200_000})


def test_no_secret_of_the_worker_is_in_the_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "planted-1")
    text = "import os; print(open('/proc/self/environ').read(), open(f'/proc/{os.getppid()}/environ').read())"
    outcome = run(tmp_path, text)
    assert outcome.code == 0
    assert b"planted" not in outcome.stdout


# Ends


def test_much_output_on_both_pipes(tmp_path: Path) -> None:
    outcome = run(tmp_path, "import sys; print('x' * 5_000_000); print('y' * 5_000_000, file=sys.stderr)")
    assert len(outcome.stdout) == 5_000_001
    assert "bytes left out" in outcome.stderr


def test_too_much_output_ends_the_script(tmp_path: Path) -> None:
    outcome = run(tmp_path, "while True: print('x' * 1000)", max_stdout_bytes=10_000)
    assert (outcome.reason, outcome.signal) == ("stdout_limit", 9)


@pytest.mark.parametrize("ignore", ["", "signal.signal(15, signal.SIG_IGN)"])
def test_a_timeout_kills_the_script_and_its_children(tmp_path: Path, ignore: str) -> None:
    text = (
        f"import os, signal, subprocess, time\n{ignore}\n"
        "child = subprocess.Popen(['sleep', '60'])\nopen('child', 'w').write(f'{child.pid}\\n')\ntime.sleep(60)\n"
    )
    outcome = run(tmp_path, text, timeout_s=1.0, grace_s=0.2 if ignore else 10.0)
    assert (outcome.reason, outcome.signal) == ("timeout", 9 if ignore else 15)
    pid = text_of(tmp_path / "child")
    wait_until(lambda: is_gone(pid), "the child is dead")


def test_the_output_of_a_script_that_obeys_sigterm_is_read_to_the_end(tmp_path: Path) -> None:
    text = "import signal, sys, time\nsignal.signal(15, lambda *_: (print('bye'), sys.exit(0)))\ntime.sleep(60)\n"
    outcome = run(tmp_path, text, timeout_s=1.0, grace_s=10.0)
    assert (outcome.reason, outcome.code, outcome.stdout) == ("timeout", 0, b"bye\n")


def test_a_background_child_neither_blocks_nor_survives(tmp_path: Path) -> None:
    outcome = run(tmp_path, "import subprocess as s; print(s.Popen(['sleep', '60']).pid)")
    assert outcome.reason == "exited"
    wait_until(lambda: is_gone(outcome.stdout.decode().strip()), "the background child is dead")


def test_a_lost_visit_kills_the_group(tmp_path: Path) -> None:
    lost = threading.Event()
    text = "import os, time; open('pid', 'w').write(f'{os.getpid()}\\n'); time.sleep(60)"
    with When(lambda: text_of(tmp_path / "pid"), lost.set), pytest.raises(VisitLost):
        run(tmp_path, text, lost=lost)
    assert is_gone(text_of(tmp_path / "pid"))


def test_a_script_is_not_reaped_before_its_group_was_signalled(tmp_path: Path) -> None:
    run(tmp_path, "")
    script = launcher().run(warm_python.packet(["python3", str(tmp_path / "step.py")], ENV, tmp_path) or b"")
    wait_until(lambda: is_gone(str(script.pid)), "the script has ended")
    assert Path(f"/proc/{script.pid}").exists(), "it is a zombie, so its number means nobody else"
    script.reap()
    wait_until(lambda: not Path(f"/proc/{script.pid}").exists(), "it is reaped")
    assert script.code == 0


def children() -> list[str]:
    """Of the launcher: the one that waits for the next script, and zombies."""
    return Path(f"/proc/{launcher().pid}/task/{launcher().pid}/children").read_text().split()


def test_no_file_descriptor_and_no_zombie_is_left(tmp_path: Path) -> None:
    run(tmp_path, "")
    here, there = Path("/proc/self/fd"), Path(f"/proc/{launcher().pid}/fd")
    wait_until(lambda: len(children()) == 1, "the launcher has reaped the first one, and forked another")
    gc.collect()  # what other tests have left open is none of this one's
    before = len(list(here.iterdir())), len(list(there.iterdir()))
    for text in ("", "1 / 0", "import time; time.sleep(60)", "import os; os.kill(os.getpid(), 9)"):
        run(tmp_path, text, timeout_s=0.5)
    wait_until(lambda: len(children()) == 1, "the launcher has reaped all of them")
    assert (len(list(here.iterdir())), len(list(there.iterdir()))) == before


def test_a_script_runs_when_the_child_that_waited_for_it_was_killed(tmp_path: Path) -> None:
    run(tmp_path, "")
    [waiting] = wait_until(lambda: children() if len(children()) == 1 else None, "one waits")
    os.kill(int(waiting), signal.SIGKILL)
    wait_until(lambda: is_gone(waiting), "it is dead")
    assert is_warm(tmp_path)


def test_a_default_timeout_of_sockets_does_not_reach_the_child_that_waits(tmp_path: Path) -> None:
    """Celery sets one while it connects again, and other threads start scripts meanwhile."""
    socket.setdefaulttimeout(5.0)
    try:
        assert [run(tmp_path, "print('ran')").stdout for _ in range(5)] == [b"ran\n"] * 5
        kept = launcher().pid
        assert is_warm(tmp_path)
        assert launcher().pid == kept
    finally:
        socket.setdefaulttimeout(None)


def test_many_scripts_at_once(tmp_path: Path) -> None:
    text = "import os, sys, time; time.sleep(0.2); print(os.environ['GRAPH_N']); sys.exit(int(os.environ['GRAPH_N']))"

    def one(number: int) -> sandbox.CommandOutcome:
        return run(tmp_path, text, name=f"{number}.py", env=ENV | {"GRAPH_N": str(number)})

    with ThreadPoolExecutor(16) as threads:
        outcomes = list(threads.map(one, range(48)))
    assert [(outcome.code, int(outcome.stdout)) for outcome in outcomes] == [(n, n) for n in range(48)]


# Deaths


LONG = """
import os, pathlib, subprocess, time
child = subprocess.Popen(["sleep", "60"])
pathlib.Path("pids").write_text(f"{os.getpid()} {child.pid}\\n")
time.sleep(60)
"""


def test_a_killed_launcher_takes_its_scripts_with_it_and_the_next_script_gets_another(tmp_path: Path) -> None:
    assert is_warm(tmp_path, name="probe.py")
    first = launcher().pid
    killing = When(lambda: text_of(tmp_path / "pids"), lambda: os.kill(first, signal.SIGKILL))
    with killing, pytest.raises(ProcessLost):
        run(tmp_path, LONG)
    for pid in text_of(tmp_path / "pids").split():
        wait_until(lambda pid=pid: is_gone(pid), "the script and its child are dead")
    assert is_warm(tmp_path, name="probe.py")
    assert launcher().pid != first


def test_a_launcher_that_was_replaced_meanwhile_starts_nothing_and_closes_nothing_of_others(tmp_path: Path) -> None:
    """Two threads have it; one finds it in trouble and drops it, with the child that waits for the next script."""
    run(tmp_path, "print(1)")
    held = launcher()
    warm_python.warm_python.close()
    others = [fd for _ in range(8) for fd in os.pipe()]  # these take the numbers that are free now
    with pytest.raises(warm_python.LauncherLost):
        held.run(b"")
    for fd in others:
        os.close(fd)  # fails if it is closed already


def test_a_launcher_that_died_unnoticed_is_replaced(tmp_path: Path) -> None:
    assert is_warm(tmp_path)
    first = launcher().pid
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: is_gone(str(first)), "the launcher is dead")
    assert is_warm(tmp_path)
    assert launcher().pid != first
    wait_until(lambda: run(tmp_path, "").code == 0 and not Path(f"/proc/{first}").exists(), "the dead one is reaped")


def test_a_launcher_that_does_not_answer_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_python, "FORK_S", 0.5)
    monkeypatch.setattr(warm_python, "END_S", 0.5)
    assert is_warm(tmp_path)
    frozen = launcher()
    wait_until(lambda: len(children()) == 1, "a child waits for the next script")
    os.kill(frozen.pid, signal.SIGSTOP)
    try:
        with pytest.raises(ProcessLost):
            run(tmp_path, "")  # it ran, and nobody can say how it ended
        assert run(tmp_path, "print('ran')").stdout == b"ran\n"
        assert launcher().pid != frozen.pid
    finally:
        os.kill(frozen.pid, signal.SIGCONT)
    wait_until(frozen.has_ended, "it ends when it wakes up: nothing is left for it to do")


def test_a_launcher_is_replaced_when_it_is_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_warm(tmp_path)
    first = launcher()
    monkeypatch.setattr(warm_python, "RETIRE_S", 0.0)
    assert is_warm(tmp_path)
    wait_until(first.has_ended, "the old one is gone")


def test_a_retired_launcher_runs_until_its_last_script_has_ended(tmp_path: Path) -> None:
    go = tmp_path / "go"
    text = (
        "import os, time\nopen('pid', 'w').write(f'{os.getpid()}\\n')\nwhile not os.path.exists('go'): time.sleep(0.01)"
    )
    with ThreadPoolExecutor(1) as thread:
        outcome = thread.submit(run, tmp_path, text)
        wait_until(lambda: text_of(tmp_path / "pid"), "the script runs")
        old = launcher()
        warm_python.warm_python.close()
        assert not old.has_ended()
        go.touch()
        assert outcome.result().code == 0
    wait_until(old.has_ended, "the launcher is gone")


def test_a_script_that_kills_its_own_group_or_leaves_it_changes_nothing_for_others(tmp_path: Path) -> None:
    outcome = run(tmp_path, "import os; os.killpg(0, 9)")
    assert outcome.signal == 9
    first = launcher().pid
    assert is_warm(tmp_path)
    assert launcher().pid == first


RUN_FOR_EVER = """
import pathlib, sys, threading
from sleipnir_workers.processes import sandbox
from sleipnir_workers.processes import warm_python
folder = pathlib.Path(sys.argv[2])
def run():
    sandbox.run(["python3", str(folder / "step.py")], env={"PATH": sys.argv[1]}, cwd=folder, timeout_s=60.0,
                lost=threading.Event(), max_stdout_bytes=1000, warm=True)
threading.Thread(target=run).start()
"""

CHILD_AND_LEADER = """
import os, pathlib, signal, subprocess, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "60"])
pathlib.Path("pids").write_text(f"{os.getppid()} {os.getpid()} {child.pid}\\n")
time.sleep(60)
"""


@pytest.mark.parametrize("stopped", [False, True], ids=["", "launcher-stopped"])
def test_a_killed_worker_takes_its_scripts_and_its_launcher_with_it(tmp_path: Path, stopped: bool) -> None:
    (tmp_path / "step.py").write_text(CHILD_AND_LEADER)
    with subprocess.Popen([sys.executable, "-c", RUN_FOR_EVER, PATH, str(tmp_path)]) as worker:
        pids = wait_until(lambda: text_of(tmp_path / "pids"), "the script runs").split()
        children = Path(f"/proc/{pids[0]}/task/{pids[0]}/children")
        pids += wait_until(lambda: children.read_text().split()[1:], "another child waits for the next script")
        if stopped:
            os.kill(int(pids[0]), signal.SIGSTOP)
        worker.kill()
    for pid in pids[1:]:
        wait_until(lambda pid=pid: is_gone(pid), "the script, its child and the waiting one are dead")
    if stopped:
        os.kill(int(pids[0]), signal.SIGCONT)
    wait_until(lambda: is_gone(pids[0]), "the launcher is gone")


def test_a_launcher_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(is_warm, tmp_path).result()
    first = launcher().pid
    assert is_warm(tmp_path)
    assert launcher().pid == first


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_pool_child_makes_launchers_of_its_own_and_lets_go_of_its_parents(tmp_path: Path) -> None:
    assert is_warm(tmp_path)
    parents = launcher()
    child = os.fork()
    if child == 0:
        fresh = not warm_python.warm_python.launchers()
        os._exit(17 if fresh and is_warm(tmp_path) and launcher().pid != parents.pid else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17
    assert is_warm(tmp_path)
    assert launcher().pid == parents.pid


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_that_keeps_running_does_not_keep_its_parent_s_launcher(tmp_path: Path) -> None:
    assert is_warm(tmp_path)
    old = launcher()
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    warm_python.warm_python.close()
    wait_until(old.has_ended, "the launcher sees its socket close")
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_the_guard_has_a_script_before_it_begins(tmp_path: Path) -> None:
    run(tmp_path, "")
    told: list[str] = []
    guard = group_guard.guard
    add = guard.add
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(guard, "add", lambda pid: (add(pid), told.append(str((tmp_path / "began").exists()))))
        run(tmp_path, "open('began', 'w')")
    assert told == ["False"]
    assert (tmp_path / "began").exists()


def test_a_json_script_runs_in_other_versions_of_python(tmp_path: Path) -> None:
    """Whatever python3 is found: warm if it can, cold if it cannot."""
    found = sorted(Path.home().glob(".pyenv/versions/*/bin/python3")) or [Path(sys.executable)]
    for program in found:
        env = ENV | {"PATH": f"{program.parent}{os.pathsep}{os.defpath}"}
        outcome = run(tmp_path, "import json, sys; print(json.dumps(list(sys.version_info[:2])))", env=env)
        assert (outcome.code, json.loads(outcome.stdout)[0]) == (0, 3), program

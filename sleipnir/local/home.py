"""The home directory of a private stack: the paths of its files, and the state that its supervisor reports."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from sleipnir.errors import ConfigError
from sleipnir.settings import Settings

SOCKET_PATH_MOST = 100  # the kernel allows 108 bytes


@dataclass(frozen=True)
class Home:
    """The paths of the private stack. Everything below `root` is private to the user (0700)."""

    root: Path

    @property
    def data(self) -> Path:
        """Redis' working directory: the append-only file."""
        return self.root / "redis"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def socket(self) -> Path:
        """Redis' socket: in the home, or in the temporary directory when the home's path is too long for a socket."""
        socket = self.root / "redis.sock"
        if len(os.fsencode(socket)) <= SOCKET_PATH_MOST:
            return socket
        name = hashlib.sha256(os.fsencode(self.root)).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"sleipnir-{os.getuid()}-{name}" / "redis.sock"

    @property
    def redis_url(self) -> str:
        return f"unix://{self.socket}?db=0"

    @property
    def state(self) -> Path:
        """Written by the supervisor once the stack can be used."""
        return self.root / "stack.json"

    def prepare(self) -> None:
        """Make the directories. Raises ConfigError when that is not possible."""
        for folder in (self.root, self.data, self.logs, self.socket.parent):
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                if not os.access(folder, os.W_OK):
                    raise PermissionError(13, "no write permission")
            except OSError as error:
                raise ConfigError(
                    f"cannot use {folder} for the embedded stack: {error.strerror}. Set SLEIPNIR_HOME (or --home) to a "
                    "directory that you can write, or SLEIPNIR_REDIS_URL to a running deployment."
                ) from None
        if self.socket.parent.stat().st_uid != os.getuid():
            raise ConfigError(
                f"{self.socket.parent} belongs to another user; remove it, or choose another SLEIPNIR_HOME"
            )

    def running(self) -> StackState | None:
        """The state that a living supervisor wrote, or None."""
        try:
            state = StackState(**json.loads(self.state.read_text()))
        except (OSError, ValueError, TypeError):
            return None
        return state if is_alive(state.pid) and self.socket.exists() else None


@dataclass(frozen=True)
class StackState:
    """The state that a supervisor reports. `workers`: whether scheduler and workers run, or only Redis."""

    pid: int
    workers: bool
    while_used: bool
    tape: str | None = None
    """Whether its llm workers record or replay the models' answers, as of `tape_of`; None: they call the models."""

    def write(self, home: Home) -> None:
        """Written atomically, because readers may read at any time."""
        staging = home.state.with_suffix(".tmp")
        staging.write_text(json.dumps(asdict(self)))
        staging.replace(home.state)


def tape_of(settings: Settings) -> str | None:
    """Whether a stack with these settings records or replays the models' answers, and where; None: neither."""
    if settings.record is not None:
        return f"record {settings.record}"
    return None if settings.replay is None else f"replay {settings.replay}"


def is_alive(pid: int) -> bool:
    """An ended process is listed until its parent collects its exit status, which an init process in a container may
    never do."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        state = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):  # not Linux, or it has ended since
        return True
    return state not in "ZX"

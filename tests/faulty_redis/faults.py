"""Make redis-py fail in this process: commands that time out before or after they were applied, READONLY, slow replies.

    FAULTY_REDIS="seed=7" pytest tests/system/test_runs_end_to_end.py

makes every process that tests.processes.Stack starts faulty (through sitecustomize.py); `installed` does it here. It is
the connection that fails, so that our clients and kombu's meet the same. Never in the product.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from redis.connection import AbstractConnection
from redis.exceptions import ReadOnlyError, TimeoutError

VARIABLE = "FAULTY_REDIS"
LOG_VARIABLE = "FAULTY_REDIS_LOG"
SLOW_S = 0.5

_send, _read = AbstractConnection.send_packed_command, AbstractConnection.read_response


class Faults:
    """`text` is `seed=7,before=0.01,...`: the share of commands that each fault hits. `log` gets a line per fault."""

    def __init__(self, text: str, log: str | None = None) -> None:
        said = dict(part.split("=", 1) for part in text.split(",") if part)
        self._chance = random.Random(f"{said.pop('seed', '1')} {sys.argv[1:]}")
        shares = {"before": 0.01, "after": 0.01, "readonly": 0.002, "slow": 0.002}
        self._shares = shares | {name: float(share) for name, share in said.items()}
        self._lock, self._log = threading.Lock(), log

    def draw(self) -> str | None:
        with self._lock:
            drawn = self._chance.random()
            for name, share in self._shares.items():
                drawn -= share
                if drawn < 0:
                    if self._log:
                        with open(self._log, "a") as file:  # noqa: PTH123  # at start, nothing else need be imported
                            file.write(f"{name}\n")
                    return name
        return None

    def install(self) -> None:
        faults = self

        def send(self: Any, command: Any, check_health: bool = True) -> Any:
            self.loses_reply = False
            if not check_health:  # the handshake of a connection, or its PING: no command of Sleipnir
                return _send(self, command, check_health)
            match faults.draw():
                case "before":
                    self.disconnect()
                    raise TimeoutError("fault: timed out before the command was sent")
                case "readonly":
                    raise ReadOnlyError("fault: You can't write against a read only replica.", status_code="READONLY")
                case "slow":
                    threading.Event().wait(SLOW_S)
                case "after":
                    self.loses_reply = True
            return _send(self, command, check_health)

        def read(self: Any, *args: Any, **options: Any) -> Any:
            reply = _read(self, *args, **options)
            if getattr(self, "loses_reply", False):
                self.loses_reply = False
                self.disconnect()
                raise TimeoutError("fault: the command was applied and its reply lost")
            return reply

        AbstractConnection.send_packed_command = send  # type: ignore[method-assign]
        AbstractConnection.read_response = read  # type: ignore[method-assign]


@contextmanager
def installed(text: str, log: str | None = None) -> Iterator[None]:
    """Faults in this process while the block runs."""
    Faults(text, log).install()
    try:
        yield
    finally:
        AbstractConnection.send_packed_command = _send  # type: ignore[method-assign]
        AbstractConnection.read_response = _read  # type: ignore[method-assign]


def install_from_environment() -> None:
    if text := os.environ.get(VARIABLE):
        Faults(text, os.environ.get(LOG_VARIABLE)).install()

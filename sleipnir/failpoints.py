"""Kills or stops the process, or loses a reply, at a named point of the program, for tests.

    SLEIPNIR_FAILPOINTS="commit.after=kill"             killed once the first commit is applied
    SLEIPNIR_FAILPOINTS="claim.before=kill@3"           killed before the third claim
    SLEIPNIR_FAILPOINTS="deliver.after=raise,own.before=stop"

Points are `<name>.before` and `<name>.after` of every Lua script, of `publish` (task messages to the broker) and of
`ack` (`before`: the task's body is done; `after`: Celery has dealt with its return). `kill` is SIGKILL and `stop`
SIGSTOP of this process; `raise` is a ConnectionError, which after a call means that it was applied and its reply lost.

Only for tests, so it is not a setting. Without the variable `around` returns its argument unchanged.
"""

from __future__ import annotations

import functools
import os
import re
import signal
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from sleipnir.errors import ConfigError

VARIABLE = "SLEIPNIR_FAILPOINTS"

F = TypeVar("F", bound=Callable[..., Any])

_FORM = re.compile(r"(\w+\.(?:before|after))=(kill|stop|raise)(?:@([1-9]\d*))?")
_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


class Failpoint:
    """Does `action` the `at`-th time it is passed, only once."""

    def __init__(self, name: str, action: str, at: int) -> None:
        self.name, self.action, self._left, self._lock = name, action, at, threading.Lock()

    def pass_by(self) -> None:
        """Raises ConnectionError when the action is `raise` and the time has come."""
        with self._lock:
            self._left -= 1
            due = self._left == 0
        if due and self.action == "raise":
            raise ConnectionError(f"failpoint {self.name}")
        if due:
            os.kill(os.getpid(), _SIGNALS[self.action])


def parse(text: str) -> dict[str, Failpoint]:
    """Failpoints by name. Raises ConfigError for a text that says something else."""
    points: dict[str, Failpoint] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = _FORM.fullmatch(part)
        if match is None:
            raise ConfigError(
                f"{VARIABLE}: {part!r} is not a failpoint; expected NAME.before|after=kill|stop|raise[@N]"
            )
        points[match[1]] = Failpoint(match[1], match[2], int(match[3] or 1))
    return points


ACTIVE: Mapping[str, Failpoint] = parse(os.environ.get(VARIABLE, ""))
"""Those of this process; empty in production."""


def hit(name: str) -> None:
    """Pass the point `name`."""
    if (point := ACTIVE.get(name)) is not None:
        point.pass_by()


def around(name_of: str | Callable[..., str]) -> Callable[[F], F]:
    """Put `<name>.before` and `<name>.after` around a function; a callable finds the name in its arguments."""

    def decorate(function: F) -> F:
        if not ACTIVE:
            return function

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            name = name_of if isinstance(name_of, str) else name_of(*args, **kwargs)
            hit(f"{name}.before")
            result = function(*args, **kwargs)
            hit(f"{name}.after")
            return result

        return cast(F, wrapped)

    return decorate

"""Commands as a user that the kernel does not trust, for tests that may run as root."""

from __future__ import annotations

import functools
import os
import subprocess
import sys

ANOTHER_USER = 65534


def as_user(command: list[str]) -> list[str]:
    """The command as somebody who is not root; where another user cannot use this Python, as root without the
    capabilities that make the difference."""
    if os.geteuid() != 0:
        return command
    return [*(_another_user() if _can_run_python() else _without_capabilities()), *command]


def _another_user() -> list[str]:
    return ["setpriv", f"--reuid={ANOTHER_USER}", f"--regid={ANOTHER_USER}", "--clear-groups"]


def _without_capabilities() -> list[str]:
    without = "-sys_ptrace,-sys_admin,-perfmon,-dac_override,-dac_read_search"
    return ["setpriv", f"--bounding-set={without}", f"--inh-caps={without}"]


@functools.cache
def _can_run_python() -> bool:
    """Also start it from itself: its folder may be closed to others."""
    again = "import subprocess, sys, structlog; sys.exit(subprocess.run([sys.executable, '-c', '']).returncode)"
    done = subprocess.run([*_another_user(), sys.executable, "-c", again], capture_output=True, check=False)
    return done.returncode == 0

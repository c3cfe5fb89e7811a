"""The exit codes of the process."""

from __future__ import annotations

from typing import Final

COMPLETED: Final = 0
FAILED: Final = 1
"""The run failed or was cancelled; or a service that we depend on did not answer."""
USAGE: Final = 2
"""The command, the agent or a setting is wrong. No run was started."""
WAITING: Final = 3
"""The run waits for an answer, and there is no terminal."""
INTERRUPTED: Final = 130
"""Ctrl-C: 128 + SIGINT, as shells have it."""


def of_status(status: str) -> int:
    """The code for a run that had this status when the command stopped following it."""
    match status:
        case "completed":
            return COMPLETED
        case "waiting":
            return WAITING
        case _:
            return FAILED

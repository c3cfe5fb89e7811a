"""The working directory of a visit's commands: never the agent's folder, which is read-only and shared by all runs.

It is the requested one (`--cwd`); else the caller's own, if this machine has it (sleipnir/local/same_directory.py) and
it can be entered; else the run's scratch folder (scratch.py). A missing requested directory does not fail the node:
another worker may have it, so the visit is handed back. The scheduler limits how often.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from sleipnir.errors import MachineFailed
from sleipnir.local.same_directory import System
from sleipnir.runs.run import RunSpec
from sleipnir.settings import Settings
from sleipnir.store.address import is_local
from sleipnir_workers.execution.execution import can_be_entered
from sleipnir_workers.folders.scratch import folder_of
from sleipnir_workers.machine import health

PASSES = 5
PASS_MS = 1_000
MOST_LACKING = 10_000


def working_directory(run: str, spec: RunSpec, settings: Settings) -> tuple[Path, Path | None]:
    """The working directory of a visit's commands, and the same again if it is the run's scratch folder, which is
    created if it is missing.

    Whether the requested one exists is checked when a program is started in it (Visit.directory): a call of a remote
    MCP server needs none. Raises MachineFailed when the disk has no room.
    """
    if not health.has_room(settings.home):
        raise MachineFailed("disk", f"no room on the disk of {settings.home}")
    if spec.cwd:
        return as_path(spec.cwd), None
    if spec.caller_dir and _is_callers(spec.caller_dir, spec, settings) and can_be_entered(as_path(spec.caller_dir)):
        return as_path(spec.caller_dir), None
    folder = folder_of(run, settings.home)
    return folder, folder


def _is_callers(directory: str, spec: RunSpec, settings: Settings) -> bool:
    if spec.caller_marks:
        return System.here().has(directory, spec.caller_marks)
    return is_local(str(settings.redis_url))  # submitted by a release that did not record marks


as_path = lru_cache(maxsize=1024)(Path)


class MissingDirectories:
    """The visits that this worker has handed back because it lacks their directory.

    A worker that hands a visit back at once would also be the first to take the next message. So it leaves the next
    PASSES messages of such a visit to other workers, each for PASS_MS: one that has the directory may be busy. Then it
    takes the visit again, so that a visit whose directory no worker has reaches its end.
    """

    def __init__(self) -> None:
        self._visits: dict[tuple[str, int], tuple[Path, int]] = {}

    def add(self, run: str, seq: int, directory: str) -> None:
        if len(self._visits) >= MOST_LACKING:
            self._visits.clear()
        self._visits[run, seq] = as_path(directory), PASSES

    def passes(self, run: str, seq: int) -> bool:
        """Whether to leave a message of this visit to other workers."""
        directory, passes_left = self._visits.pop((run, seq), (None, 0))
        if directory is None or not passes_left or can_be_entered(directory):
            return False
        self._visits[run, seq] = directory, passes_left - 1
        return True

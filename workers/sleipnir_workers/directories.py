"""Which directory the commands of a visit work in: never the agent's folder, which is read-only and shared by all runs.

It is the one that was asked for (`--cwd`); else the caller's own, where that is here (this_machine.py) and can be
entered; else the run's scratch folder (scratch.py). One that was asked for and is not here is no failure of the node:
another worker may have it, so the visit is handed back. The scheduler bounds how often.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from sleipnir.errors import MachineFailed
from sleipnir.runs import RunSpec
from sleipnir.settings import Settings
from sleipnir.store.address import is_local
from sleipnir.this_machine import System
from sleipnir_workers import machine
from sleipnir_workers.node import can_be_entered
from sleipnir_workers.scratch import folder_of


def working_directory(run: str, spec: RunSpec, settings: Settings) -> tuple[Path, Path | None]:
    """Where the commands of a visit work, and the same again if it is the run's scratch folder, made if need be.

    Whether one that was asked for is here is seen when a program is started in it (Visit.directory): a call of a remote
    MCP server needs none. Raises MachineFailed when the disk has no room.
    """
    if not machine.has_room(settings.home):
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
    return is_local(str(settings.redis_url))  # submitted by a release that did not say


as_path = lru_cache(maxsize=1024)(Path)

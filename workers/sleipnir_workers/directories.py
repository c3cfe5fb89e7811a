"""Which directory the commands of a visit work in: never the agent's folder, which is read-only and shared by all runs.

It is the one that was asked for (`--cwd`); else the caller's own, where the caller is on this machine (this_machine.py)
and the directory can be entered; else the run's scratch folder (scratch.py). One that was asked for and is not here is
no failure of the node: another worker may have it, so the visit is handed back. The scheduler bounds how often.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from sleipnir.errors import MachineFailed
from sleipnir.runs import RunSpec
from sleipnir.settings import Settings
from sleipnir.store.address import is_local
from sleipnir.this_machine import machine_id
from sleipnir_workers import machine
from sleipnir_workers.scratch import folder_of


class DirectoryMissing(Exception):
    """This machine does not have the directory that the run asked for. The message says so."""


def working_directory(run: str, spec: RunSpec, settings: Settings) -> tuple[Path, Path | None]:
    """Where the commands of a visit work, and the same again if it is the run's scratch folder, made if need be.

    Raises DirectoryMissing, and MachineFailed when the disk has no room.
    """
    if spec.cwd and not _can_be_entered(as_path(spec.cwd)):
        raise DirectoryMissing(f"the working directory {spec.cwd!r} is not on this machine, or cannot be entered")
    if not machine.has_room(settings.home):
        raise MachineFailed("disk", f"no room on the disk of {settings.home}")
    if spec.cwd:
        return as_path(spec.cwd), None
    if spec.caller_dir and _is_callers_machine(spec, settings) and _can_be_entered(as_path(spec.caller_dir)):
        return as_path(spec.caller_dir), None
    folder = folder_of(run, settings.home)
    return folder, folder


def _is_callers_machine(spec: RunSpec, settings: Settings) -> bool:
    if spec.caller_machine:
        return spec.caller_machine == machine_id()
    return is_local(str(settings.redis_url))  # submitted by a release that did not say


def _can_be_entered(folder: Path) -> bool:
    return os.path.isdir(folder) and os.access(folder, os.X_OK)  # noqa: PTH112  (Path.is_dir raises where it may not look)


as_path = lru_cache(maxsize=1024)(Path)

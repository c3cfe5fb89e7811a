"""Scratch folders: the working directories of runs whose caller has no directory on this machine.

Visits of one run see each other's files there as long as they run on one machine; other runs do not see them. Workers
receive no message when a run ends, so the main process of a worker looks for ended runs at its start and once a minute
(work_folders.py), as `sleipnir gc` does. On a full disk the folders of ended runs are removed early.
"""

from __future__ import annotations

from pathlib import Path

import structlog

from sleipnir.errors import MachineFailed
from sleipnir.store.store import Store
from sleipnir.upkeep.work_folders import WORK, WorkFolders, remove
from sleipnir_workers.machine import health


def folder_of(run: str, home: Path) -> Path:
    """The folder of a run below SLEIPNIR_HOME, created if it is missing. Raises MachineFailed."""
    folder = home / WORK / run
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        pass
    except FileNotFoundError:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise MachineFailed.of(error, f"cannot create {folder}") from error
    except OSError as error:
        raise MachineFailed.of(error, f"cannot create {folder}") from error
    return folder


def sweep(folders: WorkFolders, store: Store) -> int:
    """Remove expired folders, on a full disk those of all ended runs. Returns how many. Safe to run twice at once."""
    removed = sum(remove(folder) for folder in folders.expired(store))
    if health.has_room(folders.home):
        return removed
    early = 0
    for folder in folders.of_ended_runs(store):
        early += remove(folder)
        if health.has_room(folders.home):
            break
    if early:
        structlog.get_logger().warning("the disk is full: removed scratch folders of ended runs early", count=early)
    return removed + early

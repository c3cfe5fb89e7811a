"""The scratch folders of runs on this machine, SLEIPNIR_HOME/work/RUN, and which of them can be removed.

Rules. A folder is removed SLEIPNIR_WORK_RETENTION_S after the end of its run, an empty one at the end of its run. The
folder of an unknown run (expired, or of another deployment on this machine) is removed when it has not changed for that
time and for two days. The decision depends only on the folders and Redis: a restarted process continues, and several
processes may work at once. Removing needs no disk space.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sleipnir.messages import FINAL
from sleipnir.staging import make_removable
from sleipnir.store.store import Store

WORK = "work"
"""Below SLEIPNIR_HOME."""

UNKNOWN_S = 2 * 24 * 3600
STATUSES = 500  # runs that are asked for at once


@dataclass
class WorkFolders:
    """`home` is SLEIPNIR_HOME. An object remembers how long each folder is kept, so that a check every minute does not
    query every run."""

    home: Path
    retention_s: float
    _kept_until_ms: dict[str, int] = field(default_factory=dict)

    def expired(self, store: Store) -> Iterator[Path]:
        """The folders that can be removed."""
        now_ms, retention_ms = store.now_ms(), int(self.retention_s * 1000)
        names = self._names()
        self._kept_until_ms = {name: until for name, until in self._kept_until_ms.items() if name in names}
        due = sorted(name for name in names if self._kept_until_ms.get(name, 0) <= now_ms)
        for start in range(0, len(due), STATUSES):
            for name, end in store.runs.ends(due[start : start + STATUSES]).items():
                folder = self.home / WORK / name
                if end is None:
                    until_ms = now_ms + int((max(self.retention_s, UNKNOWN_S) - _age_s(folder)) * 1000)
                elif end.status not in FINAL:
                    continue
                else:
                    until_ms = 0 if _is_empty(folder) else (end.ended_ms or now_ms) + retention_ms
                if until_ms <= now_ms:
                    yield folder
                else:
                    self._kept_until_ms[name] = until_ms

    def of_ended_runs(self, store: Store) -> list[Path]:
        """Removable folders regardless of the retention, earliest ended first: for a full disk."""
        names, ended = sorted(self._names()), dict[str, int]()
        for start in range(0, len(names), STATUSES):
            for name, end in store.runs.ends(names[start : start + STATUSES]).items():
                if end is not None and end.status in FINAL:
                    ended[name] = end.ended_ms or 0
        return [self.home / WORK / name for name in sorted(ended, key=lambda name: ended[name])]

    def _names(self) -> set[str]:
        try:
            return {path.name for path in (self.home / WORK).iterdir() if path.name.isascii()}  # as ids of runs are
        except (FileNotFoundError, NotADirectoryError):
            return set()


def remove(folder: Path) -> bool:
    """Removes it, including read-only files of a script. False: it still exists."""
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        make_removable(folder)
        shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def _is_empty(folder: Path) -> bool:
    try:
        with os.scandir(folder) as entries:
            return next(entries, None) is None
    except OSError:  # gone, or no folder
        return False


def _age_s(folder: Path) -> float:
    """The time since the last change in it; None if it no longer exists."""
    changed = 0.0
    for current, _, names in os.walk(folder):  # Path.rglob raises for a folder that goes meanwhile
        for path in (current, *(os.path.join(current, name) for name in names)):  # noqa: PTH118
            with contextlib.suppress(OSError):
                changed = max(changed, os.lstat(path).st_mtime)
    return time.time() - changed if changed else 0.0

"""Scratch folders: where the commands of a run work that has no directory of its caller on this machine.

A visit never works in its bundle, which all runs of an agent share. It works in the directory that the caller asked
for, else in the caller's own directory if the caller is on this machine, else in `SLEIPNIR_HOME/work/RUN`. Visits of
one run see each other's files there as long as they run on one machine; other runs do not. Workers receive no message
when a run ends, so the main process of a worker removes the folders of ended runs once a minute, as `sleipnir gc` does.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sleipnir.errors import MachineFailed
from sleipnir.garbage import WORK, sweep_work
from sleipnir.store.store import Store


@dataclass(frozen=True)
class Scratch:
    """`home` is SLEIPNIR_HOME."""

    home: Path

    def of_run(self, run: str) -> Path:
        """The folder of a run, made if need be. Raises MachineFailed."""
        folder = self.home / WORK / run
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            pass
        except FileNotFoundError:
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                raise MachineFailed.of(error, f"cannot make {folder}") from error
        except OSError as error:
            raise MachineFailed.of(error, f"cannot make {folder}") from error
        return folder

    def sweep(self, store: Store) -> int:
        """Remove the folders of runs that are over. Returns how many. Safe to run twice at once."""
        return sum(remove() for _, remove in sweep_work(store, self.home))

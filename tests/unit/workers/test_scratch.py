"""The scratch folders of runs: how long they stay, over restarts of workers and on a full disk."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from sleipnir.errors import MachineFailed
from sleipnir.store.runs.run_index import RunEnd
from sleipnir.store.store import Store
from sleipnir.upkeep.work_folders import UNKNOWN_S, WorkFolders
from sleipnir_workers.folders.scratch import folder_of, sweep
from sleipnir_workers.machine import health
from tests.unprivileged import unprivileged

HOUR_MS = 3600 * 1000


class Redis:
    """Stands for the store: its clock, and the runs that it knows."""

    def __init__(self) -> None:
        self.at_ms, self.known, self.asked = 100 * HOUR_MS, dict[str, RunEnd](), list[str]()

    @property
    def runs(self) -> Redis:
        return self

    def now_ms(self) -> int:
        return self.at_ms

    def ends(self, run_ids: Sequence[str]) -> dict[str, RunEnd | None]:
        self.asked += run_ids
        return {run: self.known.get(run) for run in run_ids}


class Machine:
    """The work folder of a machine, whose workers keep folders for a day."""

    def __init__(self, home: Path) -> None:
        self.home, self.redis = home, Redis()
        self.worker = WorkFolders(home, 24 * 3600)

    def used(self, run: str, status: str, ended_h_ago: int | None = None, *, file: str = "notes.txt") -> Path:
        """The folder of a run, with a file in it."""
        folder = folder_of(run, self.home)
        if file:
            (folder / file).write_text("x")
        ended_ms = None if ended_h_ago is None else self.redis.at_ms - ended_h_ago * HOUR_MS
        self.redis.known[run] = RunEnd(status, ended_ms)
        return folder

    def sweep(self) -> list[str]:
        """Returns what is left."""
        sweep(self.worker, cast(Store, self.redis))
        return sorted(path.name for path in (self.home / "work").iterdir())

    def later(self, hours: int) -> None:
        self.redis.at_ms += hours * HOUR_MS


@pytest.fixture
def here(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_folder_stays_until_its_run_has_been_over_for_the_retention(here: Machine) -> None:
    """Finding U6 of the second review."""
    for run, status, ended in (("new", "completed", 23), ("old", "failed", 25), ("live", "running", None)):
        here.used(run, status, ended)
    assert here.sweep() == ["live", "new"]
    here.later(1)
    assert here.sweep() == ["live"]


def test_an_empty_folder_goes_as_soon_as_its_run_is_over(here: Machine) -> None:
    here.used("over", "completed", 0, file="")
    here.used("live", "running", file="")
    assert here.sweep() == ["live"]


def test_a_run_that_continues_after_a_retry_keeps_its_folder(here: Machine) -> None:
    here.used("again", "failed", 1)
    here.sweep()
    here.redis.known["again"] = RunEnd("running", None)
    here.later(48)
    assert here.sweep() == ["again"]


def test_a_worker_that_was_restarted_continues_where_it_was(here: Machine) -> None:
    """Nothing but the folders and Redis decides."""
    here.used("one", "completed", 1)
    assert here.sweep() == ["one"]
    here.worker = WorkFolders(here.home, 24 * 3600)
    assert here.sweep() == ["one"]
    here.later(23)
    here.worker = WorkFolders(here.home, 24 * 3600)
    assert here.sweep() == []


def test_two_workers_of_a_machine_sweep_at_once(here: Machine) -> None:
    folder = here.used("one", "completed", 30)
    expired = list(here.worker.expired(cast(Store, here.redis)))
    assert here.sweep() == []
    assert expired == [folder]
    assert sweep(here.worker, cast(Store, here.redis)) == 0


def test_a_run_whose_folder_stays_is_not_asked_for_each_minute(here: Machine) -> None:
    here.used("kept", "completed", 1)
    here.used("live", "running")
    for _ in range(3):
        here.sweep()
    assert here.redis.asked == ["kept", "live", "live", "live"]


def test_a_folder_of_another_deployment_stays_while_it_is_used(here: Machine) -> None:
    folder = here.used("theirs", "running")
    del here.redis.known["theirs"]
    assert here.sweep() == ["theirs"]
    long_ago = time.time() - UNKNOWN_S - 60
    for path in (folder / "notes.txt", folder):
        os.utime(path, (long_ago, long_ago))
    here.worker = WorkFolders(here.home, 24 * 3600)
    assert here.sweep() == []


@pytest.mark.parametrize("mode", [0o500, 0])
def test_what_a_script_closed_goes_too_and_where_its_links_lead_stays(mode: int) -> None:
    with unprivileged() as home:
        here = Machine(home / "home")
        folder, elsewhere = here.used("closed", "completed", 30), home / "elsewhere"
        for place in (folder / "inner", folder / "inner" / "inner", elsewhere):
            place.mkdir()
            (place / "x").write_text("x")
        (folder / "inner" / "link").symlink_to(elsewhere)
        for place in (elsewhere, folder / "inner" / "inner", folder / "inner", folder):
            place.chmod(mode)
        assert here.sweep() == []
        assert elsewhere.stat().st_mode & 0o777 == mode


def test_what_goes_while_its_age_is_looked_at_is_no_error(here: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another worker of the machine may be removing it."""
    folder = here.used("theirs", "running", file="")
    del here.redis.known["theirs"]
    (folder / "inner").mkdir()
    scandir = os.scandir

    def removed_meanwhile(path: Any) -> Any:
        if Path(path) == folder / "inner":
            (folder / "inner").rmdir()
        return scandir(path)

    monkeypatch.setattr(os, "scandir", removed_meanwhile)
    assert here.sweep() == ["theirs"]


@pytest.fixture
def full_until(here: Machine, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The disk is full as long as there are more folders than this."""

    def full_until(most: int) -> None:
        monkeypatch.setattr(health, "has_room", lambda _: len(list((here.home / "work").iterdir())) <= most)

    return full_until


def test_on_a_full_disk_folders_of_ended_runs_go_early_the_oldest_first(here: Machine, full_until: Any) -> None:
    """Finding U6 of the second review."""
    for run, status, ended in (
        ("a", "completed", 1),
        ("b", "failed", 3),
        ("c", "completed", 2),
        ("d", "running", None),
    ):
        here.used(run, status, ended)
    full_until(2)
    assert here.sweep() == ["a", "d"]


def test_a_disk_that_stays_full_loses_no_folder_of_a_run_that_continues(here: Machine, full_until: Any) -> None:
    here.used("over", "completed", 1)
    here.used("live", "running")
    full_until(-1)
    assert here.sweep() == ["live"]


def test_without_a_work_folder_there_is_nothing_to_do(tmp_path: Path) -> None:
    assert sweep(WorkFolders(tmp_path, 0), cast(Store, Redis())) == 0


def test_a_folder_that_cannot_be_made_is_the_machines_failure(tmp_path: Path) -> None:
    """Finding C18."""
    (tmp_path / "work").write_text("a file where the directory should be")
    with pytest.raises(MachineFailed, match="cannot create"):
        folder_of("r1", tmp_path)

"""Which directory the commands of a visit work in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sleipnir.errors import MachineFailed
from sleipnir.graph.model import ScriptNode
from sleipnir.local.same_directory import System
from sleipnir.runs.run import RunSpec
from sleipnir.settings import Settings
from sleipnir_workers.execution.execution import DirectoryMissing
from sleipnir_workers.folders.directories import PASSES, MissingDirectories, working_directory
from sleipnir_workers.machine import health
from tests.unit.workers.visits import visit
from tests.unprivileged import unprivileged


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home", redis_url="redis://redis.example.org/0")


def spec(folder: Path | str, **fields: str) -> RunSpec:
    return RunSpec(
        "agent", "digest", caller_dir=str(folder), **{"caller_marks": System.here().marks(str(folder)), **fields}
    )  # type: ignore[arg-type]


def test_a_visit_works_in_the_callers_directory_for_any_location_of_redis(project: Path, settings: Settings) -> None:
    """Finding U6 of the second review."""
    assert working_directory("r1", spec(project), settings) == (project, None)


@pytest.mark.parametrize("url", ["redis://127.0.0.1/0", "unix:///run/redis.sock"])
def test_a_visit_on_another_machine_works_in_the_runs_scratch_folder(
    project: Path, settings: Settings, url: str
) -> None:
    """Finding U6 of the second review: a port or a socket may be forwarded."""
    here = settings.replaced(redis_url=url)
    found = working_directory("r1", spec(project, caller_marks="another"), here)
    assert found == (settings.home / "work" / "r1", settings.home / "work" / "r1")
    assert found[0].stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(("url", "is_callers"), [("redis://127.0.0.1/0", False), ("unix:///run/redis.sock", True)])
def test_without_marks_of_the_client_the_address_of_redis_decides(
    project: Path, settings: Settings, url: str, is_callers: bool
) -> None:
    here = settings.replaced(redis_url=url)
    cwd, scratch = working_directory("r1", spec(project, caller_marks=""), here)
    assert (cwd == project, scratch is None) == (is_callers, is_callers)


def test_a_removed_callers_directory_is_replaced_by_the_scratch_folder(project: Path, settings: Settings) -> None:
    project.rmdir()
    assert working_directory("r1", spec(project), settings)[1] == settings.home / "work" / "r1"


def test_a_directory_that_is_closed_to_the_worker_is_replaced_too(settings: Settings) -> None:
    with unprivileged() as folder:
        settings = settings.replaced(home=folder / "home")
        (folder / "project" / "inner").mkdir(parents=True)
        (folder / "project").chmod(0)
        assert working_directory("r1", spec(folder / "project"), settings)[1] is not None
        assert working_directory("r2", spec(folder / "project" / "inner"), settings)[1] is not None


def test_two_runs_have_two_folders(tmp_path: Path, settings: Settings) -> None:
    """Of agents that write relative files side by side, none sees those of another."""
    one, other = (working_directory(run, spec(tmp_path, caller_marks="x"), settings)[0] for run in ("r1", "r2"))
    (one / "notes.txt").write_text("mine")
    assert list(other.iterdir()) == []
    assert working_directory("r1", spec(tmp_path, caller_marks="x"), settings)[0] == one


def test_the_directory_that_was_asked_for_comes_first(project: Path, tmp_path: Path, settings: Settings) -> None:
    assert working_directory("r1", replace(spec(project), cwd=str(tmp_path)), settings) == (tmp_path, None)


def test_one_that_was_asked_for_and_is_missing_is_for_another_worker(project: Path, settings: Settings) -> None:
    """Finding U6 of the second review. It is missed by what works in it: a call of a remote MCP server does not."""
    cwd, scratch = working_directory("r1", replace(spec(project), cwd=str(project / "gone")), settings)
    assert (cwd, scratch) == (project / "gone", None)
    with pytest.raises(DirectoryMissing, match=f"the working directory '{project}/gone' is not on this machine"):
        _ = visit(ScriptNode(id="a", script="a.sh"), project, cwd=cwd).directory
    assert not (settings.home / "work").exists()


def test_a_machine_without_room_begins_nothing(
    project: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "has_room", lambda _: False)
    with pytest.raises(MachineFailed, match="no room"):
        working_directory("r1", spec(project), settings)


def test_a_visit_that_was_handed_back_is_left_to_others_for_a_while_and_then_taken_again(project: Path) -> None:
    """Finding U6 of the second review: who hands back at once would take every message of it."""
    lacking = MissingDirectories()
    lacking.add("r1", 3, str(project / "gone"))
    assert not lacking.passes("r1", 4)
    assert [lacking.passes("r1", 3) for _ in range(PASSES + 2)] == [True] * PASSES + [False, False]


def test_a_visit_whose_directory_was_made_meanwhile_is_taken(project: Path) -> None:
    lacking = MissingDirectories()
    lacking.add("r1", 3, str(project / "gone"))
    assert lacking.passes("r1", 3)
    (project / "gone").mkdir()
    assert not lacking.passes("r1", 3)

"""What is written down of runs: all of it, once it counts, and readable after any crash."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sleipnir.errors import ConfigError, RunNotFound
from sleipnir.runs.journal import state_after
from sleipnir.store.store import Store
from sleipnir.upkeep.archive import ArchiveWriter, archived_lines, archived_runs
from sleipnir.upkeep.export import lines_of
from sleipnir_scheduler.services import janitor
from sleipnir_scheduler.services.archiver import Archiver, ahead_of
from tests.finished import created, ended, finished

DAY_MS = 24 * 3600 * 1000
RUN = "run000000001"


def exported(store: Store, run_id: str, **options: bool) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines_of(store.records, run_id, **options)]


MADE: list[Archiver] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    while MADE:
        MADE.pop().close()


def archiver_of(store: Store, folder: Path, *, file_bytes: int = 10**6, compressed: bool = False) -> Archiver:
    writer = ArchiveWriter(folder, "host", file_bytes=file_bytes, compressed=compressed)
    MADE.append(Archiver(store, writer, ahead_ms=8 * DAY_MS))
    return MADE[-1]


def run_once(store: Store, archiver: Archiver) -> int:
    return archiver.run_once(range(store.keys.partitions), store.now_ms())


def names(folder: Path) -> list[str]:
    return sorted(each.run for each in archived_runs(folder))


def test_an_export_has_the_spec_every_step_with_its_writes_and_the_end(store: Store) -> None:
    given = {"city": "Åre", "api_key": "s3cret", "db_password": "{{DB_PASSWORD}}"}
    finished(store, RUN, {"x": 1, "text": "two\nlines"}, {"x": [2]}, output="done", variables=given)
    head, *steps, end = exported(store, RUN)
    assert (head["type"], head["format"], head["v"], head["run"]) == ("run", "sleipnir-run", 1, RUN)
    assert head["spec"]["agent"] == "agent"
    assert head["spec"]["variables"] == {"city": "Åre", "api_key": "***", "db_password": "{{DB_PASSWORD}}"}
    assert [step["step"] for step in steps] == [0, 1, 2]
    assert [step["writes"] for step in steps] == [
        {"initial_prompt": "hi"}, {"x": 1, "text": "two\nlines"}, {"x": [2]},
    ]  # fmt: skip
    assert (end["type"], end["final"], end["status"], end["output"], end["steps"]) == (
        "outcome", True, "completed", "done", 2,
    )  # fmt: skip


def test_a_long_run_is_read_in_pages_and_the_state_can_be_made_of_its_lines(store: Store) -> None:
    finished(store, RUN, *({"n": number} for number in range(300)))
    lines = exported(store, RUN)
    assert len(lines) == 303
    journal = store._client.lrange(store.keys.of_run(RUN).journal, 0, -1)
    assert state_after(journal)["n"] == lines[-2]["writes"]["n"] == 299
    assert [step["step"] for step in lines[1:-1]] == list(range(301))


def test_of_a_run_that_is_not_over_there_is_what_there_is_now(store: Store) -> None:
    created(store, RUN)
    assert [line["type"] for line in exported(store, RUN)] == ["run", "step", "outcome"]
    assert exported(store, RUN)[-1]["final"] is False


def test_children_come_after_their_parent_and_one_that_has_expired_is_left_out(store: Store) -> None:
    finished(store, RUN)
    finished(store, "run000000002")
    finished(store, "run000000003")
    link = json.dumps({"agent": "agent", "seq": 1})
    for parent, child in ((RUN, "run000000002"), ("run000000002", "run000000003"), (RUN, "gone")):
        store._client.hset(store.keys.of_run(parent).children, child, link)
        store._client.expire(store.keys.of_run(parent).children, 60)
    assert list(dict.fromkeys(line["run"] for line in exported(store, RUN, children=True))) == [
        RUN, "run000000002", "run000000003",
    ]  # fmt: skip
    assert {line["run"] for line in exported(store, RUN)} == {RUN}


def test_a_run_that_is_not_there_is_named(store: Store) -> None:
    with pytest.raises(RunNotFound, match="no run 'nope'"):
        exported(store, "nope")


@pytest.mark.parametrize("compressed", [False, True])
def test_finished_runs_are_archived_once_and_read_back_as_they_were_exported(
    store: Store, tmp_path: Path, compressed: bool
) -> None:
    runs = [f"run00000000{number}" for number in range(5)]
    for run_id in runs:
        finished(store, run_id, {"x": run_id})
    created(store, "live00000001")
    archiver = archiver_of(store, tmp_path / "a", compressed=compressed)
    assert (run_once(store, archiver), run_once(store, archiver)) == (5, 0)
    assert archiver.state.written == 5
    assert names(tmp_path / "a") == runs
    assert list(archived_lines(tmp_path / "a", runs[3])) == list(lines_of(store.records, runs[3]))
    with pytest.raises(RunNotFound, match="live00000001"):
        list(archived_lines(tmp_path / "a", "live00000001"))
    (file,) = (tmp_path / "a").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600


def test_runs_are_archived_when_they_expire_soon_and_not_before(store: Store, tmp_path: Path) -> None:
    finished(store, RUN)
    early = Archiver(store, archiver_of(store, tmp_path)._writer, ahead_ms=ahead_of(7 * DAY_MS))
    assert run_once(store, early) == 0
    assert early.run_once(range(2), store.now_ms() + 6 * DAY_MS + 60_000) == 1


def test_files_are_bounded_and_each_run_is_in_one_of_them(store: Store, tmp_path: Path) -> None:
    runs = [f"run00000000{number}" for number in range(6)]
    for run_id in runs:
        finished(store, run_id, {"x": "y" * 500})
    assert run_once(store, archiver_of(store, tmp_path, file_bytes=1500)) == 6
    files = sorted(tmp_path.iterdir())
    assert len(files) > 2
    assert names(tmp_path) == runs
    for file in files:
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        assert (lines[0]["type"], lines[-1]["type"]) == ("run", "outcome")


def test_a_scheduler_that_died_before_it_noted_what_it_wrote_leaves_a_duplicate_that_readers_drop(
    store: Store, tmp_path: Path
) -> None:
    finished(store, RUN, {"x": 1})
    dead = archiver_of(store, tmp_path)
    dead._writer.write([lines_of(store.records, RUN)], store.now_ms())
    assert run_once(store, archiver_of(store, tmp_path)) == 1
    assert len(list(tmp_path.iterdir())) == 2, "a new process writes a file of its own"
    assert names(tmp_path) == [RUN]


@pytest.mark.parametrize("compressed", [False, True])
def test_a_file_that_was_cut_anywhere_is_read_up_to_there(store: Store, tmp_path: Path, compressed: bool) -> None:
    finished(store, RUN, {"x": 1})
    finished(store, "run000000002", {"x": 2})
    whole = tmp_path / "whole"
    archiver = archiver_of(store, whole, compressed=compressed)
    for run_id in (RUN, "run000000002"):
        archiver._writer.write([lines_of(store.records, run_id)], store.now_ms())
    (file,) = whole.iterdir()
    content = file.read_bytes()
    plain = gzip.decompress(content) if compressed else content
    first = list(lines_of(store.records, RUN))
    for length in range(0, len(content) - 1, 7):
        cut = tmp_path / "cut"
        cut.mkdir(exist_ok=True)
        (cut / file.name).write_bytes(content[:length])
        found = names(cut)
        assert found == [RUN, "run000000002"][: len(found)]
        if found:
            assert list(archived_lines(cut, RUN)) == first
    assert plain.decode() == "".join([*first, *lines_of(store.records, "run000000002")])


def test_a_run_that_was_retried_is_archived_again_and_the_later_end_counts(store: Store, tmp_path: Path) -> None:
    created(store, RUN)
    ended(store, RUN, {"x": 1}, status="failed", error="broken")
    archiver = archiver_of(store, tmp_path)
    assert run_once(store, archiver) == 1
    store.runs.retry(RUN)
    partition = store.keys.partition_of(RUN)
    epochs = {partition: store.partitions.own([partition], "me", 60_000)[partition].epoch}
    assert epochs
    ended(store, RUN, {"x": 2}, revives=True, output="better")
    assert run_once(store, archiver) == 1
    assert [(each.run, each.status) for each in archived_runs(tmp_path)] == [(RUN, "completed")]
    assert json.loads(list(archived_lines(tmp_path, RUN))[-1])["output"] == "better"
    janitor.run_once(store, range(2), store.now_ms() + 8 * DAY_MS, 7 * DAY_MS)
    assert list(store._client.zrange(store.keys.of_partition(partition).archived, 0, -1)) == []


def test_a_run_that_was_revived_while_it_was_read_is_not_noted(store: Store, tmp_path: Path) -> None:
    created(store, RUN)
    ended(store, RUN, status="failed", error="broken")
    partition = store.keys.partition_of(RUN)
    ((_, expires_ms),) = store.partitions.unarchived(partition, store.now_ms() + 8 * DAY_MS, 10)
    store._client.zadd(store.keys.of_partition(partition).expiring, {RUN: expires_ms + 5})
    assert store.partitions.archived(partition, [(RUN, expires_ms)]) == 0
    assert store.partitions.archived(partition, [(RUN, expires_ms + 5)]) == 1
    assert store.partitions.archived(partition, [(RUN, expires_ms + 5)]) == 0, "calling twice is safe"


def test_a_revived_run_stays_listed_when_its_old_end_would_have_expired(store: Store, tmp_path: Path) -> None:
    created(store, RUN)
    ended(store, RUN, status="failed", error="broken")
    assert run_once(store, archiver_of(store, tmp_path)) == 1
    janitor.run_once(store, range(2), store.now_ms() + 8 * DAY_MS, 7 * DAY_MS)
    assert [info.id for info in store.runs.recent(10)] == [RUN], "its keys are there: it was revived"


def test_an_archive_that_cannot_be_written_holds_up_nothing_and_what_expires_is_counted(
    store: Store, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    archiver = archiver_of(store, tmp_path / "file")
    finished(store, RUN)
    assert run_once(store, archiver) == -1
    assert "file" in (archiver.state.error or "")
    store._client.delete(store.keys.of_run(RUN).run)  # as if it had expired
    janitor.run_once(store, range(2), store.now_ms() + 8 * DAY_MS, 7 * DAY_MS, archiver.lost)
    assert archiver.state.lost == 1
    assert list(store.runs.recent(10)) == []


def test_it_continues_by_itself_once_there_is_room_again(store: Store, tmp_path: Path) -> None:
    finished(store, RUN)
    (tmp_path / "a").write_text("")
    archiver = archiver_of(store, tmp_path / "a")
    assert run_once(store, archiver) == -1
    (tmp_path / "a").unlink()
    assert (run_once(store, archiver), archiver.state.error) == (1, None)
    assert names(tmp_path / "a") == [RUN]


def test_a_full_disk_leaves_no_half_run_behind(store: Store, tmp_path: Path) -> None:
    finished(store, RUN, {"x": "y" * 100_000})
    archiver = archiver_of(store, tmp_path)
    archiver._writer.write([lines_of(store.records, RUN)], store.now_ms())
    (file,) = tmp_path.iterdir()
    before = file.stat().st_size

    def lines() -> Iterator[str]:
        yield from list(lines_of(store.records, RUN))[:-1]
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        archiver._writer.write([lines()], store.now_ms())
    assert [each.stat().st_size for each in tmp_path.iterdir()] == [before]


def test_an_archive_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the archive"):
        list(archived_runs(tmp_path / "nowhere"))


def test_bundles_of_agents_that_a_waiting_run_may_still_start_are_kept(store: Store) -> None:
    for digest in ("own", "childs", "nobodys"):
        store.bundles.put(digest, b"x", 1000)
    created(store, RUN, bundle="own", agents={"child": "childs"})
    assert janitor.run_once(store, range(2), 10_000, 1000) == 1
    assert [store.bundles.get(digest) for digest in ("own", "childs", "nobodys")] == [b"x", b"x", None]
    assert store.bundles.unused_since(9_000) == [], "they are not asked about again for a while"


def test_doctor_reads_the_state_of_the_archive(store: Store, tmp_path: Path) -> None:
    archiver = archiver_of(store, tmp_path)
    archiver.state = replace(archiver.state, error="full", lost=3)
    facts = {"archive": vars(archiver.state)}
    store.fleet.announce_scheduler("s:1", facts, store.now_ms())
    assert store.health().archives == {"s:1": archiver.state}

"""Files of results: whole lines, gone on with by what they hold."""

from __future__ import annotations

import csv
import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sleipnir.batches.records import RowResult, RowState, row_run_id
from sleipnir.cli.batches.results import Format, ResultFile, format_of, line_of
from sleipnir.errors import SleipnirError, UsageError

HARD = 'a "quoted"\nläng, cell\r\n""'


def run_of(row: int) -> str:
    return row_run_id("b1", row)


def result(row: int, status: RowState = "completed", text: str = HARD) -> RowResult:
    done = status == "completed"
    return RowResult(row, f"k{row}", run_of(row), status, row + 1, text if done else None, None if done else "broken")


def write(path: Path, format_: Format, *results: RowResult, overwrite: bool = False) -> list[bool]:
    with ResultFile(path, format_, run_of, overwrite=overwrite) as file:
        return [file.add(each) for each in results]


def outputs(path: Path) -> list[tuple[int, str, str]]:
    if path.suffix == ".csv":
        with path.open(newline="") as file:
            return [(int(row["row"]) - 1, row["status"], row["output"]) for row in csv.DictReader(file)]
    data = [json.loads(line) for line in path.read_text().splitlines()]
    return [(line["row"] - 1, line["status"], line["output"] or "") for line in data]


@pytest.fixture(params=["jsonl", "csv"])
def format_(request: pytest.FixtureRequest) -> Format:
    return "csv" if request.param == "csv" else "jsonl"


def test_what_is_cut_off_anywhere_is_written_again(tmp_path: Path, format_: Format) -> None:
    file = tmp_path / f"out.{format_}"
    results = [result(0), result(1, "failed"), result(2)]
    assert write(file, format_, *results) == [True] * 3
    whole = file.read_bytes()
    assert outputs(file) == [(0, "completed", HARD), (1, "failed", ""), (2, "completed", HARD)]
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        write(file, format_, *results)
        assert file.read_bytes() == whole, f"cut off after {length} bytes"
    assert write(file, format_, *results) == [False] * 3


def test_a_row_that_was_retried_comes_again(tmp_path: Path, format_: Format) -> None:
    file = tmp_path / f"out.{format_}"
    write(file, format_, result(0), result(1, "failed"), result(3))
    with ResultFile(file, format_, run_of) as opened:
        assert (opened.held.next_row, opened.held.count) == (1, 3)
        assert [opened.add(each) for each in (result(0), result(1), result(2), result(3))] == [False, True, True, False]
        assert (opened.held.next_row, opened.held.count, opened.added) == (4, 4, 2)
    assert [row for row, *_ in outputs(file)] == [0, 1, 3, 1, 2]
    assert write(file, format_, result(7), overwrite=True) == [True]
    assert [row for row, *_ in outputs(file)] == [7]


def test_rows_are_counted_from_one_as_the_keys_of_rows_without_one_are(tmp_path: Path, format_: Format) -> None:
    """Finding U16 of the second review: a row without a key was row 0 with the key 1."""
    assert line_of(result(0), "csv").startswith("1,k0,")
    file = tmp_path / f"out.{format_}"
    write(file, format_, result(0), result(1))
    old = file.read_text().replace('"row": 1,', '"row": 0,').replace("\n1,k0", "\n0,k0")
    file.write_text(old)
    with pytest.raises(UsageError, match="was started by an earlier release, which counted rows from 0; use another"):
        write(file, format_, result(0))
    assert file.read_text() == old


@pytest.mark.parametrize(
    "content",
    [
        "notes\n",
        '{"row": 0}\n',
        '{"row": -1, "status": "completed", "run": "x"}\n',
        '{"row": 0, "status": "completed", "run": "of another batch"}\n',
        "a,b\n1,2\n",
        "row,key,status,output,error,node,run\n0,k,completed,,,,of another batch\n",
        "row,key,status,output,error,node,run\n0\n",
        b"\xff\n",
    ],
)
def test_a_file_of_something_else_is_left_alone(tmp_path: Path, format_: Format, content: str | bytes) -> None:
    file = tmp_path / "out"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    before = file.read_bytes()
    with pytest.raises(UsageError, match=r"has other contents than .*; use another file, or --overwrite"):
        write(file, format_, result(0))
    assert file.read_bytes() == before


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """Files of this process grow no larger: a write does in part, or not at all, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_complete_lines_and_is_named(tmp_path: Path, format_: Format) -> None:
    file = tmp_path / f"out.{format_}"
    results = [result(row, text="x" * 1_000) for row in range(5)]
    with ResultFile(file, format_, run_of) as opened, room_for(2_500):
        opened.add(results[0])
        opened.add(results[1])
        with pytest.raises(SleipnirError, match=r"out\.\w+ cannot be written: .*of 2 rows are in it") as full:
            opened.add(results[2])
    assert not isinstance(full.value, UsageError)
    assert [row for row, *_ in outputs(file)] == [0, 1]
    write(file, format_, *results)
    assert [row for row, *_ in outputs(file)] == [0, 1, 2, 3, 4]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere/out\.csv cannot be written: No such file or directory"):
        ResultFile(tmp_path / "nowhere" / "out.csv", "csv", run_of)


def test_the_name_decides_the_format() -> None:
    assert format_of(Path("a.CSV"), None) == "csv"
    assert format_of(Path("a.ndjson"), None) == "jsonl"
    assert format_of(Path("a.txt"), "csv") == "csv"
    assert format_of(None, None) == "jsonl"
    with pytest.raises(UsageError):
        format_of(Path("a"), None)

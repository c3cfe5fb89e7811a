"""Tables and JSON as people and programs read them."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from sleipnir.cli.terminal.render import plain_table, print_fields, print_json, print_table


def test_a_plain_table_is_aligned_and_never_cut() -> None:
    long = "x" * 300
    assert plain_table(("run", "status"), [("abc", "failed"), ("a", long), ("b", "")]) == [
        "RUN  STATUS",
        "abc  failed",
        f"a    {long}",
        "b    -",
    ]


def test_a_table_away_from_a_terminal_has_one_line_per_row(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("run", "error"), [("abc", "first\nsecond \x1b[1m")])
    assert capsys.readouterr().out == "RUN  ERROR\nabc  first second \\x1b[1m\n"


def test_fields_keep_the_lines_of_their_values(capsys: pytest.CaptureFixture[str]) -> None:
    print_fields([("run", "abc"), ("output", "one\ntwo")])
    assert capsys.readouterr().out == "run       abc\noutput    one\n          two\n"


@dataclass(frozen=True)
class Inner:
    keys: tuple[str, ...]


@dataclass(frozen=True)
class Outer:
    folder: Path
    inner: Inner


def test_json_holds_dataclasses_tuples_paths_and_plain_unicode(capsys: pytest.CaptureFixture[str]) -> None:
    print_json([Outer(Path("/a/ö"), Inner(("x",)))])
    text = capsys.readouterr().out
    assert json.loads(text) == [{"folder": "/a/ö", "inner": {"keys": ["x"]}}]
    assert "ö" in text


def test_a_long_name_of_a_field_is_apart_from_its_value(capsys: pytest.CaptureFixture[str]) -> None:
    print_fields([("unreadable", "why"), ("status", "completed, 1 failed visit")])
    assert capsys.readouterr().out == "unreadable why\nstatus    completed, 1 failed visit\n"

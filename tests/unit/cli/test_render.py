"""Durations, tables and JSON as people and programs read them."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from sleipnir.cli.terminal.render import duration, plain_table, print_fields, print_json, print_table
from sleipnir.cli.terminal.terminal import one_line, printable


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0ms"),
        (999, "999ms"),
        (1000, "1.00s"),
        (2414, "2.41s"),
        (59_999, "60.00s"),
        (60_000, "1m00s"),
        (192_000, "3m12s"),
        (3_599_999, "59m59s"),
        (7_500_000, "2h05m"),
        (3 * 86_400_000 + 4 * 3_600_000, "3d04h"),
    ],
)
def test_a_duration_has_two_units_at_most(ms: int, text: str) -> None:
    assert duration(ms) == text


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


def test_foreign_text_is_escaped_and_stays_readable() -> None:
    assert printable("a\tb\n\x1b]0;x\x07 \x9b ö ▸") == "a\tb\n\\x1b]0;x\\x07 \\x9b ö ▸"
    assert one_line("  a \n\n b\tc ") == "a b c"
    assert one_line("abcdef", 4) == "abc…"


def test_a_long_name_of_a_field_is_apart_from_its_value(capsys: pytest.CaptureFixture[str]) -> None:
    print_fields([("unreadable", "why"), ("status", "completed, 1 failed visit")])
    assert capsys.readouterr().out == "unreadable why\nstatus    completed, 1 failed visit\n"

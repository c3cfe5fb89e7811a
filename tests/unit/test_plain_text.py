"""Durations, and texts of others without control characters."""

import pytest

from sleipnir.runs.plain_text import duration, one_line, printable


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


def test_foreign_text_is_escaped_and_stays_readable() -> None:
    assert printable("a\tb\n\x1b]0;x\x07 \x9b ö ▸") == "a\tb\n\\x1b]0;x\\x07 \\x9b ö ▸"
    assert one_line("  a \n\n b\tc ") == "a b c"
    assert one_line("abcdef", 4) == "abc…"

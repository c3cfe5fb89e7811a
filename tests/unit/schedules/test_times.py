"""The times of schedules: cron expressions over changes of the clock, intervals, single times."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sleipnir.errors import UsageError
from sleipnir.schedules.times import FireTimes, checked, moment_ms, zone

NOW = 1_790_000_000_000  # 2026-09-21
BERLIN, NEW_YORK = "Europe/Berlin", "America/New_York"


def times(expression: str, tz: str, after: str, count: int = 3) -> list[str]:
    found = islice(FireTimes(cron=expression, tz=tz).times_after(moment_ms(after, tz)), count)
    return [f"{datetime.fromtimestamp(ms / 1000, ZoneInfo(tz)):%m-%d %H:%M%z}" for ms in found]


@pytest.mark.parametrize(
    ("tz", "expression", "after", "expected"),
    [
        # A time that does not exist: right after the gap, once.
        (BERLIN, "30 2 * * *", "2026-03-28T03:00", ["03-29 03:00+0200", "03-30 02:30+0200", "03-31 02:30+0200"]),
        (BERLIN, "15,45 2 * * *", "2026-03-28T03:00", ["03-29 03:00+0200", "03-30 02:15+0200", "03-30 02:45+0200"]),
        (BERLIN, "0 2,3 * * *", "2026-03-28T04:00", ["03-29 03:00+0200", "03-30 02:00+0200", "03-30 03:00+0200"]),
        (NEW_YORK, "30 2 * * *", "2026-03-07T03:00", ["03-08 03:00-0400", "03-09 02:30-0400", "03-10 02:30-0400"]),
        # A time that comes twice: the first one.
        (BERLIN, "30 2 * * *", "2026-10-24T03:00", ["10-25 02:30+0200", "10-26 02:30+0100", "10-27 02:30+0100"]),
        (NEW_YORK, "30 1 * * *", "2026-10-31T03:00", ["11-01 01:30-0400", "11-02 01:30-0500", "11-03 01:30-0500"]),
        # Every half hour: every half hour that passes.
        (BERLIN, "*/30 * * * *", "2026-03-29T01:15", ["03-29 01:30+0100", "03-29 03:00+0200", "03-29 03:30+0200"]),
        (BERLIN, "*/30 * * * *", "2026-10-25T02:15", ["10-25 02:30+0200", "10-25 02:00+0100", "10-25 02:30+0100"]),
        (NEW_YORK, "0 * * * *", "2026-11-01T00:30", ["11-01 01:00-0400", "11-01 01:00-0500", "11-01 02:00-0500"]),
        # Days that are not touched.
        (BERLIN, "0 7 * * 1-5", "2026-10-23T07:00", ["10-26 07:00+0100", "10-27 07:00+0100", "10-28 07:00+0100"]),
    ],
)
def test_cron_follows_the_clock_over_its_changes(tz: str, expression: str, after: str, expected: list[str]) -> None:
    assert times(expression, tz, after) == expected


def test_a_time_that_came_does_not_come_again_in_the_repeated_hour() -> None:
    timing = FireTimes(cron="30 2 * * *", tz=BERLIN)
    repeated = datetime(2026, 10, 25, 2, 10, tzinfo=ZoneInfo(BERLIN), fold=1)
    next_ms = timing.first_after(int(repeated.timestamp() * 1000))
    assert next_ms == moment_ms("2026-10-26T02:30", BERLIN)


@given(
    after=st.integers(NOW, NOW + 400 * 86_400_000),
    cron=st.sampled_from(["*/7 * * * *", "30 2 * * *", "0 */5 * * *", "15,45 1-3 * * *", "0 0 1 * *", "5 4 * * SUN"]),
    tz=st.sampled_from([BERLIN, NEW_YORK, "UTC", "Australia/Lord_Howe", "Asia/Kolkata"]),
)
def test_times_increase_and_do_not_depend_on_where_one_begins(after: int, cron: str, tz: str) -> None:
    timing = FireTimes(cron=cron, tz=tz)
    found = list(islice(timing.times_after(after), 5))
    assert found == sorted(set(found)) and found[0] > after
    assert [timing.first_after(time) for time in found[:-1]] == found[1:]
    assert timing.last_between(after, found[3]) == found[3]
    assert timing.last_between(after, found[3] - 1) == found[2]
    assert timing.last_between(after, found[0] - 1) is None


@given(after=st.integers(0, 10**7), every=st.integers(1_000, 10**6), anchor=st.integers(0, 10**6))
def test_an_interval_is_counted_from_its_beginning(after: int, every: int, anchor: int) -> None:
    timing = FireTimes(every_ms=every, anchor_ms=anchor)
    first, second = islice(timing.times_after(after), 2)
    assert first > max(after, anchor) and (first - anchor) % every == 0 and second == first + every
    assert first - every <= max(after, anchor)
    assert timing.last_between(after, second) == second
    assert timing.last_between(after, first - 1) is None


def test_a_year_of_minutes_is_looked_back_on_at_once() -> None:
    timing, looked = FireTimes(cron="* * * * *"), []
    year_ago = NOW - 365 * 86_400_000

    class Counting(FireTimes):
        def times_after(self, after_ms: int):  # type: ignore[no-untyped-def]
            for time_ms in super().times_after(after_ms):
                looked.append(time_ms)
                yield time_ms

    last = Counting(cron="* * * * *").last_between(year_ago, NOW)
    assert last == timing.last_between(NOW - 120_000, NOW)
    assert len(looked) < 100


def test_a_single_time_comes_once() -> None:
    timing = FireTimes(at_ms=NOW)
    assert (timing.first_after(NOW - 1), timing.first_after(NOW)) == (NOW, None)
    assert (timing.last_between(0, NOW), timing.last_between(NOW, NOW + 10**9)) == (NOW, None)


def test_a_moment_is_read_in_its_zone() -> None:
    assert moment_ms("2026-12-01T07:00", BERLIN) == moment_ms("2026-12-01T06:00", "UTC")
    assert moment_ms("2026-12-01T07:00+05:00", BERLIN) == moment_ms("2026-12-01T02:00", "UTC")
    first = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    assert moment_ms("2026-10-25T02:30", BERLIN) == int(first.timestamp() * 1000)
    assert moment_ms("2026-11-01T01:30", NEW_YORK) + 3_600_000 == int(
        (datetime(2026, 11, 1, 5, 30, tzinfo=UTC) + timedelta(hours=1)).timestamp() * 1000
    )


@pytest.mark.parametrize(
    ("text", "tz", "why"),
    [
        ("2026-03-29T02:30", BERLIN, "set forward"),
        ("2026-03-08T02:30", NEW_YORK, "set forward"),
        ("tomorrow", BERLIN, "not a date"),
        ("9999-12-31T23:59", BERLIN, "too far"),
        ("0001-01-01T00:00+14:00", BERLIN, "too far"),
    ],
)
def test_a_moment_that_is_none_is_refused(text: str, tz: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        moment_ms(text, tz)


@pytest.mark.parametrize(
    ("timing", "why"),
    [
        (FireTimes(), "has one of"),
        (FireTimes(cron="* * * * *", every_ms=5_000), "has one of"),
        (FireTimes(cron="* * * *"), "five fields"),
        (FireTimes(cron="* * * * * *"), "five fields"),
        (FireTimes(cron="61 * * * *"), "'minute'"),
        (FireTimes(cron="0 7 * * MON-XXX"), "'day-of-week'"),
        (FireTimes(cron="0 0 30 2 *"), "'day-of-month'"),
        (FireTimes(cron="1/0 * * * *"), "'minute'"),
        (FireTimes(cron="9" * 190 + " * * * *"), "'minute'"),
        (FireTimes(cron="*" * 300), "at most 200"),
        (FireTimes(cron="* * * * *", tz="Mars/Base"), "no time zone"),
        (FireTimes(every_ms=999), "1 second"),
        (FireTimes(every_ms=10**12), "1 second"),
        (FireTimes(at_ms=NOW), "in the past"),
    ],
)
def test_a_timing_that_is_wrong_is_refused(timing: FireTimes, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        checked(timing, NOW)


@pytest.mark.parametrize("name", ["", "Europe", "../etc/passwd", "/etc/passwd", "x" * 300, "Europe/Berlin\0", "é"])
def test_what_is_no_time_zone_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="no time zone"):
        zone(name)

"""The times at which a schedule fires: by a cron expression, at an interval, or once.

Times are milliseconds since the epoch. A cron expression is read in its time zone as Debian's cron does: a time of day
that a change of the clock leaves out is made up for right after the gap, one that comes twice counts once, the first
time; an expression whose minutes or hours begin with `*` follows the time that really passes. The library, cronsim,
iterates over these times; two times that fall together, and times before the one that was asked for, are left out here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from sleipnir.errors import UsageError

MOST_EXPRESSION: Final = 200
"""Characters of a cron expression."""

LEAST_EVERY_MS: Final = 1_000
MOST_EVERY_MS: Final = 366 * 24 * 3_600_000
_LAST: Final = datetime(9990, 1, 1, tzinfo=UTC)
_FIRST_WINDOW_MS: Final = 3_600_000


@dataclass(frozen=True)
class FireTimes:
    """One of `cron`, `every_ms` and `at_ms` is set. `tz` is the name of a time zone, for `cron`; an interval is counted
    from `anchor_ms`."""

    cron: str | None = None
    every_ms: int | None = None
    at_ms: int | None = None
    tz: str = "UTC"
    anchor_ms: int = 0

    def first_after(self, after_ms: int) -> int | None:
        """The first time after another one; None: there is none."""
        return next(self.times_after(after_ms), None)

    def times_after(self, after_ms: int) -> Iterator[int]:
        """All later times, in order: do not read to the end."""
        if self.at_ms is not None:
            if self.at_ms > after_ms:
                yield self.at_ms
        elif self.every_ms is not None:
            count = (after_ms - self.anchor_ms) // self.every_ms + 1
            while True:
                yield self.anchor_ms + max(1, count) * self.every_ms
                count = max(1, count) + 1
        elif self.cron is not None:
            yield from _cron_times(self.cron, zone(self.tz), after_ms)

    def last_between(self, after_ms: int, until_ms: int) -> int | None:
        """The last time after `after_ms` that is not after `until_ms`; None: there is none. Its cost does not depend on
        how many times are between them."""
        if self.every_ms is not None:
            last_ms = self.anchor_ms + (until_ms - self.anchor_ms) // self.every_ms * self.every_ms
            return last_ms if last_ms > max(after_ms, self.anchor_ms) else None
        window_ms = _FIRST_WINDOW_MS
        while True:
            begin_ms = max(after_ms, until_ms - window_ms)
            last: int | None = None
            for time_ms in self.times_after(begin_ms):
                if time_ms > until_ms:
                    break
                last = time_ms
            if last is not None or begin_ms == after_ms:
                return last
            window_ms *= 2


def checked(timing: FireTimes, now_ms: int) -> FireTimes:
    """Raises UsageError for a timing that is wrong, or that never fires."""
    given = [each for each in (timing.cron, timing.every_ms, timing.at_ms) if each is not None]
    if len(given) != 1:
        raise UsageError("a schedule has one of a cron expression, an interval and a time: --cron, --every or --at")
    zone(timing.tz)
    if timing.every_ms is not None and not LEAST_EVERY_MS <= timing.every_ms <= MOST_EVERY_MS:
        raise UsageError("the interval of a schedule is 1 second to 366 days")
    if timing.cron is not None:
        refuse_expression(timing.cron)
    if timing.first_after(now_ms) is None:
        why = "the time is in the past" if timing.at_ms is not None else f"{timing.cron!r} names a day that never comes"
        raise UsageError(f"the schedule would never fire: {why}")
    return timing


def refuse_expression(expression: str) -> None:
    """Raises UsageError for what is no cron expression."""
    if len(expression) > MOST_EXPRESSION:
        raise UsageError(f"a cron expression has at most {MOST_EXPRESSION} characters")
    if len(expression.split()) != 5:
        raise UsageError(
            f"{expression!r} is not a cron expression: it has five fields, minute, hour, day of the month, month and "
            "day of the week, as in '0 7 * * 1-5'; for seconds, use an interval"
        )
    try:
        CronSim(expression, datetime(2026, 1, 1, tzinfo=UTC))
    except (CronSimError, ValueError, AssertionError) as error:
        why = str(error).removeprefix("Bad ") if isinstance(error, CronSimError) else "a number"
        raise UsageError(f"{expression!r} is not a cron expression: its field {why!r} is wrong") from None


@lru_cache(maxsize=100)
def zone(name: str) -> ZoneInfo:
    """A time zone by its name. Raises UsageError."""
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, LookupError):  # no such file, no name of a file, or a folder
        raise UsageError(f"there is no time zone {name!r:.60}; write it as Europe/Berlin or UTC") from None


def moment_ms(text: str, tz: str) -> int:
    """A date and time such as 2026-12-01T07:00 in a time zone, unless it has an offset of its own. Of a time that comes
    twice it is the first. Raises UsageError, also for a time that a change of the clock leaves out."""
    try:
        read = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{text!r:.60} is not a date and time; write it as 2026-12-01T07:00") from None
    local = read if read.tzinfo is not None else read.replace(tzinfo=zone(tz))
    try:
        utc = local.astimezone(UTC)
        exists = read.tzinfo is not None or utc.astimezone(local.tzinfo).replace(tzinfo=None) == read
    except OverflowError:
        raise UsageError(f"{text!r:.60} is too far away") from None
    if not exists:
        raise UsageError(f"there is no {text} in {tz}: the clocks are set forward over it")
    if utc > _LAST:
        raise UsageError(f"{text!r:.60} is too far away")
    return int(utc.timestamp() * 1000)


def _cron_times(expression: str, tz: ZoneInfo, after_ms: int) -> Iterator[int]:
    """cronsim begins at a local time: one that comes twice would begin at its first coming, so it begins two hours
    earlier. That also covers zones whose clocks change by two hours."""
    start = datetime.fromtimestamp(after_ms / 1000, UTC) - timedelta(hours=2)
    last_ms = after_ms
    try:
        for time in CronSim(expression, start.astimezone(tz)):
            time_ms = int(time.astimezone(UTC).timestamp() * 1000)
            if time_ms > last_ms:
                last_ms = time_ms
                yield time_ms
    except (RuntimeError, OverflowError):  # the end of the calendar
        return

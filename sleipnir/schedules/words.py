"""When schedules fire and what they have done, in the words of the command line and of the console."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from sleipnir.runs.plain_text import duration, one_line

if TYPE_CHECKING:
    from sleipnir.schedules.records import Fire, SchedulePlan


def when(plan: SchedulePlan) -> str:
    """`0 7 * * 1-5 Europe/Berlin`, `every 90s`, `at 2026-12-01 07:00:00 Europe/Berlin`."""
    if plan.cron is not None:
        return f"{plan.cron} {plan.tz}"
    if plan.every_ms is not None:
        return f"every {duration(plan.every_ms)}"
    return f"at {in_zone(plan.at_ms or 0, plan.tz)}"


def in_zone(ms: int, tz: str) -> str:
    """The date and time in the time zone of a schedule, whose name follows."""
    from sleipnir.schedules.times import zone

    return f"{datetime.fromtimestamp(ms / 1000, zone(tz)):%Y-%m-%d %H:%M:%S} {tz}"


def fire_in_words(fire: Fire, status: str | None, work: str = "run") -> str:
    """What became of a fire, which starts a `work`; `status` is that of its run or batch, None: it has not begun, or
    has expired."""
    if fire.outcome != "started":
        return f"{fire.outcome}: {one_line(fire.why or '')}"
    late_ms = fire.made_ms - fire.at_ms
    late = f", {duration(late_ms)} late" if late_ms >= 1_000 else ""
    by = f" ({one_line(fire.why)})" if fire.why else ""
    return f"{work} {fire.run} {status or 'not there'}{late}{by}"

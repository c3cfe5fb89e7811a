"""What `sleipnir worker --health` makes of an announcement."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sleipnir.cli.fleet.health import choose
from sleipnir.runs.views import WorkerInfo
from sleipnir.runs.worker_health import why_not

NOW_MS = 1_000_000
WELL = WorkerInfo(
    "w@here", ("scripts",), NOW_MS - 4_000, host="here", pid=7, pool="threads", slots=2, busy=1, leased=1,
    loop_age_ms=900, broker_age_ms=900,
)  # fmt: skip
OLD = WorkerInfo("old@here", ("scripts",), NOW_MS - 4_000, host="here")


@pytest.mark.parametrize(
    ("worker", "reason"),
    [
        (WELL, None),
        (OLD, None),
        (replace(WELL, queues=(), stopped={"scripts": "disk: full"}), None),
        (replace(WELL, busy=2, leased=2, broker_age_ms=None), None),
        (replace(WELL, broker_lost_for_ms=44_000, loop_age_ms=60_000), None),
        (replace(WELL, pool="solo", loop_age_ms=600_000, broker_age_ms=600_000), None),
        (replace(WELL, wedged_for_ms=44_000), None),
        (replace(WELL, seen_ms=NOW_MS - 46_000), "has not announced itself for 46 s"),
        (replace(WELL, broker_lost_for_ms=46_000), "has had no connection to the broker for 46 s"),
        (replace(WELL, loop_age_ms=46_000), "is stuck: its loop has not turned for 46 s"),
        (
            replace(WELL, pool="solo", busy=0, leased=0, loop_age_ms=46_000),
            "is stuck: its loop has not turned for 46 s",
        ),
        (replace(WELL, loop_age_ms=47_000, wedged_for_ms=46_000), "is stuck: its loop has not turned for 47 s"),
        (replace(WELL, broker_age_ms=46_000), "has had no answer from the broker for 46 s, though it has free slots"),
        (
            replace(WELL, busy=2, leased=0, broker_age_ms=None, wedged_for_ms=46_000),
            "cannot take messages: 2 of 2 slots have been busy for 46 s, none of them with a visit that it owns",
        ),
    ],
)
def test_a_worker_is_unhealthy_when_its_evidence_is_too_old(worker: WorkerInfo, reason: str | None) -> None:
    assert why_not(worker, NOW_MS, within_s=45.0) == reason


def test_without_a_name_it_is_about_the_workers_of_this_host_that_are_there() -> None:
    gone = replace(WELL, name="gone@here", seen_ms=0)
    elsewhere = replace(WELL, name="w@there", host="there")
    workers = [WELL, gone, elsewhere]
    assert choose(workers, None, "here", NOW_MS, 45.0) == [WELL]
    assert choose(workers, "w", "here", NOW_MS, 45.0) == [WELL]
    assert choose(workers, "gone", "here", NOW_MS, 45.0) == [gone]
    assert choose(workers, "w@there", "here", NOW_MS, 45.0) == [elsewhere]

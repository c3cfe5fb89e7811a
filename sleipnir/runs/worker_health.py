"""Does a worker consume? Read from what it last announced of itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sleipnir.runs.views import WorkerInfo


def why_not(worker: WorkerInfo, now_ms: int, within_s: float) -> str | None:
    """Why a worker does not consume, as text that follows its name; None if it does."""
    within_ms = within_s * 1000
    if (silent_ms := now_ms - worker.seen_ms) > within_ms:
        return f"has not announced itself for {_seconds(silent_ms)}"
    if (worker.broker_lost_for_ms or 0) > within_ms:
        return f"has had no connection to the broker for {_seconds(worker.broker_lost_for_ms)}"
    in_a_task = worker.pool == "solo" and worker.busy > 0  # there the loop is what runs the visits
    if worker.broker_lost_for_ms is None and not in_a_task:  # no loop turns while it connects again
        if (worker.loop_age_ms or 0) > within_ms:
            return f"is stuck: its loop has not turned for {_seconds(worker.loop_age_ms)}"
        if (worker.broker_age_ms or 0) > within_ms:
            return f"has had no answer from the broker for {_seconds(worker.broker_age_ms)}, though it has free slots"
    if (worker.wedged_for_ms or 0) > within_ms:
        return (
            f"cannot take messages: {worker.busy} of {worker.slots} slots have been busy for "
            f"{_seconds(worker.wedged_for_ms)}, none of them with a visit that it owns"
        )
    return None


def _seconds(ms: int | None) -> str:
    return f"{(ms or 0) / 1000:.0f} s"

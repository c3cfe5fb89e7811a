"""Whether and when a failed visit is tried again (spec/graph-package.md F37).

The first policy whose `on` matches the failure decides. An empty `on` never matches. The pause before try n+1 is
`initial_interval * backoff ** (n - 1)`, at most `max_interval`, plus up to as much again of jitter. The jitter is drawn
from the visit's name: planning twice must give the same answer.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from sleipnir.graph.model import Retry
from sleipnir.messages import ResultHeader
from sleipnir.runs.retry_rules import policy_for
from sleipnir.runs.run import changed
from sleipnir.runs.visits import Backoff, Visit, Work
from sleipnir_scheduler.planner.draft.draft import Draft


@dataclass(frozen=True)
class RetryTime:
    """Try again at `at_ms`."""

    at_ms: int
    most: int


@dataclass(frozen=True)
class GiveUp:
    """The failure is final; `why` says which limit a policy has reached, None when no policy is about it."""

    why: str | None = None


def decide(
    policies: Sequence[Retry],
    visit: Visit,
    failures: int,
    failure: ResultHeader,
    *,
    run: str,
    now_ms: int,
    deadline_ms: int | None,
    step_deadline_ms: int | None = None,
) -> RetryTime | GiveUp:
    """Decide on `visit` after `failure`, which follows `failures` others. No try is put off beyond `deadline_ms`, the
    run's deadline, or that of its super-step."""
    policy = policy_for(policies, failure)
    if policy is None or policy.max_attempts <= 1:
        return GiveUp()
    tries = failures + 1
    if tries >= policy.max_attempts:
        return GiveUp(f"execution failed after {tries} attempts")
    at_ms = now_ms + _pause_ms(policy, tries, f"{run}/{visit.seq}/{tries}")
    if policy.max_elapsed is not None and at_ms - visit.opened_ms > policy.max_elapsed:
        return GiveUp(f"retry budget of {policy.max_elapsed / 1000:g}s exhausted after {tries} attempts")
    if deadline_ms is not None and at_ms > deadline_ms:
        return GiveUp(f"the run's deadline comes before attempt {tries + 1}")
    if step_deadline_ms is not None and at_ms > step_deadline_ms:
        return GiveUp(f"the super-step's deadline comes before attempt {tries + 1}")
    return RetryTime(at_ms, policy.max_attempts)


def try_again(draft: Draft, visit: Visit, work: Work, header: ResultHeader, again: RetryTime) -> None:
    """Put a failed visit off, as its next attempt. Its values are dropped, its cost is counted."""
    draft.deliver(visit, header)
    tried = changed(work, failures=work.failures + 1, error=header.error)
    draft.visits.move(visit, Backoff(tried, again.at_ms), attempt=visit.attempt + 1)
    draft.record.notice(
        "visit_retrying",
        seq=visit.seq,
        node=visit.node,
        attempt=tried.failures,
        max_attempts=again.most,
        delay_ms=again.at_ms - draft.now_ms,
        error=header.error,
    )


def put_off(draft: Draft, visit: Visit, work: Work, header: ResultHeader, until_ms: int) -> None:
    """Put a visit off until `until_ms`, as its next attempt: its worker met a limit before it began."""
    draft.deliver(visit, header)
    waiting = Backoff(changed(work, error=header.error), until_ms, limited=True)
    draft.visits.move(visit, waiting, attempt=visit.attempt + 1)
    draft.record.notice("visit_put_off", seq=visit.seq, node=visit.node, until_ms=until_ms, reason=header.error)


def _pause_ms(policy: Retry, tries: int, name: str) -> int:
    most_ms = policy.max_interval or policy.initial_interval
    factor = policy.backoff if policy.backoff > 0 else 1.0
    try:
        pause_ms = min(policy.initial_interval * factor ** (tries - 1), most_ms)
    except OverflowError:
        pause_ms = most_ms
    if policy.jitter:
        pause_ms *= 1 + zlib.crc32(name.encode()) / 2**32
    return int(min(pause_ms, most_ms))

"""The reasons of a run's visits, as text. Programs read the codes (views.Reason)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sleipnir.runs.failure_text import in_one_line
from sleipnir.runs.plain_text import duration, one_line

if TYPE_CHECKING:
    from sleipnir.messages import Usage
    from sleipnir.runs.views import KeptVisit, Reason, RunInfo, VisitInfo

FEW = 3  # items of one map that are named one by one


def places(info: RunInfo, now_ms: int, most: int) -> list[str]:
    """The position of a live run: at most `most` of its visits, few of them items, and the number of the others."""
    if info.slot is not None and not info.slot.granted:
        return [slot_in_words(info.agent, info.slot.key, info.slot.limit)]
    if info.is_queued:
        return [f"queued behind run {info.previous} of thread {info.thread!r}"]
    visits = [visit for visit in info.visits if visit.item is None]
    items = [visit for visit in info.visits if visit.item is not None]
    lines = [_at_visit(visit, now_ms) for visit in [*visits, *items[:FEW]][:most]]
    lines += [f"and {_counted(len(visits) - most, 'more visit')}"] if len(visits) > most else []
    lines += [f"and {_counted(left, 'more item')}"] if (left := _left_out(len(visits), len(items), most)) else []
    return lines


def stopped_in_words(info: RunInfo) -> str:
    """`stopped at max_steps`, for a run that completed early."""
    return f"stopped at {info.stopped_by}"


MOST_FAILED = 3  # failed visits whose error is shown in one line


def end_in_words(info: RunInfo) -> str:
    """`completed, 2 failed visits: report (TypeError: ...), ask (provider answered 500)`."""
    stopped = [stopped_in_words(info)] if info.stopped_by else []
    failed = [failed_in_words(info)] if info.failed_visits.count else []
    return ", ".join([info.status, *stopped, *failed])


def failed_in_words(info: RunInfo, *, with_errors: bool = True) -> str:
    """`1 failed visit: report (TypeError: ...)`: failures without a handler."""
    failed = info.failed_visits
    shown = [f"{each.node} ({one_line(each.error, 80)})" for each in failed.first[:MOST_FAILED]] if with_errors else []
    left = failed.count - len(shown)
    more = f" and {left:,} more" if shown and left else ""
    return _counted(failed.count, "failed visit") + (f": {', '.join(shown)}{more}" if shown else "")


def tags_in_words(tags: Mapping[str, str]) -> str:
    """`customer=acme, tier=gold`."""
    return ", ".join(f"{key}={value}" for key, value in tags.items())


def usage_in_words(usage: Usage) -> str:
    """`2 model calls, 1,200 tokens in, 80 out, $0.0042 (openai:gpt-4o)`."""
    cost = "cost unknown" if usage.cost_usd is None else f"${usage.cost_usd:.4f}"
    tokens = f"{usage.input_tokens:,} tokens in, {usage.output_tokens:,} out"
    return f"{_counted(usage.calls, 'model call')}, {tokens}, {cost}" + (f" ({usage.model})" if usage.model else "")


def slot_in_words(agent: str, key: str, limit: int) -> str:
    """`waits for a slot of triage 'acme', limit 5`."""
    return f"waits for a slot of {agent}{f' {one_line(key, 60)!r}' if key else ''}, limit {limit:,}"


def _left_out(visits: int, items: int, most: int) -> int:
    return items - min(items, FEW, max(0, most - visits))


def _at_visit(visit: VisitInfo, now_ms: int) -> str:
    role = _role(visit)
    item = f", item {visit.item[1]}" if visit.item else ""
    attempt = f", attempt {visit.attempt}" if visit.attempt > 1 else ""
    return f"{visit.node}{item} ({role}{in_words(visit.reason, now_ms)}{attempt})"


def _role(visit: VisitInfo) -> str:
    """The part of its node that a visit executes: empty for the whole node."""
    if visit.part is None:
        return "" if visit.role == "node" else f"{visit.role}: "
    return f"turn {visit.part.turn + 1}: " if visit.part.call is None else f"{visit.part.tool}: "


def retry_in_words(info: RunInfo, *, fresh_children: bool = False) -> str:
    """What `retry` does with a failed run: `runs again b, 2 of 6 items of fan; a has ended; run 4kq0... continues`."""
    again = [visit for visit in info.kept if visit.again and visit.item is None]
    ended = [visit.node for visit in info.kept if not visit.again]
    if not info.kept:
        return "starts again from the beginning, with the current state"
    if not again:
        return f"continues after {_listed(ended)}"
    runs = "runs again " + _listed([_again(visit, info.kept) for visit in again])
    runs += f"; {_listed(ended)} {'has' if len(ended) == 1 else 'have'} ended" if ended else ""
    children = [] if fresh_children else [visit.child for visit in info.kept if visit.again and visit.child]
    return runs + (f"; child {_run_or_runs(children)}" if children else "")


def _run_or_runs(ids: list[str]) -> str:
    return f"run {ids[0]} continues" if len(ids) == 1 else f"runs {_listed(ids)} continue"


def _again(visit: KeptVisit, kept: tuple[KeptVisit, ...]) -> str:
    if visit.left is None:
        return visit.node if visit.role == "node" else f"{visit.node} ({visit.role})"
    left, total = visit.left
    return f"{left:,} of {_counted(total, 'item')} of {visit.node}"


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 10:,} more" if len(names) > 10 else ""
    return ", ".join(names[:10]) + more


def in_words(reason: Reason, now_ms: int) -> str:
    """`queued on 'scripts', 3rd in line, 2 consumers`. `now_ms` is Redis' clock."""
    match reason.code:
        case "queued":
            return f"queued on {reason.queue!r}{_line(reason)}"
        case "paused":
            return f"paused by {reason.by}"
        case "retry":
            after = f" after: {one_line(in_one_line(reason.error), 60)}" if reason.error else ""
            return f"tries again {_at(reason.until_ms, now_ms)}{after}"
        case "limit":
            return f"{one_line(reason.error or 'a limit of its model', 120)}, again {_at(reason.until_ms, now_ms)}"
        case "lease":
            return f"runs on {reason.worker}{_lease(reason, now_ms)}"
        case "stream":
            return f"runs on {reason.worker}, waits for node {reason.writer!r} to begin the stream {reason.stream!r}"
        case "result":
            return f"result of {reason.worker} waits for the scheduler"
        case "lost":
            return f"lost by {reason.worker}; waits for the scheduler"
        case "person":
            expiry = "" if reason.until_ms is None else f", expires {_at(reason.until_ms, now_ms)}"
            return f"waits for a person's answer{expiry}"
        case "answered":
            return "answered; waits for the scheduler"
        case "slot":
            return f"waits for a slot, {_counted(reason.under_way or 0, 'visit')} active"
        case "siblings" if reason.error:
            return f"has failed, other visits of its step have not ended: {one_line(in_one_line(reason.error), 60)}"
        case "siblings":
            return "has ended, waits for the other visits of its step"
        case "turns":
            return f"turn {(reason.turn or 0) + 1}{_calls(reason.progress or (0, 0))}"
        case "child":
            limit = "" if reason.until_ms is None else f", times out {_at(reason.until_ms, now_ms)}"
            return f"waits for run {reason.run} of agent {reason.agent!r}{limit}"
        case "timer":
            return f"waits, continues {_at(reason.until_ms, now_ms)}"
        case "event":
            limit = "" if reason.until_ms is None else f", at most for {_span(max(0, reason.until_ms - now_ms))}"
            return f"waits for event {reason.event}{limit}"
        case "message":
            return "waits for confirmation that its message reached an agent"
        case "commands":
            made, total = reason.progress or (0, 0)
            return f"{made:,} of its {_counted(total, 'command')} are active, the others wait for slots"
        case "items":
            return f"{items_in_words(reason.progress or (0, 0), reason.failed)}, {reason.under_way or 0} at once"


def _calls(progress: tuple[int, int]) -> str:
    done, total = progress
    return f", {done} of {_counted(total, 'call')} answered" if total else ", the model is asked"


def items_in_words(progress: tuple[int, int], failed: int | None) -> str:
    """`237 of 500 items, 2 failed`."""
    done, total = progress
    return f"{done:,} of {_counted(total, 'item')}" + (f", {failed:,} failed" if failed else "")


def _line(reason: Reason) -> str:
    if reason.consumers == 0:
        return ": no worker serves it"
    place = "" if reason.position is None else f", {_ordinal(reason.position)} in line"
    workers = "1 consumer" if reason.consumers == 1 else f"{reason.consumers} consumers"
    return place + ("" if reason.consumers is None else f", {workers}")


def _lease(reason: Reason, now_ms: int) -> str:
    if reason.until_ms is None:
        return ""
    if reason.until_ms <= now_ms:
        return f", lease expired {_span(now_ms - reason.until_ms)} ago"
    return f", lease expires in {_span(reason.until_ms - now_ms)}"


def _at(ms: int | None, now_ms: int) -> str:
    return "now" if ms is None or ms <= now_ms else f"in {_span(ms - now_ms)}"


def _span(ms: int) -> str:
    """Rounded up to a full second."""
    seconds = -(-ms // 1000)
    return f"{seconds} s" if seconds < 60 else duration(ms)


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def _ordinal(number: int) -> str:
    """`1st`, `2nd`, `3rd`, `4th`, `11th`, `21st`."""
    endings = {1: "st", 2: "nd", 3: "rd"}
    ending = "th" if number % 100 in (11, 12, 13) else endings.get(number % 10, "th")
    return f"{number}{ending}"


def overrides_in_words(info: RunInfo) -> str:
    """`ask.temperature=0`, one line for each override and patch."""
    from sleipnir.graph.node_overrides import in_words

    return "\n".join(one_line(text, 200) for text in in_words(info.overrides))


def fork_in_words(info: RunInfo) -> str:
    """`after step 3, with fee, agent ./mended, model openai:gpt-4o`: where a fork begins, and what it changes."""
    keys = one_line(", ".join(info.fork_keys), 60)
    parts = [f"after step {info.forked_at}", f"with {keys}" if keys else ""]
    parts.append(f"agent {info.fork_agent}" if info.fork_agent else "")
    parts.append(f"model {info.fork_model}" if info.fork_model else "")
    parts.append(f"an update as node {info.as_node}" if info.as_node else "")
    if info.overrides:
        parts.append(one_line(overrides_in_words(info).replace("\n", ", "), 120))
    return ", ".join(filter(None, parts))

"""The scheduler's log records of a run, with Loki's texts (spec/graph-agents.md 2.13).

info: start, end and a performance summary; error: failures; debug: every entry and route. State is never logged here;
workers log its size and keys at debug, and the full state at trace only, because it can hold secrets.
"""

from __future__ import annotations

import structlog

from sleipnir.logs import shows_debug
from sleipnir.runs.run import RunView
from sleipnir.runs.transitions import Notice, Transition

_log = structlog.get_logger()
_ABOVE_DEBUG = frozenset({"run_started", "worker_lost", "run_ended"})


def is_logged(transition: Transition) -> bool:
    """Whether the log has records of a transition. Most have none above the level debug."""
    return shows_debug() or any(notice.type in _ABOVE_DEBUG for notice in transition.notices)


def log_transition(before: RunView, after: RunView, transition: Transition) -> None:
    """Log a committed transition."""
    log = _log.bind(run=before.id)
    graph = f"[graph:{before.spec.agent}]"
    for notice in transition.notices:
        match notice.type:
            case "run_started":
                log.info(f"{graph} start at '{notice.data['start']}'")
            case "visit_opened":
                node, place = notice.data["node"], {"visit": notice.data["seq"], "attempt": 1}
                log.debug(f"{graph} entering '{node}' (visit {after.counts.get(node, 1)})", node=node, **place)
            case "visit_closed":
                node, seq = notice.data["node"], notice.data["seq"]
                log.debug(f"{graph} {node} -> {notice.data['next'] or 'END'}", node=node, visit=seq)
            case "worker_lost":
                log.warning(f"{graph} worker lost, visit goes to another", **notice.data)
            case "run_ended":
                _log_end(graph, notice, after)


def _log_end(graph: str, notice: Notice, after: RunView) -> None:
    log = _log.bind(run=after.id)
    took_s = notice.data["took_ms"] / 1000
    if notice.data["status"] == "failed":
        log.error(f"{graph} execution failed: {notice.data['error']}")
        return
    log.info(f"{graph} end: {notice.data['status']} (elapsed {took_s:.2f}s)")
    if notice.data["status"] == "completed":
        log.info(f"{graph} performance summary (slowest first):")
        for line in performance_summary(after):
            log.info(f"{graph}   {line}")


def performance_summary(run: RunView) -> list[str]:
    """One line per node: visits, total, average and longest time; slowest total first."""
    slowest_first = sorted(run.timings.items(), key=lambda item: (-item[1].total_ms, item[0]))
    return [
        f"{node}: {t.visits} visit(s), total {t.total_ms}ms, avg {t.total_ms // t.visits}ms, max {t.max_ms}ms"
        for node, t in slowest_first
    ]

"""The events of a child run that callbacks of its agent node see (`agent_event`), made of its journal: one for each
visit that has ended, in order, and one for its end. The journal is complete, where the events of a run are capped."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from sleipnir.runs.transitions import Step

Visits: TypeAlias = Iterable[tuple[Step, Collection[str]]]
"""Journal steps of a run, each with the state keys that it wrote; read lazily."""

ReadVisits: TypeAlias = Callable[[str], Visits]
"""Reads those of the run of this id. Raises StoreUnavailable."""


def events_of(child: Mapping[str, Any], visits: Visits) -> Iterator[dict[str, Any]]:
    """The events of a child that ended as `child` says (child_run.child_text)."""
    run = child["run"]
    for step, keys in visits:
        if step.seq is None or step.node is None:
            continue
        data = {
            "seq": step.seq, "node": step.node, "kind": step.kind, "role": step.role, "attempt": step.attempt,
            "ok": step.ok, "keys": list(keys), "took_ms": step.took_ms, "error": step.error,
        }  # fmt: skip
        yield {"run": run, "type": "visit_closed", "at_ms": step.at_ms, "data": data}
    data = {key: child.get(key) for key in ("status", "output", "error")}
    yield {"run": run, "type": "run_ended", "at_ms": None, "data": data}

"""What the audit says of the changes of schedules by people: the time plan, the agent, and the pause."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sleipnir.access.audit import audit_text

if TYPE_CHECKING:
    from sleipnir.runs.run import RunSpec
    from sleipnir.schedules.records import SchedulePlan, ScheduleProgress

_HIDDEN: Final = ("v", "anchor_ms")


def plan_values(plan: SchedulePlan) -> dict[str, Any]:
    """The plan without what is not set."""
    found = {name: value for name, value in vars(plan).items() if name not in _HIDDEN and value not in (None, 0)}
    if plan.batch is not None:
        found["batch"] = {name: value for name, value in vars(plan.batch).items() if value is not None}
    return found


def agent_values(spec: RunSpec) -> dict[str, Any]:
    """The agent that runs, with the digest of its definition. The prompt and the state are not in the audit."""
    return {"agent": spec.agent, "bundle": spec.bundle, "namespace": spec.namespace}


def pause_values(progress: ScheduleProgress) -> dict[str, Any]:
    return {"state": "active" if progress.paused is None else "paused"}


def entry_of(what: str, name: str, by: str, **fields: Any) -> str:
    """An entry on a schedule; `fields` are those of audit_text."""
    return audit_text(f"schedule {what}", f"schedule {name}", by, **fields)

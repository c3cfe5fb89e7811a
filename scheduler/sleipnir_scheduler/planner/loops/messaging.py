"""Messages between the models of one tree of runs (spec/graph-agents.md 6.7).

    to an agent that it has spawned, or its parent: directly
    to a sibling: through the parent, which knows its agents and reports whether the sibling exists

A message waits in the items of its receiver until the model there reads its inbox. It may be delivered twice, and
counts once: messages of one sender come in order, with increasing numbers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from sleipnir.graph.model import Json
from sleipnir.graph.plain import compact_json
from sleipnir.runs.run import agent_id
from sleipnir.runs.transitions import SetValue, TellRun
from sleipnir.runs.visits import Loop, Receipt, Spawned, Visit
from sleipnir_scheduler.planner.context import Context
from sleipnir_scheduler.planner.loops.model_loop import loops

SENT, PASSED_ON, ARRIVED = "sent", "passed_on", "arrived"
"""The events between runs: a message for the receiving run, a message for an agent that it has spawned, and the report
whether that agent exists."""

PATIENCE_S = 60
"""The time that the parent has for that report."""

PARENT = "parent"

_INBOX = "inbox"
"""The field of the run's items: the last number `seen` of each sender, and the unread `messages`."""


def send(context: Context, loop: Loop, visit: Visit, to: str, text: str) -> Json | None:
    """The result of the call `visit`, as the model reads it; None: the parent has to report first."""
    spec, owed = context.run.spec, context.draft.owed
    message = {
        "run": context.run.id,
        "number": visit.seq,
        "from": _name(context),
        "text": text,
        "at_ms": context.now_ms,
    }
    agent = _find(loop, to)
    if agent is not None:
        owed.add(TellRun(agent.run, SENT, message))
    elif spec.parent is not None and to == PARENT:
        owed.add(TellRun(spec.parent, SENT, message))
    elif spec.parent is not None:
        owed.add(TellRun(spec.parent, PASSED_ON, {"to": to, "message": message}))
        context.draft.visits.begin(visit, Receipt(to, context.now_ms + PATIENCE_S * 1000))
        return None
    else:
        return receipt(to, exists=False)
    return receipt(to, exists=True)


def receipt(to: str, *, exists: bool) -> Json:
    """The result of sending a message, as the model reads it."""
    if exists:
        return {"status": "ok", "message": f"Message delivered to agent '{to}'"}
    reason = f"No agent found with id '{to}'. Agent may not exist or may have already completed."
    return {"status": "error", "message": reason}


def no_receipt(to: str) -> Json:
    """The result when the parent has not reported in time."""
    reason = f"It could not be found out within {PATIENCE_S} seconds whether the message has reached agent '{to}'."
    return {"status": "error", "message": reason}


def pass_on(context: Context, data: Mapping[str, Any]) -> bool:
    """Pass a message on to an agent that a model of this run has spawned, or to this run itself. Reports to the sender
    whether the addressee exists. Raises MissingValues."""
    to, message, owed = data["to"], data["message"], context.draft.owed
    agent = next((agent for each in loops(context) if (agent := _find(each.loop, to))), None)
    exists = agent is not None or to == _name(context)
    if agent is not None:
        owed.add(TellRun(agent.run, SENT, dict(message)))
    elif exists:
        receive(context, message)
    owed.add(TellRun(message["run"], ARRIVED, {"seq": message["number"], "found": exists}))
    return True


def receive(context: Context, message: Mapping[str, Any]) -> bool:
    """Keep a message for this run. False: it was delivered before. Raises MissingValues."""
    inbox = _inbox(context)
    if message["number"] <= inbox["seen"].get(message["run"], 0):
        return False
    seen = {**inbox["seen"], message["run"]: message["number"]}
    _keep(context, {"seen": seen, "messages": [*inbox["messages"], dict(message)]})
    return True


def read(context: Context) -> Json:
    """Read and empty the inbox, as the result of a call. Raises MissingValues."""
    inbox = _inbox(context)
    messages = [
        {
            "from": each["from"],
            "payload": {"type": "text", "content": each["text"]},
            "timestamp": datetime.fromtimestamp(each["at_ms"] / 1000, UTC).isoformat(timespec="milliseconds"),
        }
        for each in inbox["messages"]
    ]
    if messages:
        _keep(context, {**inbox, "messages": []})
    return {"messages": messages, "count": len(messages)}


def _name(context: Context) -> str:
    """The name that other models use for this run."""
    spec = context.run.spec
    return spec.agent if spec.parent is None else agent_id(context.run.id, spec.agent)


def _find(loop: Loop, id_: str) -> Spawned | None:
    return next((each for each in loop.agents if each.id == id_), None)


def _inbox(context: Context) -> dict[str, Any]:
    text = context.values.item(_INBOX)
    inbox: dict[str, Any] = json.loads(text) if text else {"seen": {}, "messages": []}
    return inbox


def _keep(context: Context, inbox: Mapping[str, Any]) -> None:
    context.draft.record.item(SetValue(_INBOX, compact_json(inbox)))

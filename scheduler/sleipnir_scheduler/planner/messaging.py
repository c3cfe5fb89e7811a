"""Messages between the models of one tree of runs (spec/graph-agents.md 6.7).

    to an agent that it has spawned, or its parent: straight there; to one beside it: by way of their parent

A message waits among the items of the run that it is for, until that looks into its inbox. It may be delivered twice,
and counts once: those of one sender come in order, and have numbers that go up.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from sleipnir.graph.model import Json
from sleipnir.runs import Spawned, Visit, agent_id
from sleipnir.transitions import Fill, TellRun
from sleipnir.values import Wanted
from sleipnir_scheduler.planner.context import Context
from sleipnir_scheduler.planner.known import require

SENT, PASSED_ON = "sent", "passed_on"
"""What runs tell each other: a message for the run that hears it, and one for an agent that it has spawned."""

PARENT = "parent"

_INBOX = "inbox"
"""The field of the run's items: the last number `seen` of each sender, and the `messages` that nobody has read."""


def send(context: Context, of: Visit, visit: Visit, to: str, text: str) -> Json:
    """What the model of the loop `of` reads of the call `visit`. Whether there is an agent beside it of that id, only
    their parent knows: a message to none is lost."""
    spec, draft = context.run.spec, context.draft
    message = {
        "run": context.run.id,
        "number": visit.seq,
        "from": _name(context),
        "text": text,
        "at_ms": context.now_ms,
    }
    agent = _find(of, to)
    if agent is not None:
        draft.effect(TellRun(agent.run, SENT, message))
    elif spec.parent is not None and to == PARENT:
        draft.effect(TellRun(spec.parent, SENT, message))
    elif spec.parent is not None and to.startswith("agent_"):
        draft.effect(TellRun(spec.parent, PASSED_ON, {"to": to, "message": message}))
    else:
        told = f"No agent found with id '{to}'. Agent may not exist or may have already completed."
        return {"status": "error", "message": told}
    return {"status": "ok", "message": f"Message delivered to agent '{to}'"}


def pass_on(context: Context, to: str, message: Mapping[str, Any]) -> bool:
    """A message for an agent that a model of this run has spawned. False: there is none of that id."""
    agent = next((found for visit in context.draft.visits() if (found := _find(visit, to))), None)
    if agent is not None:
        context.draft.effect(TellRun(agent.run, SENT, dict(message)))
    return agent is not None


def receive(context: Context, message: Mapping[str, Any]) -> bool:
    """A message for this run. False: it has come before. Raises Missing."""
    inbox = _inbox(context)
    if message["number"] <= inbox["seen"].get(message["run"], 0):
        return False
    seen = {**inbox["seen"], message["run"]: message["number"]}
    _keep(context, {"seen": seen, "messages": [*inbox["messages"], dict(message)]})
    return True


def read(context: Context) -> Json:
    """What the model reads that looks into its inbox, which is empty then. Raises Missing."""
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
    """What others call this run."""
    spec = context.run.spec
    return spec.agent if spec.parent is None else agent_id(context.run.id, spec.agent)


def _find(visit: Visit, id_: str) -> Spawned | None:
    return next((each for each in visit.loop.agents if each.id == id_), None) if visit.loop else None


def _inbox(context: Context) -> dict[str, Any]:
    left = context.draft.left.get(_INBOX)
    if not isinstance(left, Fill):
        require(context.known, Wanted(items=frozenset([_INBOX])))
    text = left.text if isinstance(left, Fill) else context.known.items.get(_INBOX)
    found: dict[str, Any] = json.loads(text) if text else {"seen": {}, "messages": []}
    return found


def _keep(context: Context, inbox: Mapping[str, Any]) -> None:
    context.draft.item(Fill(_INBOX, json.dumps(inbox, ensure_ascii=False, separators=(",", ":"))))

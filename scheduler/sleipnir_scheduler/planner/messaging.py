"""Messages between the models of one tree of runs (spec/graph-agents.md 6.7).

    to an agent that it has spawned, or its parent: straight there
    to one beside it: by way of their parent, who alone knows whether there is one, and says so

A message waits among the items of the run that it is for, until that looks into its inbox. It may be delivered twice,
and counts once: those of one sender come in order, and have numbers that go up.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from sleipnir.graph.model import Json
from sleipnir.runs.run import Spawned, Visit, agent_id, changed
from sleipnir.runs.transitions import Fill, TellRun
from sleipnir.runs.values import Wanted
from sleipnir_scheduler.planner.context import Context
from sleipnir_scheduler.planner.known import require

SENT, PASSED_ON, ARRIVED = "sent", "passed_on", "arrived"
"""What runs tell each other: a message for the run that hears it, one for an agent that it has spawned, and whether
there was one."""

PATIENCE_S = 60
"""How long the parent may take to say so."""

PARENT = "parent"

_INBOX = "inbox"
"""The field of the run's items: the last number `seen` of each sender, and the `messages` that nobody has read."""


def send(context: Context, of: Visit, visit: Visit, to: str, text: str) -> Json | None:
    """What the model of the loop `of` reads of the call `visit`; None: the parent has to say it."""
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
    elif spec.parent is not None:
        draft.effect(TellRun(spec.parent, PASSED_ON, {"to": to, "message": message}))
        draft.put(changed(draft.begin(visit, None, context.now_ms + PATIENCE_S * 1000), addressee=to))
        return None
    else:
        return told(to, found=False)
    return told(to, found=True)


def told(to: str, *, found: bool) -> Json:
    """What the model reads of a message, if there was an agent for it (`found`), and if not."""
    if found:
        return {"status": "ok", "message": f"Message delivered to agent '{to}'"}
    why = f"No agent found with id '{to}'. Agent may not exist or may have already completed."
    return {"status": "error", "message": why}


def not_heard_of(to: str) -> Json:
    """What it reads when the parent has not said so in time."""
    why = f"It could not be found out within {PATIENCE_S} seconds whether the message has reached agent '{to}'."
    return {"status": "error", "message": why}


def pass_on(context: Context, data: Mapping[str, Any]) -> bool:
    """A message for an agent that a model of this run has spawned, or for this run itself. The sender hears whether
    there is one. Raises Missing."""
    to, message = data["to"], data["message"]
    agent = next((agent for visit in context.draft.visits() if (agent := _find(visit, to))), None)
    found = agent is not None or to == _name(context)
    if agent is not None:
        context.draft.effect(TellRun(agent.run, SENT, dict(message)))
    elif found:
        receive(context, message)
    context.draft.effect(TellRun(message["run"], ARRIVED, {"seq": message["number"], "found": found}))
    return True


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

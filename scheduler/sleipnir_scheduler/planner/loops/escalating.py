"""Questions of child runs, which the model at the top may answer too (spec/graph-agents.md 6.6).

    a child asks ─► a gate of its own, and a word to the run at the top ─► who answers first, a person or that model

The question skips the runs between. A question that is answered or expired, or whose run is over, is withdrawn at the
top (draft/owed.py). That model reads the waiting questions with the results of its calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sleipnir.graph.model import Json
from sleipnir.graph.plain import compact_json
from sleipnir.runs.run import agent_id, question_id
from sleipnir.runs.transitions import TellRun
from sleipnir.runs.visits import Loop, Visit
from sleipnir_scheduler.planner.context import Context
from sleipnir_scheduler.planner.loops.model_loop import ModelLoop, change, loops, node_of

ASKED, REPLIED = "asked", "replied"
"""The messages between runs: a question to the run at the top, an answer from it."""

REPLY = "agent__reply_escalation"

_INSTRUCTION = (
    "Child agents are BLOCKED waiting for your reply. "
    "Call agent__reply_escalation for each pending escalation to unblock them."
)
_SHOWN = ("escalation_id", "from_agent_id", "from_agent_name", "question", "options")


def ask(context: Context, visit: Visit, tool: str, arguments: Mapping[str, Json]) -> None:
    """Send a question of this run to the run at the top, if that is another run."""
    spec = context.run.spec
    if spec.root is None:
        return
    question = {
        "escalation_id": question_id(context.run.id, visit.seq),
        "from_agent_id": agent_id(context.run.id, spec.agent),
        "from_agent_name": spec.agent,
        "question": f"[{tool.removeprefix('user__')}] {arguments['question']}",
        **({"options": arguments["options"]} if arguments["options"] else {}),
        "run": context.run.id,
        "seq": visit.seq,
        "attempt": visit.attempt,
    }
    context.draft.owed.add(TellRun(spec.root, ASKED, question))


def listener(context: Context) -> ModelLoop | None:
    """The loop whose model may answer questions of child runs."""
    return next((each for each in loops(context) if REPLY in (node_of(context, each.visit).tools or ())), None)


def noted(context: Context, model_loop: ModelLoop, question: Mapping[str, Any]) -> bool:
    """Keep a question for the model of a loop. False: the loop has the question already."""
    escalations = model_loop.loop.escalations
    if any(each["escalation_id"] == question["escalation_id"] for each in escalations):
        return False
    change(context, model_loop, escalations=(*escalations, dict(question)))
    return True


def taken_back(context: Context, model_loop: ModelLoop, id_: str) -> bool:
    """Withdraw a question. False: the loop does not have it."""
    escalations = model_loop.loop.escalations
    open_ones = tuple(each for each in escalations if each["escalation_id"] != id_)
    if len(open_ones) == len(escalations):
        return False
    change(context, model_loop, escalations=open_ones)
    return True


def reply(context: Context, model_loop: ModelLoop, id_: str, text: str) -> Json:
    """The result of a call that answers a question, as the model reads it."""
    question = next((each for each in model_loop.loop.escalations if each["escalation_id"] == id_), None)
    if question is None:
        message = f"No pending escalation found with id '{id_}'. It may have already been replied to or timed out."
        return {"status": "error", "message": message}
    taken_back(context, model_loop, id_)
    answer = {"seq": question["seq"], "attempt": question["attempt"], "text": text}
    context.draft.owed.add(TellRun(question["run"], REPLIED, answer))
    return {
        "status": "ok",
        "message": f"Reply sent to agent '{question['from_agent_name']}' for escalation '{id_}'",
        "original_question": question["question"],
    }


def pending(loop: Loop) -> list[Json]:
    """The questions that wait for an answer, as the model reads them."""
    return [{name: each[name] for name in _SHOWN if name in each} for each in loop.escalations]


def announcement(loop: Loop) -> str | None:
    """The announcement of waiting questions that the model reads after the results of its calls, as JSON text; None: no
    question waits."""
    if not (questions := pending(loop)):
        return None
    message = {"pending_escalations": questions, "instruction": _INSTRUCTION}
    return compact_json(message)

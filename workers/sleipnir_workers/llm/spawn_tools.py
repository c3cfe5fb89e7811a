"""The tools with which a model starts and supervises agents: their declarations and the checks of their calls
(spec/graph-agents.md 6.2).

The scheduler answers the calls, because it knows the run's agents; no worker waits for an agent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sleipnir.graph.model import Json
from sleipnir.graph.tools import present

NOT_ENABLED = "No supervisor active; Agent spawning not enabled"

_ID = {"type": "string", "description": "The id of the agent, as agent__spawn returned it."}
_TASK_ID = {"type": "string", "description": "The id of the task, as agent__task_create returned it."}
_DESCRIPTIONS: Mapping[str, str] = {
    "agent__spawn": "Start an agent that works in the background, beside you and the other agents. Returns its id at "
    "once. Collect its result later with agent__collect.",
    "agent__check": "Look whether an agent has ended, without waiting. If it has, its result is returned, and the "
    "agent is collected.",
    "agent__collect": "Wait until an agent has ended, and return its result. An agent can be collected once.",
    "agent__list_running": "List the agents that were spawned and not collected yet: id, agent, and whether it still "
    "runs.",
    "agent__list_available": "List the agents that you may start: name, and what each is for.",
    "agent__cancel": "Cancel an agent that is not needed any more. Its output is lost.",
    "agent__send_message": "Send a message to an agent that you started, to one that was started beside you, or to "
    "`parent`, the agent that started you. It reads it when it looks into its inbox.",
    "agent__check_inbox": "Read the messages that other agents have sent you since you looked last.",
    "agent__reply_escalation": "Answer the question of an agent that waits for your answer: you find those under "
    "pending_escalations.",
    "agent__task_create": "Add a task to your task queue. It may depend on others. With an agent and a prompt, the "
    "agent is started by itself as soon as nothing blocks the task.",
    "agent__task_list": "List the tasks of your task queue, with their status and what they depend on.",
    "agent__task_complete": "Mark a task as completed. Tasks that it blocked alone can be done then, and those with an "
    "agent are started.",
    "agent__task_fail": "Mark a task as failed. Tasks that depend on it remain blocked.",
}
_PARAMETERS: Mapping[str, Mapping[str, Json]] = {
    "agent__spawn": {
        "agent": {"type": "string", "description": "The name of the agent to start."},
        "prompt": {"type": "string", "description": "What it shall do. It knows nothing of this conversation."},
        "task_id": {"type": "string", "description": "The task of the task queue that it works on, if any."},
    },
    "agent__check": {"id": _ID},
    "agent__collect": {"id": _ID},
    "agent__cancel": {"id": _ID},
    "agent__send_message": {
        "id": {"type": "string", "description": "The id of the agent, or `parent`."},
        "message": {"type": "string", "description": "All that it needs to know."},
    },
    "agent__reply_escalation": {
        "escalation_id": {"type": "string", "description": "The id of the question."},
        "reply": {"type": "string", "description": "Your answer."},
    },
    "agent__task_create": {
        "subject": {"type": "string", "description": "What is to be done, in a few words."},
        "description": {"type": "string", "description": "More about it."},
        "blocked_by": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Ids of tasks that must be completed before.",
        },
        "agent": {"type": "string", "description": "The agent that shall do it, started by itself."},
        "prompt": {"type": "string", "description": "What the agent is told. Required with an agent."},
    },
    "agent__task_complete": {"task_id": _TASK_ID},
    "agent__task_fail": {"task_id": _TASK_ID},
}
_REQUIRED: Mapping[str, tuple[str, ...]] = {
    "agent__spawn": ("agent", "prompt"),
    "agent__check": ("id",),
    "agent__collect": ("id",),
    "agent__cancel": ("id",),
    "agent__send_message": ("id", "message"),
    "agent__reply_escalation": ("escalation_id", "reply"),
    "agent__task_create": ("subject",),
    "agent__task_complete": ("task_id",),
    "agent__task_fail": ("task_id",),
}


def declaration(name: str) -> dict[str, Any]:
    """One of the tools in the form of OpenAI's `tools`, under the agent's name for it."""
    parameters = {
        "type": "object",
        "properties": dict(_PARAMETERS.get(name, {})),
        "required": list(_REQUIRED.get(name, ())),
    }
    return {
        "type": "function",
        "function": {"name": name, "description": _DESCRIPTIONS[present(name)], "parameters": parameters},
    }


def problem(name: str, arguments: str) -> str | None:
    """The problem of a call; None for a valid call. `arguments` is JSON text from a model."""
    try:
        parameters = json.loads(arguments)
    except (ValueError, RecursionError) as error:
        return f"the arguments are not JSON: {error}"
    if not isinstance(parameters, dict):
        return "the arguments are no JSON object"
    if name == "agent__send_message" and "id" not in parameters:
        parameters["id"] = parameters.get("to")  # the name in the instructions of some agents
    for each in _REQUIRED.get(name, ()):
        if not isinstance(parameters.get(each), str):
            return f"'{each}' is required"
    if isinstance(parameters.get("agent"), str) and not isinstance(parameters.get("prompt"), str):
        return "'prompt' is required when 'agent' is set"
    return None

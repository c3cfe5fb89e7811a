"""When an agent with an unfinished todo list continues by itself, and the message that it gets (spec 5).

Rules. The worker of the turn decides, wherever the agent runs. The decision depends only on the conversation, so a
repeated turn decides the same. An agent that repeats its last reply stops.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from sleipnir.graph.model import LoopAgent
from sleipnir.runs.conversation import StoredConversation
from sleipnir_workers.llm.reply import Message
from sleipnir_workers.llm.todo import TodoList

REMINDER = """\
[SYSTEM REMINDER - TODO CONTINUATION]
Tasks of your todo list are not done yet, so the work goes on.
1. Check that a task really works before you mark it as done: run it, test it, read it again. Do not finish early.
2. If a task is broad, first add the specific steps that it consists of with `todo__add`.
3. Each task should be one thing that can be done and checked by itself.
4. Go on with the next open task now, and call the tools for it at once instead of announcing what you will do."""


@dataclass(frozen=True)
class Continuation:
    """The message that begins the next turn, and a line of narration."""

    message: Message
    note: str


def continuation(agent: LoopAgent, talk: StoredConversation, reply: str, todos: TodoList) -> Continuation | None:
    """How the agent continues after a `reply` without calls; None: it has ended. `talk` holds the turns before."""
    count, most = len(talk.follow_ups), agent.max_auto_continues
    if not (agent.auto_continue and todos.left and count < most) or reply == _last_reply(talk):
        return None
    text = f"{agent.continuation_prompt or REMINDER}\n\n{todos.render()}"
    note = f"📋 Auto-continuing ({count + 1}/{most}): {todos.left} incomplete todo(s) remain"
    return Continuation({"role": "user", "content": text}, note)


def _last_reply(talk: StoredConversation) -> str | None:
    """The reply after which the agent last continued."""
    if not talk.follow_ups:
        return None
    reply, _ = talk.turns[max(talk.follow_ups)]
    return json.loads(reply).get("content") or ""

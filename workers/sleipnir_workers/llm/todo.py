"""An agent's todo list: what the model is told of its five tools, and the list that their calls make (spec 5).

Rules. Nothing is stored: the list is what the calls of a conversation make of it, replayed from the first. The same
conversation gives the same list, so a turn that is repeated sees what the lost one saw. A call that came to nothing,
as its result says, counts for nothing. Ids go up from 1; clearing begins anew.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sleipnir.graph.model import Json
from sleipnir.graph.tools import TODO_TOOLS
from sleipnir_workers.llm.reply import Message, storable

NOT_ENABLED = "Auto-continue is not enabled. Set 'auto_continue: true' in your config to use todo tools."
NO_FUNCTIONS = "Cannot use todo tools: function calling is disabled."

SHOWN = 500
"""Characters of arguments that a message quotes."""

_DESCRIPTIONS: Mapping[str, str] = {
    "todo__init": "Begin a new todo list for a goal. It replaces the list there is.",
    "todo__add": "Add a task to the end of the todo list. Returns its id.",
    "todo__done": "Mark a task of the todo list as done, as soon as it is.",
    "todo__list": "Read the todo list: the goal, and each task with its id and whether it is done.",
    "todo__clear": "Drop the todo list with its goal, when the work is cancelled or takes another direction.",
}
_PARAMETERS: Mapping[str, Mapping[str, Json]] = {
    "todo__init": {"goal": {"type": "string", "description": "What is to be reached when all tasks are done."}},
    "todo__add": {"task": {"type": "string", "description": "What is to be done, in one sentence."}},
    "todo__done": {"id": {"type": "integer", "description": "The id of the task."}},
}
_NUMBER = re.compile(r"\s*\+?[0-9]{1,18}\s*", re.ASCII)
_OF_A_REFUSAL = frozenset({"tool_call_error", "tool_call_loop_alert"})


def declaration(name: str) -> dict[str, Any]:
    """One of the `todo__*` tools in the form of OpenAI's `tools`."""
    properties = dict(_PARAMETERS.get(name, {}))
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {
        "type": "function",
        "function": {"name": name, "description": _DESCRIPTIONS[name], "parameters": parameters},
    }


@dataclass(frozen=True)
class Todo:
    """One task of a list."""

    id: int
    desc: str
    done: bool = False


@dataclass(frozen=True)
class TodoList:
    """A goal and tasks in the order in which they were added. Without a call it is empty."""

    goal: str = ""
    todos: tuple[Todo, ...] = ()

    @classmethod
    def of(cls, conversation: Sequence[Message], before: TodoList | None = None) -> TodoList:
        """What the calls of the conversation make of the list `before` it, by default an empty one."""
        todos = before or cls()
        for name, arguments in _calls(conversation):
            todos, _ = todos.after(name, arguments)
        return todos

    @property
    def left(self) -> int:
        """How many tasks are not done."""
        return sum(not todo.done for todo in self.todos)

    def after(self, name: str, arguments: str) -> tuple[TodoList, Json]:
        """The list after a call, and what the model reads of it. `arguments` is JSON text that a model wrote."""
        given = _object(arguments)
        if given is None:
            shown = arguments if len(arguments) <= SHOWN else arguments[: SHOWN - 1] + "…"
            return self, {"tool_call_error": f"The call '{name}' has invalid arguments: {shown}"}
        match name:
            case "todo__init":
                goal = _text(given.get("goal"))
                return TodoList(goal), {"status": "ok", "message": "Initialized new todo list"}
            case "todo__add":
                return self._with(_text(given.get("task")))
            case "todo__done":
                return self._with_done(_number(given.get("id")))
            case "todo__clear":
                return TodoList(), {"status": "ok", "message": "Todo list cleared"}
            case _:
                return self, self._listed()

    def render(self) -> str:
        """The list as the model is reminded of it."""
        goal = [f"Goal: {self.goal}"] if self.goal else []
        done = len(self.todos) - self.left
        tasks = [f"  {'✓' if todo.done else '○'} {todo.id}. {todo.desc}" for todo in self.todos]
        return "\n".join([*goal, f"Progress: {done}/{len(self.todos)} completed", *tasks])

    def _with(self, task: str) -> tuple[TodoList, Json]:
        if not task:
            return self, {"error": "task description is required"}
        number = max((todo.id for todo in self.todos), default=0) + 1
        return replace(self, todos=(*self.todos, Todo(number, task))), {"status": "ok", "id": number}

    def _with_done(self, number: int | None) -> tuple[TodoList, Json]:
        if number is None:
            return self, {"error": "id is required and must be a number"}
        if all(todo.id != number for todo in self.todos):
            return self, {"error": f"Todo {number} not found"}
        todos = tuple(replace(todo, done=todo.done or todo.id == number) for todo in self.todos)
        return replace(self, todos=todos), {"status": "ok", "message": f"Marked todo {number} as done"}

    def _listed(self) -> Json:
        if not self.todos:
            return {"goal": "", "todos": []}
        return {"goal": self.goal, "todos": [{"id": t.id, "desc": t.desc, "done": t.done} for t in self.todos]}


def _calls(conversation: Sequence[Message]) -> Iterator[tuple[str, str]]:
    """Name and arguments of the calls of todo tools that were not refused, oldest first."""
    for place, message in enumerate(conversation):
        asked = message.get("tool_calls") or ()
        results = _results(conversation[place + 1 : place + 1 + len(asked)])
        for call in asked:
            name = call["function"]["name"]
            if name in TODO_TOOLS and not _was_refused(results.get(call["id"])):
                yield name, call["function"]["arguments"]


def _results(following: Iterable[Message]) -> dict[str, Any]:
    """By id, what came of the calls of one message: ids may come again in others."""
    return {message["tool_call_id"]: message["content"] for message in following if message.get("role") == "tool"}


def _was_refused(result: Any) -> bool:
    if not isinstance(result, str):
        return False  # a call that is about to be answered
    try:
        found = json.loads(result)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and not _OF_A_REFUSAL.isdisjoint(found)


def _object(arguments: str) -> dict[str, Json] | None:
    """The arguments; None for what is no JSON object. Models leave the text empty for a tool without parameters."""
    try:
        found = json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else {} if found is None else None


def _text(given: Json) -> str:
    return storable(given) if isinstance(given, str) else ""


def _number(given: Json) -> int | None:
    """A whole number, as such or as text; None for everything else. In JSON 3.0 is one too."""
    if isinstance(given, str) and _NUMBER.fullmatch(given):
        return int(given)
    if isinstance(given, float) and given.is_integer():
        return int(given)
    return given if isinstance(given, int) and not isinstance(given, bool) else None

"""An agent's todo list: the declarations of its five tools, and the list that results from their calls (spec 5).

Rules. The list is not stored: it is computed by replaying the calls of the conversation. The same conversation gives
the same list, so a repeated turn sees the same list as the lost one. A call whose result is a refusal has no effect.
Ids count from 1; clearing restarts them.
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
_REFUSAL_KEYS = frozenset({"tool_call_error", "tool_call_loop_alert"})


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
    """A goal and tasks in the order of their creation; initially empty."""

    goal: str = ""
    todos: tuple[Todo, ...] = ()

    @classmethod
    def of(cls, conversation: Sequence[Message], before: TodoList | None = None) -> TodoList:
        """The list after the calls of the conversation, which starts with `before`, by default an empty list."""
        todos = before or cls()
        for name, arguments in _calls(conversation):
            todos, _ = todos.after(name, arguments)
        return todos

    @property
    def left(self) -> int:
        """The number of open tasks."""
        return sum(not todo.done for todo in self.todos)

    def after(self, name: str, arguments: str) -> tuple[TodoList, Json]:
        """The list after a call, and the result for the model. `arguments` is JSON text from a model."""
        parameters = _object(arguments)
        if parameters is None:
            shown = arguments if len(arguments) <= SHOWN else arguments[: SHOWN - 1] + "…"
            return self, {"tool_call_error": f"The call '{name}' has invalid arguments: {shown}"}
        match name:
            case "todo__init":
                goal = _text(parameters.get("goal"))
                return TodoList(goal), {"status": "ok", "message": "Initialized new todo list"}
            case "todo__add":
                return self._added(_text(parameters.get("task")))
            case "todo__done":
                return self._completed(_number(parameters.get("id")))
            case "todo__clear":
                return TodoList(), {"status": "ok", "message": "Todo list cleared"}
            case _:
                return self, self._listed()

    def render(self) -> str:
        """The list as text for the model."""
        goal = [f"Goal: {self.goal}"] if self.goal else []
        done = len(self.todos) - self.left
        tasks = [f"  {'✓' if todo.done else '○'} {todo.id}. {todo.desc}" for todo in self.todos]
        return "\n".join([*goal, f"Progress: {done}/{len(self.todos)} completed", *tasks])

    def _added(self, task: str) -> tuple[TodoList, Json]:
        if not task:
            return self, {"error": "task description is required"}
        number = max((todo.id for todo in self.todos), default=0) + 1
        return replace(self, todos=(*self.todos, Todo(number, task))), {"status": "ok", "id": number}

    def _completed(self, number: int | None) -> tuple[TodoList, Json]:
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
        calls = message.get("tool_calls") or ()
        results = _results(conversation[place + 1 : place + 1 + len(calls)])
        for call in calls:
            name = call["function"]["name"]
            if name in TODO_TOOLS and not _was_refused(results.get(call["id"])):
                yield name, call["function"]["arguments"]


def _results(following: Iterable[Message]) -> dict[str, Any]:
    """The results of the calls of one message by id; other messages may repeat ids."""
    return {message["tool_call_id"]: message["content"] for message in following if message.get("role") == "tool"}


def _was_refused(result: Any) -> bool:
    if not isinstance(result, str):
        return False  # a call without a result yet
    try:
        value = json.loads(result)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and not _REFUSAL_KEYS.isdisjoint(value)


def _object(arguments: str) -> dict[str, Json] | None:
    """The arguments; None if they are no JSON object. Models leave the text empty for a tool without parameters."""
    try:
        value = json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else {} if value is None else None


def _text(value: Json) -> str:
    return storable(value) if isinstance(value, str) else ""


def _number(value: Json) -> int | None:
    """A whole number or its text; else None. In JSON, 3.0 is a whole number too."""
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None

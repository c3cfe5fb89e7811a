"""The task queue of an agent that starts agents: what is to be done, in which order, and by whom
(spec/graph-agents.md 6.4). Pure: spawning.py keeps it, and starts the agents.

    pending ─► in_progress (its agent was started) ─► completed, failed
    blocked ─► pending (all that it depends on is completed)

What is completed when a task is made blocks it not; what has failed blocks for good.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sleipnir.graph.model import Json


@dataclass(frozen=True)
class Task:
    """One task. `blocked_by` are those that it waits for, `blocks` those that were made to wait for it. With an `agent`
    it is started by itself, with the `prompt`, as soon as nothing blocks it."""

    id: str
    subject: str
    description: str = ""
    status: str = "pending"
    owner: str | None = None
    blocked_by: tuple[str, ...] = ()
    blocks: tuple[str, ...] = ()
    agent: str | None = None
    prompt: str | None = None

    @property
    def may_start(self) -> bool:
        return self.status == "pending" and self.agent is not None


class Tasks:
    """The tasks by id, in the order in which they were made. Mutable, and never leaves one call of plan()."""

    def __init__(self, text: str | None) -> None:
        """From what `text` gives, or none."""
        found = (Task(**{**each, **_tuples(each)}) for each in json.loads(text or "[]"))
        self._tasks = {task.id: task for task in found}

    def text(self) -> str:
        return json.dumps([vars(task) for task in self._tasks.values()], ensure_ascii=False, separators=(",", ":"))

    def get(self, id_: str) -> Task | None:
        return self._tasks.get(id_)

    def startable(self) -> list[Task]:
        """Those that wait for an agent alone."""
        return [task for task in self._tasks.values() if task.may_start]

    def create(self, arguments: Mapping[str, Json]) -> tuple[Task, list[str]]:
        """A new task, and what is wrong with what it is said to depend on."""
        id_, blocked_by, warnings = str(len(self._tasks) + 1), [], []
        for dependency in _ids(arguments.get("blocked_by")):
            if dependency == id_:
                warnings.append("A task cannot depend on itself")
            elif dependency not in self._tasks:
                warnings.append(f"Dependency task '{dependency}' does not exist")
            elif self._tasks[dependency].status != "completed":
                blocked_by.append(dependency)
        for dependency in blocked_by:
            self._change(dependency, blocks=(*self._tasks[dependency].blocks, id_))
        task = Task(
            id_,
            arguments["subject"],
            _text(arguments.get("description")) or "",
            "blocked" if blocked_by else "pending",
            blocked_by=tuple(blocked_by),
            agent=_text(arguments.get("agent")),
            prompt=_text(arguments.get("prompt")),
        )
        self._tasks[id_] = task
        return task, warnings

    def started(self, id_: str) -> None:
        """An agent works on it."""
        self._change(id_, status="in_progress", owner=f"auto:{self._tasks[id_].agent}")

    def complete(self, id_: str) -> list[Task]:
        """The tasks that nothing blocks from here on."""
        self._change(id_, status="completed")
        runnable = []
        for each in self._tasks[id_].blocks:
            left = tuple(other for other in self._tasks[each].blocked_by if other != id_)
            self._change(each, blocked_by=left)
            if not left and self._tasks[each].status == "blocked":
                self._change(each, status="pending")
                runnable.append(self._tasks[each])
        return runnable

    def fail(self, id_: str) -> list[str]:
        """The tasks that it blocks for good."""
        self._change(id_, status="failed")
        return [each for each in self._tasks[id_].blocks if self._tasks[each].status == "blocked"]

    def listed(self) -> list[Json]:
        hidden = ("description",)
        return [{k: v for k, v in vars(task).items() if k not in hidden} for task in self._tasks.values()]

    def _change(self, id_: str, **fields: Any) -> None:
        self._tasks[id_] = replace(self._tasks[id_], **fields)


def _tuples(task: Mapping[str, Json]) -> dict[str, Json]:
    """JSON knows no tuples."""
    return {name: tuple(task[name]) for name in ("blocked_by", "blocks")}


def task_id(text: str) -> str:
    """The id that a model means. Loki's texts write `task_1` for the task 1 (spec/graph-agents.md 0.1, row 8)."""
    return text.strip().removeprefix("task_")


def _ids(given: Json) -> list[str]:
    """A list of ids that a model wrote, or such a list as JSON text, each once. What is no id is passed over."""
    if isinstance(given, str):
        given = _list_in(given)
    found = given if isinstance(given, list) else []
    return list(dict.fromkeys(task_id(str(each)) for each in found if isinstance(each, str | int)))


def _list_in(text: str) -> Json:
    """The list that a text is as JSON; else the text as the only id."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, list) else [text]


def _text(given: Json) -> str | None:
    return given if isinstance(given, str) else None

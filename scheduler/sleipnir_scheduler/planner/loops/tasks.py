"""The task queue of an agent that starts agents: tasks, their order, and the agents that do them (spec/graph-agents.md
6.4). Pure: spawning.py stores it, and starts the agents.

    pending ─► in_progress (its agent was started) ─► completed, failed
    blocked ─► pending (all that it depends on is completed)

A dependency that is already completed does not block a new task; a failed one blocks it for good.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sleipnir.graph.model import Json
from sleipnir.graph.plain import compact_json


@dataclass(frozen=True)
class Task:
    """One task. `blocked_by` are the tasks that it waits for, `blocks` those that wait for it. With an `agent`, it
    starts automatically with the `prompt` as soon as nothing blocks it."""

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
    """The tasks by id, in the order in which they were made. Mutable, and used within one call of plan()."""

    def __init__(self, text: str | None) -> None:
        """The tasks in a JSON text; None: no tasks."""
        tasks = (Task(**{**each, **_tuples(each)}) for each in json.loads(text or "[]"))
        self._tasks = {task.id: task for task in tasks}

    def text(self) -> str:
        return compact_json([vars(task) for task in self._tasks.values()])

    def get(self, id_: str) -> Task | None:
        return self._tasks.get(id_)

    def startable(self) -> list[Task]:
        """The tasks that only wait for an agent."""
        return [task for task in self._tasks.values() if task.may_start]

    def create(self, arguments: Mapping[str, Json]) -> tuple[Task, list[str]]:
        """A new task, and warnings about its dependencies."""
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
        """Complete a task. Returns the tasks that became unblocked."""
        self._change(id_, status="completed")
        runnable = []
        for dependent in self._tasks[id_].blocks:
            blockers = tuple(blocker for blocker in self._tasks[dependent].blocked_by if blocker != id_)
            self._change(dependent, blocked_by=blockers)
            if not blockers and self._tasks[dependent].status == "blocked":
                self._change(dependent, status="pending")
                runnable.append(self._tasks[dependent])
        return runnable

    def fail(self, id_: str) -> list[str]:
        """Fail a task. Returns the tasks that it blocks for good."""
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
    """The ids in a list that a model wrote, or in such a list as JSON text, each once. Other values are ignored."""
    if isinstance(given, str):
        given = _list_in(given)
    ids = given if isinstance(given, list) else []
    return list(dict.fromkeys(task_id(str(each)) for each in ids if isinstance(each, str | int)))


def _list_in(text: str) -> Json:
    """The list that a text is as JSON; else the text as the only id."""
    try:
        ids = json.loads(text)
    except (ValueError, RecursionError):
        ids = None
    return ids if isinstance(ids, list) else [text]


def _text(given: Json) -> str | None:
    return given if isinstance(given, str) else None

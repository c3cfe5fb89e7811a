"""Errors of graphs that run in this process, with the names that programs written for LangGraph catch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sleipnir.commands import Command
from sleipnir.errors import Problem, SleipnirError


class GraphBuildError(SleipnirError, ValueError):
    """A graph that cannot be built. `str(error)` has one line per finding, with the file and line of the call;
    `problems` has the findings, if it is about parts of the graph."""

    def __init__(self, message: str, problems: Sequence[Problem] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems)

    @classmethod
    def of(cls, problems: Sequence[Problem]) -> GraphBuildError:
        """Hints that name a near spelling are part of the text; others are about the keys of a graph.yaml."""
        near = (f". {each.hint}" if (each.hint or "").startswith("Did you mean") else "" for each in problems)
        lines = (f"{each.file}:{each.line}: {each.message}{hint}" for each, hint in zip(problems, near, strict=True))
        return cls("\n".join(lines), problems)


class GraphRecursionError(SleipnirError, RecursionError):
    """The run is not done after `recursion_limit` super-steps."""


class InvalidUpdateError(SleipnirError):
    """A node returned what is no update, or two visits of a super-step wrote a key without a reducer."""


class EmptyInputError(SleipnirError):
    """The run has no input, and its thread has no earlier one."""


class NodeError(SleipnirError):
    """A visit failed without an exception of the graph's own code."""


class ParentCommand(SleipnirError):
    """A node addressed the graph above its own. Of a graph that has none above, it is an error."""

    def __init__(self, command: Command[Any]) -> None:
        super().__init__(f"a Command addresses the graph above, but there is none: {command}")
        self.command = command

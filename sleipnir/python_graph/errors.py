"""Errors of graphs that are written in Python, with the names that programs written for LangGraph catch."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sleipnir.commands import Command
from sleipnir.errors import Problem, RunFailure, SleipnirError
from sleipnir.runs.visits import Failure


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


class GraphWarning(UserWarning):
    """A graph can run, and is likely not what was meant."""


class GraphRecursionError(SleipnirError, RecursionError):
    """The run is not done after `recursion_limit` super-steps."""


class InvalidUpdateError(SleipnirError):
    """A node returned what is no update, or two visits of a super-step wrote a key without a reducer."""


class EmptyInputError(SleipnirError):
    """The run has no input, and its thread has no earlier one."""


class InvalidAnswerError(SleipnirError, ValueError):
    """An answer does not match the schema of its question. Nothing was saved: the run still waits."""


def is_invalid_resume(error: BaseException) -> bool:
    """Whether an error of a resume says that an answer does not match its schema."""
    return isinstance(error, InvalidAnswerError)


class GraphBubbleUp(BaseException):
    """Ends the execution of a node without a result or a failure. A BaseException, so that a node's own
    `except Exception` does not catch it."""


class GraphInterrupt(GraphBubbleUp):
    """A node asks a person. `interrupts` is what it asks."""

    def __init__(self, interrupts: Any = ()) -> None:
        super().__init__(interrupts)
        self.interrupts = interrupts


class ParentCommand(SleipnirError):
    """A node addressed the graph above its own. Of a graph that has none above, it is an error."""

    def __init__(self, command: Command[Any]) -> None:
        super().__init__(f"a Command addresses the graph above, but there is none: {command}")
        self.command = command


_CLASSES: Final[Mapping[str, type[Exception]]] = {"writes": InvalidUpdateError, "steps": GraphRecursionError}
"""The error of a run by the kind of its failure."""


def run_failure(message: str, failure: Failure | None) -> RunFailure:
    """The error of a failed run. It is also an InvalidUpdateError, a GraphRecursionError, or of the class of the
    exception that the run failed with, if this process has imported that. Of the exception it has only the text."""
    cause = _cause(failure) if failure is not None else None
    try:
        return RunFailure(message) if cause is None else _with(cause)(message)
    except Exception:  # a class that cannot be derived from, or not be made from a text
        return RunFailure(message)


def _cause(failure: Failure) -> type[Exception] | None:
    if failure.error_type is None:
        return _CLASSES.get(failure.kind)
    module, _, name = failure.error_type.partition(":")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) and issubclass(found, Exception) else None


def _with(cause: type[Exception]) -> type[RunFailure]:
    return type(cause.__name__, (RunFailure, cause), {"__module__": cause.__module__, "__doc__": cause.__doc__})

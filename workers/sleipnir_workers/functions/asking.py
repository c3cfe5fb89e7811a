"""Interrupts of Python functions: an execution that asks ends with its question instead of a result."""

from __future__ import annotations

from collections.abc import Callable

from sleipnir.messages import VisitResult
from sleipnir.python_graph.errors import GraphInterrupt
from sleipnir.python_graph.interrupts import VisitAnswers, answering
from sleipnir.runs.interrupts import answers_of
from sleipnir_workers.execution.execution import Execution


def answers_for(execution: Execution) -> VisitAnswers:
    """The answers to what the visit has asked in earlier executions."""
    return VisitAnswers(execution.node.id, answers_of(execution.talk.told))


def unless_asked(execution: Execution, run: Callable[[], VisitResult]) -> VisitResult:
    """The result of `run`, which calls the function; the question, if the function asks. The function cannot swallow
    it: `except:` of its own, or another exception after it, changes nothing."""
    answers = answers_for(execution)
    token = answering.set(answers)
    try:
        result = run()
    except GraphInterrupt:
        if answers.question is None:
            raise  # of a graph that it calls
    finally:
        answering.reset(token)
    return result if answers.question is None else VisitResult.asking(answers.question)

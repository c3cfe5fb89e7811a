"""The choice of a conditional edge by the state: its conditions in order, else its template, else its default.

Rules. `read` gives state keys, or the whole state for None. The scheduler serves all runs, so it does not evaluate
expensive conditions: `needs_worker` detects them, and a worker then makes the same choice in a process that can
be ended.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

from sleipnir.graph.expression import TOO_DEEP, ExpressionError, parse, weight
from sleipnir.graph.message_keys import MESSAGES, tool_calls_are_last
from sleipnir.graph.model import Branch, Json
from sleipnir.graph.template import keys_read, render, render_typed

MOST_WEIGHT = 20_000
"""The largest weight of the values that a condition reads in the scheduler: about 60 ms."""

Read: TypeAlias = Callable[[Collection[str] | None], Mapping[str, Json]]


def chosen(branch: Branch, read: Read) -> list[str]:
    """The chosen labels. Raises ExpressionError, TemplateError, ValueError and what `read` raises."""
    for case in branch.cases:
        expression = parse(case.when)
        if expression.holds(read(expression.keys)):
            return [case.to]
    if branch.tools is not None and tool_calls_are_last(read([MESSAGES]).get(MESSAGES)):
        return [branch.tools]
    if branch.by is None:
        return [branch.default] if branch.default is not None else []
    state = read(keys_read(branch.by))
    return _many(branch.by, state) if branch.many else [render(branch.by, state)]


def needs_worker(branch: Branch, read: Read) -> bool:
    """Whether a condition loops, builds a pattern from the state, or reads very large values. Raises what `read`
    raises. False for a condition that cannot be parsed: it fails where it is evaluated."""
    for case in branch.cases:
        try:
            expression = parse(case.when)
        except ExpressionError:
            return False
        if expression.is_costly:
            return True
        size = weight(read(expression.keys))
        if size != TOO_DEEP and expression.reads * size > MOST_WEIGHT:
            return True
    return False


def _many(by: str, state: Mapping[str, Json]) -> list[str]:
    value = render_typed(by, state)
    if isinstance(value, str):
        value = json.loads(value) if value.lstrip().startswith("[") else [value]
    if not isinstance(value, list) or not all(isinstance(label, str) for label in value):
        raise ValueError(f"'{by}' must give a list of labels")
    return list(dict.fromkeys(value))

"""Rules about wait nodes: what they wait for, and the names and filters of events."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from sleipnir.graph.check_case import Case, Rule
from sleipnir.graph.model import WaitNode
from sleipnir.graph.signal_names import MOST_NAME, NAME
from sleipnir.graph.template import PLACEHOLDER
from sleipnir.graph.waits import time_problem

_ENDS: Final = ("for", "until", "event")
_OF_EVENTS: Final = ("timeout", "on_timeout", "filter", "look_back", "consume")
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_.:/@-]")


def every_wait_has_one_end(case: Case) -> None:
    for node, path in case.nodes(WaitNode):
        given = [key for key, value in zip(_ENDS, (node.duration, node.until, node.event), strict=True) if value]
        if len(given) != 1:
            message = f"it waits for {' and '.join(f'`{key}`' for key in given) or 'nothing'}"
            case.findings.error((*path, given[1]) if given else path, message, "Keep one of `for`, `until`, `event`.")
        for key in _OF_EVENTS if node.event is None else ():
            if case.findings.has((*path, key)):
                case.findings.error((*path, key), f"'{key}' has no effect without `event`", "Remove it.")
        if node.until is not None and "{{" not in node.until and (problem := time_problem(node.until)):
            case.findings.error((*path, "until"), problem, 'Write "2030-01-31T09:00:00+01:00", or a template of one.')
        if node.event is not None and node.timeout is None and node.on_timeout is not None:
            message = "'on_timeout' has no effect without a timeout"
            case.findings.warning((*path, "on_timeout"), message, "Add `timeout: 2h`.")


def every_event_can_come(case: Case) -> None:
    """The parts of a name that are no placeholders, and names without any."""
    for node, path in case.nodes(WaitNode):
        if node.event is None:
            continue
        fixed = PLACEHOLDER.sub("", node.event)
        wrong = _NOT_IN_NAMES.search(fixed)
        if wrong is not None and "{{" not in wrong[0]:
            message = f"the name of an event has no {wrong[0]!r}"
            case.findings.error((*path, "event"), message, "It has letters, digits and _ . : / @ - only.")
        elif fixed == node.event and not NAME.fullmatch(fixed):
            message = f"{fixed[:40]!r} is no name of an event"
            hint = f"It begins with a letter or a digit, and has at most {MOST_NAME} characters."
            case.findings.error((*path, "event"), message, hint)


def every_filter_can_be_read(case: Case) -> None:
    from sleipnir.graph.waits import filter_problem  # the engine takes a third of a second to load

    for node, path in case.nodes(WaitNode):
        if node.filter is not None and (problem := filter_problem(node.filter)):
            hint = "Filters are CEL, such as `event.data.amount > 10 && event.data.id == state.id`."
            case.findings.error((*path, "filter"), problem, hint)


RULES: Sequence[Rule] = (every_wait_has_one_end, every_event_can_come, every_filter_can_be_read)

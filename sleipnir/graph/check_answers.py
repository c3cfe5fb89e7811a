"""Rules about who may answer the questions of nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sleipnir.graph.answer_rules import MOST_ASSIGNEES, MOST_QUORUM, assignee_problem
from sleipnir.graph.check_case import Case, Rule
from sleipnir.graph.findings import KeyPath
from sleipnir.graph.model import ApprovalNode, InputNode


def every_assignee_is_a_person(case: Case) -> None:
    for node, path in _asking(case):
        seen: set[str] = set()
        for index, name in enumerate(node.assignees):
            place: KeyPath = (*path, "assignees", index)
            if problem := assignee_problem(name):
                case.findings.error(place, problem, "Write the name as in `sleipnir users ls`.")
            elif name in seen:
                case.findings.error(place, f"'{name}' is named twice", "Remove it: a person has one voice.")
            seen.add(name)
        if len(node.assignees) > MOST_ASSIGNEES:
            message = f"{len(node.assignees)} assignees: at most {MOST_ASSIGNEES} can be named"
            case.findings.error((*path, "assignees"), message, "Name a `role`.")


def every_quorum_can_be_reached(case: Case) -> None:
    for node, path in _asking(case):
        people = len(set(node.assignees))
        if node.quorum > MOST_QUORUM:
            hint = f"At most {MOST_QUORUM} people answer one question."
            case.findings.error((*path, "quorum"), f"a quorum of {node.quorum} is too large", hint)
        elif node.assignees and node.role is None and node.quorum > people:
            message = f"{node.quorum} people must give the same answer, but only {people} may answer"
            case.findings.error((*path, "quorum"), message, "Name more `assignees`, or a `role`.")


def _asking(case: Case) -> Iterator[tuple[ApprovalNode | InputNode, KeyPath]]:
    yield from case.nodes(ApprovalNode)
    yield from case.nodes(InputNode)


RULES: Sequence[Rule] = (every_assignee_is_a_person, every_quorum_can_be_reached)

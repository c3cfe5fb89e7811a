"""Who may answer a gate, and how many people must. The script that takes an answer checks it (store/lua/answer.lua)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, get_args

AnsweringRole: TypeAlias = Literal["approver", "operator", "admin"]

ANSWERING_ROLES: Final[tuple[AnsweringRole, ...]] = get_args(AnsweringRole)

MOST_ASSIGNEES: Final = 50
MOST_QUORUM: Final = 20
ASSIGNEE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}")
"""The name of a person, as that of a user (access/records.py)."""


@dataclass(frozen=True)
class AnswerRules:
    """Who may answer a gate: the `assignees`, and people with the `role` or a higher one; with neither everybody who
    may answer at all. With `not_author`, whoever has submitted the run may not. The gate is answered when `quorum`
    different people have given the same answer. With `comment`, each answer needs a comment."""

    assignees: tuple[str, ...] = ()
    role: AnsweringRole | None = None
    not_author: bool = False
    quorum: int = 1
    comment: bool = False


def assignee_problem(name: object) -> str | None:
    """Why this cannot be the name of an assignee; None if it can."""
    if isinstance(name, str) and ASSIGNEE.fullmatch(name):
        return None
    return (
        f"{name!r:.80} is no name of a person: up to 64 letters, digits and . _ @ + -, beginning with a letter or a "
        "digit"
    )


def answer_rules_of(given: Mapping[str, Any] | None) -> AnswerRules | None:
    """The rules that the code of a node gives with a question, with the keys and values of an approval node. None:
    there are none. Raises ValueError."""
    if given is None:
        return None
    if not isinstance(given, Mapping) or (unknown := given.keys() - vars(AnswerRules()).keys()):
        found = f"; unknown: {', '.join(sorted(map(str, unknown)))}" if isinstance(given, Mapping) else ""
        raise ValueError(f"the rules of a question are a mapping of {', '.join(vars(AnswerRules()))}{found}")
    names = given.get("assignees", ())
    if not isinstance(names, list | tuple) or len(names) > MOST_ASSIGNEES:
        raise ValueError(f"the assignees of a question are a list of at most {MOST_ASSIGNEES} names, not {names!r:.80}")
    for name in names:
        if problem := assignee_problem(name):
            raise ValueError(f"an assignee of a question: {problem}")
    role, quorum, comment = given.get("role"), given.get("quorum", 1), given.get("comment")
    if role is not None and role not in ANSWERING_ROLES:
        raise ValueError(f"the role of a question is one of {', '.join(ANSWERING_ROLES)}, not {role!r:.80}")
    if isinstance(quorum, bool) or not isinstance(quorum, int) or not 1 <= quorum <= MOST_QUORUM:
        raise ValueError(f"the quorum of a question is a number from 1 to {MOST_QUORUM}, not {quorum!r:.80}")
    if comment not in (None, "required"):
        raise ValueError(f"the comment of a question can only be 'required', not {comment!r:.80}")
    if not isinstance(given.get("not_author", False), bool):
        raise ValueError(f"not_author of a question is true or false, not {given['not_author']!r:.80}")
    rules = AnswerRules(tuple(names), role, given.get("not_author", False), quorum, comment == "required")
    return None if rules == AnswerRules() else rules

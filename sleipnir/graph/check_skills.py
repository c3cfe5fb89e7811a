"""Rules about the skills that an agent and its llm nodes name (spec/coyote.md 12). The messages are Coyote's.

Whether a skill is installed is not looked at: the workers have it, or not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from sleipnir.graph.check_case import Case
from sleipnir.graph.findings import KeyPath
from sleipnir.graph.model import LlmNode

Rule: TypeAlias = Callable[[Case], None]

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_HINT = "A skill is called like its folder: letters, digits, - and _."


def every_skill_has_a_name_that_skills_can_have(case: Case) -> None:
    for owner, name, path in _named(case):
        if not name.strip():
            case.findings.error(path, f"{owner} 'enabled_skills' contains an empty skill name", _HINT)
        elif _NAME.fullmatch(name) is None:
            case.findings.error(path, f"{owner} 'enabled_skills' contains an invalid skill name: '{name}'", _HINT)


def every_skill_of_a_node_is_one_of_its_graph(case: Case) -> None:
    allowed = case.graph.enabled_skills
    for owner, name, path in _named(case):
        if allowed is not None and name not in allowed:
            message = f"{owner} 'enabled_skills' references '{name}' which is not in graph-level 'enabled_skills'"
            case.findings.error(path, f"{message} ({', '.join(allowed)})")


def _named(case: Case) -> Iterator[tuple[str, str, KeyPath]]:
    """Who names each skill, its name, and where that stands."""
    for index, name in enumerate(case.graph.enabled_skills or ()):
        yield "graph" if case.graph.loop is None else "agent", name, ("enabled_skills", index)
    for node, path in case.nodes(LlmNode):
        for index, name in enumerate(node.enabled_skills or ()):
            yield "llm node", name, (*path, "enabled_skills", index)


RULES: Sequence[Rule] = (
    every_skill_has_a_name_that_skills_can_have,
    every_skill_of_a_node_is_one_of_its_graph,
)

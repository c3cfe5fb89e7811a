"""Rules about the skills that an agent and its llm nodes name (spec/coyote.md 12). The messages are Coyote's.

A skill that is not installed is a warning here and an error in Coyote: the workers have their own skills, and
a node runs without one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from sleipnir.graph.check_case import Case, Rule
from sleipnir.graph.findings import KeyPath
from sleipnir.graph.model import Graph, LlmNode

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_HINT = "A skill has the name of its folder: letters, digits, - and _."


def every_skill_name_is_valid(case: Case) -> None:
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


def every_skill_is_installed(case: Case) -> None:
    """A missing skill is only a warning: workers may have it."""
    hint = "Skills are read from `skills` in the configuration directory of the workers."
    if case.skills is None:
        return
    places = {name: path for _, name, path in reversed([*_named(case)])}
    for name in skills_named(case.graph):
        if (complaint := case.skills(name)) is not None:
            case.findings.warning(places[name], complaint, hint)


def skills_named(graph: Graph) -> list[str]:
    """The valid skill names of a graph and its nodes, each once."""
    of_nodes = [
        name for node in graph.nodes.values() if isinstance(node, LlmNode) for name in node.enabled_skills or ()
    ]
    return [name for name in dict.fromkeys([*(graph.enabled_skills or ()), *of_nodes]) if _NAME.fullmatch(name)]


def _named(case: Case) -> Iterator[tuple[str, str, KeyPath]]:
    """Each named skill: its owner, its name and its path."""
    for index, name in enumerate(case.graph.enabled_skills or ()):
        yield "graph" if case.graph.loop is None else "agent", name, ("enabled_skills", index)
    for node, path in case.nodes(LlmNode):
        for index, name in enumerate(node.enabled_skills or ()):
            yield "llm node", name, (*path, "enabled_skills", index)


RULES: Sequence[Rule] = (
    every_skill_name_is_valid,
    every_skill_of_a_node_is_one_of_its_graph,
    every_skill_is_installed,
)

"""The variables that an agent declares, and their values in a run (spec/graph-agents.md 3.5).

Rules. The value of a variable is the one given with the run; else that of LLM_AGENT_VAR_<NAME> in the environment of
the process that submits it, unless it is empty; else its default, which may be empty; else the answer of the user on
the terminal. A value may name a secret, as `{{NAME}}`: the worker that runs a tool or a script replaces it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from sleipnir.errors import UsageError
from sleipnir.graph.model import Graph, Variable

Asker: TypeAlias = Callable[[Variable], str | None]
"""Asks the user for a variable's value; None: no answer."""


def env_name(name: str) -> str:
    """The environment variable that sets an agent variable, and passes it to tools and scripts."""
    return f"LLM_AGENT_VAR_{name.upper().replace('-', '_')}"


def resolved_variables(
    graph: Graph, presets: Mapping[str, str], env: Mapping[str, str] | None = None, ask: Asker | None = None
) -> dict[str, str]:
    """The value of every variable. Raises UsageError with all that are missing, or for presets that are unknown."""
    known = {variable.name for variable in graph.variables}
    unknown = sorted(presets.keys() - known)
    if unknown:
        raise UsageError(
            f"agent {graph.name!r} has no variable {', '.join(map(repr, unknown))}; "
            f"it declares: {', '.join(sorted(known)) or 'none'}"
        )
    defaults = {variable.name: variable.default for variable in graph.variables if variable.default is not None}
    values = {**defaults, **of_environment(graph, env or {}), **presets}
    missing = [variable for variable in graph.variables if variable.name not in values]
    while ask is not None and missing and (answer := ask(missing[0])) is not None:
        values[missing.pop(0).name] = answer
    if missing:
        raise UsageError(_required(missing))
    return values


def of_environment(graph: Graph, env: Mapping[str, str]) -> dict[str, str]:
    """The variables that are set in an environment."""
    names = [variable.name for variable in graph.variables]
    return {name: env[env_name(name)] for name in names if env.get(env_name(name))}


def _required(missing: Sequence[Variable]) -> str:
    listed = "".join(f"\n  - {variable.name}: {variable.description}" for variable in missing)
    return f"The following agent variables are required:{listed}\nSet each with --var NAME=TEXT"

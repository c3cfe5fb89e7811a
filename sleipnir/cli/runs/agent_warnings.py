"""Warnings of a command before it starts an agent: which of several agents of the same name runs, which keys have no
effect, what is missing, and findings of `validate`. Each is a line on stderr and does not prevent the run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sleipnir.cli.terminal import terminal
from sleipnir.errors import BundleError, GraphError, UsageError
from sleipnir.runs.plain_text import one_line, printable

if TYPE_CHECKING:
    from sleipnir.client.client import Client
    from sleipnir.errors import Problem
    from sleipnir.graph.load import AgentFolder
    from sleipnir.graph.loaded import LoadedGraph
    from sleipnir.graph.model import Graph
    from sleipnir.settings import Settings

MOST_WARNINGS: Final = 5
UNSUPPORTED: Final = "SLP205"
UNWRITTEN: Final = "SLP403"
WIDTH: Final = 200
"""Characters of a line; a message may quote a long text of the author's."""


def warn(name: str, agent: AgentFolder, settings: Settings) -> None:
    """Print the warnings for the agent that the argument `name` refers to."""
    warn_of_namesakes(name, agent.path, settings)
    warn_of_unsupported(agent, settings)


def warn_of_namesakes(name: str, used: Path, settings: Settings) -> None:
    """Print which folder runs, if several agents have this name."""
    from sleipnir.agents.finding import hidden

    if others := hidden(name, settings):
        not_used = ", ".join(map(str, others))
        they = "another agent of this name is" if len(others) == 1 else "other agents of this name are"
        _note(f"agent '{name}' is {used}; {they} not used: {not_used}")


def warn_of_unsupported(agent: AgentFolder, settings: Settings) -> None:
    """Print once which features of the agent, and of agents that it names, are not supported, and, if the workers are
    on this machine, which MCP servers and skills are missing."""
    names_by_text: dict[str, list[str]] = {}
    for name, loaded in _with_named(agent, settings):
        texts = [f"{each.message}. {each.hint or ''}" for each in loaded.problems if each.code == UNSUPPORTED]
        if loaded.graph is not None and settings.redis_url is None:
            texts += _absent(loaded.graph)
        for text in texts:
            names_by_text.setdefault(text.strip(), []).append(name)
    for text, names in names_by_text.items():
        whose = f"agent {names[0]!r}" if len(names) == 1 else f"agents {', '.join(names)}"
        _note(f"{whose}: {text}")


def _absent(graph: Graph) -> list[str]:
    from sleipnir.agents.config_directory import functions_dir, skill_complaint
    from sleipnir.graph.check_skills import skills_named
    from sleipnir.tools import mcp_config

    servers = (mcp_config.complaint(name, functions_dir() / "mcp.json") for name in graph.mcp_servers)
    skills = (skill_complaint(name) for name in skills_named(graph))
    return [f"{text}." for text in (*servers, *skills) if text is not None]


def _with_named(agent: AgentFolder, settings: Settings) -> Iterator[tuple[str, LoadedGraph]]:
    """The agent, the agents that its nodes start or its list of agents allows, and so on recursively."""
    from sleipnir.agents.finding import look_up
    from sleipnir.errors import SleipnirError
    from sleipnir.graph.load import load_agent
    from sleipnir.graph.model import agents_of

    seen, waiting = {agent.name}, [agent]
    while waiting:
        folder = waiting.pop(0)
        loaded = load_agent(folder)
        yield folder.name, loaded
        if loaded.graph is None:
            continue
        chosen = loaded.graph.loop.spawnable_agents if loaded.graph.loop is not None else None
        for name in sorted({*agents_of(loaded.graph), *(chosen or ())} - seen):
            seen.add(name)
            try:
                waiting.append(look_up(name, settings))
            except SleipnirError:
                continue  # the code that starts it reports it


def tell_warnings(client: Client, agent: str | Path, given: Collection[str] | None) -> None:
    """Print warnings on stderr, one line each, at most MOST_WARNINGS. `given` are the initial state keys in addition to
    those of the graph; None: they come from rows that are not read yet. Nothing is printed for an agent that cannot
    run: the submission reports that, if it reads the agent at all (an existing batch continues with its own bundle)."""
    with contextlib.suppress(GraphError, BundleError, UsageError):
        tell(client.warnings(agent), agent, given)


def tell(warnings: Sequence[Problem], agent: str | Path, given: Collection[str] | None) -> None:
    """Print these warnings for an agent in the same way."""
    problems = [each for each in warnings if each.code != UNSUPPORTED and not _is_given(each, given)]
    for line in _lines_of(problems, str(agent)):
        terminal.note(line)


def _lines_of(problems: Sequence[Problem], agent: str) -> list[str]:
    lines = [one_line(f"warning: {_place(each)} {each.message} ({each.code})", WIDTH) for each in problems]
    if len(lines) <= MOST_WARNINGS:
        return lines
    return [
        *lines[:MOST_WARNINGS],
        f"warning: {len(lines) - MOST_WARNINGS} more; `sleipnir validate {agent}` lists all",
    ]


def _is_given(problem: Problem, given: Collection[str] | None) -> bool:
    """Whether this is about a name that no node writes but the submission gives."""
    if problem.code != UNWRITTEN:
        return False
    if given is None:
        return not (problem.hint or "").startswith("Did you mean")
    return any(problem.message.startswith(f"nothing writes '{key}',") for key in given)


def _place(problem: Problem) -> str:
    place = ":".join(str(part) for part in (problem.file, problem.line) if part is not None)
    return f"{place}: [{problem.node}]" if problem.node else f"{place}:"


def _note(text: str) -> None:
    terminal.note(printable(f"note: {text}"))

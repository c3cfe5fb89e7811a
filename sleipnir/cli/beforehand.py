"""What a command says of an agent before it starts one: which of several namesakes runs, what of it has no effect, and
what in it is doubtful (`validate` says all of it). Each is a line on stderr, and stops nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sleipnir.cli import terminal
from sleipnir.errors import BundleError, GraphError, UsageError

if TYPE_CHECKING:
    from sleipnir.client import Client
    from sleipnir.errors import Problem
    from sleipnir.graph.load import AgentFolder
    from sleipnir.settings import Settings

MOST_WARNINGS: Final = 5
UNSUPPORTED: Final = "SLP205"
UNWRITTEN: Final = "SLP403"
WIDTH: Final = 200
"""Characters of a line; a message may quote a long text of the author's."""


def warn(name: str, agent: AgentFolder, settings: Settings) -> None:
    """Say what is to be known of the agent that `name` on a command line has led to."""
    warn_of_namesakes(name, agent.path, settings)
    warn_of_unsupported(agent, settings)


def warn_of_namesakes(name: str, used: Path, settings: Settings) -> None:
    """Say which folder runs, where several agents have this name."""
    from sleipnir.agents import hidden

    if others := hidden(name, settings):
        not_used = ", ".join(map(str, others))
        _note(f"agent '{name}' is {used}; another agent of this name is not used: {not_used}")


def warn_of_unsupported(agent: AgentFolder, settings: Settings) -> None:
    """Say once what the agent, and those that it names, ask for in vain."""
    found: dict[tuple[str, str | None], list[str]] = {}
    for name, problem in _unsupported(agent, settings):
        found.setdefault((problem.message, problem.hint), []).append(name)
    for (message, hint), names in found.items():
        whose = f"agent {names[0]!r}" if len(names) == 1 else f"agents {', '.join(names)}"
        _note(f"{whose}: {message}. {hint or ''}".strip())


def _unsupported(agent: AgentFolder, settings: Settings) -> Iterator[tuple[str, Problem]]:
    """Of the agent, of those that its nodes start or that its list of agents allows, and of theirs."""
    from sleipnir.agents import look_up
    from sleipnir.errors import SleipnirError
    from sleipnir.graph.load import load_agent
    from sleipnir.graph.model import agents_of

    seen, waiting = {agent.name}, [agent]
    while waiting:
        each = waiting.pop(0)
        loaded = load_agent(each)
        yield from ((each.name, problem) for problem in loaded.problems if problem.code == UNSUPPORTED)
        if loaded.graph is None:
            continue
        chosen = loaded.graph.loop.spawnable_agents if loaded.graph.loop is not None else None
        for name in sorted({*agents_of(loaded.graph), *(chosen or ())} - seen):
            seen.add(name)
            try:
                waiting.append(look_up(name, settings))
            except SleipnirError:
                continue  # whoever starts it says so


def tell_warnings(client: Client, agent: str | Path, given: Collection[str] | None) -> None:
    """Print what is doubtful on stderr, one line each, at most MOST_WARNINGS. `given` are the state keys that the run
    begins with besides those of the graph; None: rows give them, and are not read yet. Of an agent that cannot run
    nothing is said: the submission says it, where it reads the agent at all (a batch that exists goes on with what it
    was made of)."""
    with contextlib.suppress(GraphError, BundleError, UsageError):
        found = [each for each in client.warnings(agent) if each.code != UNSUPPORTED and not _is_given(each, given)]
        for line in _lines_of(found, str(agent)):
            terminal.note(line)


def _lines_of(problems: Sequence[Problem], agent: str) -> list[str]:
    lines = [terminal.one_line(f"warning: {_place(each)} {each.message} ({each.code})", WIDTH) for each in problems]
    if len(lines) <= MOST_WARNINGS:
        return lines
    return [
        *lines[:MOST_WARNINGS],
        f"warning: {len(lines) - MOST_WARNINGS} more; `sleipnir validate {agent}` lists all",
    ]


def _is_given(problem: Problem, given: Collection[str] | None) -> bool:
    """Whether this is about a name that nothing in the graph writes, and that the submission gives."""
    if problem.code != UNWRITTEN:
        return False
    if given is None:
        return not (problem.hint or "").startswith("Did you mean")
    return any(problem.message.startswith(f"nothing writes '{key}',") for key in given)


def _place(problem: Problem) -> str:
    place = ":".join(str(part) for part in (problem.file, problem.line) if part is not None)
    return f"{place}: [{problem.node}]" if problem.node else f"{place}:"


def _note(text: str) -> None:
    terminal.note(terminal.printable(f"note: {text}"))

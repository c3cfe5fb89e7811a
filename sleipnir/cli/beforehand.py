"""What a command says of an agent before it starts one: which of several namesakes runs, and what of it has no effect.

Each is a line on stderr, and stops nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from sleipnir.cli import terminal

if TYPE_CHECKING:
    from sleipnir.errors import Problem
    from sleipnir.graph.load import AgentFolder
    from sleipnir.settings import Settings


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
    from sleipnir.graph.shape import unsupported

    seen, waiting = {agent.name}, [agent]
    while waiting:
        each = waiting.pop(0)
        loaded = load_agent(each)
        yield from ((each.name, problem) for problem in unsupported(loaded.problems))
        if loaded.graph is None:
            continue
        chosen = loaded.graph.loop.spawnable_agents if loaded.graph.loop is not None else None
        for name in sorted({*agents_of(loaded.graph), *(chosen or ())} - seen):
            seen.add(name)
            try:
                waiting.append(look_up(name, settings))
            except SleipnirError:
                continue  # whoever starts it says so


def _note(text: str) -> None:
    terminal.note(terminal.printable(f"note: {text}"))

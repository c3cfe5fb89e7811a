"""The graph file, or the agent folder, that a command line names.

What finds and reads agents is imported inside the functions: `sleipnir COMMAND --help` imports this module.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sleipnir.errors import GraphError

if TYPE_CHECKING:
    from sleipnir.graph.model import Graph
    from sleipnir.settings import Settings


@dataclass(frozen=True)
class AgentSource:
    """A graph file, or an agent folder, and the file that the environment names in place of its config.yaml."""

    path: Path
    config_file: Path | None = None


def locate(target: str, settings: Settings) -> AgentSource:
    """The graph file or agent folder of an argument. Raises AgentNotFound.

    An argument with a slash, or the name of an existing file, is a path, so that `validate graph.yaml` works in the
    file's directory.
    """
    from sleipnir.agents.finding import find, is_folder, named_file

    path = Path(target)
    if _is_file(path):
        return AgentSource(path)
    if ("/" in target or target in (".", "..")) and is_folder(path):
        return AgentSource(path, named_file(Path(os.path.normpath(path.absolute())).name))
    return AgentSource(find(target, settings), named_file(target))


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # too long, or no access; the search for a folder reports it
        return False


def read(source: AgentSource) -> Graph:
    """The graph of a file or folder. Raises GraphError with every problem."""
    from sleipnir.graph.load import load_file

    loaded = load_file(source.path, source.config_file)
    if loaded.graph is None:
        raise GraphError(f"{source.path} cannot be read", loaded.problems)
    return loaded.graph

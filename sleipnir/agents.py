"""Find agent folders by name.

Looked up in order: the agents directory of the settings, `<home>/agents`, `./agents`, Loki's configuration directory,
and the agents that ship with Sleipnir. The folder's name is the agent's identity; folders that start with a dot are
not agents.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from sleipnir.errors import AgentNotFound, GraphError
from sleipnir.graph.load import load_file, read_agent
from sleipnir.settings import Settings
from sleipnir.views import AgentInfo


def loki_config_dir(env: Mapping[str, str] = os.environ) -> Path:
    """`$LOKI_CONFIG_DIR`, else `$XDG_CONFIG_HOME/loki`, else the platform's user configuration directory (spec 1.1)."""
    if own := env.get("LOKI_CONFIG_DIR"):
        return Path(own)
    if xdg := env.get("XDG_CONFIG_HOME"):
        return Path(xdg) / "loki"
    home = Path(env["HOME"]) if env.get("HOME") else Path.home()
    return home / ("Library/Application Support" if sys.platform == "darwin" else ".config") / "loki"


def places(settings: Settings) -> list[Path]:
    """The directories that hold agent folders, first match wins."""
    package = Path(__file__).resolve().parent
    shipped = [package / "shipped_agents", package.parent / "agents"]  # in a wheel; in a checkout
    named = [settings.agents_dir] if settings.agents_dir else []
    found = [*named, settings.home / "agents", Path.cwd() / "agents", loki_config_dir() / "agents", *shipped]
    return list(dict.fromkeys(place.absolute() for place in found))


def find(agent: str | Path, settings: Settings) -> Path:
    """The folder of an agent, by name or by path. Raises AgentNotFound with close names and the places searched."""
    text = str(agent)
    if not text.strip():
        raise AgentNotFound("the agent's name is empty; `sleipnir agents` lists those there are")
    if isinstance(agent, Path) or os.sep in text or text in (".", ".."):
        folder = Path(agent).absolute()
        if not folder.is_dir():
            raise AgentNotFound(f"agent folder {text!r} does not exist")
        return folder
    for place in places(settings):
        if not text.startswith(".") and (place / text).is_dir():
            return place / text
    raise AgentNotFound(_unknown(text, settings))


def folder_or_none(name: str, settings: Settings) -> Path | None:
    """The folder that `agent: name` of a graph refers to, if there is one."""
    return next((place / name for place in places(settings) if (place / name).is_dir()), None)


def known_agents(settings: Settings) -> list[AgentInfo]:
    """Every agent that can be named, sorted. Of several folders of one name, the first place's is the one."""
    seen: dict[str, Path] = {}
    for folder in _folders(settings):
        seen.setdefault(folder.name, folder)
    return [describe(seen[name]) for name in sorted(seen)]


def describe(folder: Path) -> AgentInfo:
    """What kind of agent a folder holds, and what is wrong with it, if anything."""
    try:
        agent = read_agent(folder)
    except (GraphError, AgentNotFound) as error:
        return AgentInfo(folder.name, "broken", folder, problem=str(error))
    if agent.kind == "config":
        return AgentInfo(folder.name, "config", folder, description="config.yaml agent; runs in a later version")
    loaded = load_file(agent.file)
    if loaded.graph is None:
        errors = [problem for problem in loaded.problems if problem.level == "error"]
        return AgentInfo(folder.name, "broken", folder, problem=errors[0].message if errors else "does not load")
    return AgentInfo(folder.name, "graph", folder, description=loaded.graph.description.strip())


def _folders(settings: Settings) -> Iterator[Path]:
    for place in places(settings):
        if place.is_dir():
            for folder in sorted(place.iterdir()):
                is_agent = any((folder / name).is_file() for name in ("graph.yaml", "config.yaml"))
                if is_agent and not folder.name.startswith("."):
                    yield folder


def _unknown(name: str, settings: Settings) -> str:
    names = sorted({folder.name for folder in _folders(settings)})
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"Did you mean {close[0]!r}?" if close else f"Known agents: {', '.join(names) or 'none'}."
    searched = "".join(f"\n  {place}" for place in places(settings))
    return f"no agent {name!r}. {hint} Searched in:{searched}"

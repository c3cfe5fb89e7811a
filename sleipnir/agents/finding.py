"""Find agent folders by name.

Search order: the agents directory of the settings, `<home>/agents`, `./agents`, the configuration directories of Coyote
and Loki, and the agents that ship with Sleipnir, which come last also where `./agents` is their directory. Of several
folders of one name the first one runs; `hidden` returns the others. The folder's name identifies the agent; folders
that start with a dot are not agents.

`<NAME>_DATA_DIR` in the environment is the folder of the agent NAME, `<NAME>_CONFIG_FILE` the file that replaces its
config.yaml (spec/graph-agents.md 3.3). The name of an agent that only the environment names is that of its folder if it
matches NAME, else NAME in lower case with hyphens.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from sleipnir.agents.config_directory import config_dirs
from sleipnir.errors import AgentNotFound, GraphError, UsageError
from sleipnir.graph import python_file
from sleipnir.graph.load import AgentFolder, load_agent, read_agent
from sleipnir.graph.model import Graph, Json
from sleipnir.graph.overrides import env_name, overrides_of
from sleipnir.runs.views import AgentInfo
from sleipnir.settings import Settings

_DATA_DIR = "_DATA_DIR"
_FILES = ("graph.yaml", "config.yaml", "graph.py")
SHOWN_CHARS = 200


def places(settings: Settings) -> list[Path]:
    """The directories that hold agent folders, first match wins."""
    return list(dict.fromkeys(_places(settings)))


def _places(settings: Settings) -> Iterator[Path]:
    """The same, perhaps with repetitions: a server looks an agent up at each request, and mostly in the first one."""
    if settings.agents_dir:
        yield settings.agents_dir.absolute()
    yield own_agents(settings).absolute()
    yield from _of_working_directory()
    for place in (*(place / "agents" for place in config_dirs()), *_shipped_places()):
        yield place.absolute()


def _of_working_directory() -> list[Path]:
    """`./agents`, unless the working directory is a checkout of Sleipnir: an installed agent takes precedence over a
    shipped one of the same name."""
    place = Path.cwd() / "agents"
    return [] if place.resolve() in [shipped.resolve() for shipped in _shipped_places()] else [place]


def own_agents(settings: Settings) -> Path:
    """The directory of the user's own agents, and of installed shipped ones."""
    return settings.home / "agents"


@functools.cache
def _shipped_places() -> tuple[Path, Path]:
    package = Path(__file__).resolve().parents[1]
    return package / "shipped_agents", package.parent / "agents"  # in a wheel; in a checkout


def shipped_agents() -> dict[str, Path]:
    """The folders of the agents that ship with Sleipnir, by name."""
    folders: dict[str, Path] = {}
    for folder in _folders(_shipped_places()):
        folders.setdefault(folder.name, folder)
    return folders


def find(agent: str | Path, settings: Settings) -> Path:
    """The folder of an agent, by name or by path. Raises AgentNotFound with close names and the places searched."""
    text = str(agent)
    if not text.strip():
        raise AgentNotFound("the agent's name is empty; `sleipnir agents` lists all agents")
    if _is_path(agent):
        folder = Path(agent).absolute()
        if not is_folder(folder):
            raise AgentNotFound(f"agent folder {shown(text)} does not exist, or is a file")
        return folder
    named = None if text.startswith(".") else folder_or_none(text, settings)
    if named is None:
        raise AgentNotFound(_unknown(text, settings))
    return named


def look_up(agent: str | Path, settings: Settings) -> AgentFolder:
    """The agent of a name or of a folder's path. Raises AgentNotFound, and GraphError if its folder has both files."""
    return read_agent(*place_of(agent, settings))


def place_of(agent: str | Path, settings: Settings) -> tuple[Path, str, Path | None]:
    """The folder of an agent, its name, and the file that replaces its config.yaml, if any. Raises AgentNotFound."""
    folder = find(agent, settings)
    name = os.path.normpath(folder).rpartition(os.sep)[2] if _is_path(agent) else str(agent)
    return folder, name, named_file(name)


def folder_or_none(name: str, settings: Settings) -> Path | None:
    """The folder that `agent: name` of a graph refers to, if there is one."""
    if own := os.environ.get(env_name(name) + _DATA_DIR):
        return Path(own).absolute() if is_folder(Path(own)) else None
    return next((place / name for place in _places(settings) if is_folder(place / name, can_be_read=False)), None)


def hidden(name: str, settings: Settings) -> list[Path]:
    """The folders of other agents of this name, which do not run because another one is found first. Copies whose
    graph.yaml or config.yaml is the same do not count."""
    used = folder_or_none(name, settings)
    if used is None or _is_path(name):
        return []
    definition = _definition(used)
    folders = [place / name for place in places(settings) if _is_agent(place / name)]
    return [folder for folder in folders if folder.resolve() != used.resolve() and _definition(folder) != definition]


def _definition(folder: Path) -> list[bytes]:
    with contextlib.suppress(OSError):
        return [file.read_bytes() for name in _FILES if (file := folder / name).is_file()]
    return []


def is_folder(path: Path, *, can_be_read: bool = True) -> bool:
    """Whether there is such a folder. False for an impossible path: too long, a loop of links.

    Raises AgentNotFound if a folder above it denies access; with `can_be_read` also if the folder itself does.
    """
    try:
        if not stat.S_ISDIR(path.stat().st_mode):
            return False
        if can_be_read:
            (path / "graph.yaml").is_file()
    except PermissionError as error:
        raise AgentNotFound(f"agent folder {shown(path)} cannot be read: {error.strerror}") from None
    except (OSError, ValueError):
        return False
    return True


def shown(name: str | Path) -> str:
    """A name for a message: of a very long one only the beginning."""
    text = str(name)
    return repr(text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}…")


def overrides(graph: Graph, agent: str) -> dict[str, Json]:
    """The overrides of `agent` in this process's environment."""
    return overrides_of(graph, agent, os.environ)


def names(settings: Settings) -> list[str]:
    """Of every agent that can be named, sorted."""
    return sorted(_by_name(settings))


def known_agents(settings: Settings) -> list[AgentInfo]:
    """Every agent that can be named, sorted. Of several folders of one name, the first one in search order."""
    seen = _by_name(settings)
    return [describe(folder_or_none(name, settings) or seen[name], name) for name in sorted(seen)]


def describe(folder: Path, name: str | None = None) -> AgentInfo:
    """The kind of agent in a folder, and its problem, if any. `name` None: the folder's. A graph.py is not executed: of
    its problems, only those that Python's parser finds are known."""
    name = folder.name if name is None else name
    try:
        agent = read_agent(folder, name, named_file(name))
        if agent.is_python:
            return AgentInfo(name, agent.kind, folder, python_file.description_of(agent.file))
    except (GraphError, UsageError) as error:
        return AgentInfo(name, "broken", folder, problem=str(error))
    loaded = load_agent(agent)
    if loaded.graph is None:
        errors = [problem for problem in loaded.problems if problem.level == "error"]
        return AgentInfo(name, "broken", folder, problem=errors[0].message if errors else "does not load")
    graph = loaded.graph
    return AgentInfo(
        name, agent.kind, folder, graph.description.strip(), conversation_starters=tuple(graph.conversation_starters)
    )


def _is_path(agent: str | Path) -> bool:
    return isinstance(agent, Path) or os.sep in agent or agent in (".", "..")


def named_file(name: str) -> Path | None:
    """The file that the environment names instead of the config.yaml of an agent, if any."""
    named = os.environ.get(f"{env_name(name)}_CONFIG_FILE")
    return Path(named).absolute() if named else None


def _by_name(settings: Settings) -> dict[str, Path]:
    """The folders of all agents that can be named."""
    folders: dict[str, Path] = {}
    for folder in _folders(places(settings)):
        folders.setdefault(folder.name, folder)
    spelled = {env_name(name) for name in folders}
    for name, folder in _of_environment():
        if name not in spelled:
            folders[folder.name if env_name(folder.name) == name else name.lower().replace("_", "-")] = folder
    return folders


def _of_environment() -> Iterator[tuple[str, Path]]:
    """The folders of agents that the environment names, by NAME."""
    for variable, value in os.environ.items():
        name, folder = variable.removesuffix(_DATA_DIR), Path(value).absolute()
        # LLM_AGENT_DATA_DIR is a variable for scripts of agents, not an agent's folder.
        if variable.endswith(_DATA_DIR) and name not in ("", "LLM_AGENT") and value and _is_agent(folder):
            yield name, folder


def _is_agent(folder: Path) -> bool:
    try:
        return any((folder / name).is_file() for name in _FILES)
    except OSError:  # it, or what is above it, is closed to us
        return False


def _folders(searched: Iterable[Path]) -> Iterator[Path]:
    for place in searched:
        with contextlib.suppress(OSError):  # a place that is not there, or is closed to us
            for folder in sorted(place.iterdir()):
                if _is_agent(folder) and not folder.name.startswith("."):
                    yield folder


def _unknown(name: str, settings: Settings) -> str:
    known = names(settings)
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"Did you mean {close[0]!r}?" if close else f"Known agents: {', '.join(known) or 'none'}."
    searched = "".join(f"\n  {place}" for place in places(settings))
    return f"no agent {shown(name)}. {hint} Searched in:{searched}"

"""Skills: texts and tools that a model loads when it needs them (spec/coyote.md 3).

    skill__load ─► its result holds the skill as it is then ─► from the next call of the model on, its text is part of
                   the system message, and its tools are offered

Rules. A skill is `NAME/SKILL.md` in a directory of skills of the workers; the front matter says what it grants. What
is loaded is kept nowhere: it is what the `skill__*` calls of the conversation make of it, in their order, so another
worker sees the text of the moment of loading. The model does not see that part of the result. An agent has skills only
if it says so; with `enabled_skills` those, else all that are installed. A tool of a skill is a global tool of the
worker that runs it; that worker runs those of all skills that the node may load, and the turn refuses those of skills
that are not loaded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Final

from sleipnir.agents.config_directory import SKILL_FILE, skills_dirs
from sleipnir.agents.placeholders import interpolated, special_variables
from sleipnir.errors import ToolFileError
from sleipnir.graph.model import Graph, Json, LlmNode
from sleipnir.graph.source import read
from sleipnir.graph.tools import stem
from sleipnir.tools.folder import global_file
from sleipnir_workers.host import Host

LOADED: Final = "skill"
"""The key of a result of skill__load that holds the skill, and that no model sees."""

_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
_FRONT: Final = re.compile(r"\A\ufeff?-{3,}[ \t]*\n(.*?)^-{3,}[ \t]*$\n?", re.DOTALL | re.MULTILINE)
_HINT: Final = Path(__file__).parent / "llm" / "injected" / "skills.md"

Message = Mapping[str, Any]


@dataclass(frozen=True)
class Skill:
    """A skill as its file says. `body` is for the model."""

    name: str
    body: str
    description: str = ""
    tools: tuple[str, ...] = ()
    servers: tuple[str, ...] = ()
    auto_unload: bool = False

    @classmethod
    def from_result(cls, kept: Mapping[str, Any]) -> Skill:
        """As `kept` in a result of skill__load."""
        tools, servers = (tuple(map(str, kept.get(key) or ())) for key in ("tools", "servers"))
        body, about = str(kept.get("body", "")), str(kept.get("description", ""))
        return cls(str(kept.get("name", "")), body, about, tools, servers, bool(kept.get("auto_unload")))

    def to_result(self) -> dict[str, Json]:
        return {**vars(self), "tools": list(self.tools), "servers": list(self.servers)}


@dataclass(frozen=True)
class Skills:
    """The skills that a node may load, on this worker. `names` None: all that are installed."""

    host: Host
    cwd: Path
    names: tuple[str, ...] | None
    hint: str | None

    def available(self) -> list[Skill]:
        """Those that can be read, by name."""
        names = self._installed() if self.names is None else self.names
        found = (self._read(name) for name in sorted(set(names)) if _NAME.fullmatch(name))
        return [skill for skill in found if skill is not None]

    def answer(self, tool: str, arguments: str, loaded: Mapping[str, Skill]) -> dict[str, Json]:
        """What comes of a call. `arguments` is JSON text that a model wrote."""
        if tool == "skill__list":
            return {"skills": [_listed(skill, loaded) for skill in self.available()]}
        name = _name_in(arguments)
        if not name:
            return {"error": "name is required"}
        if tool == "skill__unload":
            return {"status": "ok", "unloaded": name} if name in loaded else _error(f"Skill '{name}' is not loaded")
        if not _NAME.fullmatch(name):
            return _error(f"Invalid skill name '{name}': only letters, digits, '-', and '_' are allowed")
        if self.names is not None and name not in self.names:
            return _error(f"Skill '{name}' is not enabled in this context")
        if name in loaded:
            return _error(f"Skill '{name}' is already loaded")
        skill = self._read(name)
        if skill is None:
            return _error(f"Failed to load skill '{name}': it is not installed on this worker, or cannot be read")
        special = special_variables(self.host.env, self.cwd, datetime.now().astimezone())
        skill = replace(skill, body=interpolated(skill.body, {}, special))
        message = f"Skill '{name}' loaded"
        return {"status": "ok", "loaded": name, "message": message, LOADED: skill.to_result()}

    def grants(self) -> set[str]:
        """The tools of all skills that may be loaded."""
        return {stem(tool) for skill in self.available() for tool in skill.tools}

    def servers(self) -> set[str]:
        return {server for skill in self.available() for server in skill.servers}

    def _installed(self) -> list[str]:
        folders = (place for place in skills_dirs(self.host.env) if place.is_dir())
        return [folder.name for place in folders for folder in place.iterdir() if (folder / SKILL_FILE).is_file()]

    def _read(self, name: str) -> Skill | None:
        for place in skills_dirs(self.host.env):
            file = place / name / SKILL_FILE
            try:
                changed = file.stat()
                return _read(file, name, changed.st_mtime_ns, changed.st_size)
            except (OSError, UnicodeDecodeError):
                continue
        return None


def skills_of(node: LlmNode, graph: Graph, host: Host, cwd: Path) -> Skills | None:
    """What the node may load; None: it has no skills."""
    if graph.skills_enabled is False or node.skills_enabled is False or node.tools is None:
        return None
    names = graph.enabled_skills if node.enabled_skills is None else node.enabled_skills
    if names is None and not graph.skills_enabled and not node.skills_enabled:
        return None
    inject = (
        graph.inject_skill_instructions if node.inject_skill_instructions is None else (node.inject_skill_instructions)
    )
    own = graph.skill_instructions if node.skill_instructions is None else node.skill_instructions
    hint = None if inject is False else own or _hint()
    return Skills(host, cwd, None if names is None else tuple(names), hint)


@lru_cache(maxsize=256)
def _read(file: Path, name: str, mtime_ns: int, size: int) -> Skill:
    """A skill's file; read again only when it changed: a worker asks for every call."""
    return parsed(name, file.read_text(encoding="utf-8"))


def parsed(name: str, text: str) -> Skill:
    """What a SKILL.md says. Front matter that cannot be read says nothing, and the body counts."""
    front = _FRONT.match(text)
    if front is None:
        return Skill(name, text.strip())
    document = read(front[1], SKILL_FILE)
    keys = document.data if document.readable and isinstance(document.data, dict) else {}
    return Skill(
        name,
        text[front.end() :].strip(),
        str(keys.get("description") or ""),
        _texts(keys.get("enabled_tools")),
        _texts(keys.get("enabled_mcp_servers")),
        keys.get("auto_unload") is True,
    )


def loaded_in(conversation: Iterable[Message]) -> dict[str, Skill]:
    """The skills that the calls of a conversation have loaded, and not unloaded, in the order of loading."""
    loaded: dict[str, Skill] = {}
    for message, tool in _with_tools(conversation):
        if message.get("role") == "assistant" and not message.get("tool_calls"):
            loaded = {name: skill for name, skill in loaded.items() if not skill.auto_unload}
        if tool in ("skill__load", "skill__unload"):
            loaded = after(loaded, _result(message))
    return loaded


def after(loaded: Mapping[str, Skill], result: Mapping[str, Any]) -> dict[str, Skill]:
    """The skills that are loaded after a call of skill__load or skill__unload with this result."""
    if isinstance(kept := result.get(LOADED), dict):
        skill = Skill.from_result(kept)
        return {**loaded, skill.name: skill}
    return {name: skill for name, skill in loaded.items() if name != result.get("unloaded")}


def as_told(conversation: Sequence[Message], loaded: Mapping[str, Skill]) -> list[dict[str, Any]]:
    """The conversation as the model is told it: skills that are loaded in the system message, and in no result."""
    told = [_without_skill(message, tool) for message, tool in _with_tools(conversation)]
    bodies = [skill.body for skill in loaded.values() if skill.body]
    if not bodies:
        return told
    if told and told[0].get("role") == "system":
        first, *rest = told
        return [{**first, "content": "\n\n".join([str(first["content"]), *bodies])}, *rest]
    return [{"role": "system", "content": "\n\n".join(bodies)}, *told]


def with_grants(graph: Graph, skills: Skills | None, names: Iterable[str] | None = None) -> tuple[Graph, list[str]]:
    """The graph with tools of skills among its global tools, and their names. `names` None: all that may be granted.
    Tools that this worker does not have are left out, as Coyote does."""
    if skills is None:
        return graph, []
    wanted = [stem(name) for name in (skills.grants() if names is None else names)]
    known = {stem(name) for name in graph.global_tools}
    found = [name for name in dict.fromkeys(wanted) if name not in known and _is_here(name, skills.host)]
    return replace(graph, global_tools=[*graph.global_tools, *found]), [*dict.fromkeys(wanted)]


def _is_here(tool: str, host: Host) -> bool:
    try:
        return global_file(tool, host.functions_dir).is_file()
    except ToolFileError:
        return False


def declaration(name: str) -> dict[str, Any]:
    """One of the `skill__*` tools in the form of OpenAI's `tools`."""
    about, takes_name = _DECLARED[name]
    takes = {"name": {"type": "string", "description": "The name of the skill."}} if takes_name else {}
    parameters = {"type": "object", "properties": takes, "required": list(takes)}
    return {"type": "function", "function": {"name": name, "description": about, "parameters": parameters}}


_DECLARED: Final[Mapping[str, tuple[str, bool]]] = {
    "skill__list": ("List the skills that you may load: what each is for, which tools it brings, and whether it is "
                    "loaded.", False),
    "skill__load": ("Load a skill: from your next message on you have its instructions and its tools.", True),
    "skill__unload": ("Unload a skill that you do not need any more.", True),
}  # fmt: skip


@cache
def _hint() -> str:
    return _HINT.read_text(encoding="utf-8").strip()


def _listed(skill: Skill, loaded: Mapping[str, Skill]) -> Json:
    grants = {"grants_tools": list(skill.tools), "grants_mcp_servers": list(skill.servers)}
    return {"name": skill.name, "description": skill.description, **grants, "loaded": skill.name in loaded}


def _name_in(arguments: str) -> str:
    try:
        given = json.loads(arguments)
    except (ValueError, RecursionError):
        return ""
    name = given.get("name") if isinstance(given, dict) else None
    return name.strip() if isinstance(name, str) else ""


def _error(text: str) -> dict[str, Json]:
    return {"error": text}


def _texts(given: Any) -> tuple[str, ...]:
    """A list, or its items in one text with commas."""
    items = given.split(",") if isinstance(given, str) else given if isinstance(given, list) else []
    return tuple(text for item in items if (text := str(item).strip()))


def _with_tools(conversation: Iterable[Message]) -> Iterator[tuple[Message, str | None]]:
    """Each message, a result of a tool with the name of that tool: another tool's may look like one about skills."""
    called: dict[str, str] = {}
    for message in conversation:
        if message.get("role") == "assistant":
            called = {call["id"]: call["function"]["name"] for call in message.get("tool_calls") or ()}
        yield message, called.get(str(message.get("tool_call_id"))) if message.get("role") == "tool" else None


def _result(message: Message) -> dict[str, Any]:
    try:
        found = json.loads(str(message.get("content")))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _without_skill(message: Message, tool: str | None) -> dict[str, Any]:
    result = _result(message) if tool == "skill__load" else {}
    if LOADED not in result:
        return dict(message)
    told = {key: value for key, value in result.items() if key != LOADED}
    return {**message, "content": json.dumps(told, ensure_ascii=False, separators=(",", ":"))}

"""Skills: texts and tools that a model loads when it needs them (spec/coyote.md 3).

    skill__load ─► its result holds the skill as it is then ─► from the next call of the model on, its text is part of
                   the system message, and its tools are offered

Rules. A skill is `NAME/SKILL.md` in a directory of skills of the workers; the front matter declares what it grants.
Loaded skills are not stored: they are computed from the `skill__*` calls of the conversation, in their order. So every
worker uses the text as it was when the skill was loaded. The model does not see that part of the result. An agent has
skills only if it enables them: those of `enabled_skills`, else all that are installed. A tool of a skill is a global
tool of the worker that runs it. That worker runs the tools of all skills that the node may load, and the turn refuses
those of skills that are not loaded.
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
from sleipnir.graph.plain import compact_json
from sleipnir.graph.source import read
from sleipnir.graph.tools import stem
from sleipnir.tools.folder import global_file
from sleipnir_workers.machine.host import Host

LOADED: Final = "skill"
"""The key of a result of skill__load that holds the skill, and that is removed for models."""

_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
_FRONT: Final = re.compile(r"\A\ufeff?-{3,}[ \t]*\n(.*?)^-{3,}[ \t]*$\n?", re.DOTALL | re.MULTILINE)
_HINT: Final = Path(__file__).parents[1] / "llm" / "injected" / "skills.md"

Message = Mapping[str, Any]


@dataclass(frozen=True)
class Skill:
    """A skill as declared in its file. `body` is for the model."""

    name: str
    body: str
    description: str = ""
    tools: tuple[str, ...] = ()
    servers: tuple[str, ...] = ()
    auto_unload: bool = False

    @classmethod
    def from_result(cls, stored: Mapping[str, Any]) -> Skill:
        """From `stored`, the value of LOADED in a result of skill__load."""
        tools, servers = (tuple(map(str, stored.get(key) or ())) for key in ("tools", "servers"))
        body, description = str(stored.get("body", "")), str(stored.get("description", ""))
        return cls(str(stored.get("name", "")), body, description, tools, servers, bool(stored.get("auto_unload")))

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
        """The readable skills, sorted by name."""
        names = self._installed() if self.names is None else self.names
        skills = (self._read(name) for name in sorted(set(names)) if _NAME.fullmatch(name))
        return [skill for skill in skills if skill is not None]

    def answer(self, tool: str, arguments: str, loaded: Mapping[str, Skill]) -> dict[str, Json]:
        """The result of a call. `arguments` is JSON text that a model wrote."""
        if tool == "skill__list":
            return {"skills": [_summary(skill, loaded) for skill in self.available()]}
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
        skills_folders = (folder for folder in skills_dirs(self.host.env) if folder.is_dir())
        skills = (skill for folder in skills_folders for skill in folder.iterdir())
        return [skill.name for skill in skills if (skill / SKILL_FILE).is_file()]

    def _read(self, name: str) -> Skill | None:
        for folder in skills_dirs(self.host.env):
            file = folder / name / SKILL_FILE
            try:
                status = file.stat()
                return _read(file, name, status.st_mtime_ns, status.st_size)
            except (OSError, UnicodeDecodeError):
                continue
        return None


def skills_of(node: LlmNode, graph: Graph, host: Host, cwd: Path) -> Skills | None:
    """The skills that the node may load; None: it has none."""
    if graph.skills_enabled is False or node.skills_enabled is False or node.tools is None:
        return None
    names = graph.enabled_skills if node.enabled_skills is None else node.enabled_skills
    if names is None and not graph.skills_enabled and not node.skills_enabled:
        return None
    node_inject, node_hint = node.inject_skill_instructions, node.skill_instructions
    inject = graph.inject_skill_instructions if node_inject is None else node_inject
    own_hint = graph.skill_instructions if node_hint is None else node_hint
    hint = None if inject is False else own_hint or _default_hint()
    return Skills(host, cwd, None if names is None else tuple(names), hint)


@lru_cache(maxsize=256)
def _read(file: Path, name: str, mtime_ns: int, size: int) -> Skill:
    """The skill of a file, cached because each call needs it. `mtime_ns` and `size` have a changed file read again."""
    return parsed(name, file.read_text(encoding="utf-8"))


def parsed(name: str, text: str) -> Skill:
    """The skill in the text of a SKILL.md. Unreadable front matter is ignored, and the body is used."""
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
    if isinstance(stored := result.get(LOADED), dict):
        skill = Skill.from_result(stored)
        return {**loaded, skill.name: skill}
    return {name: skill for name, skill in loaded.items() if name != result.get("unloaded")}


def for_model(conversation: Sequence[Message], loaded: Mapping[str, Skill]) -> list[dict[str, Any]]:
    """The conversation for the model: with the loaded skills in the system message, and without them in results."""
    messages = [_without_skill(message, tool) for message, tool in _with_tools(conversation)]
    bodies = [skill.body for skill in loaded.values() if skill.body]
    if not bodies:
        return messages
    if messages and messages[0].get("role") == "system":
        system, *others = messages
        return [{**system, "content": "\n\n".join([str(system["content"]), *bodies])}, *others]
    return [{"role": "system", "content": "\n\n".join(bodies)}, *messages]


def with_grants(graph: Graph, skills: Skills | None, names: Iterable[str] | None = None) -> tuple[Graph, list[str]]:
    """The graph with tools of skills among its global tools, and their names. `names` None: all grantable tools.
    Tools that this worker does not have are left out of the graph, as in Coyote."""
    if skills is None:
        return graph, []
    requested = [stem(name) for name in (skills.grants() if names is None else names)]
    present = {stem(name) for name in graph.global_tools}
    added = [name for name in dict.fromkeys(requested) if name not in present and _is_installed(name, skills.host)]
    return replace(graph, global_tools=[*graph.global_tools, *added]), [*dict.fromkeys(requested)]


def _is_installed(tool: str, host: Host) -> bool:
    try:
        return global_file(tool, host.functions_dir).is_file()
    except ToolFileError:
        return False


def declaration(name: str) -> dict[str, Any]:
    """One of the `skill__*` tools in the form of OpenAI's `tools`."""
    description, takes_name = _DECLARED[name]
    properties = {"name": {"type": "string", "description": "The name of the skill."}} if takes_name else {}
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


_DECLARED: Final[Mapping[str, tuple[str, bool]]] = {
    "skill__list": ("List the skills that you may load: what each is for, which tools it brings, and whether it is "
                    "loaded.", False),
    "skill__load": ("Load a skill: from your next message on you have its instructions and its tools.", True),
    "skill__unload": ("Unload a skill that you do not need any more.", True),
}  # fmt: skip


@cache
def _default_hint() -> str:
    return _HINT.read_text(encoding="utf-8").strip()


def _summary(skill: Skill, loaded: Mapping[str, Skill]) -> Json:
    grants = {"grants_tools": list(skill.tools), "grants_mcp_servers": list(skill.servers)}
    return {"name": skill.name, "description": skill.description, **grants, "loaded": skill.name in loaded}


def _name_in(arguments: str) -> str:
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        return ""
    name = parsed.get("name") if isinstance(parsed, dict) else None
    return name.strip() if isinstance(name, str) else ""


def _error(text: str) -> dict[str, Json]:
    return {"error": text}


def _texts(value: Any) -> tuple[str, ...]:
    """The items of a list, or of one text with commas."""
    items = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else []
    return tuple(text for item in items if (text := str(item).strip()))


def _with_tools(conversation: Iterable[Message]) -> Iterator[tuple[Message, str | None]]:
    """Each message, and for a result of a tool its name: results of other tools may look like those of `skill__*`."""
    called: dict[str, str] = {}
    for message in conversation:
        if message.get("role") == "assistant":
            called = {call["id"]: call["function"]["name"] for call in message.get("tool_calls") or ()}
        yield message, called.get(str(message.get("tool_call_id"))) if message.get("role") == "tool" else None


def _result(message: Message) -> dict[str, Any]:
    try:
        parsed = json.loads(str(message.get("content")))
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _without_skill(message: Message, tool: str | None) -> dict[str, Any]:
    result = _result(message) if tool == "skill__load" else {}
    if LOADED not in result:
        return dict(message)
    return {**message, "content": compact_json({key: value for key, value in result.items() if key != LOADED})}

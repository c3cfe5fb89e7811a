"""Checks one mapping of the file against one dataclass of the model: missing, unknown and wrong values.

The dataclass is the only definition: names, types and defaults come from it; a field whose name cannot be its key says
the key, and a map node has two spellings. Rules (spec/graph-agents.md 2.1, 2.2):
1. An unknown key is ignored with a warning, in sleipnir/1 it is an error; null means that the key is absent. Keys of
   newer releases of Loki, now named Coyote, are reported once per agent and reason.
2. Where text is expected, another scalar becomes the text it was written as: with a warning inside nodes.
3. Nothing else is converted: '5' is not a number and 5.0 is not a whole number.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, TypeAlias, TypeVar, get_args, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from sleipnir.graph.findings import Findings, KeyPath, suggestion
from sleipnir.graph.model import (
    LOKI_NODE_TYPES,
    NODE_TYPES,
    AgentInput,
    AgentNode,
    Branch,
    CallCallbacks,
    ChildOptions,
    Choice,
    Concurrency,
    ConfigAgent,
    ErrorRules,
    Graph,
    GraphNode,
    Json,
    Limits,
    MapNode,
    ModelSettings,
    NodeBase,
    NodeCache,
    NodeCallbacks,
    NodeTool,
    RemoteAgent,
    Retry,
    Router,
    SessionRules,
    Settings,
    StateField,
    SummaryRules,
    ToolConcurrency,
    ToolGroup,
    ToolsNode,
    Variable,
)
from sleipnir.graph.source import YamlDocument
from sleipnir.graph.template import malformed

T = TypeVar("T")

Holds: TypeAlias = Literal["text", "texts", "text or texts", "text map", "other"]

_NEWER = "This belongs to newer releases of Loki (Coyote), and this version does not act on it."
_DERIVED = "This is derived: an agent may start others if its graph has an agent node."
_MEMORY = "Memory is part of newer releases of Loki (Coyote), and this version has none: no memory__* tool is offered."
_HOOKS = "Hooks are part of newer releases of Loki (Coyote), and this version runs none."

IGNORED: Mapping[str, str] = {
    "can_spawn_agents": _DERIVED,
    "max_concurrent_agents": _NEWER,
    "max_agent_depth": _NEWER,
    "max_concurrent_jobs": _NEWER,
    "inject_job_instructions": _NEWER,
    "spawnable_agents": "An agent node starts the agent that it names; a list of others belongs to a config.yaml.",
    "enabled_tools": "Name the tools under global_tools.",
    "max_tool_result_chars": "It belongs to the config.yaml of an agent, or of the application.",
    "compression_model": _NEWER,
    "compression_keep_last": _NEWER,
    "brief_model": _NEWER,
    "envoy_model": _NEWER,
    "memory": _MEMORY,
    "hooks": _HOOKS,
    "global_hooks": _HOOKS,
    "mcp_tools": "Name the servers under mcp_servers, and list mcp:<server> in the tools of a node.",
    "by_ref": "Values travel between machines, so every visit works on a copy.",
}
"""Keys of other Loki releases, and why they have no effect here."""

WITHOUT_EFFECT = frozenset({"enabled_macros"})
"""Keys of other Loki releases that do not concern runs: macros are commands of Loki's prompt."""

IGNORED_AT_TOP: Mapping[str, str] = {"documents": "Knowledge belongs to a node: list it in a node of type rag."}

WRITTEN_OTHERWISE: Mapping[str, str] = {
    "edges": "Write edges at their source node: `next: b`, or `branch` for a conditional edge.",
    "conditional_edges": "Write edges at their source node: `branch` chooses one.",
    "interrupt_before": "To ask a person before, put a node of type approval or input before this one. To stop there, "
    "write `interrupt: before`, in version sleipnir/1.",
    "interrupt_after": "To ask a person after, put a node of type approval or input after this one. To stop there, "
    "write `interrupt: after`, in version sleipnir/1.",
    "checkpoint": "Remove it: every step is stored, and `sleipnir retry` continues a failed run.",
    "checkpointer": "Remove it: every step is stored, and `sleipnir retry` continues a failed run.",
    "retries": "Write `retry: {max_attempts: 3}`.",
    "max_retries": "Write `retry: {max_attempts: 3}`.",
    "depends_on": "Name this node in the `next` of those before it; to wait for several: `wait_for: [a, b]`.",
}
"""Keys of other workflow languages, and their equivalents here."""

_MUST: Mapping[str, str] = {
    "string_type": "must be text",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be a mapping",
    "less_than_equal": "must be at most 2**53 - 1",
    "value_error": "must be a duration such as 500ms, 30s or 5m",
    "wait_time": "must be longer than 0 and at most 8760h (365 days)",
    "look_back": "must be at most 24h",
}
"""What a value must be, by pydantic's type of the error."""

SPELLINGS: Mapping[Literal["loki", "sleipnir"], Mapping[str, str]] = {
    "loki": {"over": "over", "item": "as", "body": "branch", "collect_into": "collect_into"}
    | {"max_concurrency": "max_concurrency"},
    "sleipnir": {"over": "for_each", "body": "node", "collect_into": "collect", "max_concurrency": "max_parallel"},
}
"""The keys of a map node by field. A field missing under sleipnir has Loki's key."""


def declared(model: type[Any]) -> dict[str, dataclasses.Field[Any]]:
    """The fields of a model by key."""
    return {field.metadata.get("key", field.name): field for field in dataclasses.fields(model)}


def is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _holds(hint: Any) -> Holds:
    alternatives = get_args(hint) if type(None) in get_args(hint) else (hint,)
    if str in alternatives:
        return "text or texts" if list[str] in alternatives else "text"
    if list[str] in alternatives:
        return "texts"
    return "text map" if dict[str, str] in alternatives else "other"


def _fields(model: type[Any]) -> dict[str, Holds]:
    hints = get_type_hints(model)
    fields = declared(model).items()
    derived = DERIVED.get(model, frozenset()) | (DERIVED[NodeBase] if issubclass(model, NodeBase) else frozenset())
    kinds = {key: _holds(hints[field.name]) for key, field in fields if key not in derived}
    if model is not MapNode:
        return kinds
    spelt = {key: kinds[name] for spelling in SPELLINGS.values() for name, key in spelling.items()}
    own = {name: holds for name, holds in kinds.items() if name not in SPELLINGS["loki"]}
    return own | spelt | {"branch": "text or texts", "node": "text or texts"}


DERIVED: Mapping[type[Any], frozenset[str]] = {
    Graph: frozenset({"has_additions", "has_messages", "by_keys", "loop"}),
    GraphNode: frozenset({"call", "protocol", "fallback", "effect", "cache", "callbacks", "stream_input"}),
    NodeBase: frozenset({"value_updates"}),
    ToolsNode: frozenset({"answers_errors"}),
}
"""Fields that no key sets; NodeBase: of all nodes."""

REQUIRED_BY_LOKI: Mapping[type[Any], tuple[str, ...]] = {AgentNode: ("prompt",)}
"""Keys that are required in version 1.0 only."""

FIELDS: Mapping[type[Any], Mapping[str, Holds]] = {
    model: _fields(model)
    for model in (
        *(
            Graph,
            Settings,
            Limits,
            StateField,
            Retry,
            NodeCache,
            NodeCallbacks,
            CallCallbacks,
            Router,
            Variable,
            Branch,
            Choice,
            Concurrency,
            ConfigAgent,
        ),
        *(ModelSettings, NodeTool, ToolConcurrency, ToolGroup),
        *(AgentInput, ChildOptions, RemoteAgent, ErrorRules, SessionRules, SummaryRules),
        *NODE_TYPES.values(),
    )
}
"""The keys of every mapping in a graph.yaml or a config.yaml, and the kind of value of each."""


class Shaper:
    """Builds model instances from the mappings of one document; problems go into `findings`."""

    def __init__(self, document: YamlDocument, findings: Findings, *, refuses_unknown: bool = False) -> None:
        self._texts = document.texts
        self._findings = findings
        self._unsupported: dict[str, list[KeyPath]] = {}
        self._refuses_unknown = refuses_unknown

    def fields(self, model: type[Any], data: Mapping[str, Json], path: KeyPath) -> dict[str, Json]:
        """The entries of `data` that are fields of `model` and not null; scalars become text where text is expected."""
        kinds = FIELDS[model]
        fields: dict[str, Json] = {}
        for key, value in data.items():
            if key not in kinds:
                self._unknown(model, key, value, path)
            elif value is not None:
                fields[key] = self._as_text(kinds[key], value, (*path, key))
        return fields

    def report_unsupported(self) -> None:
        """Report the keys of other releases, one warning for each reason, at the first of its keys."""
        for reason, paths in self._unsupported.items():
            keys = list(dict.fromkeys(f"'{path[-1]}'" for path in paths))
            verb = "is" if len(keys) == 1 else "are"
            self._findings.graph_warning(paths[0], f"{', '.join(keys)} {verb} ignored", reason, code="SLP205")

    def texts(self, data: Json, path: KeyPath) -> Json:
        """A mapping of texts, with scalars turned into text."""
        return self._as_text("text map", data, path)

    def variables(self, data: Json) -> Json:
        """The `variables:` of a definition. A value that is not a list is unchanged: `build` refuses it."""
        if not isinstance(data, list):
            return data
        read = [self._variable(item, ("variables", index)) for index, item in enumerate(data)]
        return [variable for variable in read if variable is not None]

    def _variable(self, data: Json, path: KeyPath) -> Variable | None:
        if not isinstance(data, dict):
            message = f"'variables' must hold mappings with a name and a description, got {shown(data)}"
            self._findings.error(path, message, code="SLP201")
            return None
        return self.build(Variable, self.fields(Variable, data, path), path)

    def concurrency(self, data: Json) -> Concurrency | None:
        """The `concurrency:` of a definition. An unknown key is an error: a misspelled limit must not be ignored."""
        path: KeyPath = ("concurrency",)
        if not isinstance(data, dict):
            hint = 'Write `concurrency: {key: "{{tenant}}", limit: 5}`.'
            message = f"'concurrency' must hold a mapping with a limit, got {shown(data)}"
            self._findings.error(path, message, hint, code="SLP201")
            return None
        known = FIELDS[Concurrency]
        for key in data.keys() - known.keys():
            message = f"unknown key '{key}' in 'concurrency'"
            self._findings.error((*path, key), message, suggestion(key, known, "keys here"), code="SLP203")
        values = self.fields(Concurrency, {key: value for key, value in data.items() if key in known}, path)
        if isinstance(template := values.get("key"), str) and (wrong := malformed(template)) is not None:
            hint = "Write {{name}}, {{a.b}} or {{list[0]}}, without spaces."
            message = f"'concurrency.key' holds {wrong!r}, which is not a placeholder"
            self._findings.error((*path, "key"), message, hint, code="SLP408")
        return self.build(Concurrency, values, path)

    def build(
        self, model: type[T], values: Mapping[str, Json], path: KeyPath, names: Mapping[str, str] | None = None
    ) -> T | None:
        """The instance, or None after reporting problems of `values`. `names`: the keys of fields that differ."""
        fields = declared(model)
        names = {field.name: key for key, field in fields.items()} | dict(names or {})
        before = len(self._findings.problems)
        for key, value in values.items():
            self._refuse_infinite(value, (*path, names.get(key, key)))
        if len(self._findings.problems) > before:
            return None
        try:
            built: T = _adapter(model).validate_python(
                {fields[key].name if key in fields else key: value for key, value in values.items()}
            )
            return built
        except ValidationError as error:
            for detail in error.errors(include_url=False):
                field, *rest = detail["loc"]
                self._refused(model, detail, (*path, names.get(str(field), field), *rest), names)
            return None

    def _unknown(self, model: type[Any], key: str, value: Json, path: KeyPath) -> None:
        reasons = IGNORED if path else {**IGNORED, **IGNORED_AT_TOP}
        if key in WITHOUT_EFFECT or (key in reasons and value is None):
            return
        if key in reasons:
            if self._refuses_unknown:
                self.unknown((*path, key), f"'{key}'", reasons[key], code="SLP205")
            else:
                self._unsupported.setdefault(reasons[key], []).append((*path, key))
            return
        types = NODE_TYPES if self._refuses_unknown else LOKI_NODE_TYPES
        owners = [kind for kind, other in types.items() if key in FIELDS[other]]
        if model in NODE_TYPES.values() and owners:
            hint = f"It belongs to nodes of type {', '.join(owners)}."
            report = self._findings.error if self._refuses_unknown else self._findings.warning
            report((*path, key), f"'{key}' has no effect on {_titled(model)}", hint, code="SLP204")
            return
        own = model.__annotations__  # suggested before inherited keys
        known = sorted((name for name in FIELDS[model] if name != "id"), key=lambda name: name not in own)
        advice = WRITTEN_OTHERWISE.get(key) or suggestion(key, known, "keys here")
        self.unknown((*path, key), f"unknown key '{key}'", advice, code="SLP203")

    def unknown(self, path: KeyPath, what: str, hint: str | None, *, code: str) -> None:
        """Report a key without effect: in Loki's format it is ignored, in sleipnir/1 it is an error."""
        if self._refuses_unknown:
            message = what if what.startswith("unknown") else f"{what} has no effect here"
            self._findings.error(path, message, hint, code=code)
        else:
            self._findings.warning(path, f"{what} is ignored", hint, code=code)

    def _as_text(self, holds: Holds, value: Json, path: KeyPath) -> Json:
        if holds in ("texts", "text or texts") and isinstance(value, list):
            return [self._spelled(item, (*path, index)) for index, item in enumerate(value)]
        if holds == "text map" and isinstance(value, dict):
            return {key: self._spelled(item, (*path, key)) for key, item in value.items()}
        return self._spelled(value, path) if holds in ("text", "text or texts") else value

    def _spelled(self, value: Json, path: KeyPath) -> Json:
        if not isinstance(value, bool | int | float):
            return value
        text = self._texts[path]
        if path[0] == "nodes":
            hint = f'Put it in quotes: "{text}".'
            message = f"'{_label(path)}' is not text; it is read as '{text}'"
            self._findings.warning(path, message, hint, code="SLP206")
        return text

    def _refuse_infinite(self, value: Json, path: KeyPath) -> None:
        for place, number in _floats(value, path):
            if not math.isfinite(number):
                message = f"'{_label(place)}' must be a finite number, got {self._texts[place]}"
                self._findings.error(place, message, code="SLP201")

    def _refused(self, model: type[Any], detail: ErrorDetails, path: KeyPath, names: Mapping[str, str]) -> None:
        kind, value = detail["type"], detail["input"]
        if kind == "missing":
            required = [names.get(name, name) for name, field in declared(model).items() if is_required(field)]
            required += () if self._refuses_unknown else REQUIRED_BY_LOKI.get(model, ())
            needs = f"{_titled(model)} needs: {', '.join(required)}."
            self._findings.error(path, f"missing field `{path[-1]}`", needs[0].upper() + needs[1:], code="SLP202")
            return
        must = _DETAILED[kind](detail) if kind in _DETAILED else _MUST.get(kind, "is not valid")
        message = f"'{_label(path)}' {must}, got {shown(value)}"
        self._findings.error(path, message, _hint(kind, value), code="SLP201")


def _one_of(detail: ErrorDetails) -> str:
    choices = detail["ctx"]["expected"].replace("'", "`")
    return f"must be {choices}" if " or " in choices else f"must be {choices} or absent"


def _at_least(detail: ErrorDetails) -> str:
    least = detail["ctx"]["ge"]
    return f"must be at least {least}" if least else "must not be negative"


_DETAILED: Mapping[str, Callable[[ErrorDetails], str]] = {"literal_error": _one_of, "greater_than_equal": _at_least}
"""What a value must be, for errors that carry the expected value."""


def _hint(kind: str, value: Json) -> str | None:
    if kind == "list_type":
        return "Write `[a, b]`, or lines that start with `- `."
    if kind == "string_type" and isinstance(value, dict):
        return 'Text that starts with a brace needs quotes: "{{name}}".'
    return None


def shown(value: Json) -> str:
    """A value in a message: shortened, or the name of its kind if it is not a scalar."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case str():
            return f"the text {value[:40] + '...' if len(value) > 40 else value!r}"
        case list():
            return "a list"
        case dict():
            return "a mapping"
        case _:
            return str(value)


def _adapter(model: type[Any]) -> TypeAdapter[Any]:
    if model not in _ADAPTERS:
        _ADAPTERS[model] = TypeAdapter(model)
    return _ADAPTERS[model]


_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {}  # built on first use: a graph rarely has every node type


def _titled(model: type[Any]) -> str:
    """The name of an instance in messages: `an llm node`, `a variable`."""
    kind = getattr(model, "kind", None)
    name = f"{kind} node" if kind else _TITLES.get(model, model.__name__.lower())
    return f"{'an' if name[0] in 'aeiou' or name.startswith('llm') else 'a'} {name}"


_TITLES: Mapping[type[Any], str] = {
    ConfigAgent: "config.yaml agent",
    Concurrency: "concurrency block",
    AgentInput: "input of an agent node",
    ChildOptions: "options block",
    RemoteAgent: "remote agent",
    SessionRules: "session block",
    SummaryRules: "summary block",
}


def _label(path: KeyPath) -> str:
    """A path within its node or file, in dotted form: `options[0]`, `routes.yes`."""
    parts = path[2:] if path[0] == "nodes" and len(path) > 2 else path
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).removeprefix(".")


def _floats(value: Json, path: KeyPath) -> Iterator[tuple[KeyPath, float]]:
    if isinstance(value, float):
        yield path, value
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _floats(item, (*path, index))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _floats(item, (*path, key))

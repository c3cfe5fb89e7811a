"""Tools of a graph written in Python: functions and external tools of a tools node, and what chooses such a node.

The names are LangGraph's where it has them (`tools_condition`), else those of spec/graph-package.md F22, F23 and F60.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, get_type_hints

from sleipnir.commands import END

TOOLS: Final = "tools"
"""What `tools_condition` chooses for a message with tool calls."""


@dataclass(frozen=True)
class ExternalTool:
    """A tool that the program executes which runs the graph: its call is an open question, whose answer is the result.
    `schema` is the JSON Schema of the arguments, an object."""

    name: str
    schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})
    description: str = ""


ToolLike: TypeAlias = str | Callable[..., Any] | ExternalTool
"""The name of a tool of a file or a server, a Python function, or an external tool."""


@dataclass(frozen=True, kw_only=True)
class ToolRetryPolicy:
    """How often a call of a tool is tried again. Intervals are in seconds; `max_attempts` counts the first try.
    `retry_on` are `any`, `transient`, `timeout`, kinds of failures, or names of exceptions."""

    max_attempts: int = 3
    initial_interval: float = 0.5
    backoff_factor: float = 2.0
    max_interval: float = 8.0
    jitter: bool = True
    retry_on: Sequence[str] = ("transient",)

    def as_json(self) -> dict[str, Any]:
        """The policy of the language."""
        return {
            "max_attempts": self.max_attempts,
            "initial_interval": f"{round(self.initial_interval * 1000)}ms",
            "backoff": self.backoff_factor,
            "max_interval": f"{round(self.max_interval * 1000)}ms",
            "jitter": self.jitter,
            "on": list(self.retry_on),
        }


def tools_condition(state: Any, messages_key: str = "messages") -> Literal["tools", "__end__"]:
    """For `add_conditional_edges`: `tools` if the last message of the state has tool calls, else END. `state` may be
    the list of messages itself."""
    from sleipnir.graph.message_keys import calls_of  # lazy: it imports pydantic

    if isinstance(state, list):
        messages: Any = state
    elif isinstance(state, Mapping):
        messages = state.get(messages_key)
    else:
        messages = getattr(state, messages_key, None)
    if not messages:
        raise ValueError(f"No messages found in input state to tool_edge: {state}")
    last = messages[-1]
    has_calls = calls_of(last) if isinstance(last, dict) else getattr(last, "tool_calls", None)
    return "tools" if has_calls else END


def name_of_tool(tool: Any) -> str:
    """The name under which a model calls a tool. Raises TypeError for what is none."""
    if isinstance(tool, str):
        return tool
    if isinstance(tool, ExternalTool):
        return tool.name
    name = getattr(tool, "__name__", None)
    if callable(tool) and isinstance(name, str):
        return name
    raise TypeError(f"a tool is a name, a function or an ExternalTool, not {tool!r}")


def written_tool(tool: Any, reference: Callable[[Any], str]) -> str | dict[str, Any]:
    """A tool as a tools node of the language lists it; `reference` names a function. Raises TypeError."""
    name = name_of_tool(tool)
    if isinstance(tool, str):
        return name
    if isinstance(tool, ExternalTool):
        written = {"name": name, "schema": dict(tool.schema), "external": True}
        return {**written, "description": tool.description} if tool.description else written
    if inspect.iscoroutinefunction(tool):
        raise TypeError(f"tool '{name}' is async; write a plain def")
    about = inspect.getdoc(tool) or ""
    written = {"name": name, "call": reference(tool), "schema": schema_of_arguments(tool)}
    return {**written, "description": about} if about else written


def schema_of_arguments(function: Callable[..., Any]) -> dict[str, Any]:
    """The JSON Schema of a function's arguments, from its annotations. Raises TypeError for one that a model cannot
    call by names."""
    from pydantic import ConfigDict, create_model
    from pydantic.errors import PydanticUserError

    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise TypeError(f"tool '{function.__name__}' has the parameter {parameter}, which has no name for a model")
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[name] = (hints.get(name, Any), default)
    try:
        model = create_model(function.__name__, __config__=ConfigDict(arbitrary_types_allowed=False), **fields)
        schema: dict[str, Any] = model.model_json_schema()
    except (PydanticUserError, NameError) as error:
        raise TypeError(f"the arguments of tool '{function.__name__}' have no JSON Schema: {error}") from None
    return schema

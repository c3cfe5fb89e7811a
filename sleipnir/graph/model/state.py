"""What a graph says about its values: the keys of the state, the variables of an agent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sleipnir.graph.model.values import Flag, Json

SINGLE: Final = "single"
"""Added: a value of `reducer`. At most one visit of a super-step may write the key, which begins absent."""


@dataclass(frozen=True, kw_only=True)
class StateField:
    """Added: the declaration of one state key (spec/graph-package.md F01). `type` is one of `state.TYPES`, or the path
    `file.py:Name` of a pydantic model. `default` None: the zero value of the type."""

    type: str = "any"
    items: str | None = None
    schema: dict[str, Json] | None = None
    reducer: str | None = None
    default: Json = None
    required: Flag = False
    description: str = ""


@dataclass(frozen=True, kw_only=True)
class Variable:
    """An agent variable; scripts see it as LLM_AGENT_VAR_<NAME>. `default` None means required."""

    name: str
    description: str
    default: str | None = None

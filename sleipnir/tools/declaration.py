"""The declaration of a tool for a model, and what a worker needs to run it (spec/graph-agents.md 4.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

Language: TypeAlias = Literal["bash", "python", "typescript"]


@dataclass(frozen=True)
class Declaration:
    """A tool of a file. `parameters` is a JSON schema object with `properties`; its names are those the model uses.

    `agent` marks functions of an agent's own tools file; `command` is the function to call as the file spells it, None
    if the file itself is the tool. `written` maps a parameter's name to its spelling in the file, in the order of the
    declaration. `line` is the line of the declaration, counted from 1.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    file: Path
    language: Language
    line: int = 1
    agent: bool = False
    command: str | None = None
    written: Mapping[str, str] = field(default_factory=dict)

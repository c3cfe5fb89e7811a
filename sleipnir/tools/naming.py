"""The names of tools for models."""

from __future__ import annotations

import re

from sleipnir.graph.tools import INSTRUCTIONS


def declared_name(name: str) -> str:
    """The name of a function or a file for a model: `getIP` becomes `getip`, `web-search` becomes `web_search`."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def is_offered(name: str) -> bool:
    """Whether a function of an agent's tools file is declared: functions that start with `_` are private helpers."""
    return not name.startswith("_") or name == INSTRUCTIONS

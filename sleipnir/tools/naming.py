"""How tools are called."""

from __future__ import annotations

import re

from sleipnir.graph.tools import INSTRUCTIONS


def declared_name(name: str) -> str:
    """The name that a model knows a function or a file by: `getIP` is `getip`, `web-search` is `web_search`."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def is_offered(name: str) -> bool:
    """Whether a function of an agent's tools file is declared at all: those that start with `_` are its own helpers."""
    return not name.startswith("_") or name == INSTRUCTIONS

"""Variables that an agent's commands get besides a clean environment: those of `.env` files, and agent variables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from sleipnir.graph.model import Graph

_REFERENCE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")


def agent_variables(graph: Graph, given: Mapping[str, str]) -> dict[str, str]:
    """LLM_AGENT_VAR_* for the variables of a run, and for the defaults of those that it was not given."""
    defaults = {item.name: item.default for item in graph.variables if item.default is not None}
    return {f"LLM_AGENT_VAR_{name.upper().replace('-', '_')}": value for name, value in {**defaults, **given}.items()}


def parse_env_file(text: str) -> dict[str, str]:
    """KEY=VALUE lines; blank lines and lines that start with # are skipped, one pair of quotes is stripped."""
    return {name: value for name, value, _ in _lines(text)}


def expand_env_file(text: str, known: Mapping[str, str]) -> dict[str, str]:
    """As bash would read it: `$NAME` and `${NAME}` stand for earlier lines and `known`, but not in single quotes.

    Nothing else of the shell is done; a command in a value stays text.
    """
    found: dict[str, str] = {}
    for name, value, quote in _lines(text):
        found[name] = value if quote == "'" else _expanded(value, {**known, **found})
    return found


def _expanded(value: str, known: Mapping[str, str]) -> str:
    return _REFERENCE.sub(lambda reference: known.get(reference[1] or reference[2], ""), value)


def _lines(text: str) -> Iterator[tuple[str, str, str]]:
    """Name, value and the quote around the value."""
    for line in text.splitlines():
        name, equals, value = line.strip().removeprefix("export ").partition("=")
        name, value = name.strip(), value.strip()
        if not equals or not name or name.startswith("#"):
            continue
        quote = value[0] if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'" else ""
        yield name, value[1:-1] if quote else value, quote

"""Blocks of the pages that are graphs, or parts of them, made whole by the rules of completions.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from sleipnir.graph.model import NODE_TYPES
from tests.docs.completions import COMPLETIONS, END, Completion
from tests.docs.pages import Block, blocks

GRAPHS = blocks("yaml")
LEADING = (
    "next",
    "fallback",
    "on_error",
    "on_timeout",
    "on_other",
    "node",
    "wait_for",
    "default",
    "else",
    "to",
    "routes",
)
"""Keys of nodes and of ways whose values are names of nodes."""


def key_of(block: Block) -> tuple[str, str]:
    """A block is known by its page and its nodes; without nodes, by its first key."""
    data = yaml.safe_load(block.text)
    return block.page, " ".join(nodes_of(data)) or next(iter(data))


def nodes_of(data: dict[str, Any]) -> dict[str, Any]:
    """Those of a graph, or of a block that has nothing but nodes."""
    if "nodes" in data:
        return dict(data["nodes"])
    are_nodes = all(isinstance(node, dict) and node.get("type") in NODE_TYPES for node in data.values())
    return data if are_nodes else {}


def completion_of(block: Block) -> Completion:
    key = key_of(block)
    assert key in COMPLETIONS, f"{block}: say in tests/docs/completions.py, as {key}, what this graph needs to run"
    return COMPLETIONS[key]


def written(block: Block, completion: Completion, folder: Path, start: str | None = None) -> Path:
    """The agent of the block, in a folder of agents."""
    agent = folder / "example"
    for name, text in {"graph.yaml": completed(block, completion, start), **completion.files}.items():
        file = (agent / name).resolve()
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return agent


def completed(block: Block, completion: Completion, start: str | None) -> str:
    """A whole graph.yaml with the block's lines in it, by the rules of completions.py."""
    data, lines = yaml.safe_load(block.text), block.lines
    nodes = nodes_of(data)
    added = {name: completion.nodes.get(name, END) for name in sorted(missing(data, nodes))}
    if nodes == data:
        lines = ["nodes:", *(f"  {line}" for line in lines)]
    elif not nodes:
        lines, added = [*lines, "nodes:"], {"first": END}
    if "name" not in data:
        lines = ["name: example", f"start: {start or next(iter([*nodes, *added]))}", *lines]
    lines += [
        f"  {name}: {yaml.safe_dump(node, default_flow_style=True, width=1000).strip()}" for name, node in added.items()
    ]
    return "\n".join(lines) + "\n"


def missing(data: dict[str, Any], nodes: dict[str, Any]) -> set[str]:
    """Nodes that something leads to and that are not there. `end` and `__end__` are targets of their own."""
    wanted = {name for node in [data, *nodes.values()] for name in targets(node)}
    return wanted - nodes.keys() - {"end", "__end__", "fail", "continue"}


def targets(node: dict[str, Any]) -> Iterator[str]:
    for key in LEADING:
        yield from names_in(node.get(key))
    branch = node.get("branch")
    for way in branch if isinstance(branch, list) else [branch] if isinstance(branch, dict) else []:
        yield from targets(way)


def names_in(value: Any) -> list[str]:
    """A name, a list of names, or names by labels."""
    if isinstance(value, dict):
        value = list(value.values())
    return [value] if isinstance(value, str) else value if isinstance(value, list) else []

"""A graph as a picture: Mermaid for pages and terminals, DOT for Graphviz.

Rules. Every node has a shape of its type. Every edge that a run can take is drawn once, in file order: the `next` of
an approval and of an end node is declared but never taken, and what a script prints as `_next` cannot be known. A
target that does not exist is drawn too, so that a broken graph can be looked at. Names are never trusted: node ids
become n0, n1, ..., and every text is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from sleipnir.graph.model import ApprovalNode, Edge, EndNode, Graph, edges_of

_MERMAID_SHAPES: Mapping[str, tuple[str, str]] = {
    "script": ("[", "]"),
    "function": ("{{", "}}"),
    "llm": ("(", ")"),
    "agent": ("[[", "]]"),
    "rag": ("[(", ")]"),
    "approval": ("{", "}"),
    "input": ("[/", "/]"),
    "end": ("([", "])"),
}

_DOT_SHAPES: Mapping[str, str] = {
    "script": "box",
    "function": "hexagon",
    "llm": 'box", style="rounded',
    "agent": "component",
    "rag": "cylinder",
    "approval": "diamond",
    "input": "parallelogram",
    "end": 'box", style="rounded,bold',
}

_LABELS: Mapping[str, str] = {"next": "", "on_other": "other", "fallback": "fallback", "on_timeout": "no answer"}
_DASHED = ("fallback", "on_timeout")
_MERMAID_SPECIAL = re.compile(r"[^\w .,:/()=+-]|^[-+]|(?<=^\d)\.")  # a label like a list item is refused too
_LINE_BREAKS = re.compile(r"\r\n|[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")


def mermaid(graph: Graph) -> str:
    """A Mermaid flowchart. The same graph gives the same text."""
    names = _names(graph)
    lines = ["flowchart TD", "    start((start))"]
    lines += [f"    {name}{_mermaid_node(graph, node_id)}" for node_id, name in names.items()]
    if graph.start in names:
        lines.append(f"    start --> {names[graph.start]}")
    for edge in _drawn_edges(graph):
        lines.append(f"    {names[edge.source]} {_mermaid_arrow(edge)} {names[edge.target]}")
    return "\n".join(lines) + "\n"


def dot(graph: Graph) -> str:
    """A Graphviz digraph. The same graph gives the same text."""
    names = _names(graph)
    lines = [f"digraph {_dot_text(graph.name)} {{", "    start [shape=circle, label=start];"]
    lines += [f"    {name} [{_dot_node(graph, node_id)}];" for node_id, name in names.items()]
    if graph.start in names:
        lines.append(f"    start -> {names[graph.start]};")
    for edge in _drawn_edges(graph):
        lines.append(f"    {names[edge.source]} -> {names[edge.target]}{_dot_edge(edge)};")
    return "\n".join([*lines, "}"]) + "\n"


def _drawn_edges(graph: Graph) -> list[Edge]:
    edges = [edge for node in graph.nodes.values() for edge in edges_of(node)]
    return [edge for edge in edges if edge.kind != "next" or not _ignores_next(graph, edge.source)]


def _ignores_next(graph: Graph, node_id: str) -> bool:
    return isinstance(graph.nodes[node_id], ApprovalNode | EndNode)


def _names(graph: Graph) -> dict[str, str]:
    """A safe name for every node, then for every target that is missing."""
    ids = dict.fromkeys([*graph.nodes, graph.start, *(edge.target for edge in _drawn_edges(graph))])
    return {node_id: f"n{index}" for index, node_id in enumerate(ids)}


def _label(edge: Edge) -> str:
    return edge.label if edge.kind == "routes" else _LABELS[edge.kind]


def _mermaid_node(graph: Graph, node_id: str) -> str:
    if node_id not in graph.nodes:
        return f'["{_mermaid_text(node_id)}<br/>missing"]'
    kind = graph.nodes[node_id].kind
    left, right = _MERMAID_SHAPES[kind]
    return f'{left}"{_mermaid_text(node_id)}<br/>{kind}"{right}'


def _mermaid_arrow(edge: Edge) -> str:
    arrow = "-.->" if edge.kind in _DASHED else "-->"
    label = _mermaid_text(_label(edge))
    return f'{arrow}|"{label}"|' if label else arrow


def _mermaid_text(text: str) -> str:
    """Letters of any language stay; everything that Mermaid could read as its own becomes a character code."""
    return _MERMAID_SPECIAL.sub(lambda match: f"#{ord(match[0])};", _LINE_BREAKS.sub(" ", text))


def _dot_node(graph: Graph, node_id: str) -> str:
    if node_id not in graph.nodes:
        return f'shape="box", style="dashed", label={_dot_text(node_id, "missing")}'
    kind = graph.nodes[node_id].kind
    return f'shape="{_DOT_SHAPES[kind]}", label={_dot_text(node_id, kind)}'


def _dot_edge(edge: Edge) -> str:
    label = _label(edge)
    attributes = [f"label={_dot_text(label)}"] if label else []
    attributes += ['style="dashed"'] if edge.kind in _DASHED else []
    return f" [{', '.join(attributes)}]" if attributes else ""


def _dot_text(*lines: str) -> str:
    """A quoted DOT string; the lines are shown below each other."""
    shown = [_LINE_BREAKS.sub(" ", line).replace("\\", "\\\\").replace('"', '\\"').replace("\0", "") for line in lines]
    return '"' + "\\n".join(shown) + '"'

"""Rules about node streams: which node writes one, which node reads it, and whether the two can meet."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

from sleipnir.graph.check_case import Case, Rule
from sleipnir.graph.model import AgentNode, FunctionNode, LlmNode, MapNode, ScriptNode

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", re.ASCII)

WRITES, READS = "stream_output", "stream_input"

StreamEnd: TypeAlias = tuple[str, str]
"""A node, and the name of its stream."""


def every_stream_has_one_writer_and_one_reader(case: Case) -> None:
    writers, readers = list(_writers(case)), list(_readers(case))
    for ends, key, what in ((writers, WRITES, "writes"), (readers, READS, "reads")):
        first_of: dict[str, str] = {}
        for node, name in ends:
            if not NAME.fullmatch(name):
                hint = "It has up to 64 letters, digits, _ and -."
                case.findings.error(("nodes", node, key), f"{name[:64]!r} is no name of a stream", hint)
            elif name in first_of:
                message = f"node '{first_of[name]}' {what} the stream {name!r} already"
                case.findings.error(("nodes", node, key), message, "A stream has one writer and one reader.")
            first_of.setdefault(name, node)
    written, read = {name for _, name in writers}, {name for _, name in readers}
    for node, name in readers:
        if name not in written:
            listed = f"; there are {', '.join(sorted(written))}" if written else ""
            hint = f"Write `{WRITES}: {name}` at an llm or agent node."
            case.findings.error(("nodes", node, READS), f"no node writes the stream {name!r}{listed}", hint)
    for node, name in writers:
        if name not in read:
            hint = f"Write `{READS}: {name}` at a script or function node, or remove it."
            case.findings.warning(("nodes", node, WRITES), f"no node reads the stream {name!r}", hint)


def no_item_of_a_map_has_a_stream(case: Case) -> None:
    bodies = {body: name for name, node in case.graph.nodes.items() if isinstance(node, MapNode) for body in node.body}
    for key, ends in ((WRITES, _writers(case)), (READS, _readers(case))):
        for node, _ in ends:
            if node in bodies:
                message = f"items of map '{bodies[node]}' would share one stream"
                case.findings.error(("nodes", node, key), message, "Remove it: bodies of maps have no streams.")


def every_reader_of_a_stream_can_meet_its_writer(case: Case) -> None:
    """Without the reader, a run still comes to the writer; and in a `dag` rounds of a loop could not be told apart."""
    writer_of = {name: node for node, name in _writers(case)}
    for reader, name in _readers(case):
        writer = writer_of.get(name)
        if writer is None:
            continue
        path = ("nodes", reader, READS)
        if writer in case.reachable and writer not in _reached(case, case.graph.start, without=reader):
            message = f"node '{writer}', which writes {name!r}, begins only after '{reader}' has ended"
            case.findings.error(path, message, "Let both begin after the same node.")
        elif case.graph.engine == "dag":
            for node in (reader, writer):
                if any(node in _reached(case, edge.target) for edge in case.edges.get(node, [])):
                    message = f"node '{node}' is in a loop, where the rounds of {name!r} cannot be told apart in a dag"
                    case.findings.error(path, message, "Use `engine: bsp`.")


def every_stream_finds_two_slots(case: Case) -> None:
    """Readers that have started first must leave a slot for a writer."""
    graph, readers = case.graph, list(_readers(case))
    if readers and 0 < graph.max_concurrency <= len(readers):
        block = "settings" if graph.limits.max_concurrency is None else "limits"
        message = (
            f"max_concurrency is {graph.max_concurrency}: readers of streams can hold all slots of a run while their "
            "writers wait for one"
        )
        case.findings.warning((block, "max_concurrency"), message, f"Set it to {len(readers) + 1} or more.")


def _writers(case: Case) -> Iterator[StreamEnd]:
    for node_id, node in case.graph.nodes.items():
        if isinstance(node, LlmNode | AgentNode) and node.stream_output is not None:
            yield node_id, node.stream_output


def _readers(case: Case) -> Iterator[StreamEnd]:
    for node_id, node in case.graph.nodes.items():
        if isinstance(node, ScriptNode | FunctionNode) and node.stream_input is not None:
            yield node_id, node.stream_input


def _reached(case: Case, start: str, without: str | None = None) -> set[str]:
    """The nodes that edges lead to from here, with this one; past one of them, they do not."""
    seen, todo = set[str](), [start]
    while todo:
        node = todo.pop()
        if node not in seen and node != without:
            seen.add(node)
            todo += [edge.target for edge in case.edges.get(node, [])]
    return seen


RULES: Sequence[Rule] = (
    every_stream_has_one_writer_and_one_reader,
    no_item_of_a_map_has_a_stream,
    every_reader_of_a_stream_can_meet_its_writer,
    every_stream_finds_two_slots,
)

"""The rules about node streams: one writer, one reader, and that they can meet."""

from __future__ import annotations

import pytest

from sleipnir.graph.check import check
from sleipnir.graph.load import parse

HEAD = "name: g\nversion: sleipnir/1\nstart: s\nmodel: openai:gpt-test\n"
BOTH = "  s: {type: router, next: [w, r]}\n"
WRITER = "  w: {type: llm, prompt: p, stream_output: text}\n"
READER = "  r: {type: script, script: r.sh, stream_input: text}\n"


def problems(nodes: str, head: str = HEAD) -> list[tuple[str, str | None, int | None, int | None]]:
    loaded = parse(f"{head}nodes:\n{nodes}", "g.yaml")
    assert loaded.graph is not None, loaded.problems
    found = check(loaded.graph, loaded.positions, "g.yaml")
    return [(each.message, each.code, each.line, each.column) for each in found if each.code in CODES]


CODES = ("SLP360", "SLP361", "SLP362", "SLP219")


def test_a_stream_with_one_writer_and_one_reader_is_accepted() -> None:
    assert problems(BOTH + WRITER + READER) == []
    agent = "  w: {type: agent, agent: a, prompt: p, stream_output: text}\n"
    assert problems(BOTH + agent + "  r: {type: function, call: 'r.py:r', stream_input: text}\n") == []
    after = "  s: {type: llm, prompt: p, stream_output: text, next: r}\n"
    assert problems(after + READER) == [], "the reader may come later"


@pytest.mark.parametrize(
    ("nodes", "message", "code", "line", "column"),
    [
        (BOTH + "  w: {type: script, script: w.sh}\n" + READER, "no node writes the stream 'text'", "SLP360", 8, 35),
        (BOTH + WRITER + "  r: {type: script, script: r.sh}\n", "no node reads the stream 'text'", "SLP360", 7, 29),
        (
            "  s: {type: router, next: [w, r, v]}\n" + WRITER + READER + WRITER.replace("w:", "v:"),
            "node 'w' writes the stream 'text' already", "SLP360", 9, 29,
        ),
        (
            "  s: {type: router, next: [w, r, v]}\n" + WRITER + READER + READER.replace("r:", "v:"),
            "node 'r' reads the stream 'text' already", "SLP360", 9, 35,
        ),
        (
            BOTH + WRITER.replace("text", '"a b"') + READER.replace("text", '"a b"'),
            "'a b' is no name of a stream", "SLP360", 7, 29,
        ),
        (
            "  s: {type: map, for_each: '{{x}}', as: i, node: w, collect: c, next: r}\n" + WRITER + READER,
            "items of map 's' would share one stream", "SLP360", 7, 29,
        ),
        (
            "  s: {type: router, next: r}\n" + WRITER + READER.replace("}", ", next: w}"),
            "node 'w', which writes 'text', begins only after 'r' has ended", "SLP361", 8, 35,
        ),
    ],
)  # fmt: skip
def test_a_stream_that_cannot_be_is_reported_where_it_is(
    nodes: str, message: str, code: str, line: int, column: int
) -> None:
    assert (message, code, line, column) in problems(nodes)


def test_in_a_dag_neither_end_is_in_a_loop() -> None:
    nodes = BOTH + WRITER.replace("}", ", next: [s]}") + READER
    assert problems(nodes) == []
    [found] = problems(nodes, HEAD + "engine: dag\n")
    assert found[:2] == ("node 'w' is in a loop, where the rounds of 'text' cannot be told apart in a dag", "SLP361")


def test_slots_that_readers_can_hold_are_counted() -> None:
    for block in ("limits", "settings"):
        [found] = problems(BOTH + WRITER + READER, HEAD + f"{block}: {{max_concurrency: 1}}\n")
        assert found[1:] == ("SLP362", 5, 10 if block == "limits" else 12)
        assert "readers of streams can hold all slots" in found[0]
    assert problems(BOTH + WRITER + READER, HEAD + "limits: {max_concurrency: 2}\n") == []


def test_nodes_with_streams_are_not_cached() -> None:
    nodes = BOTH + WRITER.replace("}", ", cache: true}") + READER.replace("}", ", cache: true}")
    assert [code for _, code, _, _ in problems(nodes)] == ["SLP219", "SLP219"]
    assert problems(BOTH + WRITER + READER, HEAD + "cache: true\n") == [], "the cache of the graph passes them over"


def test_graphs_of_version_1_have_no_streams() -> None:
    loaded = parse(f"{HEAD.replace('sleipnir/1', '1.0')}nodes:\n{BOTH}{WRITER}{READER}", "g.yaml")
    assert [each.code for each in loaded.problems if each.level == "error"] == ["SLP218", "SLP218"]

"""Where the answers to a question lead, as far as the graph decides it."""

from __future__ import annotations

from sleipnir.graph.ways_on import WayOn, ways_on
from tests.model_store import graph_of

GRAPH = """
name: refunds
version: sleipnir/1
start: read
nodes:
  read: {type: script, script: a.sh, next: approve}
  approve:
    type: approval
    question: "sure?"
    options: [pay, ask, sort, both]
    routes: {pay: book, ask: which, sort: judge, both: join}
    on_other: approve
  book: {type: script, script: a.sh, effect: once, next: mail}
  mail: {type: llm, prompt: "hi", next: done}
  which: {type: input, question: "which?", next: done}
  judge: {type: router, branch: {by: "{{kind}}", to: {a: book, b: mail}, default: done}}
  join: {type: join, wait_for: [approve, mail], next: done}
  done: {type: end, output: done}
"""


def shown(way: WayOn) -> tuple[str | None, str, str, bool]:
    return (
        way.answer,
        " ".join(f"{step.node}{'!' if step.once else ''}" for step in way.steps),
        way.then,
        way.may_differ,
    )


def test_each_option_names_the_nodes_that_run_next() -> None:
    graph = graph_of(GRAPH)
    assert [shown(way) for way in ways_on(graph, "approve", "approval", ("pay", "ask", "sort", "both"))] == [
        ("pay", "book! mail done", "end", True),
        ("ask", "which", "question", False),
        ("sort", "judge", "code", False),
        ("both", "join", "join", False),
        (None, "approve", "question", False),
    ]
    assert [shown(way) for way in ways_on(graph, "which", "input", ())] == [(None, "done", "end", False)]


def test_the_code_of_a_node_that_asks_decides_by_itself() -> None:
    graph = graph_of(GRAPH)
    assert [shown(way) for way in ways_on(graph, "read", "interrupt", ())] == [(None, "read", "code", False)]
    assert [shown(way) for way in ways_on(graph, "gone", "interrupt", ("yes",))] == [("yes", "", "code", False)]


def test_a_circle_ends() -> None:
    circle = GRAPH.replace("next: mail}", "next: read}").replace("next: approve}", "next: book}")
    [way, *_] = ways_on(graph_of(circle), "approve", "approval", ("pay",))
    assert shown(way) == ("pay", "book! read book!", "more", True)

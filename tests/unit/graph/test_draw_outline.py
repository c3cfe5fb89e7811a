"""Graphs as lines of text: each node and each arrow once, from the start down."""

from __future__ import annotations

from dataclasses import replace

from sleipnir.graph.draw import Mark, RunProgress, outline
from tests.unit.graph.writing import graph_of, yaml_graph

CHOICE = """
    ask: {type: approval, question: q, options: [yes, no], routes: {yes: work, no: off}, on_other: off}
    work: {type: script, script: s.py, next: ask, fallback: off}
    off: {type: end}
"""
JOINED = """
    begin: {type: router, next: [a, b]}
    a: {type: script, script: s.py, next: both}
    b: {type: script, script: s.py, next: both}
    both: {type: join, wait_for: [a, b], next: done}
    done: {type: end}
"""


def test_a_graph_is_listed_from_its_start_with_its_loops() -> None:
    lines = outline(graph_of(yaml_graph(CHOICE, start="ask"))).splitlines()
    assert lines[2:] == [
        "○ ask   approval",
        "    ─▷ work (yes)",
        "    ─▷ off (no)",
        "    ─▷ off (other)",
        "○ work  script",
        "    ─▷ ask",
        "    ╌▷ off (fallback)",
        "○ off   end",
    ]


def test_a_run_shows_what_each_node_has_come_to_and_the_ways_it_took() -> None:
    marks = {
        "ask": Mark("done", "done · 1ms"),
        "work": Mark("failed", "failed · 2ms"),
        "off": Mark("running", "running"),
    }
    progress = RunProgress("run r1 · running", marks, frozenset({("ask", "work"), ("work", "off")}))
    text = outline(graph_of(yaml_graph(CHOICE, start="ask")), progress=progress)
    assert text.splitlines()[0].endswith(": run r1 · running")
    assert text.splitlines()[2:] == [
        "✓ ask   approval  done · 1ms",
        "    ━▶ work (yes)",
        "    ─▷ off (no)",
        "    ─▷ off (other)",
        "✗ work  script    failed · 2ms",
        "    ─▷ ask",
        "    ━▶ off (fallback)",
        "▶ off   end       running",
    ]


def test_a_node_with_a_breakpoint_says_so() -> None:
    graph = graph_of(yaml_graph(CHOICE, start="ask"))
    text = outline(replace(graph, interrupt_before=["ask", "work"], interrupt_after=["work"]))
    assert "○ ask   approval · stops before\n" in text
    assert "○ work  script · stops before and after\n" in text


def test_arrows_into_a_join_name_the_node_that_waits() -> None:
    text = outline(graph_of(yaml_graph(JOINED, start="begin")))
    assert text.count("─▷ both") == 2
    assert "all\n" not in text.replace("join all\n", "")


def test_names_cannot_break_a_line() -> None:
    text = outline(graph_of(yaml_graph('    "a\\x1b[2J\\nb": {type: end}', start='"a\\x1b[2J\\nb"')))
    assert "\x1b" not in text
    assert len(text.splitlines()) == 3

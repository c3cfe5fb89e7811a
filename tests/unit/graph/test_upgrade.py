"""Graphs of version 1.0 rewritten to sleipnir/1: what stays, what changes, what is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from sleipnir.graph.load import load_graph, parse
from sleipnir.graph.upgrade import Upgrade, upgraded

TEXT = """\
# Sorts mail.
name: mail      # the name
version: "1.0"  # Loki's
start: sort

checkpoint: true
nodes:
  sort:
    # asks a model
    type: llm   # cheap
    prompt: |
      Sort this: {{initial_prompt}}
      type: unknown
    interrupt_before:
      - a person
      - nobody

    next: tidy
  tidy: {type: script, script: tidy.sh, next: help}  # in one line
  safe: {type: script, script: tidy.sh, fallback: help, next: help}
  help: {type: agent, agent: x, prompt: p, next: done}
  done: {type: end, output: "{{output}}"}
"""

UPGRADED = """\
# Sorts mail.
name: mail      # the name
version: sleipnir/1  # Loki's
start: sort

# checkpoint: true
nodes:
  sort:
    # asks a model
    type: llm   # cheap
    on_error: continue
    prompt: |
      Sort this: {{initial_prompt}}
      type: unknown
    # interrupt_before:
    #   - a person
    #   - nobody

    next: tidy
  tidy: {on_error: continue, type: script, script: tidy.sh, next: help}  # in one line
  safe: {type: script, script: tidy.sh, fallback: help, next: help}
  help: {type: agent, agent: x, prompt: p, next: done}
  done: {type: end, output: "{{output}}"}
"""


def of(text: str) -> Upgrade:
    return upgraded(text, load_graph(text, "graph.yaml", "mail"))


def test_comments_and_layout_stay_and_every_change_is_listed_with_its_line() -> None:
    result = of(TEXT)
    assert result.text == UPGRADED
    assert result.changes == [
        "3: version: sleipnir/1",
        "6: unknown key 'checkpoint': now a comment",
        "11: node 'sort': on_error: continue",
        "15: unknown key 'interrupt_before': now a comment",
        "20: node 'tidy': on_error: continue",
    ]
    assert (result.notes, result.by_hand) == ([], [])
    assert parse(result.text, "graph.yaml").problems == ()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("name: g\nstart: a\n", "name: g\nversion: sleipnir/1\nstart: a\n"),
        ("version:\nname: g\nstart: a\n", "version: sleipnir/1\nname: g\nstart: a\n"),
        ("name: >\n  g\nstart: a\n", "version: sleipnir/1\nname: >\n  g\nstart: a\n"),
        ("version: '1.0' # old\nname: g\nstart: a\n", "version: sleipnir/1 # old\nname: g\nstart: a\n"),
    ],
)
def test_the_version_is_replaced_or_written_below_the_name(before: str, after: str) -> None:
    rest = "nodes: {a: {type: end}}\n"
    assert of(before + rest).text == after + rest


def test_a_graph_in_braces_is_upgraded_too() -> None:
    assert of("{name: g, start: a, nodes: {a: {type: end}}}").text == (
        "{version: sleipnir/1, name: g, start: a, nodes: {a: {type: end}}}"
    )


def test_a_key_that_no_edit_can_remove_is_left_to_the_author() -> None:
    result = of("name: g\nstart: a\nnodes:\n  a: {type: end, checkpoint: {\n    x: [1,\n    2]}}\n")
    assert result.by_hand == ["4: unknown key 'checkpoint'; remove it"]


def test_a_node_that_an_alias_shares_is_left_to_the_author() -> None:
    text = "name: g\nstart: a\nnodes:\n  a: &n {type: script, script: s.sh, next: e}\n  b: *n\n  e: {type: end}\n"
    assert of(text).by_hand == [
        "4: write `on_error: continue` at node 'a'",
        "5: write `on_error: continue` at node 'b'",
    ]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("{type: end, checkpoint: true}", "{type: end}  # checkpoint: true"),
        ("{checkpoint: [1, {a: 2}], type: end} # old", "{type: end} # old  # checkpoint: [1, {a: 2}]"),
        ('{checkpoint: "a, b}", type: end}', '{type: end}  # checkpoint: "a, b}"'),
        ("{type: end, checkpoint: 1, memory: 2}", "{type: end}  # memory: 2  # checkpoint: 1"),
        ("{type: end,\n    checkpoint: 1}", "{type: end,\n    }  # checkpoint: 1"),
    ],
)
def test_a_key_between_braces_becomes_a_comment_at_the_end_of_its_line(before: str, after: str) -> None:
    rest = "start: a\nnodes:\n  a: "
    result = of(f"name: g\n{rest}{before}\n")
    assert result.text == f"name: g\nversion: sleipnir/1\n{rest}{after}\n"
    assert parse(result.text, "g.yaml").problems == ()


def test_the_only_key_of_a_mapping_becomes_a_comment_too() -> None:
    rest = "nodes: {a: {type: end}}\n"
    assert of(f"name: g\nstart: a\nsettings:\n  speed: 1\n{rest}").text == (
        f"name: g\nversion: sleipnir/1\nstart: a\nsettings:\n  # speed: 1\n{rest}"
    )


def test_neighbours_that_become_comments_do_so_once() -> None:
    rest = "nodes: {a: {type: end}}\n"
    assert of(f"name: g\nstart: a\ncan_spawn_agents: high\nmemory:\n  size: 3\n\n# The nodes.\n{rest}").text == (
        "name: g\nversion: sleipnir/1\nstart: a\n# can_spawn_agents: high\n# memory:\n#   size: 3\n\n# The nodes.\n"
        + rest
    )


def test_the_version_below_the_nodes_has_its_line_in_the_new_text() -> None:
    text = "start: a\nnodes:\n  a:\n    type: script\n    script: s.sh\n    next: e\n  e: {type: end}\nname: g\n"
    assert of(text).changes == ["5: node 'a': on_error: continue", "10: version: sleipnir/1"]


def test_an_existing_on_error_is_kept() -> None:
    rest = "nodes:\n  a: {type: script, script: s.sh, next: e}\n  e: {type: end}\n"
    for said in ("on_error: fail", "on_error: continue", "on_error: e"):
        assert (
            of(f"name: g\nstart: a\n{said}\n{rest}").text == f"name: g\nversion: sleipnir/1\nstart: a\n{said}\n{rest}"
        )


def test_changes_of_meaning_are_reported() -> None:
    text = "name: g\nstart: a\nnodes:\n  a: {type: script, script: s.sh, next: [b, c]}\n"
    text += "  b: {type: llm, prompt: p}\n  c: {type: end}\n"
    assert [note.split(";")[0] for note in of(text).notes] == [
        "a branch ends at b when no `_next` leads on",
        "an end node ends its branch, and the run when nothing is left",
        "of branches that write one key without a reducer the last in visit order counts",
    ]


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_line_ends_stay(newline: str) -> None:
    text = newline.join(["name: g", "start: a", "nodes: {a: {type: end}}", ""])
    found = of(text).text
    assert parse(found, "g.yaml").graph is not None
    assert found.replace("\r\n", "").count("\n") == (0 if newline == "\r\n" else 4)


FIXTURES = Path(__file__).parents[2] / "fixtures" / "agents"


@pytest.mark.parametrize("file", sorted(FIXTURES.glob("*/graph.yaml")), ids=lambda file: file.parent.name)
def test_graphs_of_loki_are_upgraded_without_errors(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    graph = load_graph(text, str(file), file.parent.name)
    if graph.is_loki:
        result = upgraded(text, graph)
        assert result.by_hand == []
        again = load_graph(result.text, str(file), file.parent.name)
        assert (again.fails_by_default, again.nodes.keys()) == (True, graph.nodes.keys())
        comments = [line.partition("#")[2] for line in text.splitlines() if "#" in line]
        assert all(comment in result.text for comment in comments)

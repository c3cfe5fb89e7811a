"""The rules about `on_error`."""

from __future__ import annotations

import pytest

from tests.unit.graph.writing import checked

E = "e: {type: end}"
A = "a: {type: script, script: s.sh, next: e, "


def found(nodes: str, top: str = "") -> list[tuple[str, str, int | None]]:
    problems = checked(nodes, top=top)
    return [(p.level, p.message, p.line) for p in problems if "on_error" in p.message or "on_error" in (p.hint or "")]


@pytest.mark.parametrize("value", ["fail", "continue", "b"])
def test_each_form_of_on_error_is_accepted(value: str) -> None:
    """Finding U3 of the second review."""
    b = "b: {type: script, script: s.sh, next: e}"
    assert found(f"{A}on_error: {value}}}\n{b}\n{E}") == []
    assert found(f"a: {{type: script, script: s.sh, next: e}}\n{b}\n{E}", top=f"on_error: {value}") == []


def test_an_on_error_that_leads_nowhere_is_an_error_with_its_line() -> None:
    dangling = "References non-existent node 'x' in 'on_error'"
    assert found(f"{A}on_error: x}}\n{E}") == [("error", dangling, 4)]
    assert found(f"a: {{type: script, script: s.sh, next: e}}\n{E}", top="on_error: x") == [("error", dangling, 3)]
    nowhere = "`on_error: continue` leads nowhere: the node has no `next`"
    assert found(f"a: {{type: script, script: s.sh, on_error: continue}}\n{E}") == [("error", nowhere, 4)]


def test_a_failure_has_one_way_on() -> None:
    b = "b: {type: script, script: s.sh, next: e}"
    assert found(f"{A}fallback: b, on_error: b}}\n{b}\n{E}") == [
        ("error", "'fallback' and 'on_error' both define what happens after a failure", 4)
    ]
    assert found(f"{A}on_error: a}}\n{E}") == [("error", "'on_error' names the node itself", 4)]


def test_a_node_named_like_a_rule_is_pointed_out() -> None:
    message = "`on_error: fail` does not lead to the node 'fail': it is a keyword"
    assert found(f"{A}on_error: fail}}\nfail: {{type: script, script: s.sh, next: e}}\n{E}") == [
        ("warning", message, 5)
    ]


def test_an_end_node_and_the_body_of_a_map_have_no_on_error() -> None:
    assert found("a: {type: end, on_error: fail}") == [
        ("warning", "'on_error' has no effect on an end node: nothing comes after it", 4)
    ]
    body = "b: {type: llm, prompt: p, on_error: fail}"
    assert [
        level
        for level, *_ in found(
            f"a: {{type: map, over: '{{{{l}}}}', as: i, branch: b, collect_into: k, next: e}}\n{body}\n{E}"
        )
    ] == ["error"]


def test_the_target_of_the_graphs_on_error_can_be_reached() -> None:
    nodes = f"a: {{type: script, script: s.sh, next: e}}\nb: {{type: script, script: s.sh, next: e}}\n{E}"
    assert any("unreachable" in problem.message for problem in checked(nodes))
    assert not any("unreachable" in problem.message for problem in checked(nodes, top="on_error: b"))

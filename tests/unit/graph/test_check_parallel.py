"""The rules about graphs that branch: what they refuse, what they warn of, and what they let through."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sleipnir.errors import Problem
from sleipnir.graph.check import check
from sleipnir.graph.load import parse
from tests.examples import examples
from tests.unit.graph.test_graph_check import UNREACHABLE, hints, in_folder, places
from tests.unit.graph.writing import FILE, checked, errors, notices

ADDED = "engine: bsp"
E = "e: {type: end}"


def found(nodes: str, *, top: str = "") -> list[str]:
    """Errors and warnings alike, as `level [node] message`."""
    problems = checked(nodes, top=top)
    return [f"{p.level} {f'[{p.node}] ' if p.node else ''}{p.message}" for p in problems]


def lines(problems: list[Problem]) -> set[int | None]:
    return {problem.line for problem in problems}


# --- where edges lead (check 1)


@pytest.mark.conformance("BD-05", "BD-07", "BD-08", "BD-11", "BD-12", "BD-14", "V01")
def test_every_dangling_target_is_an_error_that_names_its_key() -> None:
    problems = checked(
        """
        a: {type: router, next: [b, x1], branch: {by: "{{k}}", to: {y: x2}, default: x3}}
        b: {type: router, branch: [{when: "state.k > 1", to: x4}, {else: x5}]}
        c: {type: script, script: s.py, ends: {y: x6, n: end}}
        d: {type: script, script: s.py, ends: [x7, end]}
        f: {type: router, branch: {by: "{{k}}", many: true, to: {y: x8}}}
        g: {type: router, branch: {cases: [{when: "state.k > 1", to: x9}], default: end}}
        """
    )
    assert [message for message in errors(problems) if "References" in message] == [
        "[a] References non-existent node 'x1' in 'next'",
        "[a] References non-existent node 'x2' in 'branch'",
        "[a] References non-existent node 'x3' in 'default'",
        "[b] References non-existent node 'x4' in 'branch'",
        "[b] References non-existent node 'x5' in 'else'",
        "[c] References non-existent node 'x6' in 'ends'",
        "[d] References non-existent node 'x7' in 'ends'",
        "[f] References non-existent node 'x8' in 'branch'",
        "[g] References non-existent node 'x9' in 'branch'",
    ]
    assert places(problems)[:6] == [(4, 31), (4, 63), (4, 71), (5, 52), (5, 62), (6, 42)]


@pytest.mark.conformance("BD-11")
def test_the_end_of_a_branch_may_be_named_in_sleipnir_1_alone() -> None:
    nodes = "a: {type: llm, prompt: p, next: [b, end]}\nb: {type: end}"
    assert "[a] References non-existent node 'end' in 'next'" in errors(checked(nodes))
    assert found(nodes, top=ADDED) == []


@pytest.mark.conformance("BD-11")
def test_a_branch_may_lead_to_a_name_among_the_ends_of_its_node() -> None:
    nodes = (
        "a: {type: router, ends: {yes: b, no: end}, branch: [{when: state.ok, to: yes}, {else: no}]}\nb: {type: end}"
    )
    assert found(nodes) == []


@pytest.mark.conformance("V01")
def test_a_missing_body_of_a_map_is_named_in_the_words_of_its_author() -> None:
    theirs = "a: {type: map, over: '{{l}}', as: i, branch: x, collect_into: k, next: e}"
    added = "a: {type: map, for_each: '{{l}}', as: i, node: [x, y], collect: k, next: e}"
    assert errors(checked(f"{theirs}\n{E}")) == ["[a] References non-existent node 'x' in map 'branch'"]
    assert errors(checked(f"{added}\n{E}")) == [
        "[a] References non-existent node 'x' in map 'node'",
        "[a] References non-existent node 'y' in map 'node'",
    ]


# --- cycles and ends


@pytest.mark.parametrize(
    "nodes",
    [
        "a: {type: router, next: b}\nb: {type: router, next: a}",
        "a: {type: router, next: b}\nb: {type: join, wait_for: [a], next: a}",
        "a: {type: router, next: [b, c]}\nb: {type: router, next: a}\nc: {type: end}",
    ],
)
def test_a_cycle_without_a_way_out_is_an_error(nodes: str) -> None:
    (problem,) = [problem for problem in checked(nodes) if "Cycle" in problem.message]
    assert (problem.level, problem.message, problem.line) == ("error", "Cycle detected: a -> b -> a", 5)
    assert "limits.max_steps" in (problem.hint or "")


@pytest.mark.parametrize(
    ("way_out", "top"),
    [
        ("type: router, branch: {by: '{{x}}', to: {again: a}, default: e}", ""),
        ("type: router, branch: [{when: state.again, to: a}]", ""),
        ("type: script, script: s.py, ends: [a, e], next: a", ""),
        ("type: script, script: s.py, next: e, fallback: a", ADDED),
        ("type: approval, question: q, options: [y], routes: {y: a}, on_other: e", ADDED),
        ("type: router, next: a", "limits: {max_steps: 9}"),
    ],
)
def test_a_cycle_with_a_way_out_is_legal_in_sleipnir_1(way_out: str, top: str) -> None:
    nodes = f"a: {{type: llm, prompt: p, next: b}}\nb: {{{way_out}}}\n{E}"
    assert [line for line in found(nodes, top=top) if "error" in line] == []


@pytest.mark.conformance("V02")
def test_a_map_body_that_leads_back_is_a_cycle_in_lokis_format() -> None:
    nodes = "a: {type: map, over: '{{l}}', as: i, branch: b, collect_into: k, next: e}"
    nodes += f"\nb: {{type: llm, prompt: p, next: a}}\n{E}"
    assert "Cycle detected: a -> b -> a" in errors(checked(nodes))


@pytest.mark.conformance("BD-18")
def test_in_sleipnir_1_a_branch_ends_where_nothing_follows() -> None:
    assert found("a: {type: llm, prompt: p}", top=ADDED) == []
    assert len(found("a: {type: llm, prompt: p}")) == 2


# --- what a run can reach


@pytest.mark.conformance("BD-16", "V07")
def test_branches_ends_bodies_and_joins_lead_to_nodes() -> None:
    nodes = """
        a: {type: router, next: [b, c, m], branch: [{when: state.x, to: d}, {else: f}]}
        b: {type: script, script: s.py, ends: {go: g}}
        c: {type: llm, prompt: p}
        d: {type: end}
        f: {type: end}
        g: {type: end}
        j: {type: join, wait_for: [c, g]}
        m: {type: map, for_each: "{{l}}", as: i, node: [n], collect: k}
        n: {type: llm, prompt: p}
        lost: {type: llm, prompt: p, next: lost2}
        lost2: {type: end}
    """
    assert [line for line in found(nodes) if "unreachable" in line] == [
        f"warning [lost] {UNREACHABLE}",
        f"warning [lost2] {UNREACHABLE}",
    ]


# --- joins


NEVER = "the join can never fire"


@pytest.mark.conformance("BD-10", "BD-15")
@pytest.mark.parametrize(
    ("wait_for", "message"),
    [
        ("[b, x]", "References non-existent node 'x' in 'wait_for'"),
        ("[end]", "References non-existent node 'end' in 'wait_for'"),
        ("[j]", "the join waits for itself alone"),
        ("[b, lost]", f"{NEVER}: no declared edge leads to 'lost'"),
        ("[b, j]", f"{NEVER}: no declared edge leads to 'j'"),
        ("{from: [b, lost, l2], min: 2}", f"{NEVER}: no declared edge leads to 'l2', 'lost'"),
        ("[m]", f"{NEVER}: no declared edge leads to 'm'"),
    ],
)
def test_a_join_that_can_never_fire_is_an_error_with_its_line(wait_for: str, message: str) -> None:
    nodes = f"""
        a: {{type: map, for_each: "{{{{l}}}}", as: i, node: m, collect: k, next: b}}
        b: {{type: llm, prompt: p}}
        j: {{type: join, wait_for: {wait_for}, next: e}}
        lost: {{type: llm, prompt: p}}
        l2: {{type: llm, prompt: p}}
        m: {{type: llm, prompt: p}}
        e: {{type: end}}
    """
    problems = [problem for problem in checked(nodes) if problem.level == "error"]
    assert errors(problems) == [f"[j] {message}"]
    assert lines(problems) == {6}


def test_joins_that_wait_for_one_another_never_fire() -> None:
    nodes = "a: {type: router}\nb: {type: join, wait_for: [c, a]}\nc: {type: join, wait_for: [b, a]}"
    assert [line for line in found(nodes) if "error" in line] == [
        f"error [b] {NEVER}: no declared edge leads to 'c'",
        f"error [c] {NEVER}: no declared edge leads to 'b'",
    ]


@pytest.mark.parametrize(
    "nodes",
    [
        "a: {type: router, next: [b, c]}\nb: {type: router}\nc: {type: router}\n"
        "j: {type: join, wait_for: {from: [b, x], min: 1}}\nx: {type: router}",
        "a: {type: router, next: [b, j]}\nb: {type: router}\nj: {type: join, wait_for: [b, j]}",
        "a: {type: router, next: [b, c]}\nb: {type: router}\nc: {type: router}\n"
        "j: {type: join, wait_for: [[b], [c], [b, c]]}",
    ],
)
def test_a_join_that_enough_can_reach_is_no_error(nodes: str) -> None:
    assert [line for line in found(nodes) if "never" in line] == []


@pytest.mark.parametrize(
    ("d", "line"),
    [
        ("{type: router, next: [j, e]}", 8),
        ("{type: script, script: s.sh, fallback: j}", 8),
        ("{type: script, script: s.sh, ends: {done: j}, branch: {by: '{{x}}', to: {y: done}}}", 8),
    ],
)
def test_an_edge_past_a_join_is_an_error_that_names_both_ways_out(d: str, line: int) -> None:
    """Finding U2 of the second review."""
    nodes = f"""
        a: {{type: router, next: [b, c, d]}}
        b: {{type: router, next: j}}
        c: {{type: router, next: j}}
        d: {d}
        j: {{type: join, wait_for: [b, c], next: e}}
        e: {{type: end}}
    """
    problems = [problem for problem in checked(nodes) if "bypasses" in problem.message]
    assert {(problem.level, problem.message, problem.line) for problem in problems} == {
        ("error", "the edge to 'j' bypasses its join: 'j' waits for 'b', 'c', not 'd'", line - 1)
    }
    hint = "Add 'd' to the `wait_for` of 'j', or use another target for this edge."
    assert {problem.hint for problem in problems} == {hint}


def test_edges_from_all_that_a_join_waits_for_are_no_error() -> None:
    """Finding U2 of the second review."""
    nodes = """
        a: {type: router, next: [b, c, j]}
        b: {type: router, next: j}
        c: {type: router, next: [j]}
        j: {type: join, wait_for: [[b, c], [a]], next: e}
        e: {type: end}
    """
    assert [line for line in found(nodes) if "error" in line] == []


def test_a_source_that_code_may_choose_is_given_the_benefit_of_the_doubt() -> None:
    nodes = "a: {type: script, script: s.py}\nw: {type: llm, prompt: p}\nj: {type: join, wait_for: [w]}"
    assert f"warning [j] {NEVER}: no declared edge leads to 'w'" in found(nodes)


def test_a_join_without_sources_and_a_join_of_ends_are_pointed_out() -> None:
    nodes = "a: {type: router, next: [b, j]}\nb: {type: end}\nj: {type: join}\nk: {type: end, wait_for: [b]}"
    assert found(nodes) == [
        "warning [k] it waits for 'b': an end node ends its branch",
        "warning [j] join node has no `wait_for`: it waits for nothing",
    ]


# --- check 10: concurrency


def test_with_a_concurrency_of_zero_no_node_could_run() -> None:
    nodes = f"""
        a: {{type: map, over: "{{{{l}}}}", as: i, branch: b, collect_into: k, max_concurrency: 0, next: c}}
        c: {{type: map, for_each: "{{{{l}}}}", as: i, node: b, collect: k, max_parallel: 0, next: e}}
        b: {{type: llm, prompt: p}}
        {E}
    """
    problems = checked(nodes, top="settings: {max_concurrency: 0}")
    assert errors(problems) == [
        "settings.max_concurrency must be >= 1 (got 0); with 0 no node could ever run",
        "[a] map node's `max_concurrency` must be >= 1 (got 0); with 0 no item could ever run",
        "[c] map node's `max_parallel` must be >= 1 (got 0); with 0 no item could ever run",
    ]
    assert places(problems)[0] == (3, 12)
    assert errors(checked(E, start="e", top="limits: {max_steps: 0}")) == [
        "limits.max_steps must be >= 1 (got 0); with 0 no node could ever run"
    ]


# --- check 11: bodies of maps


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "type: approval, question: q, options: [y], routes: {y: e}, on_other: e",
            "[b] is of type approval: no person can be asked per item",
        ),
        ("type: input, question: q", "[b] is of type input: no person can be asked per item"),
        ("type: end", "[b] is of type end: an item cannot end the run"),
        (
            "type: map, over: '{{x}}', as: x, branch: c, collect_into: y",
            "[b] is of type map: maps do not nest; let the body be an agent with a map of its own",
        ),
        ("type: router", "[b] is of type router: it does nothing per item"),
        ("type: llm, prompt: p, next: e", "[b] has `next`, but the map decides where an item goes"),
        (
            "type: llm, prompt: p, branch: {by: '{{x}}'}",
            "[b] has `branch`, but the map decides where an item goes",
        ),
        ("type: llm, prompt: p, wait_for: [a]", "[b] has `wait_for`, but the map decides where an item goes"),
        ("type: llm, prompt: p, state_updates: {x: y}", "[b] writes 'x', but only 'output' is collected"),
        (
            "type: llm, prompt: p, output_schema: {properties: {x: {}}}",
            "[b] has an `output_schema` with properties; no item can write them",
        ),
    ],
)
def test_what_cannot_run_per_item_is_refused(body: str, message: str) -> None:
    nodes = "a: {type: map, over: '{{l}}', as: i, branch: b, collect_into: k, next: e}\n"
    nodes += f"b: {{{body}}}\nc: {{type: llm, prompt: p}}\n{E}"
    expected = message.replace("[b]", "map 'branch' node 'b'")
    assert [found for found in errors(checked(nodes)) if expected in found]


def test_within_a_chain_only_the_last_body_is_bound_to_the_result() -> None:
    nodes = f"""
        a: {{type: map, for_each: "{{{{l}}}}", as: i, node: [b, c], collect: k, output_key: o, next: e}}
        b: {{type: llm, prompt: "{{{{i}}}}", state_updates: {{x: y}}}}
        c: {{type: function, call: "f.py:g", state_updates: {{o: "{{{{x}}}}"}}}}
        {E}
    """
    assert found(nodes) == []


def test_the_item_and_its_result_have_names_of_their_own() -> None:
    node = (
        "a: {{type: map, for_each: '{{{{initial_prompt}}}}', as: i, node: b, collect: {}, output_key: {}, next: e}}\n"
    )
    rest = f"b: {{type: llm, prompt: p}}\n{E}"
    assert found(node.format("i", "o") + rest) == ["error [a] 'as' and 'collect' both name 'i'"]
    assert found(node.format("k", "i") + rest) == [
        "warning [a] 'as' and 'output_key' both name 'i': an item without a result is collected itself"
    ]


# --- checks 12 to 14: parallel branches


@pytest.mark.conformance("Y06")
@pytest.mark.parametrize(
    "person",
    ["type: input, question: q, next: e", "type: approval, question: q, options: [], routes: {}, on_other: e"],
)
def test_questions_in_a_parallel_branch_are_an_error_in_1_0_and_allowed_in_sleipnir_1(person: str) -> None:
    nodes = f"a: {{type: llm, prompt: p, next: [b, c]}}\nb: {{type: llm, prompt: p, next: e}}\nc: {{{person}}}\n{E}"
    kind = person.split()[1].rstrip(",")
    (problem,) = checked(nodes)
    assert (problem.level, problem.line, problem.column) == ("error", 4, 39)
    assert problem.message == f"'next' fans out to {kind} node 'c'; a parallel branch cannot wait for a person"
    assert found(nodes, top=ADDED) == []


def fan(b: str, c: str) -> str:
    return f"a: {{type: llm, prompt: p, next: [b, c]}}\nb: {{{b}, next: e}}\nc: {{{c}, next: e}}\n{E}"


WRITERS = [
    ("type: llm, prompt: p, state_updates: {k: x}", "type: script, script: s.sh, state_updates: {k: x}"),
    ("type: llm, prompt: p, output_schema: {properties: {k: {}}}", "type: llm, prompt: p, state_updates: {k: x}"),
    ("type: map, over: x, as: i, branch: e, collect_into: k", "type: llm, prompt: p, state_updates: {k: x}"),
]


@pytest.mark.conformance("Y03")
@pytest.mark.parametrize(("b", "c"), WRITERS)
def test_a_key_with_two_parallel_writers_needs_a_reducer(b: str, c: str) -> None:
    collisions = [problem for problem in checked(fan(b, c)) if "written by" in problem.message]
    assert errors(collisions) == ["[a] Key 'k' is written by 2 parallel branches but has no reducer declared (b, c)"]
    assert hints(collisions) == ["Add a reducer for 'k' to the graph's `reducers:` block, or rename one writer."]
    assert lines(collisions) == {4}
    for top in ("reducers: {k: append}", "state: {k: {type: list, reducer: append}}"):
        assert [line for line in found(fan(b, c), top=top) if "written by" in line] == []
    assert [line for line in found(fan(b, c), top=ADDED) if "written by" in line] == [
        "warning [a] key 'k' is written by parallel branches (b, c): the last write wins"
    ]


def test_a_parallel_script_declares_its_writes_if_loki_requires_it() -> None:
    nodes = fan("type: script, script: s.sh", "type: llm, prompt: p")
    assert found(nodes) == [
        "error [a] 'next' fans out to script node 'b', which has no 'state_updates': "
        "its writes cannot be compared with those of its siblings"
    ]
    assert found(nodes, top=ADDED) == []


@pytest.mark.parametrize(
    ("reader", "reads"),
    [
        ("type: llm, prompt: '{{k.x}}'", True),
        ("type: llm, prompt: p, state_updates: {z: '{{k}}'}", True),
        ("type: map, over: '{{k}}', as: i, branch: e, collect_into: z", True),
        ("type: llm, prompt: p, state_updates: {z: '{{output}}'}", False),
    ],
)
def test_a_branch_reads_nothing_of_its_siblings_writes(reader: str, reads: bool) -> None:
    nodes = fan("type: llm, prompt: p, state_updates: {k: x, output: x}", reader)
    message = "[c] reads 'k', which its parallel sibling 'b' writes in the same super-step"
    assert [line for line in found(nodes) if "reads" in line] == ([f"error {message}"] if reads else [])
    assert [line for line in found(nodes, top=ADDED) if "reads" in line] == ([f"warning {message}"] if reads else [])


@pytest.mark.conformance("Y01")
def test_branches_that_meet_again_are_right_in_both_versions() -> None:
    b, c = "type: llm, prompt: p, state_updates: {x: y}", "type: script, script: s.sh, state_updates: {z: y}"
    assert found(fan(b, c)) == found(fan(b, c), top=ADDED) == []


# --- conditions and labels


def test_a_condition_that_is_no_cel_is_an_error_at_its_place() -> None:
    nodes = "a: {type: router, branch: [{when: state.x >, to: b}, {when: x > 1, to: b}, {else: b}]}\nb: {type: end}"
    problems = checked(nodes)
    assert [(problem.line, problem.column) for problem in problems] == [(4, 31), (4, 57)]
    assert [problem.message.partition(":")[0] for problem in problems] == [
        "expression `state.x >`",
        "expression `x > 1`",
    ]


@pytest.mark.parametrize(
    ("branch", "expected"),
    [
        ("{by: fixed}", "warning [a] 'fixed' holds no placeholder: it always chooses the same label"),
        ("{by: fixed, many: true}", "error [a] 'fixed' is not a list of labels"),
        ("{by: '[\"b\"]', many: true}", "warning [a] '[\"b\"]' holds no placeholder: it always chooses the same label"),
    ],
)
def test_a_choice_without_a_key_of_the_state_is_pointed_out(branch: str, expected: str) -> None:
    nodes = f"a: {{type: router, next: b, branch: {branch}}}\nb: {{type: end}}"
    assert found(nodes) == [expected]


@pytest.mark.parametrize(
    ("a", "top"),
    [
        ("type: llm, prompt: p, output_schema: {properties: {mood: {enum: [good, bad]}}}", ""),
        ("type: router", "state: {mood: {type: string, schema: {enum: [good, bad]}}}"),
    ],
)
def test_labels_that_no_node_produces_and_labels_without_a_target(a: str, top: str) -> None:
    branch = "branch: {{by: '{{{{mood}}}}', to: {{good: e, bda: e}}{}}}"
    problems = checked(f"a: {{{a}, {branch.format('')}}}\n{E}", top=top)
    assert errors(problems) == ["[a] these labels have no target: 'bad'"]
    assert notices(problems) == ["[a] nothing produces the label 'bda'"]
    assert 'Did you mean "bad"?' in hints(problems)
    assert errors(checked(f"a: {{{a}, {branch.format(', default: e')}}}\n{E}", top=top)) == []


def test_a_flag_has_the_labels_true_and_false() -> None:
    nodes = "a: {type: router, branch: {by: '{{ok}}', to: {yes: b, false: b}}}\nb: {type: end}"
    assert found(nodes, top="state: {ok: bool}") == [
        "warning [a] nothing produces the label 'yes'",
        "error [a] these labels have no target: 'true'",
    ]


def test_ways_that_nothing_can_take_are_pointed_out() -> None:
    nodes = """
        a: {type: approval, question: q, options: [], routes: {}, on_other: r, branch: {by: "{{initial_prompt}}"}}
        b: {type: llm, prompt: p, ends: [e], next: e}
        e: {type: end, branch: {by: "{{initial_prompt}}"}}
        r: {type: router}
    """
    assert [line for line in found(nodes) if "unreachable" not in line] == [
        "warning [r] router node has neither `next` nor `branch`: its branch ends here",
        "warning [a] 'branch' has no effect on an approval node: its `routes` are its edges",
        "warning [b] 'ends' has no effect: a node of type llm chooses no label",
        "warning [e] 'branch' has no effect on an end node: nothing comes after it",
    ]


# --- code that branches name


def test_the_function_of_a_branch_is_looked_for_in_its_file(tmp_path: Path) -> None:
    in_folder(tmp_path, f_dot_py="def choose(state): ...\n")
    nodes = f"""
        a: {{type: router, branch: {{call: "f.py:chose"}}, next: b}}
        b: {{type: router, branch: {{call: "g.py:x"}}, next: c}}
        c: {{type: router, branch: {{call: "../f.py:x"}}, next: e}}
        {E}
    """
    problems = checked(nodes, folder=tmp_path)
    assert errors(problems) == [
        f"[b] Function file not found: '{tmp_path}/g.py'",
        "[a] 'f.py' does not define 'chose'",
        "[c] Function path '../f.py' leaves the agent's folder",
    ]
    assert places(problems)[0] == (5, 30)


# --- whatever an author writes

NAMES = st.sampled_from(["a", "b", "c", "d", "end", "x"])
BRANCH = st.one_of(
    st.fixed_dictionaries(
        {"by": st.sampled_from(["{{k}}", "k", "{{m}}"])},
        optional={"to": st.dictionaries(NAMES, NAMES), "default": NAMES, "many": st.booleans()},
    ),
    st.lists(st.fixed_dictionaries({"when": st.sampled_from(["state.k", "state.k >"]), "to": NAMES}), min_size=1),
)
WAIT = st.lists(NAMES, min_size=1) | st.lists(st.lists(NAMES, min_size=1), min_size=1)
EDGES = {
    "next": NAMES | st.lists(NAMES, min_size=1),
    "branch": BRANCH,
    "wait_for": WAIT,
    "ends": st.lists(NAMES, min_size=1) | st.dictionaries(NAMES, NAMES),
    "state_updates": st.dictionaries(NAMES, st.sampled_from(["{{k}}", "{{a}}"])),
}
SOME_MAP = st.fixed_dictionaries(
    {"type": st.just("map"), "for_each": st.just("{{k}}"), "as": NAMES, "node": st.lists(NAMES, min_size=1)}
    | {"collect": NAMES},
    optional={"next": EDGES["next"]},
)
PLAIN = [{"type": "router"}, {"type": "join"}, {"type": "llm", "prompt": "{{a}}"}, {"type": "end"}]
SOME_NODE = st.one_of(
    SOME_MAP, *(st.fixed_dictionaries({k: st.just(v) for k, v in node.items()}, optional=EDGES) for node in PLAIN)
)
DECLARED = st.sampled_from(["int", {"reducer": "sum", "default": "x"}, {"type": "f.py:M"}])
TOP = st.fixed_dictionaries(
    {},
    optional={
        "engine": st.sampled_from(["bsp", "dag"]),
        "state": st.dictionaries(
            NAMES, st.sampled_from(["int", {"reducer": "sum", "default": "x"}, {"type": "f.py:M"}])
        ),
        "reducers": st.dictionaries(NAMES, st.sampled_from(["sum", "no", "f.py:g"])),
    },
)


@settings(max_examples=examples(100), deadline=None)
@given(TOP, st.fixed_dictionaries({"a": SOME_NODE, "b": SOME_NODE, "c": SOME_NODE, "d": SOME_NODE}))
def test_checking_never_raises_and_names_a_line_for_all_it_finds(top: dict[str, Any], nodes: dict[str, Any]) -> None:
    loaded = parse(json.dumps({"name": "g", "start": "a", **top, "nodes": nodes}, indent=1), FILE)
    if loaded.graph is not None:
        assert all(problem.line for problem in check(loaded.graph, loaded.positions, FILE))


# --- routers of graphs in Python

ROUTED = "version: sleipnir/1\nstate: {k: any}\nstate_classes: ['g:S']"


def routed(nodes: str) -> list[tuple[int | None, int | None, str]]:
    problems = checked(nodes, top=ROUTED)
    return [(problem.line, problem.column, problem.message) for problem in problems]


def test_a_routers_target_is_an_edge_at_its_place_in_the_file() -> None:
    nodes = """
    a: {type: function, call: g:a, protocol: state_graph, routers: [{call: g:r, to: {y: b}}, {call: g:s, to: {y: c}}]}
    b: {type: function, call: "g:b", protocol: state_graph, next: a}
    """
    assert routed(nodes) == [(7, 109, "References non-existent node 'c' in 'routers'")]


def test_a_router_without_targets_may_lead_to_every_node() -> None:
    """Its code is installed, so nothing shows where it leads."""
    nodes = """
    a: {type: function, call: "g:a", protocol: state_graph, routers: [{call: "g:r"}]}
    b: {type: function, call: "g:b", protocol: state_graph}
    """
    assert routed(nodes) == []
    assert [message for _, _, message in routed(nodes.replace('"g:r"', '"g:r", to: {x: a}'))] == [UNREACHABLE]

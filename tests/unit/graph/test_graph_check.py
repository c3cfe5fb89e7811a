"""The rules about a graph as a whole: each message word for word, in its place, and all of them together."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

from sleipnir import graph
from sleipnir.errors import Problem
from sleipnir.graph.check import RULES, check, format_headline, validate
from tests.unit.graph.writing import FILE, checked, errors, graph_of, notices, shown, yaml_graph

UNREACHABLE = "Node is unreachable from the start node via declared edges (script `_next` routing is not analyzed)"
NO_END = "Graph has no end nodes; execution would never terminate"


def places(problems: list[Problem]) -> list[tuple[int | None, int | None]]:
    return [(problem.line, problem.column) for problem in problems]


def hints(problems: list[Problem]) -> list[str | None]:
    return [problem.hint for problem in problems]


def in_folder(folder: Path, **files: str) -> Path:
    """The folder, with files whose names have `__` for `/` and `_dot_` for a dot."""
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


# --- 1: references


@pytest.mark.conformance("V01")
def test_every_dangling_reference_is_an_error_that_names_the_key() -> None:
    found = checked(
        """
        a: {type: llm, prompt: p, next: x1, fallback: x2}
        b: {type: script, script: s.py, next: a2, fallback: x3}
        c: {type: approval, question: q, options: [y, n], routes: {y: x4, n: e}, on_other: x5, next: x6}
        d: {type: function, call: "m:f", next: e, fallback: x7}
        e: {type: end, next: x8}
        """
    )
    assert errors(found) == [
        "[a] References non-existent node 'x1' in 'next'",
        "[a] References non-existent node 'x2' in llm 'fallback'",
        "[b] References non-existent node 'a2' in 'next'",
        "[b] References non-existent node 'x3' in script 'fallback'",
        "[c] References non-existent node 'x6' in 'next'",
        "[c] References non-existent node 'x4' in approval 'routes'",
        "[c] References non-existent node 'x5' in approval 'on_other'",
        "[d] References non-existent node 'x7' in function 'fallback'",
        "[e] References non-existent node 'x8' in 'next'",
    ]
    assert places(found)[:6] == [(4, 29), (4, 39), (5, 35), (5, 45), (6, 90), (6, 62)]


def test_a_misspelt_target_is_answered_with_the_closest_node() -> None:
    (problem,) = checked("a: {type: llm, prompt: p, next: clasify}\nclassify: {type: end}\nother: {type: end}")[:1]
    assert str(problem) == (
        "g.yaml:4:29: [a] References non-existent node 'clasify' in 'next'\n    Did you mean \"classify\"?"
    )


def test_a_target_like_no_node_is_answered_with_the_nodes_there_are() -> None:
    (problem,) = checked("a: {type: llm, prompt: p, next: zzz}\nbee: {type: end}")[:1]
    assert problem.hint == "The nodes are: a, bee."


# --- 2: cycles


@pytest.mark.conformance("V02")
@pytest.mark.parametrize(
    ("nodes", "cycle", "place"),
    [
        ("a: {type: script, script: s.py, next: a}\ne: {type: end}", "a -> a", (4, 35)),
        ("a: {type: llm, prompt: p, next: b}\nb: {type: llm, prompt: p, next: a}", "a -> b -> a", (5, 29)),
        (
            "a: {type: llm, prompt: p, next: b}\nb: {type: script, script: s, next: e, fallback: a}\ne: {type: end}",
            "a -> b -> a",
            (5, 41),
        ),
        (
            "a: {type: llm, prompt: p, next: b}\n"
            "b: {type: approval, question: q, options: [y], routes: {y: a}, on_other: e}\ne: {type: end}",
            "a -> b -> a",
            (5, 59),
        ),
        (
            "a: {type: llm, prompt: p, next: b}\n"
            "b: {type: approval, question: q, options: [], routes: {}, on_other: a}\ne: {type: end}",
            "a -> b -> a",
            (5, 61),
        ),
        (
            "a: {type: end}\nb: {type: llm, prompt: p, next: c}\nc: {type: rag, documents: [d], next: b}",
            "b -> c -> b",
            (6, 34),
        ),
        (
            "a: {type: approval, question: q, options: [], routes: {}, on_other: e, next: a}\ne: {type: end}",
            "a -> a",
            (4, 74),
        ),
    ],
)
def test_a_cycle_of_declared_edges_is_an_error_that_spells_it_out(
    nodes: str, cycle: str, place: tuple[int, int]
) -> None:
    (found,) = [problem for problem in checked(nodes) if problem.message.startswith("Cycle")]
    assert (found.level, shown(found), places([found])) == ("error", f"Cycle detected: {cycle}", [place])


def test_only_the_first_cycle_is_named() -> None:
    nodes = "a: {type: llm, prompt: p, next: a}\nb: {type: llm, prompt: p, next: b}"
    assert [message for message in errors(checked(nodes)) if "Cycle" in message] == ["Cycle detected: a -> a"]


def test_paths_that_meet_again_are_no_cycle() -> None:
    nodes = """
        a: {type: script, script: s.py, next: b, fallback: c}
        b: {type: llm, prompt: p, next: d, fallback: c}
        c: {type: llm, prompt: p, next: d}
        d: {type: end}
    """
    assert checked(nodes) == []


def test_a_graph_with_very_many_paths_is_checked_at_once() -> None:
    rungs = [f"n{i}: {{type: script, script: s.py, next: n{i + 1}, fallback: m{i}}}" for i in range(64)]
    rungs += [f"m{i}: {{type: llm, prompt: p, next: n{i + 1}}}" for i in range(64)]
    assert checked("\n".join([*rungs, "n64: {type: end}"]), start="n0") == []


@pytest.mark.conformance("V03")
def test_a_loop_that_only_a_script_closes_is_allowed() -> None:
    assert checked("a: {type: script, script: loop.py, next: b}\nb: {type: end}") == []


def test_a_chain_longer_than_the_stack_is_checked() -> None:
    chain = "\n".join(f"n{i}: {{type: llm, prompt: p, next: n{i + 1}}}" for i in range(3000))
    assert checked(f"{chain}\nn3000: {{type: end}}", start="n0") == []


# --- 3, 4: reachability and ends


@pytest.mark.conformance("V07")
def test_an_unreachable_node_is_a_warning() -> None:
    found = checked("a: {type: end}\nb: {type: llm, prompt: p, next: c}\nc: {type: end}")
    assert notices(found) == [f"[b] {UNREACHABLE}", f"[c] {UNREACHABLE}"]
    assert (errors(found), places(found)) == ([], [(5, 3), (6, 3)])


@pytest.mark.conformance("V04")
def test_a_graph_without_an_end_is_an_error() -> None:
    found = checked("a: {type: script, script: s.py}")
    assert [shown(problem) for problem in found] == [NO_END]
    assert places(found) == [(3, 1)]


@pytest.mark.conformance("V07")
def test_an_end_that_only_a_script_may_reach_is_a_warning() -> None:
    found = checked("a: {type: script, script: s.py}\nb: {type: end}")
    assert errors(found) == []
    assert notices(found) == [
        f"[b] {UNREACHABLE}",
        "No end node is reachable from the start node via declared edges (a script's `_next` may still route to one)",
    ]


@pytest.mark.conformance("E01")
def test_a_graph_may_have_several_ends() -> None:
    nodes = """
        a: {type: approval, question: q, options: [y], routes: {y: b}, on_other: c}
        b: {type: end, output: "{{initial_prompt}}"}
        c: {type: end}
    """
    assert checked(nodes) == []


# --- 5: scripts and functions


@pytest.mark.conformance("V05")
def test_a_missing_script_is_an_error_with_its_full_path_and_the_closest_file(tmp_path: Path) -> None:
    in_folder(tmp_path, scripts__decide_dot_py="", scripts__readme_dot_md="", report_dot_sh="")
    nodes = """
        a: {type: script, script: scripts/decid.py, next: b}
        b: {type: script, script: reprot.sh, next: c}
        c: {type: script, script: scripts, next: d}
        d: {type: script, script: scripts/decide.py, next: e}
        e: {type: end}
    """
    found = [problem for problem in checked(nodes, folder=tmp_path) if problem.level == "error"]
    assert errors(found) == [
        f"[a] Script file not found: '{tmp_path}/scripts/decid.py'",
        f"[b] Script file not found: '{tmp_path}/reprot.sh'",
        f"[c] Script file not found: '{tmp_path}/scripts'",
    ]
    assert hints(found)[:2] == ['Did you mean "scripts/decide.py"?', 'Did you mean "report.sh"?']
    assert places(found)[:1] == [(4, 21)]


def test_without_a_folder_files_are_not_checked() -> None:
    assert checked("a: {type: script, script: nowhere.py, next: b}\nb: {type: end}") == []


def test_a_name_that_no_file_can_have_is_a_missing_file(tmp_path: Path) -> None:
    nodes = f'a: {{type: script, script: "x\\0.py", next: b}}\nb: {{type: script, script: {"x" * 300}.py}}'
    found = errors(checked(nodes, folder=tmp_path))
    assert [message[:26] for message in found[1:]] == ["[a] Script file not found:", "[b] Script file not found:"]


def test_a_function_is_looked_for_in_its_file(tmp_path: Path) -> None:
    in_folder(
        tmp_path,
        f_dot_py="import os.path as p\ntry:\n    def run(): ...\nfinally:\n    made = 1\n",
        g_dot_py="from x import *",
    )
    nodes = """
        a: {type: function, call: "f.py:run", next: b}
        b: {type: function, call: "f.py:rnu", next: c}
        c: {type: function, call: "h.py:run", next: d}
        d: {type: function, call: "package.module:run", next: e}
        e: {type: function, call: "g.py:run", next: f}
        f: {type: function, call: "f.py:made", next: g}
        g: {type: end}
    """
    found = checked(nodes, folder=tmp_path)
    assert errors(found) == [
        f"[c] Function file not found: '{tmp_path}/h.py'",
        "[b] 'f.py' does not define 'rnu'",
    ]
    assert 'Did you mean "run"?' in hints(found)


@pytest.mark.parametrize("path", ["../x.py", "/etc/x.py", "scripts/../../x.py", "a/b/../../../x.py"])
def test_code_outside_the_folder_is_refused_even_where_it_exists(tmp_path: Path, path: str) -> None:
    folder = in_folder(tmp_path / "agent", scripts__s_dot_py="")
    in_folder(tmp_path, x_dot_py="def f(): ...")
    nodes = f"a: {{type: script, script: {path}, next: b}}\nb: {{type: function, call: '{path}:f', next: c}}"
    nodes += "\nc: {type: end}"
    expected = [
        f"[a] Script path '{path}' leaves the agent's folder",
        f"[b] Function path '{path}' leaves the agent's folder",
    ]
    assert errors(checked(nodes, folder=folder)) == expected
    assert errors(checked(nodes)) == expected


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    folder = in_folder(tmp_path / "agent", s_dot_py="")
    in_folder(tmp_path, x_dot_py="")
    (folder / "link.py").symlink_to(tmp_path / "x.py")
    (folder / "inner.py").symlink_to(folder / "s.py")
    nodes = "a: {type: script, script: link.py, next: b}\nb: {type: script, script: inner.py, next: c}\nc: {type: end}"
    assert errors(checked(nodes, folder=folder)) == ["[a] Script path 'link.py' leaves the agent's folder"]


@pytest.mark.parametrize("path", ["scripts/../s.py", "./s.py", "s.py"])
def test_a_path_inside_the_folder_is_accepted_in_any_notation(tmp_path: Path, path: str) -> None:
    folder = in_folder(tmp_path, s_dot_py="", scripts__x_dot_py="")
    assert checked(f"a: {{type: script, script: {path}, next: b}}\nb: {{type: end}}", folder=folder) == []


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("s.js", "Unsupported script extension '.js' for 's.js'"),
        ("s.PY", "Unsupported script extension '.PY' for 's.PY'"),
        ("run", "Script file has no file extension for 'run'"),
    ],
)
def test_a_script_without_a_runtime_is_an_error(script: str, message: str) -> None:
    found = checked(f"a: {{type: script, script: {script}, next: b}}\nb: {{type: end}}")
    assert [shown(problem) for problem in found] == [f"[a] {message}"]
    assert found[0].level == "error"


# --- 6: agents


@pytest.mark.conformance("V06", "L04")
def test_an_agent_is_found_by_the_name_of_its_folder(tmp_path: Path) -> None:
    in_folder(tmp_path, researcher__graph_dot_yaml="name: other", legacy__config_dot_yaml="", both__config_dot_yaml="")
    in_folder(tmp_path, both__graph_dot_yaml="", empty__notes_dot_md="", me__graph_dot_yaml="")
    nodes = """
        a: {type: agent, agent: researcher, prompt: p, next: b}
        b: {type: agent, agent: legacy, prompt: p, next: c}
        c: {type: agent, agent: both, prompt: p, next: d}
        d: {type: agent, agent: me, prompt: p, next: e}
        e: {type: agent, agent: other, prompt: p, next: f}
        f: {type: agent, agent: reseacher, prompt: p, next: g}
        g: {type: agent, agent: empty, prompt: p, next: h}
        h: {type: end}
    """
    found = checked(nodes, folder=tmp_path / "me", agents=lambda name: tmp_path / name)
    assert errors(found) == [
        "[e] Agent 'other' not found (directory missing)",
        "[f] Agent 'reseacher' not found (directory missing)",
        "[g] Agent 'empty' has neither a config.yaml nor a graph.yaml",
    ]
    assert hints(found)[1] == 'Did you mean "researcher"?'
    assert places(found)[0] == (8, 20)


@pytest.mark.conformance("V06")
def test_an_unknown_agent_is_an_error() -> None:
    nodes = "a: {type: agent, agent: x, prompt: p, next: b}\nb: {type: end}"
    assert errors(checked(nodes, agents=lambda name: None)) == ["[a] Agent 'x' not found (directory missing)"]
    assert checked(nodes) == []


# --- 7: approvals


@pytest.mark.conformance("A06")
def test_an_option_without_a_route_is_an_error_and_a_route_without_an_option_a_warning() -> None:
    nodes = """
        a: {type: approval, question: q, options: [yes, no, Maybe], routes: {yes: b, maybe: b, later: b}, on_other: b}
        b: {type: end}
    """
    found = checked(nodes)
    assert errors(found) == [
        "[a] Approval option 'no' has no route defined",
        "[a] Approval option 'Maybe' has no route defined",
    ]
    assert notices(found) == [
        "[a] Route 'maybe' has no corresponding option",
        "[a] Route 'later' has no corresponding option",
    ]
    assert places(found) == [(4, 51), (4, 55), (4, 80), (4, 90)]
    assert hints(found)[2] == 'Did you mean "Maybe"?'


# --- 8: rag


@pytest.mark.conformance("K01")
def test_a_rag_node_without_documents_is_an_error() -> None:
    found = checked("a: {type: rag, documents: [], state_updates: {c: '{{output}}'}, next: b}\nb: {type: end}")
    assert [shown(problem) for problem in found] == [
        "[a] RAG node has no 'documents'; at least one knowledge source is required"
    ]
    assert (found[0].level, places(found)) == ("error", [(4, 18)])


@pytest.mark.conformance("K11")
def test_a_rag_node_whose_result_goes_nowhere_is_a_warning() -> None:
    found = checked("a: {type: rag, documents: [d], next: b}\nb: {type: end}")
    assert notices(found) == ["[a] RAG node has no 'state_updates'; its retrieval result will not be written to state"]


@pytest.mark.parametrize("name", ["rag", "config", "graph"])
def test_a_rag_node_cannot_be_called_like_a_file_of_its_folder(name: str) -> None:
    nodes = f"{name}: {{type: rag, documents: [d], state_updates: {{c: x}}, next: b}}\nb: {{type: end}}"
    assert errors(checked(nodes, start=name)) == [
        f"[{name}] a rag node cannot be called '{name}': its knowledge base would be the file {name}.yaml"
    ]
    assert checked(f"{name}: {{type: llm, prompt: p, next: b}}\nb: {{type: end}}", start=name) == []


# --- 9: tools and models

LLM = "a: {{type: llm, prompt: p, tools: [{}], next: b}}\nb: {{type: end}}"


@pytest.mark.parametrize(
    "tool",
    [
        "web",
        "web.sh",
        "fetch",
        "fetch.py",
        "calc.ts",
        "mcp:git-hub",
        "mcp_search_git-hub",
        "mcp_describe_git-hub",
        "mcp_invoke_git-hub",
        "user__ask",
        "user__select",
        "user__confirm",
        "user__input",
        "user__checkbox",
        "agent__send_message",
        "agent__check_inbox",
        "extra",
    ],
)
def test_a_tool_of_the_graph_is_known_with_and_without_its_extension(tmp_path: Path, tool: str) -> None:
    top = "global_tools: [web.sh, fetch, calc.ts]\nmcp_servers: [git-hub]"
    assert checked(LLM.format(tool), top=top, folder=tmp_path, tools=["extra.sh"]) == []


@pytest.mark.parametrize("tool", ["agent__spawn", "agent__collect", "agent__task_create", "agent__reply_escalation"])
def test_only_a_graph_with_an_agent_node_has_the_tools_to_spawn_agents(tmp_path: Path, tool: str) -> None:
    assert errors(checked(LLM.format(tool), folder=tmp_path)) == [f"[a] llm node references unknown tool '{tool}'"]
    nodes = LLM.format(tool) + "\nc: {type: agent, agent: x, prompt: p, next: b}"
    assert errors(checked(nodes, folder=tmp_path)) == []


def test_unknown_tools_and_servers_are_errors_in_their_place(tmp_path: Path) -> None:
    found = checked(
        LLM.format("wbe_search, 'mcp:gihub', todo__add, mcp_search_x"),
        top="global_tools: [web_search.sh]\nmcp_servers: [github]",
        folder=tmp_path,
    )
    assert errors(found) == [
        "[a] llm node references unknown tool 'wbe_search'",
        "[a] llm node references unknown MCP server 'mcp:gihub'",
        "[a] llm node references unknown tool 'todo__add'",
        "[a] llm node references unknown tool 'mcp_search_x'",
    ]
    assert places(found) == [(6, 37), (6, 49), (6, 62), (6, 73)]
    assert hints(found)[:2] == ['Did you mean "web_search"?', 'Did you mean "github"?']


def test_without_a_folder_only_servers_are_checked() -> None:
    assert errors(checked(LLM.format("anything, 'mcp:x'"))) == ["[a] llm node references unknown MCP server 'mcp:x'"]


TOOLS_SH = """#!/usr/bin/env bash
# @describe Tools
helper() { :; }
# @cmd Get the weather
# @option --city!
get-weather() { :; }
# @cmd Not for the model
_private() { :; }
# @cmd
function say_hello_ { :; }
# @cmd nested
a::b() { :; }
  # @cmd indented comments are no tags
plain() { :; }
"""
TOOLS_PY = (
    "import os\ndef getIP(): ...\nasync def later(): ...\ndef _hidden(): ...\nclass Tool:\n    def method(self): ...\n"
)
TOOLS_TS = "export function add(a: number) {}\nexport async function fetchPage() {}\nfunction hidden() {}\n"


@pytest.mark.conformance("L06")
@pytest.mark.parametrize(
    ("file", "text", "known", "unknown"),
    [
        ("tools_dot_sh", TOOLS_SH, ["get_weather", "say_hello"], ["helper", "_private", "private", "b", "plain"]),
        ("tools_dot_py", TOOLS_PY, ["getIP", "getip", "later"], ["_hidden", "method", "Tool", "os"]),
        ("tools_dot_ts", TOOLS_TS, ["add", "fetchPage", "fetchpage"], ["hidden"]),
    ],
)
def test_the_functions_of_the_tools_file_are_known(
    tmp_path: Path, file: str, text: str, known: list[str], unknown: list[str]
) -> None:
    folder = in_folder(tmp_path, **{file: text})
    found = errors(checked(LLM.format(", ".join(known + unknown)), folder=folder))
    assert found == [f"[a] llm node references unknown tool '{name}'" for name in unknown]


def test_only_the_first_tools_file_counts(tmp_path: Path) -> None:
    folder = in_folder(tmp_path, tools_dot_sh="# @cmd x\none() { :; }\n", tools_dot_py="def two(): ...")
    assert errors(checked(LLM.format("one, two"), folder=folder)) == ["[a] llm node references unknown tool 'two'"]


def test_a_broken_tools_file_is_named_as_the_reason(tmp_path: Path) -> None:
    (found,) = checked(LLM.format("x"), folder=in_folder(tmp_path, tools_dot_py="def x(:\n"))
    assert found.hint is not None
    assert found.hint.startswith("tools.py cannot be read, so its functions are not known: ")


# --- rules that Loki does not have


def test_a_step_without_a_next_is_a_warning() -> None:
    nodes = """
        a: {type: agent, agent: x, prompt: p}
        b: {type: input, question: q}
        c: {type: llm, prompt: p, fallback: g}
        d: {type: rag, documents: [d], state_updates: {c: x}}
        e: {type: script, script: s.py}
        f: {type: function, call: "m:f"}
        g: {type: end}
    """
    found = [problem for problem in checked(nodes) if "next`;" in problem.message]
    assert notices(found) == [
        "[a] agent node has no `next`; a run that gets here fails",
        "[b] input node has no `next`; a run that gets here fails",
        "[c] llm node has no `next`; a run that gets here fails",
        "[d] rag node has no `next`; a run that gets here fails",
    ]


NO_NEXT = "a: {type: router, next: [b, c]}\nb: {type: llm, prompt: p}\nc: {type: join, wait_for: [a]}\nd: {type: end}"


def test_a_step_without_a_next_ends_its_branch_in_sleipnir_1() -> None:
    both = {
        version: [problem for problem in checked(NO_NEXT, top=f"version: {version}") if problem.code == "SLP305"]
        for version in ("'1.0'", "sleipnir/1")
    }
    assert notices(both["'1.0'"]) == [
        "[b] llm node has no `next`; a run that gets here fails",
        "[c] join node has no `next`; a run that gets here fails",
    ]
    assert both["sleipnir/1"] == []


def test_what_waits_at_a_join_that_cannot_fire_is_not_called_unreachable_too() -> None:
    nodes = "a: {type: router, next: [b]}\nb: {type: router}\nc: {type: router}\nd: {type: join, wait_for: [b, c]}"
    found = [problem for problem in checked(nodes, top="version: sleipnir/1") if problem.code in ("SLP303", "SLP314")]
    assert [(problem.code, problem.node) for problem in found] == [("SLP303", "c"), ("SLP314", "d")]


@pytest.mark.parametrize(
    ("target", "hint"),
    [
        ("contine", 'Did you mean "continue"?'),
        ("hlep", 'Did you mean "help"?'),
        ("stop_it", "The targets are: fail, continue, a, b, help."),
    ],
)
def test_a_misspelt_on_error_is_compared_with_rules_and_nodes(target: str, hint: str) -> None:
    for where in ("top", "node"):
        top = f"version: sleipnir/1\n{f'on_error: {target}' if where == 'top' else ''}"
        more = f", on_error: {target}" if where == "node" else ""
        nodes = f"a: {{type: llm, prompt: p{more}, next: b}}\nb: {{type: end}}\nhelp: {{type: end}}"
        found = [problem for problem in checked(nodes, top=top) if "on_error" in problem.message]
        assert [problem.hint for problem in found] == [hint]


def test_end_is_a_target_in_sleipnir_1_alone() -> None:
    """Finding U3 of the second review."""
    nodes = "a: {type: llm, prompt: p, next: end}"
    assert checked(nodes, top="version: sleipnir/1") == []
    [found] = [problem for problem in checked(nodes) if problem.code == "SLP301"]
    assert found.hint == "In version 1.0 a run ends at a node: `end: {type: end}`. In sleipnir/1 this ends the branch."


def test_a_branch_and_a_join_take_the_place_of_a_next() -> None:
    nodes = """
        a: {type: llm, prompt: p, branch: {by: "{{x}}", to: {again: b}, default: b}}
        b: {type: router, next: [c, d]}
        c: {type: llm, prompt: p}
        d: {type: rag, documents: [d], state_updates: {y: x}}
        e: {type: join, wait_for: [c, d], next: f}
        f: {type: end}
    """
    found = checked(nodes, top="version: '1.0'")
    assert notices(problem for problem in found if problem.code == "SLP305") == []


INPUT = "a: {{type: input, question: q, validation: '{}', next: b}}\nb: {{type: end}}"


@pytest.mark.parametrize(
    "rule", ["len(input) > 0", " len(input)>=3 ", "len(input) <5", "len(input) <= 10", "len(input)==4"]
)
def test_a_rule_about_the_length_is_taken(rule: str) -> None:
    assert checked(INPUT.format(rule)) == []


@pytest.mark.conformance("I06")
@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("input > 3", "Unsupported validation expression 'input > 3'; only `len(input) OP N` is supported"),
        (
            "len( input ) > 3",
            "Unsupported validation expression 'len( input ) > 3'; only `len(input) OP N` is supported",
        ),
        ("len(input)", "No comparison operator in validation expression 'len(input)'"),
        ("len(input) != 3", "No comparison operator in validation expression 'len(input) != 3'"),
        ("len(input) > x", "Invalid right-hand side in validation 'len(input) > x'"),
        ("len(input) > -1", "Invalid right-hand side in validation 'len(input) > -1'"),
        ("len(input) > 1 and 2", "Invalid right-hand side in validation 'len(input) > 1 and 2'"),
        ("len(input) =< 3", "No comparison operator in validation expression 'len(input) =< 3'"),
    ],
)
def test_any_other_validation_is_a_warning_before_the_run(rule: str, message: str) -> None:
    found = checked(INPUT.format(rule))
    assert [(problem.level, shown(problem)) for problem in found] == [("warning", f"[a] {message}")]


@pytest.mark.parametrize(
    ("schema", "complaint", "column"),
    [
        ("{type: strin}", "'strin' is not valid under any of the given schemas", 47),
        ("{type: object, properties: {a: {type: [string, nope]}}}", "is not valid under any of the given schemas", 83),
        ("{properties: [a]}", r"\['a'\] is not of type 'object'", 47),
        ("{required: a}", "'a' is not of type 'array'", 47),
        ("{pattern: '('}", r"'\(' is not a 'regex'", 47),
        ("{$schema: 5}", r"'\$schema' must be text", 47),
    ],
)
def test_an_output_schema_must_be_a_json_schema(schema: str, complaint: str, column: int) -> None:
    found = checked(
        f"a: {{type: llm, prompt: p, next: b, output_schema: {schema}}}\n"
        f"b: {{type: agent, agent: x, next: c, prompt: p, output_schema: {schema}}}\nc: {{type: end}}"
    )
    assert [problem.node for problem in found] == ["a", "b"]
    assert all(re.search(rf"^output_schema is not a valid JSON Schema: .*{complaint}", p.message) for p in found)
    assert found[0].column is not None
    assert found[0].column >= column


def test_a_sound_output_schema_is_taken() -> None:
    schema = (
        '{$schema: "http://json-schema.org/draft-07/schema#", type: object, properties: {a: {type: [string, "null"]}}}'
    )
    assert checked(f"a: {{type: llm, prompt: p, next: b, output_schema: {schema}}}\nb: {{type: end}}") == []


# --- the whole


@pytest.mark.conformance("V08")
def test_all_findings_come_together_in_the_order_of_the_rules() -> None:
    nodes = """
        a: {type: llm, prompt: p, next: x, model: m}
        b: {type: rag, documents: []}
        c: {type: approval, question: q, options: [y], routes: {n: c}, on_other: c}
    """
    found = checked(nodes, folder=Path("nowhere"), agents=lambda name: None)
    assert [shown(problem) for problem in found] == [
        "[a] References non-existent node 'x' in 'next'",
        "Cycle detected: c -> c",
        f"[b] {UNREACHABLE}",
        f"[c] {UNREACHABLE}",
        NO_END,
        "[c] Approval option 'y' has no route defined",
        "[c] Route 'n' has no corresponding option",
        "[b] RAG node has no 'documents'; at least one knowledge source is required",
        "[b] RAG node has no 'state_updates'; its retrieval result will not be written to state",
        "[a] llm node references unknown model 'm'",
        "[b] rag node has no `next`; a run that gets here fails",
    ]


@pytest.mark.conformance("V08")
def test_the_headline_counts_the_errors_and_leaves_warnings_out() -> None:
    found = checked("a: {type: llm, prompt: p, next: x}\nb: {type: rag, documents: [d]}")
    assert format_headline(found) == (
        f"Graph validation failed with 2 error(s):\n  [a] References non-existent node 'x' in 'next'\n  {NO_END}"
    )


def test_every_rule_is_in_the_list_and_states_what_it_promises() -> None:
    modules = [importlib.import_module(f"sleipnir.graph.{each.name}") for each in pkgutil.iter_modules(graph.__path__)]
    written = [
        rule
        for module in modules
        for name, rule in vars(module).items()
        if re.match(r"(every|no|some|declared)_", name) and getattr(rule, "__module__", "") == module.__name__
    ]
    assert sorted(rule.__name__ for rule in RULES) == sorted(rule.__name__ for rule in written)


def test_a_graph_without_positions_is_checked_too() -> None:
    (problem,) = check(graph_of(yaml_graph("a: {type: script, script: s.py}")), {}, FILE)
    assert str(problem).splitlines()[0] == f"g.yaml: {NO_END}"


def test_validate_reports_problems_of_parts_and_of_the_graph_in_file_order(tmp_path: Path) -> None:
    text = yaml_graph("b: {type: end, ouput: x}\na: {type: script, script: s.py, next: c}", top="vrsion: 1")
    in_folder(tmp_path, graph_dot_yaml=text)
    expected = [
        f"{tmp_path}/graph.yaml:3:1: warning: unknown key 'vrsion' is ignored",
        f"{tmp_path}/graph.yaml:5:3: warning: [b] {UNREACHABLE}",
        f"{tmp_path}/graph.yaml:5:18: warning: [b] unknown key 'ouput' is ignored",
        f"{tmp_path}/graph.yaml:6:21: [a] Script file not found: '{tmp_path}/s.py'",
        f"{tmp_path}/graph.yaml:6:35: [a] References non-existent node 'c' in 'next'",
    ]
    for path in (tmp_path, tmp_path / "graph.yaml"):
        found = [str(problem).splitlines()[0] for problem in validate(path)]
        assert [line for line in found if "No end node is" not in line] == expected


def test_validate_reports_problems_of_parts_and_of_the_complete_graph_in_one_pass(tmp_path: Path) -> None:
    """Finding U3 of the second review."""
    in_folder(tmp_path, graph_dot_yaml=yaml_graph("a: {type: llm, next: nowhere}"))
    assert errors(validate(tmp_path)) == [
        "Graph has no end nodes; execution would never terminate",
        "[a] missing field `prompt`",
        "[a] References non-existent node 'nowhere' in 'next'",
    ]

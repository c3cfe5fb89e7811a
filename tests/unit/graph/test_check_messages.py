"""Messages in the state of a graph.yaml: the built-in keys, and what is refused (spec/graph-package.md F03, F04)."""

from __future__ import annotations

from textwrap import indent

import pytest

from sleipnir.graph.check import check
from sleipnir.graph.load import load_graph, parse
from sleipnir.graph.message_keys import BUILT_IN, as_openai, calls_of, last_with_calls
from sleipnir.graph.model import LlmNode
from sleipnir.graph.placeholders import keys_read, render, scoped
from sleipnir.graph.state import initial
from sleipnir.graph.template import state_read_by, updated_by
from sleipnir.runs.initial_state import state_of_turn


def graph(nodes: str, *, state: str = "{messages: messages}", version: str = "sleipnir/1") -> str:
    return f"name: g\nversion: {version}\nstart: ask\nstate: {state}\nnodes:\n{indent(nodes, '  ')}\n"


def findings(text: str) -> list[str]:
    loaded = parse(text, "graph.yaml")
    found = [*loaded.problems, *(check(loaded.graph, loaded.positions, "graph.yaml") if loaded.graph else ())]
    return [f"{each.line} {each.code} {each.message}" for each in found if each.level == "error"]


def test_a_graph_with_messages_has_the_built_in_keys_and_the_prompt_is_the_users_input() -> None:
    read = load_graph(graph("ask: {type: llm}"), "graph.yaml", "g")
    assert read.has_messages
    assert read.state.keys() == {"messages", *BUILT_IN}
    begin = initial(read, {"initial_prompt": "hello"})
    assert (begin["user_input"], begin["messages"], begin["last_response"]) == ("hello", [], "")
    assert initial(read, {"initial_prompt": "hello", "user_input": "other"})["user_input"] == "other"


@pytest.mark.parametrize(
    "state", ["{chat: messages}", "{messages: list}", "{messages: {type: messages, reducer: last}}"]
)
def test_other_graphs_keep_the_keys_that_they_declare(state: str) -> None:
    read = load_graph(graph("ask: {type: llm, prompt: hi}", state=state), "graph.yaml", "g")
    assert not read.has_messages
    assert "user_input" not in initial(read, {"initial_prompt": "hello"})
    assert len(read.state) == 1


def test_version_1_0_has_neither() -> None:
    text = graph("ask: {type: llm, prompt: hi, next: end}\nend: {type: end}", version='"1.0"')
    assert not load_graph(text, "graph.yaml", "g").has_messages
    without_prompt = graph("ask: {type: llm, next: end}\nend: {type: end}", version='"1.0"')
    assert findings(without_prompt) == ["6 SLP202 missing field `prompt`"]
    added = graph("ask: {type: llm, prompt: hi, input: auto, next: end}\nend: {type: end}", version='"1.0"')
    assert findings(added) == ["6 SLP218 'input' needs version sleipnir/1"]


def test_each_turn_of_a_thread_begins_with_its_own_prompt() -> None:
    read = load_graph(graph("ask: {type: llm}"), "graph.yaml", "g")
    before = initial(read, {"initial_prompt": "first"}) | {"user_input": "", "messages": [{"role": "user"}]}
    begin = state_of_turn(read, "second", {}, before, 10_000)
    assert (begin["user_input"], begin["messages"]) == ("second", [{"role": "user"}])


def test_a_node_reads_what_it_may_send() -> None:
    read = load_graph(
        graph('ask: {type: llm, user_input_key: q2, placeholders: trpc, instructions: "{a} {{b?}} {c d}"}'),
        "graph.yaml",
        "g",
    )
    expected = {"messages", "one_shot_messages", "one_shot_messages_by_node", "q2", "a", "b"}
    assert state_read_by(read.nodes["ask"]) == expected


def test_a_prompt_and_an_input_exclude_each_other() -> None:
    text = graph("ask: {type: llm, prompt: hi, input: auto}")
    assert findings(text) == ["6 SLP240 'input' has no effect on an llm node with a prompt"]


def test_without_messages_an_llm_node_needs_a_prompt() -> None:
    assert findings(graph("ask: {type: llm}", state="{}")) == ["6 SLP202 missing field `prompt`"]


def test_built_in_keys_keep_their_types() -> None:
    text = graph("ask: {type: llm}", state="{messages: messages, user_input: int, last_response: string}")
    assert findings(text) == [
        "4 SLP820 state key 'user_input' belongs to the messages of the state, and is of type string"
    ]


@pytest.mark.parametrize(
    ("steps", "error"),
    [
        ("[{op: clear}]", "operation 'clear' on messages does not exist; available are append, replace_last_user, "),
        ("[{op: append, content: x}]", "operation 'append' on messages needs a `role`"),
        ("[{op: remove}]", "operation 'remove' on messages needs an `id`"),
        ("[{content: x}]", "a message has a `role`"),
        ("{op: replace_last_user}", "operation 'replace_last_user' on messages needs a `content`"),
    ],
)
def test_an_operation_that_cannot_be_is_an_error_at_its_place(steps: str, error: str) -> None:
    [found] = findings(graph(f"ask:\n  type: llm\n  state_updates:\n    messages: {steps}"))
    assert found.startswith(f"9 SLP821 {error}")


@pytest.mark.parametrize(
    ("example", "error"),
    [
        ("{role: system, content: x}", "'system' is no role of an example: there are user and assistant"),
        ("{role: user}", "an example must have a `role` and a `content`, and nothing else"),
        ('{role: user, content: ""}', "the content of an example is a text"),
    ],
)
def test_an_example_that_is_no_message_is_an_error_at_its_place(example: str, error: str) -> None:
    fine = "{role: user, content: x}"
    assert findings(graph(f"ask:\n  type: llm\n  few_shot: [{fine}]")) == []
    [found] = findings(graph(f"ask:\n  type: llm\n  few_shot:\n    - {fine}\n    - {example}"))
    assert found == f"10 SLP821 {error}"


def test_updates_that_are_no_texts_are_rendered_at_any_depth() -> None:
    nodes = """ask:
  type: llm
  state_updates:
    text: "{{output}}"
    found: {said: "{{text}} {{old[0]}}", all: ["{{output}}", 1, null]}
"""
    node = load_graph(graph(nodes), "graph.yaml", "g").nodes["ask"]
    assert isinstance(node, LlmNode)
    assert updated_by(node, {"old": ["x"]}, 'a "word"') == {
        "text": 'a "word"',
        "found": {"said": 'a "word" x', "all": ['a "word"', 1, None]},
    }


def test_scopes_that_there_are_not_are_refused() -> None:
    text = "{user:tier?} {temp:a} {app:name} {invocation:b?} {runtime:x?} {artifact.file}"
    nodes = f'ask: {{type: llm, placeholders: trpc, instructions: "{text}"}}'
    assert [each.partition("'")[2] for each in findings(graph(nodes))] == [
        "{runtime:x?}' reads a scope that runs do not have",
        "{artifact.file}' reads a scope that runs do not have",
    ]


def test_placeholders_read_values_of_the_state_and_of_one_run() -> None:
    state = {"topic": "bells", "temp:found": {"n": 1}, "invocation:case": "a", "temp:empty": ""}
    text = "{topic} {{topic}} {temp:found} {invocation:case?} [{temp:gone?}] {temp:gone} {{temp:empty}} {a:b} {temp: x}"
    assert render(text, state) == 'bells bells {"n":1} a [] {temp:gone}  {a:b} {temp: x}'
    assert keys_read(text) == {"topic", "temp:found", "invocation:case", "temp:gone", "temp:empty"}
    assert scoped(text) == []


def test_a_setting_of_a_model_is_given_once() -> None:
    nodes = "ask: {type: llm, temperature: 0.5, generation: {temperature: 0.1, top_p: 1.0}}"
    assert findings(graph(nodes)) == ["6 SLP240 'temperature' and 'generation.temperature' set the same value"]
    assert findings(graph("ask: {type: llm, generation: {heat: 1}}")) == ["6 SLP203 unknown key 'heat'"]


def test_an_item_of_a_map_needs_a_prompt() -> None:
    nodes = 'ask: {type: map, over: "{{many}}", as: one, branch: each, collect_into: all}\neach: {type: llm}'
    assert findings(graph(nodes, state="{messages: messages, many: list}")) == [
        "6 SLP321 map 'ask' runs llm node 'each', which has no `prompt`: an item cannot add messages"
    ]


CALL = {"id": "1", "type": "function", "function": {"name": "ring", "arguments": '{"n":1}'}}


def test_tool_calls_are_read_in_both_forms() -> None:
    own = {"role": "assistant", "tool_calls": [{"id": "1", "name": "ring", "args": {"n": 1}, "type": "tool_call"}]}
    other = {"role": "assistant", "tool_calls": [CALL]}
    assert [call.name for call in calls_of(own)] == [call.name for call in calls_of(other)] == ["ring"]
    assert as_openai({**own, "id": "x"})["tool_calls"][0]["function"] == {"name": "ring", "arguments": '{"n": 1}'}
    for wrong in (None, "text", {"role": "user"}, {"tool_calls": "x"}, {"tool_calls": ["x"]}):
        assert calls_of(wrong) == []


@pytest.mark.conformance("TL-03")
def test_the_newest_message_with_calls_counts_unless_a_user_has_written_since() -> None:
    calling, user, tool = {"role": "assistant", "tool_calls": [CALL]}, {"role": "user"}, {"role": "tool"}
    assert last_with_calls([user, calling, user, calling, tool]) == 3
    assert last_with_calls([calling, user]) is None
    assert last_with_calls([]) is None


TOOLS = """ask: {type: llm, tools_node: work}
work: {type: tools, next: ask, %s}"""


def test_a_tools_node_makes_a_loop_with_a_way_out() -> None:
    assert findings(graph(TOOLS % "tools: [{name: a, external: true}]")) == []


@pytest.mark.conformance("BD-09", "TL-11")
@pytest.mark.parametrize(
    ("nodes", "error"),
    [
        ("ask: {type: llm, tools_node: work}", "6 SLP301 References non-existent node 'work' in 'tools_node'"),
        (
            "ask: {type: llm, branch: {tools: work, default: end}}",
            "6 SLP301 References non-existent node 'work' in 'tools'",
        ),
        (
            "ask: {type: llm, tools_node: work}\nwork: {type: router, next: ask}",
            "6 SLP350 'work' in 'tools_node' is no node of type tools, but of type router",
        ),
        (
            "ask: {type: llm, prompt: hi, tools_node: work}\nwork: {type: tools, tools: [], next: ask}",
            "6 SLP350 an llm node with a prompt executes its tools itself, and has no `tools_node`",
        ),
        (TOOLS % "tools: [a, a]", "7 SLP650 tool 'a' is listed twice"),
        (
            TOOLS % "tools: [user__input]",
            "7 SLP650 tool 'user__input' needs an llm node with a prompt, which executes its tools itself",
        ),
        (TOOLS % "tools: [{name: a}]", "7 SLP241 tool 'a' does not say who executes it"),
        (
            TOOLS % 'tools: [{name: a, external: true, call: "a.py:b"}]',
            "7 SLP241 tool 'a' does not say who executes it",
        ),
        (TOOLS % "tools: [{name: a, external: true, schema: {type: 5}}]", "7 SLP650 the schema of tool 'a' is not "),
        (
            TOOLS % "tools: [a, b], parallel: {groups: [{tools: [a]}, {tools: [a, b]}]}",
            "7 SLP650 tool 'a' is in two groups",
        ),
        (TOOLS % "tools: [a], parallel: {groups: [{tools: [b]}]}", "7 SLP650 tool 'b' is not in the tools of 'work'"),
        (TOOLS % "tools: [a], parallel: {max: 0}", "7 SLP201 'parallel.max' must be at least 1, got 0"),
        (TOOLS % "tools: [a], parallel: 3", "7 SLP201 'parallel' must be true, false or a mapping, got 3"),
        (TOOLS % "tools: [a], permissions: {b: deny}", "7 SLP650 tool 'b' is not in the tools of 'work'"),
        (
            TOOLS % "tools: [a], permissions: {a: maybe}",
            "7 SLP201 'permissions.a' must be `allow`, `deny` or `ask`, got the text 'maybe'",
        ),
    ],
)
def test_mistakes_at_a_tools_node_are_errors_at_their_place(nodes: str, error: str) -> None:
    [found] = findings(graph(nodes))
    assert found.startswith(error)


def test_tools_nodes_and_their_branch_need_messages() -> None:
    nodes = "ask: {type: tools, tools: [a]}"
    [found] = findings(graph(nodes, state="{}"))
    assert found == "6 SLP350 tools node 'ask' reads the messages of the state, which this graph does not have"
    branch = parse(
        graph("ask: {type: router, branch: {tools: x, default: x}}\nx: {type: end}", state="{}"), "graph.yaml"
    )
    assert branch.graph is not None
    [warning] = check(branch.graph, branch.positions, "graph.yaml")
    assert (warning.level, warning.code) == ("warning", "SLP350")


def test_version_1_0_has_no_tools_node() -> None:
    text = graph("ask: {type: tools, tools: [a], next: end}\nend: {type: end}", version='"1.0"')
    assert findings(text) == ["6 SLP208 node type 'tools' needs version sleipnir/1"]
    branch = graph("ask: {type: router, branch: {tools: end}}\nend: {type: end}", version='"1.0"')
    assert findings(branch) == ["6 SLP218 'tools' needs version sleipnir/1"]


def test_a_node_that_adds_messages_has_no_cache() -> None:
    [found] = findings(graph("ask: {type: llm, cache: true}"))
    assert "it adds its reply to messages" in found

"""Which messages of earlier turns a turn of a thread begins with (spec/graph-package.md F50, F51)."""

from __future__ import annotations

from operator import add
from typing import Annotated, Any, TypedDict

import pytest

from sleipnir import InMemorySaver, StateGraph
from sleipnir.commands import START
from sleipnir.graph.cache_key import state_wanted
from sleipnir.graph.check import check
from sleipnir.graph.history import at_start, sent_of
from sleipnir.graph.load import load_graph, parse
from sleipnir.graph.message_keys import Author, author_of, message_id
from sleipnir.graph.model import Graph, NodeCache
from sleipnir.runs.initial_state import state_of_turn

ROLES = {"s": "system", "u": "user", "h": "human", "a": "assistant", "t": "tool"}


def graph(keys: str, state: str = "{messages: messages}") -> Graph:
    return load_graph(
        f"name: g\nversion: sleipnir/1\nstart: e\nstate: {state}\n{keys}\nnodes: {{e: {{type: end}}}}", "f", "g"
    )


def messages(roles: str) -> list[dict[str, Any]]:
    return [{"role": ROLES[role], "content": str(number), "id": str(number)} for number, role in enumerate(roles)]


@pytest.mark.conformance("SE-04")
@pytest.mark.parametrize(
    ("most", "before", "left"),
    [
        (4, "uaua", "0123"),
        (3, "uaua", "23"),
        (4, "uatauaua", "4567"),
        (5, "uatauaua", "4567"),  # a turn does not begin in the middle of an earlier one
        (2, "uauatata", "234567"),  # the last turn stays whole
        (2, "ssuaua", "0145"),  # system messages at the front stay
        (2, "hahaha", "45"),
        (2, "aaaa", "23"),
        (9, "", ""),
    ],
)
def test_the_newest_messages_stay_by_whole_turns(most: int, before: str, left: str) -> None:
    begin = at_start(graph(f"session: {{max_history: {most}}}"), {"messages": messages(before), "a": 1})
    assert begin["a"] == 1
    assert "".join(each["content"] for each in begin["messages"]) == left


@pytest.mark.parametrize(
    ("keys", "left"), [("history: full", 4), ("history: request", 0), ("history: isolated_request", 0), ("", 4)]
)
def test_a_turn_begins_with_all_messages_or_with_none(keys: str, left: int) -> None:
    read, before = graph(keys), {"messages": messages("uaua"), "last_response": "x"}
    begin = state_of_turn(read, "next", {}, before, 10_000)
    assert (len(begin["messages"]), begin["user_input"], begin["last_response"]) == (left, "next", "x")
    given = state_of_turn(read, "next", {"messages": messages("u")}, before, 10_000)
    assert len(given["messages"]) == 1, "messages that are given replace all"


@pytest.mark.conformance("SE-06")
def test_given_values_replace_those_of_the_thread_and_these_those_of_the_graph() -> None:
    read = graph("initial_state: {a: graph, b: graph, c: graph}")
    before = {"messages": messages("ua"), "a": "thread", "b": "thread", "user_input": "of the last turn"}
    begin = state_of_turn(read, "next", {"a": "given"}, before, 10_000)
    assert {key: begin[key] for key in "abc"} == {"a": "given", "b": "thread", "c": "graph"}
    assert (begin["messages"], begin["user_input"]) == (before["messages"], "next")


def test_other_states_and_values_stay_as_they_are() -> None:
    before = {"messages": "text"}
    assert at_start(graph("history: request"), before) is before
    assert at_start(graph(""), before) is before


class State(TypedDict):
    messages: Annotated[list, add]


def say(state: State) -> dict[str, Any]:
    return {"messages": [{"role": "ai", "content": f"saw {len(state['messages'])}"}]}


@pytest.mark.parametrize(
    ("options", "seen"),
    [({}, [1, 3, 5]), ({"history": "request"}, [1, 1, 1]), ({"session": {"max_history": 2}}, [1, 3, 3])],
)
def test_calls_in_process_begin_with_the_same_messages(options: dict[str, Any], seen: list[int]) -> None:
    made = StateGraph(State).add_node(say).add_edge(START, "say").compile(checkpointer=InMemorySaver(), **options)
    config = {"configurable": {"thread_id": "t"}}
    turns = [made.invoke({"messages": [{"role": "human", "content": "hi"}]}, config) for _ in seen]
    assert [turn["messages"][-1]["content"] for turn in turns] == [f"saw {number}" for number in seen]


@pytest.mark.parametrize(
    ("keys", "state", "problem"),
    [
        (
            "history: none",
            "{messages: messages}",
            "5:1 SLP201 'history' must be `full`, `request`, `isolated_request` or `isolated_invocation`, got the text "
            "'none'",
        ),
        (
            "session: {max_history: 0}",
            "{messages: messages}",
            "5:11 SLP201 'session.max_history' must be at least 1, got 0",
        ),
        ("history: request", "{a: int}", "5:1 SLP421 'history' has no effect: the state has no messages"),
        (
            "session: {max_history: 3}",
            "{a: int}",
            "5:11 SLP421 'session.max_history' has no effect: the state has no messages",
        ),
        (
            "session: {summary: true}",
            "{messages: messages}",
            "5:11 SLP201 'session.summary' must hold a mapping with `enabled`, `max_words` and `template`, got true",
        ),
        (
            "session: {summary: {max_words: 0}}",
            "{messages: messages}",
            "5:21 SLP201 'session.summary.max_words' must be at least 1, got 0",
        ),
        (
            "session: {summary: {words: 5}}",
            "{messages: messages}",
            "5:21 SLP203 unknown key 'words'",
        ),
        (
            "session: {summary: {}}",
            "{messages: messages}",
            "5:11 SLP422 'session.summary' has no effect: no llm node sends the messages",
        ),
    ],
)
def test_each_mistake_is_named_with_its_place(keys: str, state: str, problem: str) -> None:
    text = f"name: g\nversion: sleipnir/1\nstart: e\nstate: {state}\n{keys}\nnodes: {{e: {{type: end}}}}"
    loaded = parse(text, "graph.yaml")
    found = [*loaded.problems, *(check(loaded.graph, loaded.positions, "graph.yaml") if loaded.graph else ())]
    assert [f"{each.line}:{each.column} {each.code} {each.message}" for each in found] == [problem]


SENDING = "name: g\nversion: sleipnir/1\nstart: a\nstate: STATE\n{KEYS}\nnodes: {a: {type: llm, model: openai:m}}"


@pytest.mark.parametrize(
    ("keys", "state", "problem"),
    [
        (
            "history: request\nsession: {summary: {}}",
            "{messages: messages}",
            "6:11 SLP422 'session.summary' has no effect with `history: request`: no earlier messages are sent",
        ),
        (
            'session: {summary: {template: "before: {{ summary }}"}}',
            "{messages: messages}",
            "5:21 SLP422 'session.summary.template' must hold `{{summary}}` and no other placeholder",
        ),
        (
            'session: {summary: {template: "{{summary}} of {{topic}}"}}',
            "{messages: messages}",
            "5:21 SLP422 'session.summary.template' must hold `{{summary}}` and no other placeholder",
        ),
        (
            "session: {summary: {}}",
            "{messages: messages, _summary: string}",
            "4:29 SLP422 state key '_summary' belongs to `session.summary`",
        ),
        ("history: request\nsession: {summary: {enabled: false}}", "{messages: messages}", None),
        ('session: {summary: {template: "So far: {{summary}}"}}', "{messages: messages}", None),
    ],
)
def test_each_mistake_of_a_summary_is_named_with_its_place(keys: str, state: str, problem: str | None) -> None:
    loaded = parse(SENDING.replace("STATE", state).replace("{KEYS}", keys), "graph.yaml")
    assert loaded.graph is not None
    found = [*loaded.problems, *check(loaded.graph, loaded.positions, "graph.yaml")]
    errors = [f"{each.line}:{each.column} {each.code} {each.message}" for each in found if each.level == "error"]
    assert errors == ([] if problem is None else [problem])


def test_with_a_summary_no_message_is_dropped() -> None:
    before = {"messages": messages("uauaua")}
    summarised = graph("session: {max_history: 2, summary: {}}")
    assert at_start(summarised, before) is before
    off = graph("session: {max_history: 2, summary: {enabled: false}}")
    assert len(at_start(off, before)["messages"]) == 2


def test_only_nodes_of_graphs_with_summaries_read_them() -> None:
    sending = SENDING.replace("STATE", "{messages: messages}")
    for keys, reads in (("", False), ("session: {summary: {}}", True), ("session: {summary: {enabled: false}}", False)):
        read = parse(sending.replace("{KEYS}", keys), "graph.yaml").graph
        assert read is not None
        assert ("_summary" in (state_wanted(NodeCache(), read.nodes["a"], read) or ())) == reads


@pytest.mark.parametrize(
    ("mode", "own", "sent"),
    [
        ("full", Author("r"), "0123456"), ("request", Author("r"), "0123456"),
        ("isolated_request", Author("r"), "01256"), ("isolated_invocation", Author("r"), "0156"),
        ("isolated_request", Author("c", "critic"), "0345"), ("isolated_invocation", Author("c", "critic"), "035"),
    ],
)  # fmt: skip
def test_isolated_nodes_send_their_own_messages_and_the_last_one_of_a_user(mode: str, own: Author, sent: str) -> None:
    ids = ["by-hand", "r/1/user", "x/9/reply", "c/1/reply/critic", "d/2/0/critic", "r/2/user", "r/12/reply"]
    before = [{"role": "user" if "user" in id_ else "assistant", "id": id_} for id_ in ids]
    kept = sent_of(graph(f"history: {mode}"), before, own, "g")
    assert "".join(str(before.index(dict(each))) for each in kept) == sent


def test_the_author_of_a_message_is_in_its_id() -> None:
    for author in (
        Author.of("r", "a", 0),
        Author.of("r", "a", 1),
        Author.of("r", "a/sub", 2),
        Author.of("r", "a/sub", 0),
    ):
        assert author_of({"id": message_id(author, 12, "reply")}) == author
    assert message_id(Author.of("r", "a", 0), 3, "0") == "r/3/0"
    assert message_id(Author.of("r", "a/sub", 2), 3, "user") == "r/3/user/a"
    for other in ({"id": "r/3/other"}, {"id": "3"}, {"id": 4}, {}, "text"):
        assert author_of(other) is None

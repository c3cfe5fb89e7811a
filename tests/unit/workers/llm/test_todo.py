"""An agent's todo list: what each of its tools answers, and that a conversation makes one list (spec 5)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sleipnir.graph.tools import TODO_TOOLS
from sleipnir_workers.llm.reply import Message
from sleipnir_workers.llm.todo import Todo, TodoList, declaration

TWO = TodoList("ship", (Todo(1, "write"), Todo(2, "test", done=True)))


def said(calls: Sequence[tuple[str, Any]], results: Sequence[Any] = ()) -> list[Message]:
    """One reply with calls, and what came of them."""
    functions = [{"name": name, "arguments": json.dumps(arguments)} for name, arguments in calls]
    asked = [{"id": f"c{n}", "type": "function", "function": function} for n, function in enumerate(functions)]
    told = [{"role": "tool", "tool_call_id": f"c{n}", "content": json.dumps(each)} for n, each in enumerate(results)]
    return [{"role": "assistant", "content": None, "tool_calls": asked}, *told]


@pytest.mark.conformance("D01")
@pytest.mark.parametrize(
    ("before", "name", "arguments", "result", "after"),
    [
        (TWO, "todo__init", {"goal": "g"}, {"status": "ok", "message": "Initialized new todo list"}, TodoList("g")),
        (TWO, "todo__init", {}, {"status": "ok", "message": "Initialized new todo list"}, TodoList()),
        (TWO, "todo__init", {"goal": 3}, {"status": "ok", "message": "Initialized new todo list"}, TodoList()),
        (TodoList(), "todo__add", {"task": "a"}, {"status": "ok", "id": 1}, TodoList("", (Todo(1, "a"),))),
        (TWO, "todo__add", {"task": "a"}, {"status": "ok", "id": 3}, TodoList("ship", (*TWO.todos, Todo(3, "a")))),
        (TWO, "todo__add", {"task": ""}, {"error": "task description is required"}, TWO),
        (TWO, "todo__add", {}, {"error": "task description is required"}, TWO),
        (TWO, "todo__add", {"task": ["a"]}, {"error": "task description is required"}, TWO),
        (
            TWO, "todo__done", {"id": 1}, {"status": "ok", "message": "Marked todo 1 as done"},
            TodoList("ship", (Todo(1, "write", True), Todo(2, "test", True))),
        ),
        (
            TWO, "todo__done", {"id": "1"}, {"status": "ok", "message": "Marked todo 1 as done"},
            TodoList("ship", (Todo(1, "write", True), Todo(2, "test", True))),
        ),
        (TWO, "todo__done", {"id": 2}, {"status": "ok", "message": "Marked todo 2 as done"}, TWO),
        (TWO, "todo__done", {"id": 2.0}, {"status": "ok", "message": "Marked todo 2 as done"}, TWO),
        (TWO, "todo__done", {"id": 9}, {"error": "Todo 9 not found"}, TWO),
        (TodoList(), "todo__done", {"id": 1}, {"error": "Todo 1 not found"}, TodoList()),
        (TWO, "todo__done", {}, {"error": "id is required and must be a number"}, TWO),
        (TWO, "todo__done", {"id": "one"}, {"error": "id is required and must be a number"}, TWO),
        (TWO, "todo__done", {"id": "9" * 5000}, {"error": "id is required and must be a number"}, TWO),
        (TWO, "todo__done", {"id": 1.5}, {"error": "id is required and must be a number"}, TWO),
        (TWO, "todo__done", {"id": float("inf")}, {"error": "id is required and must be a number"}, TWO),
        (TWO, "todo__done", {"id": True}, {"error": "id is required and must be a number"}, TWO),
        (TWO, "todo__done", {"id": None}, {"error": "id is required and must be a number"}, TWO),
        (
            TWO, "todo__list", {},
            {"goal": "ship", "todos": [
                {"id": 1, "desc": "write", "done": False}, {"id": 2, "desc": "test", "done": True},
            ]},
            TWO,
        ),
        (TodoList("ship"), "todo__list", {}, {"goal": "", "todos": []}, TodoList("ship")),
        (TodoList(), "todo__list", {"x": 1}, {"goal": "", "todos": []}, TodoList()),
        (TWO, "todo__clear", {}, {"status": "ok", "message": "Todo list cleared"}, TodoList()),
        (TodoList(), "todo__clear", {}, {"status": "ok", "message": "Todo list cleared"}, TodoList()),
        (TWO, "todo__add", ["a"], {"tool_call_error": "The call 'todo__add' has invalid arguments: [\"a\"]"}, TWO),
    ],
)  # fmt: skip
def test_each_call_gives_its_result_and_the_list_after_it(
    before: TodoList, name: str, arguments: Any, result: Any, after: TodoList
) -> None:
    assert before.after(name, json.dumps(arguments)) == (after, result)
    assert TodoList.of(said([(name, arguments)], [result]), before) == after


@pytest.mark.parametrize(("text", "shown"), [("{nope", "{nope"), ("[" * 99_999, "[" * 499 + "…")])
def test_arguments_that_are_no_object_change_nothing_and_the_model_reads_why(text: str, shown: str) -> None:
    result = {"tool_call_error": f"The call 'todo__clear' has invalid arguments: {shown}"}
    assert TWO.after("todo__clear", text) == (TWO, result)


@pytest.mark.parametrize("text", ["", " ", "null", "{}"])
def test_a_tool_without_parameters_takes_nothing_in_any_form(text: str) -> None:
    assert TWO.after("todo__clear", text)[0] == TodoList()


def test_half_a_surrogate_pair_can_be_stored() -> None:
    todos, _ = TodoList().after("todo__add", '{"task": "a\\ud800"}')
    assert todos.todos == (Todo(1, "a\ufffd"),)


@pytest.mark.conformance("D01")
def test_the_list_is_rendered_with_its_goal_its_progress_and_a_line_for_each_task() -> None:
    assert TWO.render() == "Goal: ship\nProgress: 1/2 completed\n  ○ 1. write\n  ✓ 2. test"
    assert TodoList().render() == "Progress: 0/0 completed"


@pytest.mark.conformance("D01")
def test_five_tools_with_their_parameters_are_declared_to_the_model() -> None:
    told = {name: declaration(name)["function"]["parameters"] for name in TODO_TOOLS}
    assert {name: parameters["required"] for name, parameters in told.items()} == {
        "todo__init": ["goal"], "todo__add": ["task"], "todo__done": ["id"], "todo__list": [], "todo__clear": [],
    }  # fmt: skip
    assert all(parameters["type"] == "object" for parameters in told.values())


ADD = ("todo__add", {"task": "a"})


@pytest.mark.parametrize("result", [{"tool_call_loop_alert": {}}, {"tool_call_error": "Auto-continue is not enabled."}])
def test_a_call_that_was_refused_counts_for_nothing(result: Any) -> None:
    conversation = said([ADD, ADD], [{"status": "ok", "id": 1}, result])
    assert TodoList.of(conversation).todos == (Todo(1, "a"),)


def test_ids_of_calls_that_come_again_in_another_reply_are_other_calls() -> None:
    first, second = said([ADD], [{"tool_call_error": "no"}]), said([ADD], [{"status": "ok", "id": 1}])
    assert TodoList.of([*first, *second]).todos == (Todo(1, "a"),)


def test_messages_of_others_and_other_tools_do_not_change_the_list() -> None:
    others: list[Message] = [
        {"role": "user", "content": "todo__add"}, {"role": "assistant", "content": "todo__add"},
        *said([("search", {"task": "x"}), ADD], ["found", {"status": "ok", "id": 1}]),
    ]  # fmt: skip
    assert TodoList.of(others).todos == (Todo(1, "a"),)


call = st.one_of(
    st.tuples(st.just("todo__add"), st.fixed_dictionaries({}, optional={"task": st.sampled_from(["", "a", "b"])})),
    st.tuples(st.just("todo__done"), st.fixed_dictionaries({}, optional={"id": st.sampled_from([1, 2, "2", "x", 9])})),
    st.tuples(st.sampled_from(["todo__init", "todo__list", "todo__clear", "search"]), st.just({"goal": "g"})),
)
reply = st.tuples(st.lists(call, max_size=4), st.booleans())


@given(st.lists(reply, max_size=6), st.integers(0, 6))
def test_replaying_the_beginning_and_then_the_rest_is_replaying_all(
    replies: list[tuple[list[tuple[str, Any]], bool]], cut: int
) -> None:
    todos, parts = TodoList(), []
    for calls, refused in replies:
        results = []
        for name, arguments in calls:
            if name in TODO_TOOLS and not refused:
                todos, result = todos.after(name, json.dumps(arguments))
                results.append(result)
            else:
                results.append({"tool_call_error": "refused"})
        parts.append(said(calls, results))
    whole, begun, rest = ([message for part in some for message in part] for some in (parts, parts[:cut], parts[cut:]))
    assert TodoList.of(whole) == todos == TodoList.of(rest, TodoList.of(begun))
    assert [todo.id for todo in todos.todos] == list(range(1, len(todos.todos) + 1))

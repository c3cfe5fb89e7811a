"""Scripts of the model server: which reply a request gets, and what is said of a script that is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sleipnir.errors import ConfigError
from sleipnir.testing import Call, Reply, Request, Rule, Script, load
from sleipnir.testing.script import parse
from tests.unit.testing.asking import turns

SEARCH = Reply(calls=[Call("search", {"q": "bells"})])


def request(prompt: str = "hi", *calls: tuple[str, str], model: str = "m", conversation: str | None = None) -> Request:
    return Request("/", None, {"model": model, "messages": turns(prompt, *calls)}, conversation)


def test_rules_come_first_then_the_replies_in_order_then_the_default() -> None:
    script = Script(rules=[Rule("pong", match="^ping")], replies=["a", "b"], default="more")
    choose = script.chooser()
    assert [choose(request(prompt)) for prompt in ("x", "ping", "y", "z", "ping", "z")] == [
        "a", "pong", "b", "more", "pong", "more",
    ]  # fmt: skip
    assert script.chooser()(request()) == "a"  # each follower begins anew


@pytest.mark.parametrize(
    ("rule", "applies", "does_not"),
    [
        ({"match": "b.*d"}, request("a b\nc d"), request("d b")),
        ({"match": "^found"}, request("go", ("search", "found")), request("found", ("search", "none"))),
        ({"model": "small"}, request(model="small"), request(model="smaller")),
        ({"turn": 2}, request("go", ("search", "")), request("go")),
        ({"tool_results": True}, request("go", ("search", "")), request("go")),
        ({"tool_results": False}, request("go"), request("go", ("search", ""))),
        ({"result_of": "search"}, request("go", ("search", "")), request("go", ("search", ""), ("read", ""))),
        ({"conversation": "a"}, request(conversation="a"), request()),
        ({"turn": 1, "match": "go"}, request("go"), request("stop")),
        ({}, request(), None),
    ],
)
def test_a_rule_answers_when_all_its_conditions_hold(rule: Any, applies: Request, does_not: Request | None) -> None:
    assert Rule("x", **rule).holds(applies)
    assert does_not is None or not Rule("x", **rule).holds(does_not)


def test_a_rule_can_answer_a_number_of_times_in_each_conversation() -> None:
    choose = Script(rules=[Rule(Reply(status=429), times=2), Rule("ok")]).chooser()
    said = [choose(request(conversation=key)) for key in ("a", "a", "b", "a", "b", "b")]
    busy = Reply(status=429)
    assert said == [busy, busy, busy, "ok", busy, "ok"]


YAML = """
rules:
  - turn: 1
    reply: {text: yes, calls: [{name: search, arguments: {q: bells}}, {name: read, arguments: '{"half'}]}
  - result_of: search
    times: 1
    reply: done
replies: [on, {status: 503, retry_after: 1.5, close: within}]
default: {text: null, delay_s: 0.5}
"""
PARSED = Script(
    rules=[
        Rule(Reply("yes", calls=[Call("search", {"q": "bells"}), Call("read", '{"half')]), turn=1),
        Rule("done", result_of="search", times=1),
    ],
    replies=["on", Reply(status=503, retry_after=1.5, close="within")],
    default=Reply(None, delay_s=0.5),
)


def test_a_yaml_file_equals_the_objects(tmp_path: Path) -> None:
    (tmp_path / "script.yaml").write_text(YAML)
    assert load(tmp_path / "script.yaml") == PARSED


def test_a_json_file_may_be_a_list_of_replies(tmp_path: Path) -> None:
    (tmp_path / "script.json").write_text(json.dumps(["a", {"text": "b", "hang": True}]))
    assert load(tmp_path / "script.json") == Script(replies=["a", Reply("b", hang=True)])


def test_a_python_file_answers_by_a_function(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("def answer(request):\n    return f'{request.prompt}!'\n")
    choose = load(tmp_path / "script.py")
    assert callable(choose)
    assert choose(request("ring")) == "ring!"


@pytest.mark.parametrize(
    ("data", "messages"),
    [
        ({"rule": []}, ["s: rule: Unexpected keyword argument"]),
        (["a", {"txt": "b"}], ["s: replies[1].txt: Unexpected keyword argument"]),
        ({"default": {"close": "soon"}}, ["s: default.close: Input should be 'before', 'reset' or 'within'"]),
        ({"rules": [{"match": "a"}]}, ["s: rules[0].reply: Field required"]),
        ({"rules": [{"reply": {"calls": [{}]}}]}, ["s: rules[0].reply.calls[0].name: Field required"]),
        ({"rules": [{"reply": "x", "turn": "first"}]}, ["s: rules[0].turn: Input should be a valid integer"]),
        ("text", ["s: Input should be"]),
    ],
)
def test_a_wrong_script_is_refused_with_the_place(data: Any, messages: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        parse(data, "s")
    lines = str(refused.value).splitlines()
    assert len(lines) == len(messages)
    assert all(line.startswith(message) for line, message in zip(lines, messages, strict=True)), lines


def test_a_pattern_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"match '\(' is not a pattern"):
        parse({"rules": [{"match": "(", "reply": "x"}]})


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.yaml", None, "cannot read the script"),
        ("bad.yaml", "a: [", "bad.yaml:2:1: "),
        ("twice.yaml", "default: a\ndefault: b", "twice.yaml:2:1: "),
        ("bad.json", "{", "bad.json: "),
        ("bad.py", "x = 1", "there is no function answer"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match=message):
        load(tmp_path / name)

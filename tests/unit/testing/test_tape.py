"""Recording and replaying the answers of models: what a tape holds, finds, and says of what it does not hold."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sleipnir.errors import ConfigError, NodeFailed
from sleipnir.settings import Settings
from sleipnir.testing.tape import ASKED, Tape, TapeMiss, digest_of
from tests.examples import examples

KEY = "sk-a-key-nobody-may-see"


def request(*texts: str, **fields: Any) -> dict[str, Any]:
    """The user says the first text, the model the second, and so on."""
    roles = ("user", "assistant") * len(texts)
    messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
    return {"model": "openai/gpt", "messages": messages, **fields}


def answer(text: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": text, "tool_calls": None}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    return {
        "id": "x",
        "object": "chat.completion",
        "created": 7,
        "model": "gpt",
        "choices": choices,
        "usage": {"n": 1.0},
    }


def tool(name: str, **properties: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}


# Recording and replaying


def test_a_recorded_answer_is_given_back_as_it_was(tmp_path: Path) -> None:
    tape = Tape.record(tmp_path / "new" / "tape")
    assert tape.find(request("hi")) is None
    file = tape.keep(request("hi"), answer("hello"))
    assert file.name == f"{digest_of(request('hi'))}.1.json"
    assert Tape.replay(tmp_path / "new" / "tape").find(request("hi")) == answer("hello")


def test_the_same_request_is_answered_in_the_order_of_the_recording_and_then_by_the_last(tmp_path: Path) -> None:
    tape = Tape.record(tmp_path)
    for text in ("a", "b"):
        tape.keep(request("hi"), answer(text))
    tape.keep(request("ho"), answer("c"))
    playing = Tape.replay(tmp_path)
    assert [playing.find(request("hi")) for _ in range(4)] == [answer(text) for text in "abbb"]
    assert playing.find(request("ho")) == answer("c")
    assert Tape.replay(tmp_path).find(request("hi")) == answer("a")


def test_neither_keys_nor_addresses_nor_other_fields_are_written(tmp_path: Path) -> None:
    tape = Tape.record(tmp_path)
    secret = {"api_key": KEY, "api_base": "http://10.0.0.1", "extra_headers": {"x": KEY}, "stream": True, "timeout": 3}
    file = tape.keep(request("hi", **secret), {**answer("hello"), "_hidden_params": {"api_key": KEY}})
    assert json.loads(file.read_text()) == {"version": 1, "request": request("hi"), "answer": answer("hello")}
    assert file.stat().st_mode & 0o777 == 0o600
    assert Tape.replay(tmp_path).find(request("hi")) == answer("hello")


def test_secrets_in_texts_are_taken_out_before_anything_is_written_or_compared(tmp_path: Path) -> None:
    def clean(text: str) -> str:
        return text.replace(KEY, "[redacted]")

    asked = request(f"my key is {KEY}", tools=[tool("t", key={"default": KEY})])
    file = Tape.record(tmp_path, clean).keep(asked, answer(f"so it is {KEY}"))
    assert KEY not in file.read_text()
    assert Tape.replay(tmp_path, clean).find(asked) == answer("so it is [redacted]")
    with pytest.raises(TapeMiss) as missed:
        Tape.replay(tmp_path, clean).find(request(f"mine is {KEY}"))
    assert KEY not in str(missed.value)


def test_text_that_is_not_unicode_comes_back(tmp_path: Path) -> None:
    asked = request("half a pair: \ud83d, ä, 日本")
    file = Tape.record(tmp_path).keep(asked, answer("\udc80"))
    assert "ä, 日本" in file.read_text(encoding="utf-8")
    assert Tape.replay(tmp_path).find(asked) == answer("\udc80")


def test_several_threads_record_every_answer_once(tmp_path: Path) -> None:
    tape = Tape.record(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: tape.keep(request("hi"), answer(str(number))), range(40)))
    playing = Tape.replay(tmp_path)
    assert sorted(int(given_text(playing.find(request("hi")))) for _ in range(40)) == list(range(40))
    assert {file.name.split(".")[1] for file in tmp_path.iterdir()} == {str(number) for number in range(1, 41)}


def given_text(found: dict[str, Any] | None) -> str:
    assert found is not None
    return str(found["choices"][0]["message"]["content"])


def test_the_settings_name_the_tape(tmp_path: Path) -> None:
    assert Tape.of(Settings()) is None
    recording = Tape.of(Settings(record=tmp_path))
    assert recording is not None and recording.is_recording
    recording.keep(request("hi"), answer("hello"))
    playing = Tape.of(Settings(replay=tmp_path))
    assert playing is not None and playing.find(request("hi")) == answer("hello")


def test_a_process_records_or_replays_and_the_folder_is_where_it_was_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="SLEIPNIR_RECORD is set too"):
        Settings.from_env({"SLEIPNIR_RECORD": "a", "SLEIPNIR_REPLAY": "b"})
    assert Settings.from_env({"SLEIPNIR_RECORD": "a"}).to_env() == {"SLEIPNIR_RECORD": str(Path.cwd() / "a")}


# What there is not


@pytest.mark.parametrize(
    ("recorded", "asked", "differs"),
    [
        (
            [request("count to 3"), request("count to 3", "1 2 3", "and now the words of it")],
            request("count to 3", "1 2 4", "and now the words of it"),
            'differs: message 2 (role assistant), at character 5: recorded "1 2 3", now "1 2 4". ',
        ),
        (
            [request("x" * 50 + "monday" + "y" * 50)],
            request("x" * 50 + "tuesday" + "y" * 50),
            f'at character 51: recorded …"{"x" * 30}monday{"y" * 24}"…, now …"{"x" * 30}tuesday{"y" * 23}"…. ',
        ),
        (
            [request("a", "b"), request("c")],
            request("a", "b", "go on"),
            'it has 2 messages, and this one continues with message 3 (role user): "go on". ',
        ),
        (
            [request("a", "b", "c" * 80)],
            request("a"),
            'this one has 1 messages, and the recorded one continues with message 2 (role assistant): "b". ',
        ),
        (
            [request("a", temperature=0.2, top_p=1), request("b")],
            request("a", temperature=0.7),
            "differs: temperature: recorded 0.2, now 0.7; top_p: recorded 1, now nothing. ",
        ),
        (
            [request("a", tools=[tool("one"), tool("two")])],
            request("a", tools=[tool("one")]),
            "differs: tools: recorded ['one', 'two'], now ['one']. ",
        ),
        (
            [request("a", tools=[tool("one"), tool("two")])],
            request("a", tools=[tool("one"), tool("two", q={"type": "string"})]),
            "differs: the declarations of the tools two. ",
        ),
        (
            [{"messages": [{"role": "tool", "tool_call_id": "a", "content": "1"}]}],
            {"messages": [{"role": "tool", "tool_call_id": "b", "content": "1"}]},
            'tool_call_id\\": \\"b\\"}". ',
        ),
        (
            [{"messages": [{"role": "system", "content": "1"}]}],
            {"messages": [{"role": "user", "content": "1"}]},
            "differs: message 1 (role user) has role system in the recording. ",
        ),
        ([request("a", temperature=1)], request("a", temperature=True), "temperature: recorded 1, now true. "),
    ],
)
def test_a_miss_reports_what_differs_from_the_nearest(tmp_path: Path, recorded: Any, asked: Any, differs: str) -> None:
    tape = Tape.record(tmp_path)
    for one in recorded:
        tape.keep(one, answer("x"))
    with pytest.raises(TapeMiss) as missed:
        Tape.replay(tmp_path).find(asked)
    assert differs in str(missed.value)
    assert f"the nearest of {len(recorded)} recorded requests" in str(missed.value)
    assert isinstance(missed.value, NodeFailed) and (missed.value.kind, missed.value.transient) == ("replay", False)


def test_a_folder_without_recordings_cannot_be_replayed(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(ConfigError, match="no recorded model answers in"):
            Tape.replay(folder)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot record model answers in"):
        Tape.record(tmp_path / "file")
    tape = Tape.record(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(ConfigError, match="cannot record a model's answer in"):
        tape.keep(request("hi"), answer("hello"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not a recorded model answer"),
        ('{"version": 1}', "'request'"),
        ("[]", "is not a recorded"),
        ("NEXT", "version 2"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: str, message: str) -> None:
    file = Tape.record(tmp_path).keep(request("hi"), answer("hello"))
    file.write_text(content if content != "NEXT" else file.read_text().replace('"version": 1', '"version": 2'))
    with pytest.raises(ConfigError, match=message) as refused:
        Tape.replay(tmp_path).find(request("hi"))
    assert str(file) in str(refused.value)


def test_files_that_are_half_written_or_hidden_are_not_looked_at(tmp_path: Path) -> None:
    Tape.record(tmp_path).keep(request("hi"), answer("hello"))
    for name in (".half.tmp", ".hidden.json", "README.md"):
        (tmp_path / name).write_text("{")
    with pytest.raises(TapeMiss, match="nearest of 1 recorded"):
        Tape.replay(tmp_path).find(request("ho"))


# Digests

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)
REQUESTS = st.fixed_dictionaries(
    {"model": st.text(), "messages": st.lists(st.dictionaries(st.text(), JSON, max_size=4), max_size=4)},
    optional={
        "temperature": st.floats(0, 2),
        "tools": st.lists(JSON, max_size=2),
        "response_format": st.dictionaries(st.text(), JSON, max_size=2),
        "api_key": st.text(),
    },
)


def shuffled(value: Any, chance: random.Random) -> Any:
    """The same value with the keys of every mapping in another order, and its lists as tuples."""
    if isinstance(value, dict):
        return {key: shuffled(value[key], chance) for key in chance.sample(list(value), len(value))}
    return tuple(shuffled(item, chance) for item in value) if isinstance(value, list) else value


@settings(max_examples=examples(50))
@given(asked=REQUESTS, chance=st.randoms(use_true_random=False))
def test_a_digest_does_not_depend_on_the_order_of_keys_or_the_way_through_json(asked: Any, chance: Any) -> None:
    digest = digest_of(asked)
    assert digest_of(shuffled(asked, chance)) == digest
    assert digest_of(json.loads(json.dumps(asked))) == digest


@settings(max_examples=examples(50))
@given(asked=REQUESTS, ignored=st.dictionaries(st.text().filter(lambda name: name not in ASKED), JSON, max_size=3))
def test_a_digest_does_not_depend_on_what_is_not_asked(asked: Any, ignored: Any) -> None:
    empty = {name: None for name in ASKED if name not in asked}
    assert digest_of({**ignored, **asked, **empty, "stream": True}) == digest_of(asked)


@settings(max_examples=examples(50))
@given(asked=REQUESTS, name=st.sampled_from(ASKED), value=JSON.filter(lambda value: value not in (None, [], {})))
def test_a_digest_depends_on_everything_that_is_asked(asked: Any, name: str, value: Any) -> None:
    changed = {**asked, name: [asked.get(name), value]}
    assert digest_of(changed) != digest_of(asked)


def test_a_digest_is_the_same_in_the_next_release() -> None:
    asked = request("hi", "hello", "ä", temperature=1.0, tools=[tool("t")])
    assert digest_of(asked) == "a84221e6fccc5657a01c"
    assert digest_of({**asked, "temperature": 1}) == "a84221e6fccc5657a01c"
    assert digest_of({**asked, "temperature": 0}) != digest_of({**asked, "temperature": None})

"""A run's stream beside a real scheduler and worker, and on the command line."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from sleipnir.cli.runs.follow import follow, print_result
from sleipnir.client.client import Client, Run
from sleipnir_workers.visits.live import LiveText
from tests.processes import Stack, wait_until, write_agent

GRAPH = """
name: talk
start: ask
nodes:
  ask: {type: input, question: "What about?", state_updates: {topic: "{{input}}"}, next: work}
  work: {type: script, script: work.sh, next: done}
  done: {type: end, output: "said"}
"""


@pytest.fixture(scope="module")
def talk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_agent(tmp_path_factory.mktemp("agents") / "talk", GRAPH, work_sh='echo \'{"a": 1, "b": 2}\'\n')


def say(client: Client, run: Run, *words: str) -> None:
    """As a model would, during the first visit, which waits for a person."""
    wait_until(lambda: run.gates(), "the first visit is open")
    with LiveText(client.store).open(run.id, "ask", run.gates()[0].seq, 1) as writer:
        for word in words:
            writer.write(word)


def text_of(events: list[Any]) -> str:
    return "".join(event.data["text"] for event in events if event.type == "text")


def test_a_stream_follows_a_run_from_before_it_begins_to_its_end_and_can_be_taken_up_anywhere(
    stack: Stack, talk: Path
) -> None:
    with stack.client() as client:
        run = client.submit(talk)
        stream = client.stream(run.id)
        first = next(stream)
        assert (first.type, first.mode) == ("run_started", "updates")
        say(client, run, "Hel", "lo")
        run.answer("bells")
        rest = list(stream)
        assert text_of(rest) == "Hello"
        assert [event.data["node"] for event in rest if event.type == "visit_closed"] == ["ask", "work", "done"]
        assert [event.data["keys"] for event in rest if event.type == "visit_closed"][:2] == [["topic"], ["a", "b"]]
        assert rest[-1].type == "run_ended"
        assert [event.type for event in rest].index("text") < [event.type for event in rest].index("visit_closed")
        for place, event in enumerate(rest):
            assert list(client.stream(run.id, cursor=event.id)) == rest[place + 1 :]


def test_with_stream_and_json_everything_is_a_line_and_the_result_is_the_last(
    stack: Stack, talk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with stack.client() as client:
        run = client.submit(talk)
        say(client, run, "Hello")
        follow(run, lambda gate: run.answer("bells", gate), stream=True, as_data=True)
        assert print_result(run, as_data=True, stream=True) == 0
    written = capsys.readouterr()
    found = [json.loads(line) for line in written.out.splitlines()]
    assert [line["data"]["text"] for line in found if line["type"] == "text" and line["data"]["text"]] == ["Hello"]
    assert found[-1]["type"] == "result"
    assert found[-1]["data"]["output"] == "said"
    assert "Hello" not in written.err
    assert "▸ work -> done" in written.err


@pytest.mark.parametrize(("stream", "shown"), [(None, False), (False, False), (True, True)])
def test_away_from_a_terminal_texts_are_shown_when_asked_for(
    stack: Stack, talk: Path, monkeypatch: pytest.MonkeyPatch, stream: bool | None, shown: bool
) -> None:
    fake = io.StringIO()
    with stack.client() as client:
        run = client.submit(talk)
        say(client, run, "Hello")
        monkeypatch.setattr(sys, "stderr", fake)
        follow(run, lambda gate: run.answer("bells", gate), stream=stream)
    assert ("      Hello\n" in fake.getvalue()) == shown
    assert "▸ graph done in" in fake.getvalue()

"""What the events of a run say, and what of them a caller sees (spec/graph-package.md F44, F45 and F58)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sleipnir.client.client import Client, Run
from sleipnir.runs.views import StreamEvent, StreamMode
from sleipnir.testing import ModelServer, Reply
from tests.processes import RedisServer, Stack, write_agent

TEXT = "".join(f"word{number:03} " for number in range(40))
GRAPH = """
name: report
version: sleipnir/1
start: work
model: openai:gpt-test
nodes:
  work: {type: function, call: "work.py:work", retry: {max_attempts: 2, initial_interval: 1ms},
         cache: {key: [n]}, next: draft}
  draft: {type: llm, prompt: draft, state_updates: {draft: "{{output}}"}, next: final}
  final: {type: llm, prompt: final, state_updates: {text: "{{output}}"}, next: e}
  e: {type: end, output: "{{text}}"}
"""
WORK = """
from pathlib import Path
from sleipnir import emit


def work(state):
    marker = Path(state["marker"])
    emit("begun", {"n": state["n"]})
    if not marker.exists():
        marker.touch()
        raise ConnectionError("not yet")
    emit("ended", object())
    return {"found": "a secret value"}
"""
MODES: tuple[StreamMode, ...] = (
    "messages", "custom", "updates", "tools", "events", "values", "tasks", "checkpoints", "debug",
)  # fmt: skip


def answers(request: Any) -> Reply:
    return Reply(TEXT if "final" in request.prompt else "a draft", piece_characters=8, pause_s=0.005)


@pytest.fixture(scope="module")
def client(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    home = tmp_path_factory.mktemp("events")
    with Stack(redis_server, home, key_prefix="events") as stack, ModelServer(answers) as model:
        stack.start_scheduler()
        stack.start_worker("worker", "functions,llm", env=model.env())
        with stack.client() as opened:
            yield opened


@pytest.fixture(scope="module")
def run(client: Client, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return ended(client, write_agent(tmp_path_factory.mktemp("agents") / "report", GRAPH, work_py=WORK), 1)


def ended(client: Client, agent: Path, n: int) -> Run:
    run = client.submit(agent, state={"marker": str(agent / ".marker"), "n": n}, cwd=agent)
    info = run.wait(90)
    assert info.status == "completed", info.error
    return run


def of(run: Run, type_: str, **options: Any) -> list[StreamEvent]:
    return [event for event in run.stream(None, **options) if event.type == type_]


@pytest.mark.conformance("EV-01", "EV-02")
def test_the_events_of_a_node_are_in_order_and_name_it(run: Run) -> None:
    """EV-01: a visit starts, tells and calls what it does, and closes with the keys that it wrote, which is its update
    of the channels. EV-02: the author is the node of the visit; events of the run itself have none."""
    events = list(run.stream(None))
    for node in ("work", "draft", "final"):
        own = [event.type for event in events if event.data.get("node") == node]
        assert own.index("visit_started") < own.index("visit_closed") == len(own) - 1
        assert {event.data["seq"] for event in events if event.data.get("node") == node} == {
            {"work": 1, "draft": 2, "final": 3}[node]
        }
    assert (events[0].type, events[-1].type) == ("run_started", "run_ended")
    assert ["node" in event.data for event in (events[0], events[-1])] == [False, False]


@pytest.mark.conformance("EV-04")
def test_events_of_the_state_have_the_names_of_keys_and_no_values(run: Run) -> None:
    closed = {event.data["node"]: event.data["keys"] for event in of(run, "visit_closed")}
    assert (closed["work"], closed["draft"]) == (["found"], ["draft"])
    assert "a secret value" not in json.dumps([event.to_json() for event in run.stream(None)])
    assert run.state()["found"] == "a secret value"


@pytest.mark.conformance("EV-03")
def test_the_last_event_is_the_only_end_and_the_last_state_has_no_keys_of_ours(run: Run) -> None:
    """EV-03: the end comes once and last; the state that the mode `values` ends with is that of the run."""
    events = list(run.stream(["values", "updates"]))
    assert [event.type for event in events].count("run_ended") == 1
    values = [event.data for event in events if event.type == "values"]
    assert values[-1] == run.state()
    assert [key for key in values[-1] if key.startswith("_")] == []


@pytest.mark.conformance("EV-06", "EV-10")
def test_a_failed_attempt_is_an_event_with_its_error_and_an_emission_that_fails_is_none(run: Run) -> None:
    """EV-06: the error, its attempt and when the next one is due. EV-10: the last emission is not JSON."""
    [failed] = of(run, "visit_retrying")
    assert (failed.data["node"], failed.data["attempt"]) == ("work", 1)
    assert (failed.data["max_attempts"], failed.data["delay_ms"] > 0) == (2, True)
    assert "ConnectionError: not yet" in failed.data["error"]
    emitted = [event.data for event in of(run, "custom")]
    assert [each.get("type", each["lost"]) for each in emitted] == ["begun", "begun", 1]
    assert [each["attempt"] for each in emitted] == [1, 2, 2]


@pytest.mark.conformance("EV-05")
def test_a_cached_result_is_marked(client: Client, tmp_path: Path) -> None:
    agent = write_agent(tmp_path / "report", GRAPH.replace("[n]", "[n], version: twice"), work_py=WORK)
    runs = [ended(client, agent, 7), ended(client, agent, 7)]
    marks = [
        [event.data.get("cached", False) for event in of(each, "visit_closed") if event.data["node"] == "work"]
        for each in runs
    ]
    assert marks == [[False], [True]]


@pytest.mark.conformance("EX-40")
@pytest.mark.parametrize("mode", MODES)
def test_a_mode_has_its_own_events_and_the_end_alone(run: Run, mode: StreamMode) -> None:
    events = list(run.stream([mode]))
    assert {event.mode for event in events[:-1]} <= {mode}
    assert events[-1].type == "run_ended"
    if mode not in ("tools",):
        assert len(events) > 1


@pytest.mark.conformance("EX-42", "TM-04")
def test_hidden_texts_are_counted_in_the_usage(run: Run) -> None:
    shown = of(run, "text", terminal_only=True)
    assert {event.data["node"] for event in shown} == {"final"}
    assert "".join(event.data["text"] for event in shown) == TEXT
    usage = run.info().usage
    assert usage.calls == 2
    assert (usage.input_tokens, usage.output_tokens) == (20, 10)


@pytest.mark.conformance("LL-30", "LL-31")
def test_whole_texts_come_after_their_pieces_when_they_are_asked_for(run: Run) -> None:
    """LL-31: forty deltas come in order and add up to the text; those that a worker sends together are one piece."""
    assert of(run, "message") == []
    events = [event for event in run.stream(["messages"], final_messages=True) if event.data.get("node") == "final"]
    pieces = [event for event in events if event.type == "text"]
    assert [event.data["piece"] for event in pieces] == list(range(len(pieces)))
    assert len(pieces) > 1
    [message] = [event for event in events if event.type == "message"]
    assert events[-1] == message
    assert message.data == {
        "seq": 3, "attempt": 1, "node": "final", "turn": 0, "draft": 1, "text": TEXT, "lost": 0,
    }  # fmt: skip
    assert (message.mode, message.id) == ("messages", pieces[-1].id)
    assert "".join(event.data["text"] for event in pieces) == TEXT
    assert [event.data["node"] for event in of(run, "message", final_messages=True, terminal_only=True)] == ["final"]
    rest = list(run.stream(["messages"], pieces[0].id, final_messages=True))
    [late] = [event for event in rest if event.type == "message"]
    assert late.data["lost"] is None, "the beginning was not read"


@pytest.mark.conformance("EV-07")
def test_without_lifecycle_the_last_text_and_the_end_are_still_there(run: Run) -> None:
    events = list(run.stream(None, lifecycle=False, final_messages=True))
    assert [event.data["text"] for event in events if event.type == "message"] == ["a draft", TEXT]
    assert {event.type for event in events} == {"text", "message", "custom", "run_ended"}
    assert run.output == TEXT

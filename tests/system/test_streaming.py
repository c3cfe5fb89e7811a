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
from sleipnir.errors import UsageError
from sleipnir.graph.load import load_graph
from sleipnir.graph.terminals import terminals
from sleipnir.store import live
from sleipnir_inprocess.agent_run import AgentRun
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
    with stack.client() as client:
        assert found[:-1] == [event.to_json() for event in client.stream(run.id, modes=None)]
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


EMITS = """
name: emits
start: count
nodes:
  count: {type: script, script: count.py, next: work}
  work: {type: function, call: "work.py:work", retry: {attempts: 2, delay: 0}, next: done}
  done: {type: end}
"""
COUNT = """
import os
os.write(3, b'{"progress": 10, "message": "begun"}\\n')
for number in range(300): os.write(3, b'{"type": "number", "payload": %d}\\n' % number)
os.write(3, b'plain words\\n')
print("{}")
"""
WORK = """
from pathlib import Path

from sleipnir import emit, emit_progress, emit_text, get_stream_writer


def work(state):
    emit_progress(40, "half")
    emit("seen", {"node": "mine", "seq": 99})
    emit("odd", object())
    get_stream_writer()({"mine": [1]})
    marker = Path(state["marker"])
    if not marker.exists():
        marker.touch()
        raise ConnectionError("again")
    emit_progress(140, "all")
    emit_text("said")
    return {}
"""


@pytest.fixture
def emits(tmp_path: Path) -> Path:
    return write_agent(tmp_path / "emits", EMITS, count_py=COUNT, work_py=WORK)


@pytest.mark.conformance("EM-04", "SM-06")
def test_what_nodes_emit_arrives_in_order_by_attempt_and_can_be_taken_up_after_any_of_it(
    stack: Stack, emits: Path, tmp_path: Path
) -> None:
    with stack.client() as client:
        run = client.submit(emits, state={"marker": str(tmp_path / "marker")})
        run.wait(60)
        events = [event for event in run.stream(["custom"]) if event.type == "custom"]
        data = [dict(event.data) for event in events]
        assert [each["payload"] for each in data if each.get("type") == "number"] == list(range(300))
        assert [each["text"] for each in data if each.get("category") == "text"] == ["plain words\n", "said"]
        of_work = [each for each in data if each["node"] == "work"]
        assert {each["seq"] for each in of_work} == {2}
        assert [each["attempt"] for each in of_work] == [1, 1, 1, 1, 2, 2, 2, 2, 2, 2]
        assert [each.get("progress") for each in of_work if each.get("category") == "progress"] == [40, 40, 100]
        assert of_work[1] == {
            "seq": 2, "attempt": 1, "node": "work", "lost": 0, "category": "custom", "type": "seen",
            "payload": {"node": "mine", "seq": 99},
        }  # fmt: skip
        assert sum(each["lost"] for each in of_work) == 2, "an object that is not JSON is counted, and fails no node"
        assert {"mine": [1]} in [each.get("chunk") for each in of_work]
        places = [0, 7, 150, 299, len(events) - 2]
        for place in places:
            rest = [event for event in run.stream(["custom"], cursor=events[place].id) if event.type == "custom"]
            assert rest == events[place + 1 :]


@pytest.mark.conformance("EM-07", "EV-12")
def test_what_runs_emit_is_not_mixed(stack: Stack, emits: Path, tmp_path: Path) -> None:
    with stack.client() as client:
        runs = [client.submit(emits, state={"marker": str(tmp_path / str(number))}) for number in range(8)]
        for run in runs:
            run.wait(60)
            numbers = [event.data["payload"] for event in run.stream(["custom"]) if event.data.get("type") == "number"]
            assert numbers == list(range(300))


def test_progress_is_shown_by_lines_away_from_a_terminal_and_in_process(
    stack: Stack, emits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = io.StringIO()
    with stack.client() as client:
        run = client.submit(emits, state={"marker": str(tmp_path / "marker")})
        monkeypatch.setattr(sys, "stderr", fake)
        follow(run, lambda gate: None)
    lines = fake.getvalue().splitlines()
    assert [line for line in lines if "%" in line] == [
        "▸   10 %: begun", "▸   40 %: half", "▸   40 %: half", "▸   100 %: all",
    ]  # fmt: skip
    assert "said" not in fake.getvalue()
    marker = json.dumps(str(tmp_path / "other"))
    done = stack.sleipnir("run", str(emits), "--in-process", "--state", f"marker={marker}", "--stream", "--json")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert found, done.stderr
    emitted = [line["data"] for line in found if line["type"] == "custom"]
    assert [each["payload"] for each in emitted if each.get("type") == "number"] == list(range(300))
    assert [each["progress"] for each in emitted if each.get("category") == "progress"] == [10, 40, 40, 100]
    assert found[-1]["data"]["status"] == "completed"


STEPS = """
name: steps
version: sleipnir/1
start: one
state: {found: {type: list, reducer: append}}
nodes:
  one: {type: script, script: work.py, next: [left, right]}
  left: {type: script, script: work.py}
  right: {type: function, call: "ask.py:ask"}
  last: {type: end, wait_for: [left, right], output: "done"}
"""
WORKS = 'import json, os\nprint(json.dumps({"found": os.environ["GRAPH_NODE_ID"]}))\n'
ASKS = """
from sleipnir import interrupt


def ask(state):
    return {"found": interrupt("sure?", key="sure")}
"""


@pytest.mark.conformance("SM-03", "SM-04", "SM-05", "SM-07")
def test_steps_of_a_run_are_streamed_as_langgraph_does_and_taken_up_after_each_chunk(
    stack: Stack, tmp_path: Path
) -> None:
    agent = write_agent(tmp_path / "steps", STEPS, work_py=WORKS, ask_py=ASKS)
    with stack.client() as client:
        run = client.submit(agent)
        modes = ["values", "tasks", "checkpoints", "debug"]
        events = []
        for event in run.stream(modes):
            events.append(event)
            if event.type == "task_result" and event.data["interrupts"]:
                run.answer("yes")
        by_mode = {mode: [event.data for event in events if event.mode == mode] for mode in modes}
        assert [sorted(chunk["found"]) for chunk in by_mode["values"]] == [[], ["one"]] + [["left", "one", "yes"]] * (
            len(by_mode["values"]) - 2
        )
        tasks = by_mode["tasks"]
        assert tasks[0]["input"]["found"] == []
        assert tasks[0] == {"id": tasks[0]["id"], "name": "one", "input": tasks[0]["input"], "triggers": ()}
        assert tasks[1] == {
            "id": tasks[0]["id"], "name": "one", "error": None, "result": {"found": "one"}, "interrupts": [],
        }  # fmt: skip
        asked = [chunk for chunk in tasks if chunk.get("interrupts")]
        assert [chunk["interrupts"] for chunk in asked] == [[{"value": "sure?", "id": "sure"}]]
        assert {chunk["id"] for chunk in tasks if chunk["name"] == "right"} == {asked[0]["id"]}
        assert [chunk["result"] for chunk in tasks if chunk["name"] == "right" and "result" in chunk][-1:] == [
            {"found": "yes"}
        ]
        points = by_mode["checkpoints"]
        history = list(run.get_state_history())[::-1]
        assert [(point["config"], point["values"], point["metadata"]) for point in points] == [
            (snapshot.config, snapshot.values, snapshot.metadata) for snapshot in history
        ]
        assert [point["parent_config"] for point in points] == [None, *(point["config"] for point in points[:-1])]
        assert [chunk["payload"] for chunk in by_mode["debug"]] == [
            event.data for event in events if event.mode in ("tasks", "checkpoints")
        ]
        own = [event for event in events if event.mode in modes]
        for place, event in enumerate(own):
            rest = [each for each in run.stream(modes, cursor=event.id) if each.mode in modes]
            assert rest == own[place + 1 :], f"after chunk {place}, {event.type} {event.id}"


def test_values_of_a_run_are_complete_though_its_events_are_not(stack: Stack, tmp_path: Path) -> None:
    agent = write_agent(tmp_path / "steps", STEPS.replace("ask.py:ask", "work2.py:work"), work_py=WORKS,
                        work2_py='def work(state):\n    return {"found": "x"}\n')  # fmt: skip
    with stack.client() as client:
        run = client.submit(agent)
        run.wait(60)
        whole = [event.data for event in run.stream(["values"]) if event.mode == "values"]
        keys = client.store.keys.of_run(run.id)
        client.store._client.xtrim(keys.events, maxlen=1, approximate=False)
        assert [event.data for event in run.stream(["values"]) if event.mode == "values"] == whole
        assert len(whole) >= 2


def test_a_dag_has_values_and_tasks_and_says_which_modes_it_has_not(stack: Stack, tmp_path: Path) -> None:
    graph = STEPS.replace("version:", "engine: dag\nversion:").replace("ask.py:ask", "work2.py:work")
    functions = 'def work(state):\n    return {"found": "x"}\n'
    agent = write_agent(tmp_path / "steps", graph, work_py=WORKS, work2_py=functions)
    with stack.client() as client:
        run = client.submit(agent)
        run.wait(60)
        events = list(run.stream(["values", "tasks"]))
        assert sorted([event.data for event in events if event.mode == "values"][-1]["found"]) == ["left", "one", "x"]
        assert sum(event.type == "task_result" for event in events) == 4
        with pytest.raises(UsageError, match="no stream mode 'checkpoints'"):
            list(run.stream(["checkpoints"]))


def test_an_agent_in_this_process_has_the_same_modes(tmp_path: Path) -> None:
    agent = write_agent(tmp_path / "steps", STEPS.replace("ask.py:ask", "work2.py:work"), work_py=WORKS,
                        work2_py='def work(state):\n    return {"found": "x"}\n')  # fmt: skip
    events = list(AgentRun(agent).stream(["values", "tasks", "checkpoints"]))
    assert sorted([event.data for event in events if event.mode == "values"][-1]["found"]) == ["left", "one", "x"]
    assert [event.data["next"] for event in events if event.mode == "checkpoints"][:2] == [["one"], ["left", "right"]]
    assert [event.data["name"] for event in events if event.type == "task"][:3] == ["one", "left", "right"]


LOOP = """
name: loop
start: again
nodes:
  again: {type: function, call: "loop.py:again", next: done}
  done: {type: end, output: "ok"}
"""
AGAIN = """
def again(state):
    count = state.get("count", 0) + 1
    return {"count": count, "_next": "again" if count < 40 else "done"}
"""


@pytest.mark.conformance("EV-11")
def test_ends_of_visits_that_were_dropped_come_from_the_journal_once_each_and_so_after_a_cursor(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MOST_READ", 10)  # as if there were very many
    agent = write_agent(tmp_path / "loop", LOOP, loop_py=AGAIN)
    with stack.client() as client:
        run = client.submit(agent)
        run.wait(60)
        whole = [event for event in run.stream(["updates"]) if event.type == "visit_closed"]
        assert len(whole) == 41
        early, newest = whole[5], list(run.events(follow=False))[-20]
        client.store._client.xtrim(client.store.keys.of_run(run.id).events, minid=newest.id, approximate=False)
        events = list(run.stream(["updates"]))
        closed = [event for event in events if event.type == "visit_closed"]
        assert [event.data["seq"] for event in closed] == [event.data["seq"] for event in whole]
        assert [event.data["keys"] for event in closed] == [event.data["keys"] for event in whole]
        assert [event.data.get("restored", False) for event in closed] == sorted(
            (event.data.get("restored", False) for event in closed), reverse=True
        )
        assert sum(event.type == "gap" for event in events) == 1
        after = [event.data["seq"] for event in run.stream(["updates"], early.id) if event.type == "visit_closed"]
        assert after == [event.data["seq"] for event in whole[6:]]
        for place, event in enumerate(closed):
            rest = [e.data["seq"] for e in run.stream(["updates"], event.id) if e.type == "visit_closed"]
            assert rest == [e.data["seq"] for e in closed[place + 1 :]]
        listed = list(run.events(follow=False))
        assert (listed[0].type, sum(event.type == "gap" for event in listed)) == ("gap", 1)
        for event in listed[1:]:
            assert "gap" not in [each.type for each in run.events(event.id, follow=False)]
        assert next(iter(run.events(early.id, follow=False))).type == "gap"
        assert [event.type for event in run.events(events[-2].id, follow=False)][-1] == "run_ended"


@pytest.mark.conformance("TM-01", "TM-03", "EV-08")
def test_a_caller_may_see_only_the_last_texts_or_no_lifecycle(stack: Stack, talk: Path) -> None:
    with stack.client() as client:
        run = client.submit(talk)
        say(client, run, "first")
        with LiveText(client.store).open(run.id, "work", 2, 1) as writer:
            writer.write("last")
        run.answer("bells")
        run.wait(60)
        assert text_of(list(run.stream())) == "firstlast"
        assert text_of(list(client.stream(run, terminal_only=True))) == "last"
        events = list(run.stream(None, lifecycle=False))
        assert text_of(events) == "firstlast"
        assert {event.type for event in events} == {"text", "run_ended"}


TERMINALS = """
name: ends
version: sleipnir/1
start: plan
nodes:
  plan: {type: llm, prompt: x, next: [left, right, each]}
  left: {type: llm, prompt: x, next: done, fallback: plan}
  right: {type: llm, prompt: x}
  each: {type: map, over: "{{items}}", as: it, branch: item, collect_into: found, next: before}
  item: {type: llm, prompt: x, state_updates: {out: "{{output}}"}}
  before: {type: llm, prompt: x}
  after: {type: llm, prompt: x, wait_for: [before]}
  done: {type: end}
"""


@pytest.mark.conformance("TM-02")
def test_all_parallel_nodes_that_nothing_follows_are_terminals() -> None:
    graph = load_graph(TERMINALS, "graph.yaml", "ends")
    assert terminals(graph) == {"left", "right", "after", "done"}

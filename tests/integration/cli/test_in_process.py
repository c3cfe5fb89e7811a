"""`run --in-process` as a command of its own: interrupted, and with a model that streams."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from sleipnir.testing import ModelServer, Reply


def agent(folder: Path, graph: str, **files: str) -> Path:
    folder.mkdir()
    (folder / "graph.yaml").write_text(graph)
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    return folder


def command(tmp_path: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "sleipnir", "--home", str(tmp_path / "home"), "run", "--in-process", *words]


def test_an_interrupt_ends_the_run_and_its_scripts(tmp_path: Path) -> None:
    graph = "name: slow\nstart: s\nnodes:\n  s: {type: script, script: s.sh, next: e}\n  e: {type: end}\n"
    folder = agent(tmp_path / "slow", graph, s_sh="echo $$ > pid.new && mv pid.new pid\nsleep 600\necho '{}'\n")
    work = tmp_path / "work"
    work.mkdir()
    line = command(tmp_path, str(folder), "x")
    with subprocess.Popen(line, cwd=work, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as running:
        deadline_s = time.monotonic() + 100
        while not (work / "pid").exists() and time.monotonic() < deadline_s:
            time.sleep(0.05)
        pid = int((work / "pid").read_text())
        running.send_signal(signal.SIGINT)
        _, narrated = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "was interrupted, and is gone" in narrated
    assert not Path(f"/proc/{pid}").exists()


def test_text_of_a_model_is_streamed_while_it_comes(tmp_path: Path) -> None:
    ask = 'a: {type: llm, model: "openai:gpt-test", prompt: hi, state_updates: {s: "{{output}}"}, next: e}'
    folder = agent(
        tmp_path / "talk", f'name: talk\nstart: a\nnodes:\n  {ask}\n  e: {{type: end, output: "{{{{s}}}}"}}\n'
    )
    with ModelServer([Reply("one two three four five six", pause_s=0.3)]) as server:
        line = command(tmp_path, str(folder), "x", "--json", "--stream")
        env = {**os.environ, **server.env()}
        done = subprocess.run(line, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    events = [json.loads(text) for text in done.stdout.splitlines()]
    pieces = [event["data"] for event in events if event["type"] == "text"]
    assert "".join(piece["text"] for piece in pieces) == "one two three four five six"
    assert [piece["piece"] for piece in pieces] == list(range(len(pieces))) and len(pieces) > 2
    assert [piece["last"] for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    times_ms = [event["at_ms"] for event in events if event["type"] == "text"]
    assert times_ms[-1] - times_ms[0] > 300, "not all of it at the end"
    assert (events[-1]["type"], events[-1]["data"]["output"]) == ("result", "one two three four five six")


TALKER = """
import time
from pathlib import Path
from typing import TypedDict

from sleipnir import START, StateGraph
from sleipnir.python_graph.runtime import StreamWriter


class State(TypedDict, total=False):
    taken: str


def talk(state: State, writer: StreamWriter) -> State:
    writer({"at": "begin"})
    while not Path(state["taken"]).exists():
        time.sleep(0.02)
    writer(["end"])
    return {}


low = StateGraph(State).add_node(talk).add_edge(START, "talk").compile()
graph = StateGraph(State).add_node(talk).add_node("low", low).add_edge(START, "talk").add_edge("talk", "low").compile()
"""


def test_chunks_of_a_node_are_shown_while_it_runs(tmp_path: Path) -> None:
    folder, taken = tmp_path / "talker", tmp_path / "taken"
    folder.mkdir()
    (folder / "graph.py").write_text(TALKER)
    line = command(tmp_path, str(folder), "--state", f"taken={json.dumps(str(taken))}", "--json", "--stream")
    events = []
    with subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        for text in running.stdout:
            events.append(json.loads(text))
            if events[-1]["type"] == "custom":
                taken.touch()
    assert running.returncode == 0
    place = {"seq": 1, "attempt": 1, "node": "talk", "lost": 0}
    chunks = [event["data"] for event in events if event["type"] == "custom"]
    assert chunks == [{**place, "chunk": {"at": "begin"}}, {**place, "chunk": ["end"]}], "not of runs below it"
    assert (events[-1]["type"], events[-1]["data"]["status"]) == ("result", "completed")

"""Node streams on the fleet: the text of a model on one worker reaches a node on another one, whoever dies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sleipnir.failpoints import VARIABLE
from sleipnir.runs.reasons import places
from sleipnir.testing import ModelServer, Reply
from tests.processes import RedisServer, Stack, wait_until, write_agent

GRAPH = """
name: lines
version: sleipnir/1
start: setup
model: openai:gpt-test
nodes:
  setup: {type: router, next: [ask, read]}
  ask: {type: llm, prompt: go, stream_output: draft, state_updates: {answer: "{{output}}"}}
  read: {type: function, call: "read.py:read", stream_input: draft, timeout: 240}
  join: {type: end, wait_for: [ask, read], output: "{{text}}"}
"""
READ = """
import pathlib
from sleipnir import RESET, open_stream


def read(state):
    pieces, seen = [], pathlib.Path(state["seen"])
    with seen.open("a") as log:
        print("BEGIN", file=log, flush=True)
        for item in open_stream("draft", timeout=200):
            pieces = [] if item is RESET else [*pieces, item]
            print("RESET" if item is RESET else item, file=log, flush=True)
    return {"text": "".join(pieces)}
"""
TEXT = "".join(f"{number} bottles, " for number in range(60))


@pytest.fixture
def own(redis_server: RedisServer, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stack]:
    prefix = "".join(each for each in request.node.name if each.isalnum())
    with Stack(
        redis_server, tmp_path / "home", key_prefix=prefix, agents_dir=tmp_path, owner_ttl_s=0.5, lease_s=2.0,
        heartbeat_s=0.5,
    ) as stack:  # fmt: skip
        stack.start_scheduler()
        yield stack


def start_models(stack: Stack, model: ModelServer) -> None:
    stack.start_worker("models", "llm", env=model.env(), ready=False)


@pytest.mark.parametrize("side", ["before", "after"])
def test_a_writer_that_dies_at_a_write_leaves_no_gap_and_no_double(own: Stack, tmp_path: Path, side: str) -> None:
    agent, seen = write_agent(tmp_path / "lines", GRAPH, read_py=READ), tmp_path / "seen"
    with ModelServer([slowly(), slowly()]) as model, own.client() as client:
        own.start_worker("readers", "functions", ready=False)
        dying = {**model.env(), VARIABLE: f"stream_write.{side}=kill@7"}
        own.start_worker("models", "llm", env=dying, ready=False)
        run = client.submit(agent, state={"seen": str(seen)})
        process = own.processes["models"]
        wait_until(lambda: process.poll() is not None, "the worker comes to its failpoint", 90)
        own.kill("models")
        start_models(own, model)
        info = run.wait(120)
        assert (info.status, run.output) == ("completed", TEXT), info.error
        assert "RESET\n" in seen.read_text()


def slowly() -> Reply:
    return Reply(TEXT, piece_characters=6, pause_s=0.02)


@pytest.mark.conformance("EX-41", "SH-01")
def test_lines_are_read_on_another_worker_while_the_model_writes(own: Stack, tmp_path: Path) -> None:
    agent, seen = write_agent(tmp_path / "lines", GRAPH, read_py=READ), tmp_path / "seen"
    with ModelServer([slowly()]) as model, own.client() as client:
        start_models(own, model)
        own.start_worker("readers", "functions", ready=False)
        run = client.submit(agent, state={"seen": str(seen)})
        wait_until(lambda: seen.exists() and seen.read_text().count("\n") > 4, "pieces are read", 90)
        assert not any(step.node == "ask" for step in run.history()), "the model is still writing"
        info = run.wait(90)
        assert (info.status, run.output) == ("completed", TEXT), info.error
        assert [step.node for step in run.history()].count("join") == 1


@pytest.mark.conformance("SH-04")
def test_the_writer_is_killed_and_its_reader_gets_a_reset_and_no_text_twice(own: Stack, tmp_path: Path) -> None:
    agent, seen = write_agent(tmp_path / "lines", GRAPH, read_py=READ), tmp_path / "seen"
    with ModelServer([slowly(), slowly(), slowly()]) as model, own.client() as client:
        own.start_worker("readers", "functions", ready=False)
        start_models(own, model)
        run = client.submit(agent, state={"seen": str(seen)})
        for resets in (0, 1):

            def writes(resets: int = resets) -> bool:
                texts = seen.read_text().split("RESET\n") if seen.exists() else []
                return len(texts) > resets and texts[-1].count("\n") > 4

            wait_until(writes, "pieces are read", 90)
            own.kill("models")
            start_models(own, model)
        info = run.wait(120)
        assert (info.status, run.output, run.state()["answer"]) == ("completed", TEXT, TEXT), info.error
        assert seen.read_text().count("RESET\n") >= 1


@pytest.mark.conformance("SH-04")
def test_a_reader_that_is_killed_reads_from_the_beginning(own: Stack, tmp_path: Path) -> None:
    agent, seen = write_agent(tmp_path / "lines", GRAPH, read_py=READ), tmp_path / "seen"
    with ModelServer([slowly()]) as model, own.client() as client:
        start_models(own, model)
        own.start_worker("readers", "functions", ready=False)
        run = client.submit(agent, state={"seen": str(seen)})
        wait_until(lambda: seen.exists() and seen.read_text().count("\n") > 4, "pieces are read", 90)
        own.kill("readers")
        own.start_worker("readers", "functions", ready=False)
        info = run.wait(120)
        assert (info.status, run.output) == ("completed", TEXT), info.error
        assert seen.read_text().count("BEGIN") == 2


def test_a_reader_whose_writer_has_no_worker_says_what_it_waits_for(own: Stack, tmp_path: Path) -> None:
    agent, seen = write_agent(tmp_path / "lines", GRAPH, read_py=READ), tmp_path / "seen"
    with ModelServer([Reply(TEXT)]) as model, own.client() as client:
        own.start_worker("readers", "functions", ready=False)
        run = client.submit(agent, state={"seen": str(seen)})

        def shown() -> str:
            [info] = client.store.explained([run.info()])
            return "\n".join(places(info, client.store.now_ms(), 9))

        wait_until(lambda: "waits for node 'ask' to begin the stream 'draft'" in shown(), "it is shown", 90)
        assert "read (runs on " in shown()
        [info] = client.store.explained([run.info()])
        [reason] = [visit.reason for visit in info.visits if visit.node == "read"]
        assert (reason.code, reason.stream, reason.writer) == ("stream", "draft", "ask")
        start_models(own, model)
        assert run.wait(90).status == "completed"
        assert run.output == TEXT


CONFIG = "name: writer\nmodel: openai:gpt-test\ninstructions: write\n"


@pytest.mark.conformance("SH-03")
def test_an_agent_in_another_partition_writes_the_stream_of_its_parent(own: Stack, tmp_path: Path) -> None:
    write_agent(tmp_path / "writer", None, config_yaml=CONFIG)
    graph = GRAPH.replace("type: llm, prompt", "type: agent, agent: writer, prompt")
    agent, seen = write_agent(tmp_path / "lines", graph, read_py=READ), tmp_path / "seen"
    with ModelServer([slowly(), slowly()]) as model, own.client() as client:
        own.start_worker("readers", "functions", ready=False)
        start_models(own, model)
        run = client.submit(agent, state={"seen": str(seen)})
        wait_until(lambda: seen.exists() and seen.read_text().count("\n") > 4, "pieces are read", 90)
        own.kill("models")
        start_models(own, model)
        info = run.wait(120)
        assert (info.status, run.output) == ("completed", TEXT), info.error

"""Queued turns of threads on a real scheduler and real workers: all are accepted, and each runs once, in order."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sleipnir import Client
from sleipnir.client.client import Run
from sleipnir.errors import ThreadBusy
from sleipnir.python_graph.agent_modules import load
from tests.processes import RedisServer, Stack, wait_until, write_agent
from tests.system.test_threads import COUNT, COUNTS, PYTHON, ended

QUEUES = COUNTS.replace("start:", "session: {concurrent: queue}\nstart:")
PYTHON_QUEUES = (
    PYTHON.replace("InMemorySaver())", 'InMemorySaver(), session={"concurrent": "queue"})')
    .replace('return {"said"', 'return interrupt("wait") if state.get("last") == "ask" else {"said"')
    .replace("import START, ", "import START, interrupt, ")
)


@pytest.fixture(scope="module")
def stack(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    home = tmp_path_factory.mktemp("queued")
    write_agent(home / "agents" / "counts", QUEUES, f_py=COUNT)
    write_agent(home / "agents" / "talks", None, graph_py=PYTHON_QUEUES)
    with Stack(redis_server, home / "home", key_prefix="queued", agents_dir=home / "agents") as stack:
        stack.start_scheduler("scheduler")
        stack.start_worker("worker")
        yield stack


@pytest.fixture
def client(stack: Stack) -> Iterator[Client]:
    with stack.client() as client:
        yield client


def number_ended(turns: list[Run]) -> int:
    return sum(run.info().is_final for run in turns)


def asking(client: Client, thread: str) -> Run:
    run = client.submit("counts", "ask", thread=thread)
    wait_until(run.gates, "it asks")
    return run


def test_turns_submitted_at_once_are_all_accepted_and_run_one_after_the_other(stack: Stack, client: Client) -> None:
    first, begun, start = asking(client, "race"), list[Run](), threading.Barrier(5)

    def submit(number: int) -> None:
        with stack.client() as own:
            start.wait()
            begun.append(client.run(own.submit("counts", f"p{number}", thread="race").id))

    callers = [threading.Thread(target=submit, args=(number,)) for number in range(5)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert [run.info().is_queued for run in begun] == [True] * 5
    begun.sort(key=lambda run: run.info().turn)
    assert [run.info().turn for run in begun] == [2, 3, 4, 5, 6]
    first.answer("me")
    prompts = ["me", *(run.state_at(0)["initial_prompt"] for run in begun)]
    for number, run in enumerate(begun, 2):
        assert ended(run).output == f"{number} {json.dumps(prompts[:number], separators=(',', ':'))}"
    assert [run.id for run in client.thread_runs("counts", "race")] == [*(run.id for run in reversed(begun)), first.id]
    journaled = [step.node for run in begun for step in run.history()]
    assert journaled == [None, "count", "done"] * 5, "each ran once"


def test_the_command_line_says_that_a_turn_is_queued_and_cancels_it(stack: Stack, client: Client) -> None:
    first = asking(client, "said")
    submitted = stack.sleipnir("submit", "counts", "b", "--thread", "said")
    queued = submitted.stdout.strip()
    assert f"turn 2 of thread 'said' is queued: it begins when run {first.id} has ended" in submitted.stderr
    assert f"queued behind run {first.id} of thread 'said'" in stack.sleipnir("show", queued).stdout
    assert f"queued behind run {first.id}" in stack.sleipnir("ps").stdout
    assert "queued" in stack.sleipnir("threads", "show", "counts", "said").stdout
    assert "waiting, 1 queued" in stack.sleipnir("threads", "ls", "counts").stdout
    refused = stack.sleipnir("threads", "rm", "counts", "said")
    assert refused.returncode == 2, refused.stderr
    assert stack.sleipnir("cancel", queued).returncode == 0
    ended(client.run(queued), "cancelled")
    third = client.submit("counts", "c", thread="said")
    first.answer("me")
    assert ended(third).output == '2 ["me","c"]'


@pytest.mark.parametrize("by", ["program", "folder"])
def test_the_input_of_a_python_graph_goes_through_its_reducers_when_its_turn_begins(
    stack: Stack, client: Client, by: str
) -> None:
    graph = load(stack.settings.agents_dir / "talks" / "graph.py").graph  # type: ignore[operator]

    def submit(**values: object) -> Run:
        if by == "folder":
            return client.submit("talks", thread="py", state=values)
        return client.submit(graph, values, thread="py")

    first = submit(said=["a"], last="ask")
    wait_until(first.gates, "it asks")
    second, third = submit(said=["b"], last="x"), submit(said=["c"])
    with pytest.raises(ThreadBusy, match=r"the reducer of state key 'best' is code of the agent"):
        submit(best="long")
    first.answer({"said": ["answered"]})
    assert ended(first).state()["said"] == ["a", "answered"]
    assert ended(second).state()["said"] == ["a", "answered", "b", "3 in py"]
    state = ended(third).state()
    assert (state["said"], state["last"]) == (["a", "answered", "b", "3 in py", "c", "5 in py"], "x")


def test_queued_turns_run_once_and_in_order_while_everything_dies(redis_server: RedisServer, tmp_path: Path) -> None:
    agent, chance = write_agent(tmp_path / "counts", QUEUES, f_py=COUNT), random.Random(19)
    fast = {"lease_s": 1.0, "heartbeat_s": 0.2, "redispatch_after_s": 0.5, "owner_ttl_s": 0.5}
    with Stack(redis_server, tmp_path / "home", key_prefix="queued-die", **fast) as own, own.client() as client:
        turns = [client.submit(agent, f"p{number}", thread="t") for number in range(12)]
        turns[5].cancel()
        number = 0
        while not all(run.info().is_final for run in turns):
            number += 1
            assert number < 60, "the turns end"
            own.start_scheduler(f"scheduler{number}")
            own.start_worker(f"worker{number}", pool="solo", ready=False)
            ends = number_ended(turns)
            wait_until(lambda least=ends: number_ended(turns) > least, "another turn ends")
            for name in chance.sample([f"scheduler{number}", f"worker{number}"], 2):
                own.kill(name)
        assert [run.status for run in turns] == ["completed"] * 5 + ["cancelled"] + ["completed"] * 6
        prompts = [f"p{number}" for number in range(12) if number != 5]
        assert turns[-1].state()["said"] == prompts
        assert turns[-1].state()["number"] == 11

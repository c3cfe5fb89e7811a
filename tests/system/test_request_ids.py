"""Submissions with an id of the caller's: the same request again, also at once and after a kill, is one run."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sleipnir.client.client import Client
from sleipnir.errors import UsageError
from tests.processes import Stack, write_agent

GRAPH = """
name: paying
version: sleipnir/1
start: pay
state: {paid: {type: list, reducer: append}}
nodes:
  pay: {type: function, call: "f.py:pay", next: done}
  done: {type: end, output: "{{paid}}"}
"""
PAY = """
def pay(state):
    with open("FILE", "a") as file:
        file.write("x")
    return {"paid": [state["initial_prompt"]]}
"""


def paying(folder: Path, name: str = "paying") -> Path:
    return write_agent(folder / name, GRAPH.replace("paying", name), f_py=PAY.replace("FILE", str(folder / "paid")))


@pytest.mark.conformance("DU-06")
def test_a_request_that_comes_again_is_one_run(stack: Stack, tmp_path: Path) -> None:
    agent = paying(tmp_path, "paid-once")
    with stack.client() as client, stack.client() as other:

        def submitted(which: Client) -> str:
            return which.submit(agent, "12 EUR", request_id="order-1").id

        with ThreadPoolExecutor(8) as pool:
            ids = set(pool.map(submitted, [client, other] * 8))
        assert len(ids) == 1
        run = client.run(ids.pop())
        assert run.wait(60).status == "completed"
        assert submitted(other) == run.id, "also when it is over"
        command = ("submit", str(agent), "12 EUR", "--request-id", "order-1")
        assert stack.sleipnir(*command).stdout.strip() == run.id
        second = client.submit(agent, "12 EUR", request_id="order-2")
        assert second.id != run.id
        second.wait(60)
        assert client.run_count(agents=["paid-once"]) == 2
    assert (tmp_path / "paid").read_text() == "xx"


def test_a_request_id_of_another_request_is_refused(stack: Stack, tmp_path: Path) -> None:
    agent = paying(tmp_path)
    with stack.client() as client:
        run = client.submit(agent, "12 EUR", request_id="refused-1")
        with pytest.raises(UsageError, match=f"belongs to run {run.id}, which was submitted with another 'initial_pro"):
            client.submit(agent, "13 EUR", request_id="refused-1")
        with pytest.raises(UsageError, match=f"belongs to run {run.id} of agent 'paying'"):
            client.submit(paying(tmp_path, "other"), "12 EUR", request_id="refused-1")
        for wrong in ("", " ", "x" * 201):
            with pytest.raises(UsageError, match="a request id is a text of 1 to 200 characters"):
                client.submit(agent, "12 EUR", request_id=wrong)
        run.wait(60)


def test_a_turn_of_a_thread_that_is_submitted_again_is_the_same_turn(stack: Stack, tmp_path: Path) -> None:
    agent = paying(tmp_path)
    with stack.client() as client:
        first = client.submit(agent, "1", thread="till", request_id="turn-1")
        assert client.submit(agent, "1", thread="till", request_id="turn-1").id == first.id, "though it may not be over"
        first.wait(60)
        second = client.submit(agent, "2", thread="till", request_id="turn-2")
        second.wait(60)
        assert client.submit(agent, "1", thread="till", request_id="turn-1").id == first.id
        assert (second.output, second.info().turn) == ('["1","2"]', 2)

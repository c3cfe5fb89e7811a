"""Values of users and agents on real processes: from run to run, through threads, batches and forks, by commands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from sleipnir import Client
from sleipnir.client.client import Run
from sleipnir.errors import UsageError
from tests.processes import RedisServer, Stack, wait_until, write_agent

COUNTS = """
name: counts
version: sleipnir/1
start: count
session: {concurrent: queue}
state: {"user:visits": int, "app:visits": int, said: {type: list, reducer: append}}
nodes:
  count: {type: function, call: "f.py:count", next: e}
  e: {type: end, output: "done"}
"""
COUNT = """
def count(state):
    prompt = state["initial_prompt"]
    if prompt == "boom":
        raise ValueError("boom")
    own = {"user:name": prompt} if prompt else {}
    return {"user:visits": state["user:visits"] + 1, "app:visits": state["app:visits"] + 1, "said": [prompt], **own}
"""
PYTHON = """
from typing import TypedDict
from sleipnir import START, StateGraph

State = TypedDict("State", {"user:visits": int, "topic": str}, total=False)

def count(state: State) -> dict:
    return {"user:visits": state.get("user:visits", 0) + 1}

graph = StateGraph(State).add_node(count).add_edge(START, "count").compile()
"""


@pytest.fixture(scope="module")
def stack(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    home = tmp_path_factory.mktemp("values")
    write_agent(home / "agents" / "counts", COUNTS, f_py=COUNT)
    write_agent(home / "agents" / "pyth", None, graph_py=PYTHON)
    with Stack(redis_server, home / "home", key_prefix="values", agents_dir=home / "agents") as stack:
        stack.start_scheduler("scheduler")
        stack.start_worker("worker")
        yield stack


@pytest.fixture
def client(stack: Stack) -> Iterator[Client]:
    with stack.client() as client:
        yield client
        parts = [client.store.keys.of_partition(number) for number in range(client.store.keys.partitions)]
        wait_until(lambda: not any(client.store._client.xlen(part.effects) for part in parts), "all is written back")
        for info in client.shared_value_counts():
            client.remove_shared_values(info.agent, user=info.user)


def end(run: Run, status: str = "completed") -> Run:
    assert run.wait(60).status == status, run.error
    return run


def wait_for(client: Client, values: dict[str, object], user: str | None, agent: str = "counts") -> None:
    wait_until(lambda: client.shared_values(agent, user) == values, f"the values of {user} are {values}")


@pytest.mark.conformance("EX-10")
def test_runs_of_a_user_go_on_with_what_earlier_ones_have_written(client: Client) -> None:
    end(client.submit("counts", "Ann", user="ann"))
    wait_for(client, {"visits": 1, "name": "Ann"}, "ann")
    wait_for(client, {"visits": 1}, None)
    second = end(client.submit("counts", user="ann"))
    assert second.state()["user:visits"] == 2 and second.state()["user:name"] == "Ann"
    assert second.state_at(0)["user:visits"] == 1, "its first state has them: no later change is seen"
    wait_for(client, {"visits": 2}, None)
    end(client.submit("counts", "Bob", user="bob"))
    wait_for(client, {"visits": 1, "name": "Bob"}, "bob")
    wait_for(client, {"visits": 3}, None)
    without = end(client.submit("counts", "nobody"))
    assert (without.state()["user:visits"], without.state()["app:visits"]) == (1, 4)
    wait_for(client, {"visits": 4}, None)
    assert client.shared_values("counts", "ann") == {"visits": 2, "name": "Ann"}


def test_turns_of_a_thread_have_the_values_of_their_own_user(client: Client) -> None:
    end(client.submit("counts", "Ann", user="ann", thread="t"))
    wait_for(client, {"visits": 1, "name": "Ann"}, "ann")
    bob = end(client.submit("counts", user="bob", thread="t"))
    assert bob.state()["said"] == ["Ann", ""] and "user:name" not in bob.state(), "nothing of another user"
    wait_for(client, {"visits": 1}, "bob")
    nobody = end(client.submit("counts", thread="t"))
    assert nobody.state()["user:visits"] == 1 and len(nobody.state()["said"]) == 3


def test_a_turn_sees_what_the_run_before_it_has_written(client: Client) -> None:
    """Submitted in the moment when that has ended."""
    for turn in range(1, 6):
        run = client.submit("counts", user="zoe", thread="at-once")
        wait_until(lambda run=run: run.info().is_final, "it ends")  # type: ignore[misc]
        assert run.state()["user:visits"] == turn


def test_a_turn_does_not_wait_for_ever(stack: Stack, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    first = end(client.submit("counts", user="zoe", thread="owed"))
    wait_for(client, {"visits": 1}, "zoe")
    asked: list[str] = []
    monkeypatch.setattr("sleipnir.client.preparation.OWED_S", 0.1)

    def always(run: str) -> bool:
        asked.append(run)
        return True

    monkeypatch.setattr(client.store.shared_values, "is_owed_by", always)
    assert end(client.submit("counts", user="zoe", thread="owed")).state()["user:visits"] == 2
    assert set(asked) == {first.id}


def test_a_fork_is_of_the_same_user_with_the_values_of_its_past(client: Client) -> None:
    first = end(client.submit("counts", "Ann", user="ann"))
    wait_for(client, {"visits": 1, "name": "Ann"}, "ann")
    client.set_shared_values("counts", {"visits": 7}, "ann")
    assert end(first.fork(at=0)).state()["user:visits"] == 1
    wait_for(client, {"visits": 1, "name": "Ann"}, "ann")
    assert end(first.fork(at=0, agent="counts")).state()["user:visits"] == 1


def test_a_failed_run_writes_nothing_back(client: Client) -> None:
    end(client.submit("counts", "boom", user="ann"), "failed")
    end(client.submit("counts", "Bob", user="bob"))
    wait_for(client, {"visits": 1, "name": "Bob"}, "bob")
    assert client.shared_values("counts", "ann") == {}


def test_rows_of_a_batch_begin_with_the_values_and_python_graphs_do(client: Client) -> None:
    client.set_shared_values("counts", {"visits": 10}, "ann")
    batch = client.batch("counts", [{"prompt": f"p{number}"} for number in range(5)], user="ann", parallel=1)
    for _ in batch.watch():
        pass
    assert batch.info().completed == 5
    wait_until(lambda: client.shared_values("counts", "ann").get("visits", 0) > 10, "rows write back")
    for number in (1, 2):
        end(client.submit("pyth", user="eve"))
        wait_for(client, {"visits": number}, "eve", "pyth")


def test_a_request_is_of_its_user(client: Client) -> None:
    first = client.submit("counts", "Ann", user="ann", request_id="r1")
    end(first)
    wait_for(client, {"visits": 1, "name": "Ann"}, "ann")
    assert client.submit("counts", "Ann", user="ann", request_id="r1").id == first.id, "values have changed since"
    with pytest.raises(UsageError, match="which is of user 'ann'"):
        client.submit("counts", "Ann", user="bob", request_id="r1")


def test_a_stored_value_of_the_wrong_type_is_refused_before_anything_is_stored(client: Client) -> None:
    client.set_shared_values("counts", {"visits": "many"}, "ann")
    runs = client.run_count()
    with pytest.raises(UsageError, match="state key 'user:visits' must be int, not string 'many'"):
        client.submit("counts", user="ann")
    assert client.run_count() == runs
    assert end(client.submit("counts", user="ann", state={"user:visits": 1})).state()["user:visits"] == 2


def test_commands_show_and_change_them(stack: Stack, client: Client) -> None:
    assert "no values" in stack.sleipnir("values", "ls").stderr
    stack.sleipnir("values", "set", "counts", 'name="Ann"', "visits=4", "--user", "ann")
    stack.sleipnir("values", "set", "counts", "visits=9")
    ran = stack.sleipnir("run", "counts", "--user", "ann", "--json")
    assert json.loads(ran.stdout)["status"] == "completed"
    wait_for(client, {"visits": 5, "name": "Ann"}, "ann")
    wait_for(client, {"visits": 10}, None)
    listed = json.loads(stack.sleipnir("values", "ls", "counts", "--json").stdout)
    assert [(each["user"], each["values"]) for each in listed] == [(None, 1), ("ann", 2)]
    assert stack.sleipnir("values", "show", "counts", "--user", "ann").stdout.split() == [
        "KEY", "VALUE", "name", '"Ann"', "visits", "5",
    ]  # fmt: skip
    stack.sleipnir("values", "rm", "counts", "name", "--user", "ann")
    assert json.loads(stack.sleipnir("values", "show", "counts", "--user", "ann", "--json").stdout) == {"visits": 5}
    stack.sleipnir("values", "rm", "counts", "--all", "--user", "ann")
    again = stack.sleipnir("values", "rm", "counts", "visits", "--user", "ann")
    assert (again.returncode, "user 'ann' of agent 'counts' has no value 'visits'" in again.stderr) == (2, True)


def test_without_a_user_and_such_keys_nothing_is_read(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = write_agent(tmp_path / "plain", "name: plain\nstart: e\nnodes: {e: {type: end, output: done}}\n")

    def refuse(*_: object) -> None:
        raise AssertionError("values are read")

    monkeypatch.setattr(client.store.shared_values, "read", refuse)
    run = end(client.submit(plain))
    spec = client.store.runs.spec(run.id)
    assert (spec.v, spec.scopes, spec.user) == (1, (), None)

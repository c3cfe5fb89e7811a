"""`sleipnir batch fork` against real processes: a batch whose rows go on from the runs of another one."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from sleipnir.client.client import Batch, Client
from sleipnir.errors import BatchNotFound, UsageError
from sleipnir.failpoints import VARIABLE
from sleipnir.testing import ModelServer
from tests.processes import RedisServer, Stack, write_agent
from tests.waiting import wait_until

GRAPH = """\
version: sleipnir/1
name: chain
state:
  n: {type: int, default: 0}
  fee: {type: int, default: 1}
start: first
nodes:
  first: {type: function, call: "work.py:first"}
  second: {type: function, call: "work.py:second", next: third}
  third: {type: function, call: "work.py:third", next: done}
  done: {type: end, output: "{{n}}: {{result}}"}
"""
WORK = """
def first(state):
    with open(%(file)r, "a") as file: file.write(f"first {state['n']}\\n")
    return {"_next": "done" if state["n"] == 7 else "second", "result": "short"}
def second(state): return {"seen": state["n"]}
def third(state):
    with open(%(file)r, "a") as file: file.write(f"third {state['n']}\\n")
    %(third)s
"""
BROKEN = 'if state["n"] %% 3 == 0: raise ValueError("no")\n    return {"result": state["n"]}'.replace("%%", "%")
MENDED = 'return {"result": state["n"] * state["fee"]}'


def agent(place: Path, third: str) -> Path:
    return write_agent(place / "chain", GRAPH, work_py=WORK % {"file": str(place / "done"), "third": third})


def done(place: Path, node: str) -> Counter[str]:
    lines = [line.split() for line in (place / "done").read_text().splitlines()]
    return Counter(n for name, n in lines if name == node)


def source(client: Client, folder: Path, rows: int, name: str = "") -> Batch:
    made = client.batch(folder, ({"key": f"k{n}", "n": n} for n in range(rows)), key="key", name=name)
    assert made.wait(240).state == "done"
    return made


def outputs(batch: Batch) -> dict[str, str | None]:
    return {result.key: result.output for result in batch.results()}


@pytest.fixture
def client(stack: Stack) -> Iterator[Client]:
    with stack.client() as opened:
        yield opened


def test_the_failed_rows_of_a_batch_go_on_with_the_mended_agent_and_repeat_nothing(
    client: Client, stack: Stack, tmp_path: Path
) -> None:
    first = source(client, agent(tmp_path, BROKEN), 60, "monday")
    assert first.info().failed == 20
    mended = str(agent(tmp_path, MENDED))
    command = ["batch", "fork", "monday", "--failed", "--before", "third", "--agent", mended, "--name", "tuesday"]
    made = stack.sleipnir(*command, "--set", "fee=10", "--json")
    assert made.returncode == 0, made.stderr
    data = json.loads(made.stdout)
    assert (data["added"], data["known"], data["bad"]) == (20, 0, 0)
    again = stack.sleipnir(*command, "--set", "fee=10", "--json")
    assert json.loads(again.stdout) == {"id": data["id"], "added": 0, "known": 20, "bad": 0}
    other = stack.sleipnir(*command)
    assert other.returncode == 2 and "give another name" in other.stderr
    forks = client.open_batch("tuesday")
    assert forks.id == data["id"] and forks.wait(120).completed == 20
    assert outputs(forks) == {f"k{n}": f"{n}: {n * 10}" for n in range(0, 60, 3)}
    assert set(done(tmp_path, "first").values()) == {1}, "nothing of the past ran again"
    assert done(tmp_path, "third")["3"] == 2 and done(tmp_path, "third")["4"] == 1
    shown = stack.sleipnir("batch", "show", "tuesday").stdout
    assert f"forks     of batch {first.id}, before node 'third', with agent {mended}, fee" in shown
    info = client.run(forks.run_id(1)).info()
    assert (info.forked_from, info.forked_at, info.batch) == (first.run_id(3), 2, f"{forks.id}/1")
    compared = stack.sleipnir("compare", "monday", "tuesday", "--judge", "b.status == 'completed'")
    assert "rows      60: 0 same, 20 changed, 40 only in a" in compared.stdout
    assert "judge     20 better" in compared.stdout
    again_forked = client.fork_batch(forks, before="third", state={"fee": 100})
    again_forked.wait(120)
    assert outputs(again_forked)["k3"] == "3: 300", "forks of forks"


def test_rows_are_chosen_by_an_expression_and_wait_for_a_decision_after_the_canary(
    client: Client, stack: Stack, tmp_path: Path
) -> None:
    first = source(client, agent(tmp_path, MENDED), 12)
    chosen = 'status == "completed" && state.n > 4 && key != "k9" && row < 12 && path.exists(node, node == "first")'
    made = stack.sleipnir("batch", "fork", first.id, "--where", chosen, "--before", "third", "--canary", "2")
    assert made.returncode == 0, made.stderr
    forks = client.open_batch(made.stdout.strip())
    wait_until(lambda: forks.info().state == "canary", "the canary is over")
    assert forks.info().completed + forks.info().failed == 2
    forks.resume()
    ended = forks.wait(120)
    assert (ended.total, ended.completed, ended.failed) == (5, 4, 1)
    [failed] = [result for result in forks.results() if result.status == "failed"]
    assert failed.key == "k7" and f"no checkpoint of run '{first.run_id(7)}' leads to node 'third'" in str(failed.error)
    assert "leads to node 'third'" in stack.sleipnir("batch", "errors", forks.id).stdout
    assert forks.retry_failed() == 1
    assert forks.wait(120).failed == 1, "it is refused again"


def test_a_row_whose_source_has_expired_fails_with_the_reason(client: Client, tmp_path: Path) -> None:
    first = source(client, agent(tmp_path, MENDED), 3)
    forks = client.fork_batch(first, at=1, canary=1)
    wait_until(lambda: forks.info().state == "canary", "the canary is over")
    keys = client.store.keys.of_run(first.run_id(2))
    client.store._client.delete(keys.journal, keys.run, keys.spec, keys.state)
    forks.resume()
    forks.wait(120)
    results = {result.key: result for result in forks.results()}
    assert [results[f"k{n}"].status for n in range(3)] == ["completed", "completed", "failed"]
    assert results["k2"].error == f"the run to go on from has expired: no run '{first.run_id(2)}'"


def test_what_no_row_could_do_is_refused_before_anything_is_stored(
    client: Client, stack: Stack, tmp_path: Path
) -> None:
    first = source(client, agent(tmp_path, MENDED), 3)
    batches = len(client.batches())
    for arguments, said in (
        ({"before": "gone"}, "has no node 'gone'; it has: first, second, third, done"),
        ({"before": "third", "at": 1}, "not both"),
        ({"before": "third", "state": {"fee": "much"}}, "state key 'fee' must be int"),
        ({"before": "third", "where": "status ="}, "the rows cannot be chosen: expression"),
        ({"before": "third", "where": "state.n > 99"}, "no row of batch .* is to be forked"),
        ({"before": "third", "failed": True}, "no row of batch .* is to be forked"),
        ({"before": "third", "model": "x:y"}, "no llm nodes"),
        ({"before": "third", "canary": 0}, "canary must be more than 0"),
    ):
        with pytest.raises(UsageError, match=said):
            client.fork_batch(first, **arguments)
    with pytest.raises(BatchNotFound):
        client.fork_batch("aaaaaaaaaaaa", before="third")
    assert len(client.batches()) == batches
    left_out: list[str] = []
    forks = client.fork_batch(
        first, before="third", where="state.seen > 0", on_bad=lambda bad: left_out.append(str(bad))
    )
    assert (forks.info().total, left_out) == (2, []), "row 0 has seen 0"
    done_ = stack.sleipnir("batch", "fork", first.id, "--where", "state.gone > 0 || row == 1")
    assert done_.returncode == 1 and "row k1: expression" in done_.stderr and "2 bad rows left out" in done_.stderr


@pytest.fixture
def fleet(redis_server: RedisServer, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stack]:
    with Stack(redis_server, tmp_path / "home", key_prefix=f"forks-{request.node.name[:20]}") as stack:
        yield stack


def test_no_row_is_lost_or_doubled_while_schedulers_are_killed(fleet: Stack, tmp_path: Path) -> None:
    with fleet.client() as client:
        fleet.start_scheduler()
        fleet.start_worker()
        first = source(client, agent(tmp_path, BROKEN), 300)
        forks = client.fork_batch(first, before="third", agent=agent(tmp_path, MENDED), state={"fee": 2})

        def ended(least: int) -> bool:
            return forks.info().ended >= least

        for least in range(40, 281, 40):
            fleet.kill("scheduler")
            fleet.start_scheduler()
            wait_until(functools.partial(ended, least), "rows end", 120)
        info = forks.wait(120)
        assert (info.completed, info.failed) == (299, 1), "row 7 never came to the node"
        assert outputs(forks) == {f"k{n}": f"{n}: {n * 2}" if n != 7 else None for n in range(300)}
        assert set(done(tmp_path, "first").values()) == {1}, "nothing of the past ran again"
        assert [n for n in range(300) if client.run(first.run_id(n)).forks().count != (n != 7)] == []
        assert [
            n
            for n in range(300)
            if n != 7 and [step.node for step in client.run(forks.run_id(n)).history()][1:] != ["third", "done"]
        ] == []


@pytest.mark.parametrize("side", ["before", "after"])
def test_a_scheduler_that_dies_while_it_makes_the_fork_of_a_row_is_replaced(
    fleet: Stack, tmp_path: Path, side: str
) -> None:
    with fleet.client() as client:
        fleet.start_scheduler()
        fleet.start_worker()
        first = source(client, agent(tmp_path, MENDED), 6)
        fleet.kill("scheduler")
        fleet.start_scheduler("victim", env={VARIABLE: f"fork_run.{side}=kill@3"})
        forks = client.fork_batch(first, before="third", state={"fee": 3})
        wait_until(lambda: fleet.processes["victim"].poll() is not None, "the victim dies")
        assert forks.info().completed < 6
        fleet.start_scheduler("second")
        assert forks.wait(60).completed == 6
        assert outputs(forks) == {f"k{n}": f"{n}: {n * 3}" for n in range(6)}
        assert set(done(tmp_path, "first").values()) == {1} and set(done(tmp_path, "third").values()) == {2}
        assert [client.run(first.run_id(n)).forks().count for n in range(6)] == [1] * 6


MODELS = """\
version: sleipnir/1
name: models
start: ask
nodes:
  ask: {type: llm, model: "openai:one", prompt: "{{initial_prompt}}", state_updates: {a: "{{output}}"}, next: own}
  own: {type: llm, model: "openai:own", prompt: "{{a}}", state_updates: {b: "{{output}}"}, next: done}
  done: {type: end, output: "{{initial_prompt}}: {{a}} {{b}}"}
"""


def test_forks_of_rows_use_another_model_within_a_budget_of_their_own(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    write_agent(tmp_path / "agents" / "models", MODELS)
    settings = {"key_prefix": "batchmodels", "agents_dir": tmp_path / "agents"}
    with (
        ModelServer(lambda request: request.model, models=["one", "own", "new"]) as server,
        Stack(redis_server, tmp_path / "home", **settings) as own,
    ):
        own.start_scheduler()
        own.start_worker("w", "llm", env=server.env(), ready=False)
        own.wait_for_worker("w", 90)
        with own.client() as client:
            first = client.batch("models", [{"prompt": f"p{n}"} for n in range(4)], name="first")
            assert first.wait(60).completed == 4
            command = ["batch", "fork", "first", "--before", "own", "--model", "openai:new", "--name", "second"]
            made = own.sleipnir(*command, "--max-tokens", "1", "--parallel", "1")
            assert made.returncode == 0, made.stderr
            second = client.open_batch("second")
            wait_until(lambda: second.info().state == "over_budget", "the first row has used the budget")
            assert second.info().ended == 1
            second.resume(max_tokens=1_000_000)
            assert second.wait(60).completed == 4
            assert outputs(second) == {f"{n + 1}": f"p{n}: one new" for n in range(4)}, "the past keeps its answers"
            assert second.info().usage.calls == 4, "one call each: the past costs nothing"
            compared = json.loads(own.sleipnir("compare", "first", "second", "--json").stdout)
            assert [row["state"]["changed"]["b"] for row in compared["rows"]] == [{"a": "own", "b": "new"}] * 4
            assert compared["summary"]["a"]["tokens"] > compared["summary"]["b"]["tokens"] > 0
            left = {key for row in compared["rows"] for key in row["changed"]}
            assert left == {"output", "state"}

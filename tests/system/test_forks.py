"""Forks: runs that go on from a checkpoint of another run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from sleipnir.client.client import Client
from sleipnir.errors import RunNotFound, UsageError
from sleipnir.testing import ModelServer
from tests.chain import BROKEN, CHAIN, MENDED, chain_agent, ended, visited
from tests.processes import RedisServer, Stack, wait_until, write_agent


@pytest.fixture
def client(stack: Stack) -> Iterator[Client]:
    with stack.client() as opened:
        yield opened


@pytest.mark.conformance("CK-12")
def test_a_failed_run_goes_on_in_a_fork_with_the_mended_agent_and_repeats_nothing(
    client: Client, stack: Stack, tmp_path: Path
) -> None:
    source = ended(client.submit(chain_agent(tmp_path, BROKEN), "hi"), "failed")
    before = (source.info(), source.state(), source.history())
    assert sorted(visited(tmp_path)) == ["first", "left", "right"]
    again = stack.sleipnir("fork", source.id, "--before", "third", "--agent", str(chain_agent(tmp_path)), "--json")
    assert again.returncode == 0, again.stderr
    made = json.loads(again.stdout)
    assert (made["source"], made["step"]) == (source.id, 3)
    fork = ended(client.run(made["run"]))
    assert fork.output == '["first","left","right","third"] 7'
    assert visited(tmp_path)[3:] == ["third"], "nothing of the past ran again"
    assert (source.info(), source.state(), source.history()) == before, "the source stays as it is"
    assert fork.info().forked_from == source.id and fork.info().forked_at == 3
    assert f"from {source.id} after step 3" in stack.sleipnir("show", fork.id).stdout
    begin, *later = fork.history()
    assert (begin.kind, begin.reason) == ("forked", f"from run {source.id} after step 3")
    assert [step.node for step in later] == ["third", "done"]


@pytest.mark.conformance("CK-07", "CK-11")
def test_another_definition_may_declare_other_keys_and_gets_their_defaults(client: Client, tmp_path: Path) -> None:
    source = ended(client.submit(chain_agent(tmp_path), "hi"))
    graph = CHAIN.replace("  fee: {type: int, default: 1}\n", "  extra: {type: int, default: 5}\n")
    other = chain_agent(tmp_path / "other", MENDED, graph.replace("{{fee}}", "{{fee}} {{extra}}"))
    fork = ended(source.fork(before="third", agent=other))
    assert fork.output == '["first","left","right","third"] 7 5'
    assert fork.state_at(0)["extra"] == 5


def test_a_state_that_another_definition_refuses_is_named_before_anything_runs(client: Client, tmp_path: Path) -> None:
    source = ended(client.submit(chain_agent(tmp_path), "hi"))
    graph = CHAIN.replace("fee: {type: int, default: 1}", "fee: {type: string}\n  name: {type: string, required: true}")
    other = chain_agent(tmp_path / "other", MENDED, graph)
    with pytest.raises(UsageError, match=r"(?s)cannot go on with the state of the past.*'fee'.*'name'"):
        source.fork(before="third", agent=other)
    assert all(run.forked_from != source.id for run in client.runs(limit=100))
    assert ended(source.fork(before="third", agent=other, state={"fee": "7", "name": "x"})).state()["name"] == "x"


@pytest.mark.conformance("IN-12")
def test_a_fork_begins_with_the_state_of_its_checkpoint_and_the_values_it_is_given(
    client: Client, stack: Stack, tmp_path: Path
) -> None:
    source = ended(client.submit(chain_agent(tmp_path), "hi"))
    early = ended(client.run(stack.sleipnir("fork", source.id, "--at", "1", "--set", "fee=30").stdout.strip()))
    assert early.state_at(0) == {**source.state_at(1), "fee": 30}
    assert early.output == '["first","left","right","third"] 7'
    late = ended(source.fork(at=3, state={"fee": 40}))
    assert late.output == '["first","left","right","third"] 40'
    again = ended(late.fork(at=0, state={"log": ["new"]}))
    assert again.output == '["new","third"] 40', "a fork of a fork"
    for run in (early, late, again):
        last = run.history()[-1].step
        assert run.state_at(last) == run.state()
    assert again.state_at(0) == {**source.state_at(3), "fee": 40, "log": ["new"]}
    begins, first, *parallel, forked = [step.node for step in again.past_steps()]
    assert (begins, first, sorted(map(str, parallel)), forked) == (None, "first", ["left", "right"], None)
    assert source.past_steps() == []
    drawn = stack.sleipnir("draw", "--run", again.id, "--format", "text").stdout
    assert f"forked from {late.id} after step 0" in drawn and "before the fork" in drawn
    assert again.state_difference(0, 1).changed == {"log": (["new"], ["new", "third"])}
    latest = ended(source.fork())
    assert (latest.info().forked_at, latest.output) == (4, source.output), "the last checkpoint that leads anywhere"


def test_a_rewound_run_goes_on_in_a_fork_and_is_cancelled_with_that(
    client: Client, stack: Stack, tmp_path: Path
) -> None:
    waits = CHAIN.replace(
        'call: "work.py:third", next: done}',
        'call: "work.py:third", next: ask}\n  ask: {type: input, question: "{{log}}?", next: done}',
    )
    source = client.submit(chain_agent(tmp_path, MENDED, waits), "hi")
    wait_until(source.gates, "it asks")
    again = stack.sleipnir("rewind", source.id, "--before", "third", "--set", 'log=["new"]')
    assert again.returncode == 0, again.stderr
    assert f"run {source.id} is being cancelled" in again.stderr
    fork = client.run(again.stdout.strip())
    ended(source, "cancelled")
    [change] = source.info().changes
    assert (change.what, change.reason) == ("cancelled", f"rewound: run {fork.id} goes on after step 3")
    assert source.history()[-1].reason == change.reason
    assert f"rewound: run {fork.id} goes on" in stack.sleipnir("show", source.id).stdout
    wait_until(fork.gates, "it asks again")
    fork.answer("x")
    assert ended(fork).state()["log"] == ["new", "third"]
    later = fork.rewind(at=0)
    wait_until(later.gates, "a run that is over is only forked")
    assert fork.status == "completed" and "cancelled" not in {change.what for change in fork.info().changes}
    missing = stack.sleipnir("rewind", later.id)
    assert missing.returncode == 2 and "--at" in missing.stderr
    with pytest.raises(UsageError, match=r"name the step .* or the node"):
        later.rewind()
    later.cancel()
    ended(later, "cancelled")


@pytest.mark.conformance("CK-13")
def test_the_lineage_of_a_fork_names_its_sources_their_forks_and_what_each_changed(
    client: Client, stack: Stack, tmp_path: Path
) -> None:
    source = ended(client.submit(chain_agent(tmp_path), "hi"))
    first = ended(source.fork(before="third", state={"fee": 3}))
    others = [ended(source.fork(at=4)) for _ in range(2)]
    second = ended(first.fork(at=0, agent=chain_agent(tmp_path / "again", MENDED)))
    tree = second.lineage()
    assert (tree.id, tree.count) == (source.id, 3)
    assert [fork.id for fork in tree.forks] == [first.id, *(each.id for each in others)]
    assert [fork.id for fork in tree.forks[0].forks] == [second.id]
    assert source.lineage() == first.lineage() == tree
    short = others[-1].lineage(limit=1)
    assert [fork.id for fork in short.forks] == [first.id, others[-1].id] and short.count == 3
    [fork] = source.forks(first=1, limit=1).forks
    assert fork.id == others[0].id
    drawn = stack.sleipnir("lineage", second.id).stdout.splitlines()
    assert drawn[0] == f"{source.id} chain  completed"
    assert drawn[1] == f"├─ {first.id} chain  completed  after step 3, with fee"
    assert drawn[2].startswith(f"│  └─ {second.id} chain  completed  after step 0, agent ")
    assert drawn[2].endswith("  (this run)") and len(drawn) == 5
    data = json.loads(stack.sleipnir("lineage", second.id, "--json").stdout)
    assert (data["id"], data["count"], data["forks"][0]["run"]["fork_keys"]) == (source.id, 3, ["fee"])
    shown = stack.sleipnir("show", source.id).stdout
    assert f"{first.id} chain  completed  after step 3, with fee" in shown and second.id not in shown
    keys, store = client.store.keys.of_run(source.id), client.store
    store._client.delete(keys.journal, keys.run, keys.spec, keys.state, keys.children)
    left = second.lineage()
    assert (left.id, left.info, [fork.id for fork in left.forks]) == (source.id, None, [first.id])
    assert stack.sleipnir("lineage", second.id).stdout.startswith(f"{source.id} expired\n└─ {first.id}")


def test_a_fork_that_cannot_go_on_is_refused_before_anything_runs(client: Client, stack: Stack, tmp_path: Path) -> None:
    source = ended(client.submit(chain_agent(tmp_path), "hi"))
    other = chain_agent(tmp_path / "other", MENDED, CHAIN.replace("third", "fourth").replace("py:fourth", "py:third"))
    for arguments, said in (
        ({"at": 2}, "step 2 of run .* is no checkpoint: .* The last one before it is 1"),
        ({"at": 9}, "has no step 9; it has the steps 0 to 5"),
        ({"at": 5}, "cannot be forked at step 5: it ended there, and nothing follows"),
        ({"before": "gone"}, "no checkpoint of run .* leads to node 'gone'"),
        ({"at": 1, "before": "third"}, "not both"),
        ({"before": "third", "agent": other}, "the graph 'chain' lacks the node to go on at: 'third'"),
        ({"at": 1, "model": "gpt-9"}, "'gpt-9' cannot name a model: write it as client:model"),
        ({"at": 1, "model": "openai:gpt-9"}, "the graph 'chain' has no llm nodes and starts no agents"),
        ({"at": 1, "state": {"fee": "much"}}, "state key 'fee' must be int, not string 'much'"),
        ({"at": 1, "state": {"_next": "third"}}, "'_next' is written by the runtime"),
    ):
        with pytest.raises(UsageError, match=said):
            source.fork(**arguments)  # type: ignore[arg-type]
    assert all(run.forked_from != source.id for run in client.runs(limit=100))
    wrong = stack.sleipnir("fork", source.id, "--at", "2")
    assert (wrong.returncode, wrong.stdout) == (2, "") and "is no checkpoint" in wrong.stderr
    text = stack.sleipnir("fork", source.id, "--at", "1", "--set", "fee=much")
    assert text.returncode == 2 and "a text is written in quotes: --set" in text.stderr


COMMANDS = """\
version: sleipnir/1
name: commands
engine: %(engine)s
state:
  log: {type: list, reducer: append, default: []}
  number: {type: int, default: 0}
start: split
nodes:
  split: {type: function, call: "work.py:split", next: work}
  work: {type: function, call: "work.py:work"}
  gather: {type: function, call: "work.py:gather", wait_for: [work], next: done}
  done: {type: end, output: "{{log}}"}
"""
SENT = """
import pathlib
def note(name):
    with open(%(file)r, "a") as file: file.write(name + "\\n")
    return {"log": [name]}
def split(state):
    return {"_next": [{"to": "work", "update": {"number": n}} for n in range(3)] + [{"to": "__end__"}]}
def work(state): return note(f"work{state['number']}")
def gather(state): return note(f"gather{state['number']}")
"""


@pytest.mark.conformance("CK-12")
@pytest.mark.parametrize("engine", ["bsp", "dag"])
def test_a_fork_goes_on_with_the_commands_of_its_checkpoint_and_their_values(
    client: Client, stack: Stack, tmp_path: Path, engine: str
) -> None:
    agent = write_agent(
        tmp_path / "commands", COMMANDS % {"engine": engine}, work_py=SENT % {"file": str(tmp_path / "done")}
    )
    source = ended(client.submit(agent, "hi"))
    assert source.output == '["work0","work1","work2","gather0"]'
    (tmp_path / "done").unlink()
    fork = ended(source.fork(at=1))
    assert fork.output == source.output and sorted(visited(tmp_path)) == ["gather0", "work0", "work1", "work2"]
    assert fork.state_at(fork.history()[-1].step) == fork.state()
    again = ended(fork.fork(at=0, state={"log": ["new"]}))
    assert again.output == '["new","work0","work1","work2","gather0"]', "a fork of a fork has the commands too"
    assert ended(source.fork(before="work")).info().forked_at == (1 if engine == "bsp" else 3)
    rewound = ended(source.rewind(before="gather"))
    assert rewound.output == source.output
    rows = client.batch(agent, ({"key": f"k{n}"} for n in range(2)), key="key")
    rows.wait(60)
    forks = client.fork_batch(rows, at=1)
    assert (forks.wait(60).completed, {result.output for result in forks.results()}) == (2, {source.output})


DAG = """\
version: sleipnir/1
name: dag
engine: dag
state:
  log: {type: list, reducer: append, default: []}
  last: {type: string, default: ""}
start: first
nodes:
  first: {type: function, call: "work.py:first", next: [left, right]}
  left: {type: function, call: "work.py:left", next: middle}
  middle: {type: input, question: "{{log}}?", state_updates: {last: "{{input}}"}}
  right: {type: function, call: "work.py:right"}
  both: {type: function, call: "work.py:both", wait_for: [middle, right], next: done}
  done: {type: end, output: "{{log}} {{last}}"}
"""
PARALLEL = """
import pathlib
def note(name):
    with open(%(file)r, "a") as file: file.write(name + "\\n")
    return {"log": [name]}
def first(state): return note("first")
def left(state): return note("left")
def right(state): return note("right")
def both(state): %(both)s
"""


@pytest.mark.conformance("CK-12")
def test_a_fork_of_a_dag_starts_anew_what_was_unfinished_and_nothing_else(
    client: Client, stack: Stack, tmp_path: Path
) -> None:
    def agent(both: str) -> Path:
        work = PARALLEL % {"file": str(tmp_path / "done"), "both": both}
        return write_agent(tmp_path / "dag", DAG, work_py=work)

    source = client.submit(agent(BROKEN), "hi")
    wait_until(source.gates, "it asks")
    wait_until(lambda: len(visited(tmp_path)) == 3, "right has ended")
    wait_until(lambda: len(source.history()) == 4, "three visits have ended")
    (tmp_path / "done").unlink()
    live = source.fork()
    wait_until(live.gates, "the fork asks again")
    assert not (tmp_path / "done").exists(), "what has ended is not done again"
    early = source.fork(at=1)
    wait_until(early.gates, "it asks")
    wait_until(lambda: (tmp_path / "done").exists() and len(visited(tmp_path)) == 2, "both run again")
    assert sorted(visited(tmp_path)) == ["left", "right"]
    early.cancel()
    source.answer("yes")
    ended(source, "failed")
    (tmp_path / "done").unlink()
    mended = stack.sleipnir("fork", source.id, "--before", "both", "--agent", str(agent("return note('both')")))
    assert mended.returncode == 0, mended.stderr
    fork = ended(client.run(mended.stdout.strip()))
    assert fork.output == '["first","left","right","both"] yes' and visited(tmp_path) == ["both"]
    assert fork.state_at(fork.history()[-1].step) == fork.state()
    live.answer("no")
    ended(live, "failed")
    assert live.state()["log"] == ["first", "left", "right"]
    refused = stack.sleipnir("fork", fork.id, "--at", str(fork.history()[-1].step))
    assert refused.returncode == 2 and "nothing follows" in refused.stderr


def test_a_node_that_must_happen_once_asks_in_the_fork_of_a_dag_that_it_may_have_begun_in(
    client: Client, tmp_path: Path
) -> None:
    graph = """\
version: sleipnir/1
name: once
engine: dag
start: first
nodes:
  first: {type: function, call: "work.py:first", next: [pay, other]}
  pay: {type: function, call: "work.py:pay", effect: once, next: [done]}
  other: {type: function, call: "work.py:other"}
  done: {type: end, output: "{{paid}}"}
"""
    work = """
def first(state): return {}
def pay(state): return {"paid": state.get("paid", 0) + 1}
def other(state): return {}
"""
    source = ended(client.submit(write_agent(tmp_path / "once", graph, work_py=work), "hi"))
    steps = {step.node: step.step for step in source.history() if step.node}
    new = ended(source.fork(at=steps["first"]))
    assert new.output == "1", "at its first checkpoint nothing of it has begun"
    if steps["other"] < steps["pay"]:
        doubtful = source.fork(at=steps["other"])
        wait_until(doubtful.gates, "it asks")
        [gate] = doubtful.gates()
        assert gate.kind == "effect" and "may have done it" in gate.question
        doubtful.answer("run again")
        assert ended(doubtful).output == "1"


@pytest.mark.conformance("CK-13")
def test_the_past_of_a_fork_is_missing_once_its_source_has_expired(client: Client, tmp_path: Path) -> None:
    source = ended(client.submit(chain_agent(tmp_path), "hi"))
    fork = ended(source.fork(before="third"))
    store = client.store
    keys = store.keys.of_run(source.id)
    store._client.delete(keys.journal, keys.run, keys.spec, keys.state)
    assert fork.state()["log"] == ["first", "left", "right", "third"]
    with pytest.raises(RunNotFound, match=f"was forked from run '{source.id}', which has expired"):
        fork.state_at(0)
    with pytest.raises(RunNotFound):
        source.fork(before="third")


MODELS = """\
version: sleipnir/1
name: models
model: openai:one
start: ask
nodes:
  ask: {type: llm, prompt: hi, state_updates: {a: "{{output}}"}, next: own}
  own: {type: llm, model: "openai:own", prompt: hi, state_updates: {b: "{{output}}"}, next: below}
  below: {type: agent, agent: below, prompt: hi, state_updates: {c: "{{output}}"}, next: done}
  done: {type: end, output: "{{a}} {{b}} {{c}}"}
"""
BELOW = """\
name: below
start: say
nodes:
  say: {type: llm, model: "openai:below", prompt: hi, state_updates: {said: "{{output}}"}, next: done}
  done: {type: end, output: "{{said}}"}
"""


def test_all_llm_nodes_of_a_fork_and_of_the_runs_below_use_its_model(redis_server: RedisServer, tmp_path: Path) -> None:
    write_agent(tmp_path / "agents" / "models", MODELS)
    write_agent(tmp_path / "agents" / "below", BELOW)
    settings = {"key_prefix": "forkmodels", "agents_dir": tmp_path / "agents"}
    with (
        ModelServer(lambda request: request.model, models=["one", "own", "below", "new"]) as server,
        Stack(redis_server, tmp_path / "home", **settings) as own,
    ):
        own.start_scheduler()
        own.start_worker("w", "llm", env=server.env(), ready=False)
        own.wait_for_worker("w", 90)
        with own.client() as client:
            source = ended(client.submit("models", "hi"))
            assert source.output == "one own below"
            made = own.sleipnir("fork", source.id, "--at", "0", "--model", "openai:new")
            assert made.returncode == 0, made.stderr
            fork = ended(client.run(made.stdout.strip()))
            assert fork.output == "new new new"
            assert fork.info().fork_model == "openai:new"
            below = [child.id for child in client.store.runs.children([fork.id])[fork.id]]
            versions = [client.store.runs.spec(run).v for run in (source.id, fork.id, *below)]
            assert versions == [1, 2, 2], "an earlier worker would use another model, so it takes none of them"
            assert ended(source.fork(at=1, model="openai:new")).output == "one new new", "the past keeps its answers"
            assert ended(fork.fork(at=1)).output == "new new new", "a fork of the fork has its model"
            doubted = own.sleipnir("fork", source.id, "--model", "opneai:new", "--at", "9")
            assert 'Did you mean "openai"?' in doubted.stderr and doubted.returncode == 2


def test_waiting_forks_of_a_run_that_is_over_keep_its_past_whatever_becomes_of_it(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    agent = chain_agent(tmp_path, BROKEN)
    with Stack(redis_server, tmp_path / "home", key_prefix="waitingforks") as own, own.client() as client:
        own.start_scheduler("first")
        own.start_worker("w", "functions", ready=False)
        own.wait_for_worker("w", 90)
        source = ended(client.submit(agent, "hi"), "failed")
        own.kill("first")
        mended = chain_agent(tmp_path / "mended", MENDED)
        forks = [source.fork(before="third", agent=mended, state={"fee": 3})]
        forks.append(source.fork(at=1, agent=mended))
        keys = [client.store.keys.of_run(fork.id).state for fork in forks]
        assert not client.store._client.exists(*keys), "they hold no state while they wait"
        assert forks[0].state() == {**source.state_at(3), "fee": 3}
        assert forks[1].state() == source.state_at(1)
        late = forks[1].fork(at=0, state={"fee": 5})
        source.retry()
        own.start_scheduler("second")
        assert ended(forks[0]).output == '["first","left","right","third"] 3'
        assert ended(forks[1]).output == '["first","left","right","third"] 7'
        assert ended(late).output == '["first","left","right","third"] 7'
        ended(source, "failed")
        own.kill("second")
        lost = source.fork(before="third", agent=mended)
        of_source = client.store.keys.of_run(source.id)
        client.store._client.delete(of_source.journal, of_source.run, of_source.spec, of_source.state)
        own.start_scheduler("third")
        ended(lost, "failed")
        assert f"of run {source.id!r} after step" in str(lost.error) and "is lost" in str(lost.error)
        lost.retry()
        wait_until(lambda: lost.info().retries == 1 or len(lost.history()) > 1, "it is retried")
        ended(lost, "failed")
        assert "is lost" in str(lost.error) and visited(tmp_path / "mended").count("third") == 3


def test_a_fork_that_waits_for_a_slot_takes_its_state_before_its_source_expires(
    client: Client, stack: Stack, tmp_path: Path
) -> None:
    asks = CHAIN.replace(
        'call: "work.py:third", next: done}',
        'call: "work.py:third", next: ask}\n  ask: {type: input, question: "{{log}}?", next: done}',
    )
    agent = chain_agent(tmp_path, MENDED, asks.replace("start: first", "concurrency: {limit: 1}\nstart: first"))
    source = client.submit(agent, "hi")
    wait_until(source.gates, "it asks")
    source.answer("x")
    ended(source)
    holder = client.submit(agent, "hi")
    wait_until(holder.gates, "it has the only slot")
    fork = source.fork(before="third", state={"fee": 5})
    wait_until(lambda: fork.info().slot is not None, "it waits for a slot")
    store, keys = client.store, client.store.keys
    state, timers = keys.of_run(fork.id).state, keys.of_partition(keys.partition_of(fork.id)).timers
    assert not store._client.exists(state)
    assert store.runs.spec(fork.id).v == 2, "an earlier scheduler would begin it at the start"
    store._client.zadd(timers, {f"{fork.id}/past": 1})
    wait_until(lambda: store._client.exists(state), "its timer is due")
    assert store._client.zscore(timers, f"{fork.id}/past") is None and not fork.info().visits
    of_source = keys.of_run(source.id)
    store._client.delete(of_source.journal, of_source.run, of_source.spec, of_source.state, of_source.children)
    holder.answer("x")
    wait_until(fork.gates, "it has the slot")
    fork.answer("x")
    assert ended(fork).output == '["first","left","right","third"] 5'
    ended(holder)


def test_forks_of_a_run_that_goes_on_hold_no_state_and_get_that_of_their_step_whatever_it_writes_later(
    client: Client, tmp_path: Path
) -> None:
    asks = CHAIN.replace(
        'call: "work.py:third", next: done}',
        'call: "work.py:third", next: ask}\n'
        '  ask: {type: input, question: "?", state_updates: {log: ["{{input}}"]}, next: done}',
    )
    agent = chain_agent(tmp_path, MENDED, asks.replace("start: first", "concurrency: {limit: 1}\nstart: first"))
    source = client.submit(agent, "hi")
    wait_until(source.gates, "it asks, and has the only slot")
    past = {1: source.state_at(1), 4: source.state()}
    early, late = source.fork(at=1), source.fork()
    of_late = late.fork(at=0, state={"fee": 3})
    wait_until(lambda: all(run.info().slot for run in (early, late, of_late)), "they wait for the slot")
    keys = client.store.keys
    assert not client.store._client.exists(*(keys.of_run(run.id).state for run in (early, late, of_late)))
    assert (early.state(), late.state(), of_late.state()) == (past[1], past[4], {**past[4], "fee": 3})
    source.answer("later")
    ended(source)
    assert source.state()["log"][-1] == "later"
    for run, begin in ((early, past[1]), (late, past[4]), (of_late, {**past[4], "fee": 3})):
        wait_until(run.gates, "it has the slot, and asks")
        assert run.state_at(0) == begin
        run.answer("mine")
        ended(run)
        assert run.state_at(run.history()[-1].step) == run.state()
    assert late.output == '["first","left","right","third","mine"] 7'
    assert of_late.output == '["first","left","right","third","mine"] 3'

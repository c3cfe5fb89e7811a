"""Graphs that branch, on a real scheduler, a real Celery worker and a real Redis; on both engines where they agree.

Rows that upstream means for one process are held here in our sense of them, and their docstrings say which that is.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sleipnir.client.client import Run
from sleipnir.errors import GraphError
from tests.branching import NODES, OUTPUTS, Scratch, agent, both, committed, completed, failed, is_right, known_agent
from tests.processes import RedisServer, Stack, wait_until


@pytest.fixture(scope="module")
def wide(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A scheduler and a worker with twelve threads."""
    with Stack(redis_server, tmp_path_factory.mktemp("wide"), key_prefix="wide") as running:
        running.start_scheduler()
        running.start_worker(concurrency=12)
        yield running


@pytest.fixture
def scratch(tmp_path: Path) -> Scratch:
    return Scratch(tmp_path / "scratch")


def live(run: Run) -> list[str]:
    """The nodes of the live visits."""
    return sorted(visit.node for visit in run.info().visits)


# The examples


@both
@pytest.mark.parametrize("name", list(OUTPUTS))
@pytest.mark.conformance("EX-03", "EX-05", "EX-06", "JN-01", "Y01")
def test_branches_come_together_once_with_what_all_of_them_found(
    wide: Stack, tmp_path: Path, scratch: Scratch, name: str, engine: str
) -> None:
    """A diamond, a join, and commands whose results are reduced."""
    with wide.client() as client:
        run = scratch.start(client, known_agent(tmp_path, name, engine))
        assert completed(client, run) == OUTPUTS[name]
        assert scratch.counts() == NODES[name]
        assert committed(run) == NODES[name] | {"done": 1}


PARALLEL = """
name: parallel
version: sleipnir/1
start: route
engine: ENGINE
nodes:
  route: {type: router, next: [summarize, enhance, classify]}
  summarize: {type: function, call: "f.py:summarize"}
  enhance: {type: function, call: "f.py:enhance"}
  classify: {type: function, call: "f.py:classify"}
  aggregate: {type: function, call: "f.py:aggregate", wait_for: [summarize, enhance, classify], next: format}
  format: {type: end, output: "{{all}}"}
"""
PARALLEL_PY = """
NAMES = ["summarize", "enhance", "classify"]

def meets_the_others(name):
    def function(state):
        did(state, name)
        folder = pathlib.Path(state["initial_prompt"])
        (folder / f"here-{name}").touch()
        for other in NAMES:
            until(folder / f"here-{other}")
        return {name: name.upper()}
    return function

summarize, enhance, classify = map(meets_the_others, NAMES)

def aggregate(state):
    return {"all": " ".join(state[name] for name in NAMES)}
"""


@both
@pytest.mark.conformance("EX-02")
def test_branches_overlap_in_time(wide: Stack, tmp_path: Path, scratch: Scratch, engine: str) -> None:
    """Each branch ends only once it has met the others."""
    with wide.client() as client:
        run = scratch.start(client, agent(tmp_path / "parallel", PARALLEL.replace("ENGINE", engine), PARALLEL_PY))
        assert completed(client, run) == "SUMMARIZE ENHANCE CLASSIFY"
        assert committed(run)["aggregate"] == 1


FANOUT = """
name: fanout
version: sleipnir/1
start: plan
engine: ENGINE
state: {results: {type: list, reducer: append}}
nodes:
  plan: {type: function, call: "f.py:plan", ends: {task: process}}
  process: {type: function, call: "f.py:process"}
  aggregate: {type: function, call: "f.py:aggregate", wait_for: [process], next: done}
  done: {type: end, output: "{{total}}: {{results}}"}
"""
FANOUT_PY = """
def plan(state):
    return [Command(goto="task", update={"param": "task1"}), Command(goto="task", update={"param": "task2"}),
            Command(goto="process")]

def process(state):
    did(state, "process")
    return {"results": [state.get("param", "none") + "_" + state["shared"]]}

def aggregate(state):
    return {"total": len(state["results"]), "alone": "param" not in state}
"""


@both
@pytest.mark.conformance("EX-04", "FO-01", "FO-02", "FO-04", "FO-05", "FO-07")
def test_commands_run_a_node_many_times_each_with_values_of_its_own(
    wide: Stack, tmp_path: Path, scratch: Scratch, engine: str
) -> None:
    folder = agent(tmp_path / "fanout", FANOUT.replace("ENGINE", engine), FANOUT_PY)
    with wide.client() as client:
        run = client.submit(folder, str(scratch.folder), state={"shared": "global"})
        assert completed(client, run) == '3: ["task1_global","task2_global","none_global"]'
        assert scratch.counts() == {"process": 3}
        assert run.state()["alone"] is True
        assert "param" not in run.state()


MULTI_ENDS = """
name: multi-ends
version: sleipnir/1
start: decide
engine: ENGINE
nodes:
  decide: {type: function, call: "f.py:decide", ends: {approve: approved, reject: rejected}}
  approved: {type: end, output: completed via approved}
  rejected: {type: end, output: completed via rejected}
"""
MULTI_ENDS_PY = """
def decide(state):
    said = state["initial_prompt"]
    return Command(goto=said if said == "approve" else "reject")
"""


@both
@pytest.mark.conformance("EX-07", "RT-16")
def test_a_node_leaves_by_one_of_its_named_ends(wide: Stack, tmp_path: Path, engine: str) -> None:
    folder = agent(tmp_path / "ends", MULTI_ENDS.replace("ENGINE", engine), MULTI_ENDS_PY)
    with wide.client() as client:
        runs = [client.submit(folder, said) for said in ("approve", "reject", "whatever")]
        assert [completed(client, run) for run in runs] == [
            "completed via approved", "completed via rejected", "completed via rejected",
        ]  # fmt: skip


EAGER = """
name: eager
version: sleipnir/1
start: split
engine: ENGINE
nodes:
  split: {type: router, next: [slow, fast, mid]}
  slow: {type: function, call: "f.py:slow"}
  fast: {type: function, call: "f.py:fast", next: fast_next}
  mid: {type: function, call: "f.py:mid"}
  fast_next: {type: function, call: "f.py:fast_next"}
"""
EAGER_PY = 'slow, fast, mid, fast_next = map(nothing, ["slow", "fast", "mid", "fast_next"])\n'


@pytest.mark.conformance("EX-37", "DG-01")
def test_in_a_dag_what_follows_a_fast_branch_does_not_wait_for_the_slow_one(
    wide: Stack, tmp_path: Path, scratch: Scratch
) -> None:
    scratch.hold("slow")
    with wide.client() as client:
        run = scratch.start(client, agent(tmp_path / "eager", EAGER.replace("ENGINE", "dag"), EAGER_PY))
        wait_until(lambda: committed(run).get("fast_next"), "what follows the fast branch has ended")
        assert "slow" not in committed(run)
        scratch.go("slow")
        completed(client, run)


@pytest.mark.conformance("EX-37", "BS-01")
def test_in_super_steps_what_follows_a_fast_branch_waits_for_the_slow_one(
    wide: Stack, tmp_path: Path, scratch: Scratch
) -> None:
    scratch.hold("slow")
    with wide.client() as client:
        run = scratch.start(client, agent(tmp_path / "eager", EAGER.replace("ENGINE", "bsp"), EAGER_PY))
        wait_until(lambda: {"fast", "mid"} <= set(committed(run)), "the others have ended")
        assert "fast_next" not in live(run)
        scratch.go("slow")
        completed(client, run)
        assert [step.node for step in run.history()][-2:] == ["slow", "fast_next"]


COUNTER = """
name: counter
version: sleipnir/1
start: worker
engine: ENGINE
state: {counter: {type: int, default: 0}}
nodes:
  worker: {type: function, call: "f.py:worker", next: done}
  done: {type: end, output: "{{counter}}"}
"""


@both
@pytest.mark.conformance("EX-43")
def test_many_runs_at_once_share_nothing(wide: Stack, tmp_path: Path, engine: str) -> None:
    count = 'def worker(state):\n    return {"counter": state["counter"] + 1}\n'
    folder = agent(tmp_path / "counter", COUNTER.replace("ENGINE", engine), count)
    with wide.client() as client:
        for _ in range(2):
            runs = [client.submit(folder) for _ in range(32)]
            assert [completed(client, run) for run in runs] == ["1"] * 32
            assert all(committed(run) == {"worker": 1, "done": 1} for run in runs)


# State


FORMAT = """
name: format
version: sleipnir/1
start: increment
engine: ENGINE
state:
  counter: {type: int}
  factor: {type: int, default: 2}
  steps: {type: list, items: string, reducer: append}
nodes:
  increment: {type: function, call: "f.py:increment", next: format}
  format: {type: function, call: "f.py:format_", next: done}
  done: {type: end, output: "{{text}}"}
"""
FORMAT_PY = """
def increment(state):
    assert (state["counter"], state["factor"], state["steps"]) == (0, 2, [])
    return {"counter": state["counter"] + state["factor"] - 1, "steps": ["increment"]}

def format_(state):
    return {"text": f"Final counter: {state['counter']}, Steps: {len(state['steps'])}"}
"""


@both
@pytest.mark.conformance("ST-01", "ST-02")
def test_nodes_read_defaults_and_the_writes_of_earlier_nodes(wide: Stack, tmp_path: Path, engine: str) -> None:
    with wide.client() as client:
        run = client.submit(agent(tmp_path / "format", FORMAT.replace("ENGINE", engine), FORMAT_PY))
        assert completed(client, run) == "Final counter: 1, Steps: 1"


SHARE = """
name: share
version: sleipnir/1
start: give
engine: ENGINE
nodes:
  give: {type: function, call: "f.py:give", next: [take, take2]}
  take: {type: function, call: "f.py:take"}
  take2: {type: function, call: "f.py:take2"}
"""
SHARE_PY = """
GIVEN = {"deep": [1]}

def give(state):
    return {"given": GIVEN}

def take(state):
    state["given"]["deep"].append("take")
    GIVEN["deep"].append("by the process")
    return {"took": state["given"] is not GIVEN}

def take2(state):
    return {"took2": state["given"] is not GIVEN}
"""


@both
@pytest.mark.conformance("ST-09", "ST-10", "IS-01")
def test_no_visit_shares_an_object_with_another_one(wide: Stack, tmp_path: Path, engine: str) -> None:
    """Upstream can hand the very same object on, which no second machine could keep: here each visit has its own, in
    one process too, and what is done to it counts only if it is returned."""
    with wide.client() as client:
        run = client.submit(agent(tmp_path / "share", SHARE.replace("ENGINE", engine), SHARE_PY))
        completed(client, run)
        state = run.state()
        assert (state["given"], state["took"], state["took2"]) == ({"deep": [1]}, True, True)


MESSAGES = """
name: messages
version: sleipnir/1
start: ask
engine: ENGINE
state: {messages: {type: messages}}
nodes:
  ask: {type: function, call: "f.py:ask", next: [one, two]}
  one: {type: function, call: "f.py:one"}
  two: {type: function, call: "f.py:two"}
"""
MESSAGES_PY = """
from sleipnir.commands import append, remove_all, replace_last_user

def ask(state):
    return {"messages": [remove_all(), append("system", "s"), append("user", "helo"), replace_last_user("hello")]}

def one(state):
    return {"messages": append("assistant", "1")}

def two(state):
    return {"messages": append("assistant", "2")}
"""


@both
@pytest.mark.conformance("MS-08")
def test_operations_on_messages_are_done_in_the_state(wide: Stack, tmp_path: Path, engine: str) -> None:
    before = {"messages": [{"role": "user", "content": "old"}]}
    with wide.client() as client:
        run = client.submit(agent(tmp_path / "m", MESSAGES.replace("ENGINE", engine), MESSAGES_PY), state=before)
        completed(client, run)
        assert [(said["role"], said["content"]) for said in run.state()["messages"]] == [
            ("system", "s"), ("user", "hello"), ("assistant", "1"), ("assistant", "2"),
        ]  # fmt: skip


# Ways


TICKETS = """
name: tickets
version: sleipnir/1
start: classify
engine: ENGINE
nodes:
  classify: {type: function, call: "f.py:classify",
             branch: {by: "{{category}}", to: {billing: pay, technical: fix}, default: general}}
  pay: {type: end, output: billing}
  fix: {type: end, output: technical}
  general: {type: end, output: general}
"""
TICKETS_PY = """
def classify(state):
    words = state["initial_prompt"].split()
    return {"category": "billing" if "invoice" in words else "technical" if "crash" in words else "other"}
"""


@both
@pytest.mark.conformance("RT-01", "RT-19")
def test_each_ticket_goes_to_the_one_handler_of_its_category(wide: Stack, tmp_path: Path, engine: str) -> None:
    folder = agent(tmp_path / "tickets", TICKETS.replace("ENGINE", engine), TICKETS_PY)
    with wide.client() as client:
        runs = [client.submit(folder, said) for said in ("my invoice", "a crash", "hello")]
        assert [completed(client, run) for run in runs] == ["billing", "technical", "general"]
        assert [len(run.history()) for run in runs] == [3, 3, 3]


CHOICE = """
name: choice
version: sleipnir/1
start: a
engine: ENGINE
nodes:
  a: {type: router, branch: {call: "f.py:choose", to: {even: even, odd: odd}}}
  even: {type: end, output: even}
  odd: {type: end, output: odd}
"""


@both
@pytest.mark.conformance("RT-11")
def test_fifty_concurrent_conditions_each_read_their_own_run(wide: Stack, tmp_path: Path, engine: str) -> None:
    choose = 'def choose(state):\n    return "odd" if int(state["initial_prompt"]) % 2 else "even"\n'
    folder = agent(tmp_path / "choice", CHOICE.replace("ENGINE", engine), choose)
    with wide.client() as client:
        runs = [client.submit(folder, str(n)) for n in range(50)]
        assert [completed(client, run) for run in runs] == ["even", "odd"] * 25


@pytest.mark.conformance("BD-17")
def test_a_graph_with_mistakes_is_not_run(wide: Stack, tmp_path: Path) -> None:
    """Upstream's must-compile raises; our submit does, with every mistake and its line, and stores nothing."""
    text = EAGER.replace("ENGINE", "bsp").replace("next: fast_next", "next: ghost").replace("mid]", "mud]")
    with wide.client() as client:
        before = client.runs(1000)
        with pytest.raises(GraphError) as raised:
            client.submit(agent(tmp_path / "wrong", text, EAGER_PY))
        told = "\n".join(map(str, raised.value.problems))
        assert "'ghost'" in told
        assert "'mud'" in told
        assert [run.id for run in client.runs(1000)] == [run.id for run in before]


# Limits


@both
@pytest.mark.conformance("LM-04")
def test_a_node_that_takes_too_long_fails_and_its_siblings_end(
    wide: Stack, tmp_path: Path, scratch: Scratch, engine: str
) -> None:
    text = EAGER.replace("ENGINE", engine).replace('"f.py:slow"', '"f.py:slow", timeout: 1')
    scratch.hold("slow")
    with wide.client() as client:
        run = scratch.start(client, agent(tmp_path / "eager", text, EAGER_PY))
        assert "at node 'slow'" in (error := failed(client, run))
        assert "timed out after 1s" in error
        assert {"fast", "mid"} <= set(committed(run))


@both
@pytest.mark.conformance("LM-07")
def test_the_run_s_time_is_up_for_all_its_branches(wide: Stack, tmp_path: Path, scratch: Scratch, engine: str) -> None:
    text = EAGER.replace("ENGINE", engine) + "settings: {timeout: 5, interrupt_on_timeout: true}\n"  # time to begin
    scratch.hold("slow", "fast", "mid")
    with wide.client() as client:
        run = scratch.start(client, agent(tmp_path / "eager", text, EAGER_PY))
        assert "timed out after 5s" in failed(client, run)
        assert live(run) == []
        assert sorted(scratch.did()) == ["fast", "mid", "slow"]


@both
@pytest.mark.conformance("LM-06")
def test_watchers_who_never_read_or_read_late_miss_nothing_and_slow_nothing(
    wide: Stack, tmp_path: Path, scratch: Scratch, engine: str
) -> None:
    """Upstream's engine stops when nobody empties its channel of 256 events; this run makes more than that."""
    many = FANOUT_PY.replace(', Command(goto="task", update={"param": "task2"})', "").replace(
        'Command(goto="process")', '*[Command(goto="process") for _ in range(149)]'
    )
    folder = agent(tmp_path / "fanout", FANOUT.replace("ENGINE", engine), many)
    with wide.client() as client, wide.client() as watcher:
        run = client.submit(folder, str(scratch.folder), state={"shared": "x"})
        never_read = watcher.run(run.id).events()
        assert next(never_read).type == "run_started"
        completed(client, run)
        types = [event.type for event in watcher.run(run.id).events()]
        assert len(types) > 256
        assert [event.type for event in never_read] == types[1:]
        assert types.count("visit_opened") == types.count("visit_closed") == len(run.history()) - 1


@both
@pytest.mark.conformance("LM-11")
def test_a_run_continues_when_its_caller_goes_away(wide: Stack, tmp_path: Path, scratch: Scratch, engine: str) -> None:
    """Upstream's run belongs to its caller, and must drain when that one leaves; a run here has no caller once
    accepted."""
    folder = known_agent(tmp_path, "joining", engine)
    scratch.hold("a", "b")
    code = (
        "import sys, time; from sleipnir.client.client import Client; run = Client().submit(*sys.argv[1:]); "
        "print(run.id, flush=True); run.wait()"
    )
    caller = subprocess.Popen(
        [sys.executable, "-c", code, str(folder), str(scratch.folder)],
        env=wide.environment(), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert caller.stdout is not None
    run_id = caller.stdout.readline().strip()
    scratch.wait_for("a", "b")
    caller.kill()
    caller.communicate()
    scratch.go("a")
    scratch.go("b")
    with wide.client() as client:
        assert completed(client, client.run(run_id)) == OUTPUTS["joining"]


LARGE = """
name: large
version: sleipnir/1
start: plan
engine: ENGINE
nodes:
  plan: {type: function, call: "f.py:plan"}
  work: {type: function, call: "f.py:work"}
"""
LARGE_PY = """
def plan(state):
    return [Command(goto="work", update={"n": n}) for n in range(state["branches"])]

def work(state):
    return {f"size{state['n']}": len(state["doc"])}
"""


@both
@pytest.mark.conformance("DU-12")
def test_a_large_state_is_stored_no_more_often_for_more_branches(wide: Stack, tmp_path: Path, engine: str) -> None:
    folder = agent(tmp_path / "large", LARGE.replace("ENGINE", engine), LARGE_PY)
    stored = []
    with wide.client() as client:
        for branches in (2, 12):
            run = client.submit(folder, state={"doc": "x" * 5_000_000, "branches": branches})
            completed(client, run)
            assert run.state()[f"size{branches - 1}"] == 5_000_000
            redis = client.store._client
            stored.append(sum(redis.memory_usage(key, samples=0) for key in redis.scan_iter(f"*{run.id}*")))
    assert stored[1] < stored[0] + 100_000
    assert stored[0] < 3 * 5_000_000, "once in the state, once in the journal"


# Ways out


STARTS = """
name: starts
version: sleipnir/1
start: plan
engine: ENGINE
limits: {max_concurrency: 4}
nodes:
  plan: {type: function, call: "f.py:plan"}
  work: {type: function, call: "f.py:work"}
"""
STARTS_PY = """
def plan(state):
    return [Command(goto="work", update={"n": n}) for n in range(30)]

work = nothing("work")
"""


@both
@pytest.mark.conformance("DU-07", "LM-02")
def test_no_branch_starts_after_a_cancel(wide: Stack, tmp_path: Path, scratch: Scratch, engine: str) -> None:
    scratch.hold("work")
    with wide.client() as client:
        run = scratch.start(client, agent(tmp_path / "starts", STARTS.replace("ENGINE", engine), STARTS_PY))
        wait_until(lambda: scratch.counts().get("work") == 4, "as many run as may")
        run.cancel()
        assert run.wait(60).status == "cancelled"
        scratch.go("work")
        other = Scratch(tmp_path / "other")
        completed(client, other.start(client, known_agent(tmp_path, "diamond", engine)))
        assert scratch.counts() == {"work": 4}
        assert live(run) == []
        is_right(client, run)


BREAKS = """
name: breaks
version: sleipnir/1
start: split
engine: ENGINE
state: {order: {type: list, reducer: append}}
nodes:
  split: {type: router, next: [good, bad, also_good]}
  good: {type: script, script: good.sh}
  bad: {type: script, script: bad.sh}
  also_good: {type: script, script: good.sh}
  after: {type: end, wait_for: [good, bad, also_good], output: "{{order}}"}
"""


@both
@pytest.mark.conformance("DU-10", "FO-07")
def test_a_failed_run_that_is_continued_runs_only_what_failed_again(
    wide: Stack, tmp_path: Path, scratch: Scratch, engine: str
) -> None:
    """The scripts count their executions in a file."""
    folder = agent(tmp_path / "breaks", BREAKS.replace("ENGINE", engine), "")
    count = f'echo $GRAPH_NODE_ID >> "{scratch.folder}/did"\n'
    printed = 'echo "{\\"order\\": \\"$GRAPH_NODE_ID\\"}"\n'
    (folder / "good.sh").write_text(count + printed)
    (folder / "bad.sh").write_text(f"{count}[ -e {scratch.folder}/mended ] || exit 3\n{printed}")
    with wide.client() as client:
        run = scratch.start(client, folder)
        assert "at node 'bad'" in failed(client, run)
        assert {"good", "also_good"} <= set(committed(run))
        (scratch.folder / "mended").touch()
        run.retry()
        wait_until(lambda: run.status == "completed", "the run is continued")
        assert run.output is not None
        assert json.loads(run.output) == ["also_good", "bad", "good"]
        assert scratch.counts() == {"good": 1, "also_good": 1, "bad": 2}
        is_right(client, run)


ASKS = """
name: asks
version: sleipnir/1
start: plan
engine: ENGINE
state: {said: {type: list, reducer: append}}
nodes:
  plan: {type: function, call: "f.py:plan"}
  work: {type: function, call: "f.py:work"}
  ask: {type: approval, question: "pay {{amount}}?", options: [yes, no], routes: {yes: end, no: end}, on_other: end,
        state_updates: {said: "{{amount}} {{choice}}"}}
"""
ASKS_PY = """
def plan(state):
    return [Command(goto="ask" if n in (1, 3) else "work", update={"amount": n}) for n in range(5)]

def work(state):
    did(state, f"work{state['amount']}")
"""


@both
@pytest.mark.conformance("FO-09")
def test_questions_of_commands_keep_the_values_of_their_own(
    wide: Stack, tmp_path: Path, scratch: Scratch, engine: str
) -> None:
    """Upstream's interrupt is a call inside a function, which starts anew with the answer. Here a question is a
    node: two of five commands ask, both are listed with their own text, and the other three are not run again."""
    with wide.client() as client:
        run = scratch.start(client, agent(tmp_path / "asks", ASKS.replace("ENGINE", engine), ASKS_PY))
        wait_until(lambda: run.status == "waiting", "only people are waited for")
        one, three = sorted(run.gates(), key=lambda gate: gate.question)
        assert (one.question, three.question) == ("pay 1?", "pay 3?")
        run.answer("no", three)
        wait_until(lambda: len(run.gates()) == 1, "the other question stays")
        assert run.gates() == [one]
        run.answer("yes", one)
        completed(client, run)
        assert run.state()["said"] == ["1 yes", "3 no"]
        assert scratch.counts() == {"work0": 1, "work2": 1, "work4": 1}

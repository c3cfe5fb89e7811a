"""The traps of spec/graph-package.md section 4: what its engine does badly by its own source, and Sleipnir must not do.

One test per trap, named by our promise; the docstring says what upstream does. Others of that list are held elsewhere:
2 (a question of a parallel command keeps its values) in test_branching.py, 3 (pending commands survive a crash) in
test_branching_under_kills.py, 9 (an unknown target is an error) in tests/unit/planner/test_commands.py, 15 (a reader
that is gone holds up nothing) in test_streaming.py, 18 (limits of a tool are those of all runs) in test_tool_limits.py,
and 19 (pages of a history, newest first, before a checkpoint) in test_state_updates.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sleipnir.errors import GateError, UsageError
from sleipnir.store.connect import connect
from tests.branching import NODES, OUTPUTS, Scratch, agent, both, committed, completed, failed, known_agent
from tests.processes import RedisServer, Stack, wait_until, write_agent


@pytest.fixture(scope="module")
def wide(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A scheduler and a worker with eight threads."""
    with Stack(redis_server, tmp_path_factory.mktemp("wide"), key_prefix="traps") as running:
        running.start_scheduler()
        running.start_worker(concurrency=8)
        yield running


@pytest.fixture
def own(redis_server: RedisServer, tmp_path: Path) -> Iterator[Stack]:
    """A stack of its own, of which nothing runs yet."""
    with Stack(redis_server, tmp_path / "home", key_prefix=f"own-{tmp_path.name}", owner_ttl_s=0.5) as stack:
        yield stack


@pytest.fixture
def scratch(tmp_path: Path) -> Scratch:
    return Scratch(tmp_path / "scratch")


TWO_QUESTIONS = """
name: two-questions
version: sleipnir/1
start: split
engine: ENGINE
nodes:
  split: {type: router, next: [left, work, right]}
  left: {type: approval, question: "left?", options: [yes, no], routes: {yes: both, no: both}, on_other: both,
         state_updates: {left: "{{choice}}"}}
  work: {type: function, call: "f.py:work"}
  right: {type: approval, question: "right?", options: [yes, no], routes: {yes: both, no: both}, on_other: both,
          state_updates: {right: "{{choice}}"}}
  both: {type: join, wait_for: [left, right, work], next: done}
  done: {type: end, output: "{{left}} {{right}}"}
"""


def two_questions(folder: Path, engine: str) -> Path:
    text = TWO_QUESTIONS.replace("ENGINE", engine).replace("yes: both, no: both", "yes: end, no: end")
    text = text.replace("on_other: both", "on_other: end")
    return agent(folder / "two", text, 'work = nothing("work")\n')


@both
def test_1_two_questions_of_one_step_are_both_kept_and_both_answered(
    wide: Stack, tmp_path: Path, scratch: Scratch, engine: str
) -> None:
    """Upstream records the first of two interrupts in a super-step; the other node's work is lost on resume."""
    with wide.client() as client:
        run = scratch.start(client, two_questions(tmp_path, engine))
        gates = wait_until(lambda: len(found := run.gates()) == 2 and found, "both questions are open")
        assert sorted(gate.question for gate in gates) == ["left?", "right?"]
        run.answer("yes", gate="right")
        run.answer("no", gate="left")
        assert completed(client, run) == "no yes"
        assert scratch.counts() == {"work": 1}


LIMITED = """
name: limited
version: sleipnir/1
start: again
engine: ENGINE
limits: {max_steps: 5, on_max_steps: HOW}
nodes:
  again: {type: function, call: "f.py:again", next: again}
"""


@both
@pytest.mark.conformance("LM-05", "DG-04")
def test_4_reaching_max_steps_is_a_failure_unless_the_graph_sets_on_max_steps(
    wide: Stack, tmp_path: Path, engine: str
) -> None:
    """Upstream's run completes, without an error or a mark."""
    again = 'def again(state):\n    return {"n": state.get("n", 0) + 1}\n'
    text = LIMITED.replace("ENGINE", engine)
    with wide.client() as client:
        failing = client.submit(agent(tmp_path / "failing", text.replace("HOW", "error"), again))
        stopping = client.submit(agent(tmp_path / "stopping", text.replace("HOW", "stop"), again))
        assert "max_steps" in failed(client, failing)
        completed(client, stopping)
        assert stopping.state()["n"] == failing.state()["n"] == 5


@both
@pytest.mark.conformance("EX-05")
def test_5_the_results_of_commands_are_collected_once_and_the_question_is_still_there(
    wide: Stack, tmp_path: Path, scratch: Scratch, engine: str
) -> None:
    """Upstream's example runs its collector too early, and its workers' overlays clear the question. Here they
    overwrite the question too, each in an overlay that nobody else sees, and end one after the other."""
    scratch.hold("summarize")
    with wide.client() as client:
        run = scratch.start(client, known_agent(tmp_path, "map-reduce", engine))
        wait_until(lambda: scratch.counts().get("summarize") == 3, "all chunks are at work")
        scratch.go("summarize")
        assert completed(client, run) == OUTPUTS["map-reduce"]
        assert committed(run) == NODES["map-reduce"] | {"done": 1}


BREAKS = """
name: breaks
version: sleipnir/1
start: split
engine: ENGINE
nodes:
  split: {type: router, next: [good, bad]}
  good: {type: function, call: "f.py:good"}
  bad: {type: function, call: "f.py:bad"}
"""
BREAKS_PY = """
def good(state):
    did(state, "good")
    return {"good": 1}

def bad(state):
    did(state, "bad")
    if not (pathlib.Path(state["initial_prompt"]) / "mended").exists():
        raise ValueError("broken")
    return {"bad": 1}
"""


@both
@pytest.mark.conformance("DU-10")
def test_6_what_siblings_of_a_failed_node_did_is_kept(
    wide: Stack, tmp_path: Path, scratch: Scratch, engine: str
) -> None:
    """Upstream checkpoints nothing of a failed super-step, and runs all of it again."""
    with wide.client() as client:
        run = scratch.start(client, agent(tmp_path / "breaks", BREAKS.replace("ENGINE", engine), BREAKS_PY))
        assert "at node 'bad'" in failed(client, run)
        (scratch.folder / "mended").touch()
        run.retry()
        wait_until(lambda: run.status == "completed", "the run is continued")
        assert (run.state()["good"], run.state()["bad"], scratch.counts()) == (1, 1, {"good": 1, "bad": 2})


def test_7_a_new_turn_is_a_new_run_and_a_finished_one_cannot_be_resumed(
    wide: Stack, tmp_path: Path, scratch: Scratch
) -> None:
    """Upstream resumes a finished lineage when it gets a second message: it runs nothing and ignores the message."""
    other = Scratch(tmp_path / "other")
    with wide.client() as client:
        first = scratch.start(client, known_agent(tmp_path, "diamond", "bsp"))
        completed(client, first)
        with pytest.raises(UsageError, match="only a failed run can be retried"):
            first.retry()
        with pytest.raises(UsageError, match="completed"):
            first.resume()
        second = other.start(client, known_agent(tmp_path, "diamond", "bsp"))
        completed(client, second)
        assert second.id != first.id
        assert (scratch.counts(), other.counts()) == (NODES["diamond"], NODES["diamond"])
        assert second.state()["initial_prompt"] == str(other.folder)


@both
@pytest.mark.conformance("DU-01")
def test_8_a_run_continues_by_itself_when_every_process_died(
    own: Stack, tmp_path: Path, scratch: Scratch, engine: str
) -> None:
    """Nothing restarts upstream's runs: the caller must notice and resume."""
    scratch.hang("a")
    own.start_scheduler("scheduler1")
    own.start_worker("worker1", concurrency=4)
    with own.client() as client:
        run = scratch.start(client, known_agent(tmp_path, "joining", engine))
        wait_until(lambda: scratch.hangs("a") and committed(run).get("b"), "one branch has ended")
        own.kill("worker1")
        own.kill("scheduler1")
        own.start_worker("worker2", ready=False)
        own.start_scheduler("scheduler2")
        assert completed(client, run) == OUTPUTS["joining"]
        assert scratch.counts() == NODES["joining"] | {"a": 2}


ASKS_AGAIN = """
name: asks-again
version: sleipnir/1
start: split
engine: ENGINE
limits: {max_steps: 30}
state: {said: {type: list, reducer: append}}
nodes:
  split: {type: router, next: [ask, side]}
  side: {type: function, call: "f.py:side"}
  ask: {type: approval, question: "more?", options: [more, enough], routes: {more: ask, enough: done}, on_other: done,
        state_updates: {said: "{{choice}}"}}
  done: {type: end, output: "{{said}}"}
"""


@both
def test_10_a_loop_asks_again(wide: Stack, tmp_path: Path, scratch: Scratch, engine: str) -> None:
    """Upstream takes the first answer for every later visit: the key stays answered for the rest of the lineage."""
    with wide.client() as client:
        run = scratch.start(client, agent(tmp_path / "a", ASKS_AGAIN.replace("ENGINE", engine), 'side = nothing("s")'))
        seen: set[int] = set()
        for answer in ("more", "more", "enough"):
            [gate] = wait_until(lambda: [g for g in run.gates() if g.seq not in seen], "a new question is open")
            seen.add(gate.seq)
            run.answer(answer, gate)
        assert completed(client, run) == '["more","more","enough"]'


@both
def test_11_answers_that_come_together_each_reach_their_own_question(
    wide: Stack, tmp_path: Path, scratch: Scratch, engine: str
) -> None:
    """A node of upstream's that ends later writes its own copy of the resume bookkeeping over its sibling's."""
    scratch.hold("work")
    with wide.client() as client:
        run = scratch.start(client, two_questions(tmp_path, engine))
        gates = wait_until(lambda: len(found := run.gates()) == 2 and found, "both questions are open")
        for gate in gates:
            run.answer(gate.node, gate)
        with pytest.raises(GateError, match=r"already answered|no open question"):
            run.answer("again", gates[0])
        scratch.go("work")
        assert completed(client, run) == "left right"


@both
def test_12_with_two_open_questions_an_answer_must_name_one(
    wide: Stack, tmp_path: Path, scratch: Scratch, engine: str
) -> None:
    """Upstream gives a resume value without a key to whichever interrupt asks first."""
    with wide.client() as client:
        run = scratch.start(client, two_questions(tmp_path, engine))
        wait_until(lambda: len(run.gates()) == 2, "both questions are open")
        with pytest.raises(GateError, match=r"several open questions; open: \d+ \(left\), \d+ \(right\)"):
            run.answer("yes")
        assert len(run.gates()) == 2
        run.answer("yes", gate="left")
        run.answer("no")
        assert completed(client, run) == "yes no"


@pytest.mark.conformance("CK-04")
def test_13_a_run_does_not_continue_with_a_step_that_could_not_be_stored(tmp_path: Path, scratch: Scratch) -> None:
    """Upstream logs that a checkpoint was not saved, and goes on. Here a full Redis holds the run up, and nothing is
    lost."""
    server = RedisServer()
    try:
        with Stack(server, tmp_path / "home") as stack, stack.client() as client:
            stack.start_scheduler()
            stack.start_worker(concurrency=4)
            scratch.hold("a", "b")
            run = scratch.start(client, known_agent(tmp_path, "joining", "bsp"))
            scratch.wait_for("a", "b")
            redis = connect(server.url)
            redis.config_set("maxmemory", "1")
            scratch.go("a")
            scratch.go("b")
            wait_until(lambda: "OOM" in stack.log("worker") + stack.log("scheduler"), "a write was refused")
            assert committed(run) == {"begin": 1}
            assert "join" not in scratch.did()
            redis.config_set("maxmemory", "0")
            redis.close()
            assert completed(client, run) == OUTPUTS["joining"]
    finally:
        server.stop()


@both
@pytest.mark.conformance("IS-02")
def test_14_lists_of_parallel_branches_are_in_visit_order_for_any_order_of_ends(
    wide: Stack, tmp_path: Path, scratch: Scratch, engine: str
) -> None:
    """Upstream's reducers fold in the order of completion: lists differ from run to run."""
    scratch.hold("a")
    with wide.client() as client:
        run = scratch.start(client, known_agent(tmp_path, "joining", engine))
        wait_until(lambda: committed(run).get("b"), "b has ended first")
        scratch.go("a")
        assert completed(client, run) == '["begin","a","b","join"]'


STARVED = """
name: starved
version: sleipnir/1
start: split
engine: ENGINE
nodes:
  split: {type: router, next: [a, choose]}
  a: {type: function, call: "f.py:a"}
  choose: {type: function, call: "f.py:choose", branch: {by: "{{way}}", to: {one: b, other: end}}}
  b: {type: function, call: "f.py:a"}
  meet: {type: join, wait_for: [a, b], next: done}
  done: {type: end, output: met}
"""
STARVED_PY = """
a = nothing("a")

def choose(state):
    return {"way": "other"}
"""


@both
@pytest.mark.conformance("JN-07")
def test_16_a_join_that_can_no_longer_fire_fails_the_run_and_names_what_is_missing(
    wide: Stack, tmp_path: Path, scratch: Scratch, engine: str
) -> None:
    """Upstream's join waits for a source that routing skipped, and its run ends as completed."""
    with wide.client() as client:
        run = scratch.start(client, agent(tmp_path / "starved", STARVED.replace("ENGINE", engine), STARVED_PY))
        error = failed(client, run)
        assert "meet" in error
        assert "b" in error.partition("meet")[2]


TYPES = """
name: types
version: sleipnir/1
start: make
engine: ENGINE
state:
  whole: {type: int}
  broken: {type: float}
  when: {type: datetime}
  raw: {type: bytes}
  wholes: {type: list, reducer: append}
  times: {type: list, items: datetime, reducer: append}
  total: {type: float, reducer: sum}
nodes:
  make: {type: function, call: "f.py:make", next: [script, function]}
  script: {type: script, script: s.py}
  function: {type: function, call: "f.py:function"}
  check: {type: function, call: "f.py:check", wait_for: [script, function]}
"""
TYPES_PY = """
import datetime

WHEN = datetime.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=datetime.timezone.utc)

def make(state):
    return {"whole": 2**53 + 1, "broken": 2.0, "when": WHEN, "raw": bytes(range(256)), "undeclared": [1, 1.0, 10**17],
            "wholes": [7], "times": [WHEN], "total": 1.0}

def function(state):
    did(state, "function")
    return {"wholes": [8], "times": [state["when"]], "total": 2.0, "whole2": state["whole"]}

def check(state):
    found = {name: repr(value) for name, value in state.items()}
    right = (type(state["whole"]) is int and type(state["broken"]) is float and type(state["total"]) is float
             and state["when"] == WHEN and state["raw"] == bytes(range(256)) and state["times"] == [WHEN, WHEN]
             and [type(n) for n in state["undeclared"]] == [int, float, int]
             and [type(n) for n in state["from_script"]] == [int, float]
             and state["whole"] == state["whole2"] == 2**53 + 1 and state["total"] == 4.0)
    return {"right": right, "found": found}
"""
TYPES_SCRIPT = """
import json, os
state = json.loads(os.environ["GRAPH_STATE"])
out = {"from_script": [state["whole"], state["broken"]], "wholes": [9], "total": 1.0}
print(json.dumps(out))
"""


@both
@pytest.mark.conformance("ST-12", "CK-07")
def test_17_ints_floats_times_and_bytes_come_back_as_they_were(
    own: Stack, tmp_path: Path, scratch: Scratch, engine: str
) -> None:
    """Numbers of upstream's undeclared keys are floats after a resume. Here they go through functions, a script,
    reducers, and another scheduler's memory."""
    folder = agent(tmp_path / "types", TYPES.replace("ENGINE", engine), TYPES_PY)
    (folder / "s.py").write_text(TYPES_SCRIPT)
    scratch.hold("function")
    own.start_scheduler("first")
    own.start_worker(concurrency=4)
    with own.client() as client:
        run = scratch.start(client, folder)
        wait_until(lambda: committed(run).get("script"), "the script has ended")
        own.kill("first")
        own.start_scheduler("second")
        scratch.go("function")
        completed(client, run)
        state = run.state()
        assert state["right"] is True, state["found"]
        assert state["wholes"] == [7, 8, 9]


CHILD_FAILS = """
name: above
version: sleipnir/1
start: ask
nodes:
  ask: {type: agent, agent: below, prompt: x, map_out: {found: "{{child.state.found}}", why: "{{child.error_type}}"},
        MORE next: done}
  done: {type: end, output: "went on with {{found}}"}
"""


@pytest.mark.conformance("AG-11", "AG-12")
def test_20_a_failed_child_fails_its_parent_unless_the_node_says_otherwise(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    """Upstream's parent goes on with what an earlier node has left, or with nothing."""
    agents = tmp_path / "agents"
    write_agent(agents / "above", CHILD_FAILS.replace("MORE", ""))
    write_agent(agents / "goes-on", CHILD_FAILS.replace("MORE", "on_error: continue,"))
    below = 'name: below\nversion: sleipnir/1\nstart: a\nnodes: {a: {type: function, call: "f.py:work"}}\n'
    write_agent(agents / "below", below, f_py="def work(state):\n    raise OverflowError('too much')\n")
    with (
        Stack(redis_server, tmp_path / "home", key_prefix="trap20", agents_dir=agents) as stack,
        stack.client() as client,
    ):
        stack.start_scheduler()
        stack.start_worker()
        fails = client.submit("above", state={"found": "stale"})
        goes_on = client.submit("goes-on", state={"found": "stale"})
        fails.wait(60)
        assert (fails.status, fails.output) == ("failed", None)
        assert "at node 'ask': Agent 'below' failed" in str(fails.error)
        assert "why" not in fails.state()
        goes_on.wait(60)
        assert (goes_on.status, goes_on.info().failed_visits.count) == ("completed", 1)
        state = goes_on.state()
        assert (state["why"], state["_error"]["node"]) == ("builtins:OverflowError", "ask")

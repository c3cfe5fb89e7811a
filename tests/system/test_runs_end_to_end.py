"""Whole runs on a real scheduler, a real Celery worker and a real Redis."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sleipnir.client.client import Client
from sleipnir.errors import AgentNotFound, GateError, GraphError, UsageError
from sleipnir.runs.views import RunInfo
from tests.processes import Stack, write_agent
from tests.waiting import is_running, wait_until

THREE = """
name: three
start: a
nodes:
  a: {type: script, script: scripts/a.py, next: b, state_updates: {seen: "n={{n}}"}}
  b: {type: function, call: "steps.py:double", next: c}
  c: {type: script, script: scripts/c.sh, next: done}
  done: {type: end, output: "{{n}} {{seen}} {{from_shell}}"}
"""
A_PY = """
import json, os
file = os.environ.get("GRAPH_STATE_FILE")
state = json.load(open(file)) if file else json.loads(os.environ["GRAPH_STATE"])
print(json.dumps({"n": len(state["initial_prompt"])}))
"""
C_SH = 'echo "{\\"from_shell\\": \\"$GRAPH_NODE_ID\\"}"\n'
STEPS = 'def double(state):\n    return {"n": state["n"] * 2}\n'


def three(folder: Path) -> Path:
    return write_agent(folder / "three", THREE, scripts__a_py=A_PY, scripts__c_sh=C_SH, steps_py=STEPS)


def run_to_end(client: Client, agent: Path, prompt: str = "", **more: object) -> RunInfo:
    return client.submit(agent, prompt, **more).wait(60)  # type: ignore[arg-type]


@pytest.mark.conformance("L01", "N01", "T12", "R05", "U01", "U07", "P01", "S10")
def test_a_run_of_scripts_and_a_function_ends_with_its_result_and_a_journal(stack: Stack, tmp_path: Path) -> None:
    with stack.client() as client:
        run = client.submit(three(tmp_path), "hello")
        info = run.wait(60)
        assert (info.status, run.output) == ("completed", "10 n=5 c")
        history = run.history()
        assert [(step.node, step.next) for step in history] == [
            (None, None), ("a", "b"), ("b", "c"), ("c", "done"), ("done", None),
        ]  # fmt: skip
        assert [sorted(step.keys) for step in history[1:4]] == [["n", "seen"], ["n"], ["from_shell"]]
        assert run.state() == {"initial_prompt": "hello", "n": 10, "seen": "n=5", "from_shell": "c"}
        second = client.submit(three(tmp_path), "hi")
        second.wait(60)
        assert second.state()["n"] == 4, "nothing of the first run is seen by the second"


@pytest.mark.conformance("T11", "P05", "P06")
def test_initial_state_keeps_its_types(stack: Stack, tmp_path: Path) -> None:
    agent = write_agent(
        tmp_path / "typed",
        """
name: typed
start: e
initial_state: {list: [1, "a"], n: 1.5, yes_: true, none: null, initial_prompt: overwritten}
nodes:
  e: {type: end, output: "{{list}} {{n}} {{yes_}} {{none}} {{initial_prompt}}"}
""",
    )
    with stack.client() as client:
        run = client.submit(agent, "prompt")
        run.wait(60)
        assert run.output == '[1,"a"] 1.5 true null prompt'
        assert run.state()["list"] == [1, "a"]


def test_a_late_reader_gets_all_events(stack: Stack, tmp_path: Path) -> None:
    with stack.client() as client:
        run = client.submit(three(tmp_path), "hello")
        run.wait(60)
        types = [event.type for event in run.events(follow=False)]
        assert types[0] == "run_started"
        assert types[-1] == "run_ended"
        assert types.count("visit_opened") == types.count("visit_closed") == 4
        assert types.count("visit_started") == 3


def test_a_list_of_runs_reports_that_not_all_were_read(stack: Stack, tmp_path: Path) -> None:
    agent = write_agent(tmp_path / "short", "name: short\nstart: e\nnodes: {e: {type: end}}\n")
    with stack.client() as client:
        for _ in range(2):
            client.submit(agent).wait(60)
        listed = stack.sleipnir("ps", "--all", "--min-cost", "1", "--among", "1").stderr
        assert "looked at 1 runs; there may be more: --after " in listed
        assert "looked at" not in stack.sleipnir("ps", "--all", "--limit", "1").stderr


ASK = """
name: ask
start: who
nodes:
  who: {type: input, question: "Who?", validation: "len(input) > 1", state_updates: {name: "{{input}}"}, next: sure}
  sure: {type: approval, question: "{{name}}?", options: [yes, no], routes: {yes: good, no: bad}, on_other: other,
         state_updates: {answer: "{{choice}}"}}
  good: {type: end, output: "hello {{name}}"}
  bad: {type: end, output: "no {{name}}"}
  other: {type: end, output: "other: {{answer}}"}
"""


@pytest.mark.conformance("A01", "A04", "I01", "H01")
def test_a_run_waits_for_answers_without_a_worker_and_continues_with_them(stack: Stack, tmp_path: Path) -> None:
    with stack.client() as client:
        run = client.submit(write_agent(tmp_path / "ask", ASK))
        gate = wait_until(run.gates, "the input's question is open")[0]
        assert (gate.node, gate.kind, gate.question) == ("who", "input", "Who?")
        assert wait_until(lambda: run.status == "waiting", "the run waits")
        with pytest.raises(GateError, match="no open question"):
            run.answer("x", gate="nobody-asked")
        run.answer("Ada")
        approval = wait_until(lambda: [g for g in run.gates() if g.node == "sure"], "the approval is open")[0]
        assert (approval.question, approval.options) == ("Ada?", ("yes", "no"))
        run.answer("perhaps", gate="sure")
        assert run.wait(60).status == "completed"
        assert run.output == "other: perhaps"
        with pytest.raises(GateError, match="already answered"):
            run.answer("yes", gate="sure")


def test_an_answer_that_breaks_its_rule_fails_the_run_visibly(stack: Stack, tmp_path: Path) -> None:
    with stack.client() as client:
        run = client.submit(write_agent(tmp_path / "ask", ASK))
        wait_until(run.gates, "the question is open")
        run.answer("x")
        info = run.wait(60)
        assert info.status == "failed"
        assert info.error is not None
        assert "at node 'who': Input failed validation 'len(input) > 1' (got 1 chars)" in info.error


BREAKS_ONCE = """
name: breaks
start: a
nodes:
  a: {type: script, script: a.sh, next: b}
  b: {type: script, script: b.sh, _: 0}
  done: {type: end, output: "{{n}} {{m}}"}
"""


def test_a_failed_run_continues_from_where_it_failed_when_it_is_retried(stack: Stack, tmp_path: Path) -> None:
    mended = tmp_path / "mended"
    agent = write_agent(
        tmp_path / "breaks",
        BREAKS_ONCE.replace(", _: 0", ""),
        a_sh="echo '{\"n\": 1}'\n",
        b_sh=f'[ -e {mended} ] || exit 3\necho \'{{"m": 2, "_next": "done"}}\'\n',
    )
    with stack.client() as client:
        run = client.submit(agent)
        assert run.wait(60).status == "failed"
        mended.touch()
        run.retry()
        wait_until(lambda: run.status == "completed", "the run is continued")
        assert run.output == "1 2"
        assert [step.node or step.kind for step in run.history()] == ["submitted", "a", "b", "retried", "b", "done"]
        assert client.store.runs.fold(run.id) == run.state()
        assert [event.type for event in run.events()][-1] == "run_ended"
        with pytest.raises(UsageError, match="only a failed run can be retried"):
            run.retry()


SLOW = """
name: slow
start: a
nodes:
  a: {type: script, script: a.sh, next: done, timeout: 600}
  done: {type: end}
"""


@pytest.mark.conformance("S12")
def test_a_cancel_reaches_a_running_script_and_its_children(stack: Stack, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    agent = write_agent(tmp_path / "slow", SLOW, a_sh=f"sleep 600 &\necho $! > {pid_file}\nwait\n")
    with stack.client() as client:
        run = client.submit(agent)
        pid = int(wait_until(lambda: pid_file.exists() and pid_file.read_text().strip(), "the script runs"))
        run.cancel()
        info = run.wait(60)
        assert (info.status, info.error) == ("cancelled", "Graph 'slow' aborted at 'a'")
        wait_until(lambda: not is_running(pid), "the script's child is gone")
        with pytest.raises(UsageError, match="already cancelled"):
            run.cancel()


@pytest.mark.conformance("S04")
def test_the_run_s_timeout_lets_a_running_script_finish_and_starts_no_further_node(
    stack: Stack, tmp_path: Path
) -> None:
    text = (
        SLOW.replace("start: a", "start: a\nsettings: {timeout: 5}")  # time enough to begin
        .replace("next: done", "next: b")
        .replace("  done:", "  b: {type: script, script: a.sh, next: done}\n  done:")
    )
    agent = write_agent(tmp_path / "timeout", text, a_sh="sleep 5.2; echo '{\"finished\": true}'\n")
    with stack.client() as client:
        run = client.submit(agent)
        info = run.wait(60)
        assert info.error is not None
        assert "timed out after 5s at 'b'" in info.error
        assert run.state()["finished"] is True
        assert [step.node for step in run.history()] == [None, "a"]


LOOP = """
name: loop
start: again
settings: {max_loop_iterations: 5}
nodes:
  again: {type: function, call: "f.py:step", next: done}
  done: {type: end, output: "{{n}}"}
"""


@pytest.mark.conformance("S01", "S03", "V03")
def test_a_dynamic_loop_runs_until_it_leaves_or_hits_the_cap(stack: Stack, tmp_path: Path) -> None:
    step = """
def step(state):
    n = state.get("n", 0) + 1
    return {"n": n, "_next": "again" if n < LIMIT else "done"}
"""
    with stack.client() as client:
        run = client.submit(write_agent(tmp_path / "l4", LOOP, f_py=f"LIMIT = 4\n{step}"))
        assert run.wait(60).status == "completed"
        assert run.output == "4"
        info = run_to_end(client, write_agent(tmp_path / "l9", LOOP, f_py=f"LIMIT = 9\n{step}"))
        assert info.error is not None
        assert "Node 'again' visited 6 times (max_loop_iterations=5). Possible infinite loop." in info.error


@pytest.mark.conformance("S06")
def test_without_validation_an_unknown_target_fails_only_when_it_is_reached(stack: Stack, tmp_path: Path) -> None:
    text = "name: g\nstart: a\nnodes:\n  a: {type: function, call: 'f.py:f', next: nowhere}\n  e: {type: end}\n"
    files = {"f_py": "def f(state):\n    return {}\n"}
    with stack.client() as client:
        with pytest.raises(GraphError, match="Graph validation failed with 1 error"):
            client.submit(write_agent(tmp_path / "strict", text, **files))
        lenient = text.replace("start: a", "start: a\nsettings: {validate_before_run: false}")
        info = run_to_end(client, write_agent(tmp_path / "lenient", lenient, **files))
        assert info.error is not None
        assert "Node 'nowhere' not found in graph 'g'" in info.error


@pytest.mark.conformance("T19")
def test_variables_reach_scripts_and_missing_ones_are_all_named(stack: Stack, tmp_path: Path) -> None:
    text = """
name: vars
start: a
variables:
  - {name: api-region, description: where}
  - {name: size, description: how big, default: "3"}
nodes:
  a: {type: script, script: a.sh, next: done}
  done: {type: end, output: "{{region}} {{size}}"}
"""
    script = 'echo "{\\"region\\": \\"$LLM_AGENT_VAR_API_REGION\\", \\"size\\": \\"$LLM_AGENT_VAR_SIZE\\"}"\n'
    agent = write_agent(tmp_path / "vars", text, a_sh=script)
    with stack.client() as client:
        with pytest.raises(UsageError, match="required:\n  - api-region: where"):
            client.submit(agent)
        with pytest.raises(UsageError, match="no variable 'nope'"):
            client.submit(agent, variables={"api-region": "eu", "nope": "x"})
        run = client.submit(agent, variables={"api-region": "eu"})
        run.wait(60)
        assert run.output == "eu 3"


STATED = """
name: stated
version: sleipnir/1
start: a
initial_state: {note: own, free: 1}
state:
  doc: {type: object, required: true, description: the order}
  total: {type: float, default: 0.5}
  at: {type: datetime}
  tags: {type: list, items: string}
nodes:
  a: {type: script, script: a.sh, next: done}
  done: {type: end, output: "{{doc.n}} {{total}} {{at}} {{note}}"}
"""


@pytest.mark.conformance("ST-02", "ST-03", "ST-04", "ST-12", "LM-08")
def test_a_run_begins_with_the_state_that_it_was_given_or_not_at_all(stack: Stack, tmp_path: Path) -> None:
    agent = write_agent(tmp_path / "stated", STATED, a_sh="echo '{}'\n")
    at = datetime(2026, 1, 2, tzinfo=UTC)
    with stack.client() as client:
        for wrong, named in [
            (
                {"tags": ["a", 1]},
                r"'doc' is required \(the order\).*\n.*'tags' \[1\] must be string, not int 1\nGive each",
            ),
            ({"doc": {"call": print}}, "'doc.call' is a builtin_function_or_method, which is not JSON"),
            ({"initial_prompt": "x"}, "'initial_prompt' cannot be given: it is the prompt"),
            ({"doc": {"text": "x" * 17_000_000}}, "more than SLEIPNIR_MAX_OUTPUT_BYTES"),
            (["doc"], "state must be a mapping of keys to values, not list"),
        ]:
            with pytest.raises(UsageError, match=named):
                client.submit(agent, state=wrong)  # type: ignore[arg-type]
        with pytest.raises(AgentNotFound, match="the agent's name is empty"):
            client.submit("", state={"doc": {}})
        assert client.runs(1000, agents=["stated"]) == []  # other tests may have runs in the same deployment
        run = client.submit(agent, "hello", state={"doc": {"n": 3}, "at": at, "note": "given", "other": [None]})
        run.wait(60)
        assert run.output == "3 0.5 2026-01-02T00:00:00+00:00 given"
        assert [info.id for info in client.runs(1000, agents=["stated"])] == [run.id]
        assert client.store.runs.fold(run.id, 0) == {
            "note": "given", "free": 1, "doc": {"n": 3}, "at": "2026-01-02T00:00:00+00:00", "other": [None],
            "initial_prompt": "hello", "total": 0.5, "tags": [],
        }  # fmt: skip


@pytest.mark.conformance("L02", "L03", "L08")
def test_agents_that_cannot_run_are_refused_before_anything_is_stored(stack: Stack, tmp_path: Path) -> None:
    both = write_agent(tmp_path / "both", THREE, config_yaml="name: x\n")
    (tmp_path / "neither").mkdir()
    with stack.client() as client:
        before = {info.id for info in client.runs(1000)}
        with pytest.raises(GraphError, match=r"has both config\.yaml and graph\.yaml"):
            client.submit(both)
        with pytest.raises(AgentNotFound, match=r"neither a config\.yaml nor a graph\.yaml"):
            client.submit(tmp_path / "neither")
        with pytest.raises(AgentNotFound, match="Did you mean 'log-triage'"):
            client.submit("log-triag")
        with pytest.raises(AgentNotFound):
            client.submit(".shared")
        assert not {info.id for info in client.runs(1000) if info.agent in ("both", "neither")} - before


def test_a_prompt_of_five_megabytes_is_refused_with_a_way_out(stack: Stack, tmp_path: Path) -> None:
    with stack.client() as client, pytest.raises(UsageError, match=r"5,000,000 bytes.*SLEIPNIR_MAX_PROMPT_BYTES"):
        client.submit(three(tmp_path), "x" * 5_000_000)


def test_a_large_prompt_within_the_limit_goes_through_a_file(stack: Stack, tmp_path: Path) -> None:
    with stack.client() as client:
        run = client.submit(three(tmp_path), "x" * 3_000_000)
        run.wait(60)
        assert run.state()["n"] == 6_000_000


FAILING = """
name: failing
start: a
nodes:
  a: {type: BODY, next: shown}
  shown: {type: end, output: "{{_error.node}}: {{_error.message}}"}
"""


IGNORES_SIGTERM = """
import signal, time
signal.signal(signal.SIGTERM, lambda *_: None)
while True:
    time.sleep(9)
"""


@pytest.mark.parametrize(
    ("body", "file", "expected"),
    [
        ("script, script: a.py", "print('loading')\nprint('{}')", "stdout line 1"),
        ("script, script: a.py", "import sys\nsys.exit(3)", "exit code 3"),
        ("script, script: a.py", "print('[1]')", "must be a JSON object"),
        ("script, script: a.py, timeout: 1", IGNORES_SIGTERM, "timed out after 1s"),
        ("script, script: a.py, timeout: 1", "import os, time\nos.fork()\ntime.sleep(99)", "timed out after 1s"),
        ("script, script: a.py", "import sys\nfor _ in range(100): sys.stdout.write('x' * 1_000_000)", "16"),
        ("function, call: 'a.py:f'", "def f(state): return {'ok': 1, 'when': {1, 2}}", "'when'"),
        ("function, call: 'a.py:f'", "def f(state): return {'n': float('nan')}", "'n'"),
        ("function, call: 'a.py:f'", "def f(state): raise SystemExit(1)", "SystemExit"),
        ("function, call: 'a.py:f'", "def f(state): raise MemoryError", "MemoryError"),
        ("function, call: 'a.py:f', timeout: 1", "def f(state):\n    while True: pass", "timed out after 1s"),
    ],
)  # fmt: skip
@pytest.mark.conformance("R07", "R08", "R09", "R12")
def test_what_bad_code_does_is_a_failure_of_its_node_with_the_reason_in_state(
    stack: Stack, tmp_path: Path, body: str, file: str, expected: str
) -> None:
    agent = write_agent(tmp_path / "failing", FAILING.replace("BODY", body), a_py=file)
    with stack.client() as client:
        run = client.submit(agent)
        info = run.wait(60)
        assert info.status == "completed", info.error
        assert run.output is not None
        assert run.output.startswith("a: ")
        assert expected in run.output
        after = client.submit(three(tmp_path), "hello")
        assert after.wait(60).status == "completed", "the worker goes on"


@pytest.mark.conformance("N02")
def test_no_key_of_a_worker_s_environment_reaches_a_script(stack: Stack, tmp_path: Path) -> None:
    dump = 'import json, os\nprint(json.dumps({"env": dict(os.environ)}))\n'
    text = "name: g\nstart: a\nnodes:\n  a: {type: script, script: a.py, next: e}\n  e: {type: end}\n"
    with stack.client() as client:
        run = client.submit(write_agent(tmp_path / "env", text, a_py=dump))
        run.wait(60)
        environment = run.state()["env"]
    assert not [name for name in environment if name.startswith("SLEIPNIR_") or name.endswith("_API_KEY")]
    assert stack.redis.url not in json.dumps(environment)


@pytest.mark.conformance("DU-08")
def test_a_run_keeps_the_definition_it_started_with(stack: Stack, tmp_path: Path) -> None:
    with stack.client() as client:
        agent = write_agent(tmp_path / "ask", ASK)
        run = client.submit(agent)
        wait_until(run.gates, "the question is open")
        write_agent(agent, ASK.replace('"{{name}}?"', '"changed"'))
        run.answer("Ada")
        approval = wait_until(lambda: [g for g in run.gates() if g.node == "sure"], "the approval is open")[0]
        assert approval.question == "Ada?"
        run.answer("yes")
        assert run.wait(60).status == "completed"

"""People share the work on questions, by every way in: claims, assignments, snoozes and lists."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sleipnir.runs.actor import Actor
from tests.console import Console, console_of
from tests.processes import RedisServer, Stack, write_agent
from tests.waiting import wait_until

ASKS = """
name: asks
version: sleipnir/1
start: sure
nodes:
  sure: {type: approval, question: "sure?", options: ["yes", "no"], routes: {"yes": done, "no": done}, on_other: done}
  done: {type: end, output: "{{sure_output}}"}
"""
CODE = """
name: code
version: sleipnir/1
start: ask
nodes:
  ask: {type: function, call: "f.py:ask", next: done}
  done: {type: end, output: "{{got}}"}
"""
FUNCTIONS = """
from sleipnir import interrupt

def ask(state):
    return {"got": interrupt("how much?", key="much")}
"""


@pytest.fixture
def stack(redis_server: RedisServer, tmp_path: Path) -> Iterator[Stack]:
    agents = tmp_path / "agents"
    write_agent(agents / "asks", ASKS.replace("{{sure_output}}", "done"))
    write_agent(agents / "code", CODE, f_py=FUNCTIONS)
    with Stack(redis_server, tmp_path / "home", key_prefix=f"hg-{tmp_path.name}", agents_dir=agents) as running:
        running.start_scheduler("scheduler")
        yield running


@pytest.fixture
def console(stack: Stack) -> Iterator[Console]:
    with console_of(stack) as running:
        yield running


def test_a_question_is_shared_by_all_ways_in(stack: Stack, console: Console) -> None:
    with stack.client() as client:
        run = client.submit("asks")
        (gate,) = wait_until(run.gates, "it asks")
        path = f"/gates/{run.id}/{gate.seq}.{gate.attempt}"
        eve = client.acting_as(Actor("eve", "desk", "api", "approver"))
        eve.gate_inbox.claim(gate)

        held = console.post(f"{path}/answer", {"answer": "yes"})
        assert (held.status, held.problem, held.data["claimed_by"]) == (409, "claimed", "eve")
        assert held.data["until_ms"] > held.data["claimed_at_ms"]
        assert console.post(f"{path}/release", None).problem == "claimed"
        assert console.post(f"{path}/claim", {"for_s": 0}).status == 422
        taken = console.post(f"{path}/claim", {"take_over": True})
        assert (taken.status, taken.data["run"]) == (200, run.id)
        assert console.get("/gates?view=mine").data["items"][0]["handling"]["claim"]["person"] == "anonymous"
        assert console.post(f"{path}/assign", {"person": "eve"}).status == 204
        assert [each.run for each in eve.gate_inbox.page(view="mine")] == [run.id]
        until_ms = client.now_ms() + 60_000
        assert console.post(f"{path}/snooze", {"until_ms": until_ms}).status == 204
        counts = console.get("/gates/counts").data
        assert (counts["all"], counts["mine"], counts["snoozed"], counts["is_exact"]) == (1, 0, 1, True)
        assert console.post(f"{path}/release", None).status == 204

        ways = console.get(f"{path}/ways-on").data
        assert [(way["answer"], [step["node"] for step in way["steps"]], way["then"]) for way in ways] == [
            ("yes", ["done"], "end"), ("no", ["done"], "end"), (None, ["done"], "end"),
        ]  # fmt: skip
        assert "any other" in stack.sleipnir("gates", run.id, "--ways").stdout

        stack.sleipnir("claim", run.id, "--as", "bob", "--for", "1h")
        listed = stack.sleipnir("gates", "--view", "mine", "--as", "eve").stdout
        assert "held by bob; assigned to eve" in listed
        refused = stack.sleipnir("answer", run.id, "yes", "--as", "carl")
        assert refused.returncode != 0 and "bob has claimed question" in refused.stderr
        stack.sleipnir("assign", run.id, "--nobody")
        stack.sleipnir("snooze", run.id, "sure", "--as", "bob")
        assert "no open questions" in stack.sleipnir("gates", "--view", "mine", "--as", "bob").stderr
        stack.sleipnir("claim", run.id, "--as", "bob", "--release")
        assert stack.sleipnir("assign", run.id, "sure", "--nobody", "bob").returncode == 2
        assert console.post(f"{path}/answer", {"answer": "yes"}).status == 200
        wait_until(lambda: run.info().is_final, "the run ends")
        assert console.post(f"{path}/claim", {}).problem == "already-answered"
        whats = [entry.what for entry in client.access.audit() if entry.on == f"run {run.id}"]
        assert whats[:4] == ["question claimed", "question claimed", "question assigned", "question snoozed"]


def test_a_comment_is_seen_by_all_ways_in_before_and_after_the_answer(stack: Stack, console: Console) -> None:
    with stack.client() as client:
        run = client.submit("asks")
        (gate,) = wait_until(run.gates, "it asks")
        path = f"/gates/{run.id}/{gate.seq}.{gate.attempt}"
        done = stack.sleipnir("comment", run.id, "The supplier says yes.", "--as", "bob")
        assert done.returncode == 0 and "has your comment" in done.stderr
        for _ in range(2):
            assert console.post(f"{path}/comment", {"text": "I ask\nthe customer."}).status == 204
        eve = client.acting_as(Actor("eve", "desk", "api", "viewer"))
        eve.gate_inbox.comment(gate, "me too")
        assert console.post(f"{path}/comment", {"text": " "}).status == 422
        assert stack.sleipnir("comment", run.id).returncode == 2

        said = [(each["person"], each["text"]) for each in console.get(path).data["handling"]["comments"]]
        assert said == [
            ("bob", "The supplier says yes."), ("anonymous", "I ask\nthe customer."), ("eve", "me too"),
        ]  # fmt: skip
        assert "3 comments" in stack.sleipnir("gates").stdout
        shown = stack.sleipnir("show", run.id).stdout
        assert "): The supplier says yes." in shown and "eve@desk (api): me too" in shown
        assert console.post(f"{path}/answer", {"answer": "yes"}).status == 200
        wait_until(lambda: run.info().is_final, "the run ends")
        assert console.post(f"{path}/comment", {"text": "late"}).problem == "already-answered"
        late = stack.sleipnir("comment", run.id, "late")
        assert late.returncode != 0 and "has no open question" in late.stderr
        told = stack.sleipnir("history", run.id).stdout
        assert "I ask the customer." in told and "The supplier says yes." in told and "late" not in told
        assert ": me too" in stack.sleipnir("show", run.id).stdout, "the last one"
        entries = [entry for entry in client.access.audit() if entry.what == "run commented"]
        assert [entry.reason for entry in entries] == [text for _, text in said]
        assert {entry.on for entry in entries} == {f"run {run.id}"}


def test_a_comment_on_an_interrupt_is_not_taken_for_its_answer(stack: Stack, console: Console) -> None:
    """Its node runs again with the answer, so the journal has comment and answer as steps of their own."""
    stack.start_worker("functions", "functions")
    with stack.client() as client:
        run = client.submit("code")
        (gate,) = wait_until(run.gates, "it asks")
        path = f"/gates/{run.id}/{gate.seq}.{gate.attempt}"
        assert console.post(f"{path}/comment", {"text": "seven?"}).status == 204
        wait_until(lambda: any(step.kind == "commented" for step in run.history()), "it is in the journal")
        assert run.answered(gate.seq) is None and console.get(path).status == 200
        run.answer(7, gate)
        assert run.wait(60).status == "completed" and run.output == "7"
        answered = run.answered(gate.seq)
        assert answered is not None and answered.answer == "7"

"""Who may answer a gate, by every way in, with a scheduler that is killed between the voices."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sleipnir.errors import AnswerRefused
from sleipnir.runs.actor import Actor
from sleipnir.runs.handling import VoiceCount
from tests.console import Console, console_of
from tests.processes import RedisServer, Stack, write_agent
from tests.waiting import wait_until

PAY = """
name: pay
version: sleipnir/1
start: ask
nodes:
  ask: {type: function, call: "f.py:ask", next: sure}
  sure:
    type: approval
    question: "sure?"
    options: ["yes", "no"]
    routes: {"yes": done, "no": done}
    on_other: done
    assignees: [anna, bob]
    quorum: 2
    comment: required
  done: {type: end, output: "{{got}}"}
"""
FUNCTIONS = """
from sleipnir import interrupt

def ask(state):
    return {"got": interrupt("how much?", key="much", rules={"role": "operator", "not_author": True})}
"""


@pytest.fixture
def stack(redis_server: RedisServer, tmp_path: Path) -> Iterator[Stack]:
    agents = tmp_path / "agents"
    write_agent(agents / "pay", PAY, f_py=FUNCTIONS)
    with Stack(redis_server, tmp_path / "home", key_prefix=f"who-{tmp_path.name}", agents_dir=agents) as running:
        running.start_scheduler("scheduler")
        running.start_worker("worker")
        yield running


@pytest.fixture
def console(stack: Stack) -> Iterator[Console]:
    with console_of(stack) as running:
        yield running


def test_people_answer_by_all_ways_in_and_voices_outlive_a_killed_scheduler(stack: Stack, console: Console) -> None:
    with stack.client() as client:
        author = client.acting_as(Actor("anna", "desk", "api", "operator"))
        run = author.submit("pay")
        (gate,) = wait_until(run.gates, "the function asks")
        assert (gate.rules.role if gate.rules else None, gate.author) == ("operator", "anna")
        with pytest.raises(AnswerRefused, match="has submitted the run"):
            run.answer(7, "much")
        other = client.acting_as(Actor("eve", "desk", "api", "approver")).run(run.id)
        with pytest.raises(AnswerRefused, match="people with the role operator"):
            other.answer(7, "much")
        place = f"/gates/{run.id}/{gate.seq}.{gate.attempt}/answer"
        assert console.post(place, {"answer": 7, "comment": "enough"}).data["outcome"] == "accepted"

        (gate,) = wait_until(lambda: [gate for gate in run.gates() if gate.node == "sure"], "the approval asks")
        place = f"/gates/{run.id}/{gate.seq}.{gate.attempt}/answer"
        refused = console.post(place, {"answer": "yes", "comment": "because"})
        assert (refused.status, refused.problem, refused.data["assignees"]) == (403, "may-not-answer", ["anna", "bob"])
        with pytest.raises(AnswerRefused, match="needs a comment"):
            run.answer("yes", gate)
        assert run.answer("yes", gate, comment="mine") == VoiceCount(1, 2)
        shown = console.get(f"/gates/{run.id}/{gate.seq}").data["handling"]["voices"]
        assert [(voice["person"], voice["answer"], voice["comment"]) for voice in shown] == [("anna", "yes", "mine")]
        stack.kill("scheduler")
        bob = client.acting_as(Actor("root", "desk", "cli").named("bob")).run(run.id)
        assert bob.answer("yes", gate, comment="too") is None
        late = console.post(place, {"answer": "no", "comment": "late"})
        assert late.status == 409, "it is answered, though no scheduler has seen that yet"
        stack.start_scheduler("other")
        wait_until(lambda: run.info().is_final, "the run ends")
        assert run.output == "7"
        steps = [step for step in run.history() if step.answer is not None]
        assert [(step.answer, step.by, step.reason) for step in steps] == [
            ("7", "anonymous@127.0.0.1 (api)", "enough"),
            ("yes", "bob@desk (cli, named by root)", "too"),
        ]
        assert [voice.person for voice in steps[-1].voices] == ["anna", "bob"]

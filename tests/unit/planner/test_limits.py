"""What takes one of a run's slots, and what waits for one."""

from __future__ import annotations

import pytest

from sleipnir.messages import RESULT
from sleipnir.runs.events import ChildEnded
from sleipnir.runs.visits import ChildWait
from tests.model_store import Driver

NODES = {
    "script": "{type: script, script: s.sh}",
    "function": '{type: function, call: "f.py:work"}',
    "llm": "{type: llm, prompt: hello, model: m}",
    "rag": "{type: rag, documents: [d]}",
    "agent": '{type: agent, agent: helper, prompt: "{{n}}"}',
}
COMMANDS = """
name: g
version: sleipnir/1
start: plan
engine: {engine}
settings: {{max_concurrency: 2}}
nodes:
  plan: {{type: function, call: "f.py:plan"}}
  work: {node}
"""


@pytest.mark.parametrize("engine", ["bsp", "dag"])
@pytest.mark.parametrize("kind", NODES)
def test_every_kind_of_node_with_work_on_a_worker_takes_a_slot(kind: str, engine: str) -> None:
    """Finding C16 of the second review: rag nodes and agent nodes ignored the limit."""
    driver = Driver(COMMANDS.format(engine=engine, node=NODES[kind])).start()
    driver.does("plan", sends=[("work", {"n": n}) for n in range(8)])
    most = done = 0
    while at_work := [
        visit for visit in driver.run.frontier.values() if isinstance(visit.body, ChildWait) or visit.state == "queued"
    ]:
        most, done = max(most, len(at_work)), done + 1
        visit = at_work[0]
        if not isinstance(visit.body, ChildWait):
            driver.ends(visit)
        else:
            driver.try_(ChildEnded(visit.seq, visit.attempt, visit.children[0], "completed"), {RESULT: "done"})
    assert (driver.run.status, most, done) == ("completed", 2, 8)

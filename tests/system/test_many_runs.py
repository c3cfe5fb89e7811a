"""A thousand runs at once on four workers: all end, none sees another one, and none has to wait for all others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes import CALM, RedisServer, Stack, write_agent

RUNS, NODES = 1_000, 10
WORK = """
def work(state):
    return {"trail": [f"{state['n']}/{len(state['trail'])}"]}
"""


def chain() -> str:
    """The graph: nodes that each add their number to those before."""
    targets = [*(f"n{number}" for number in range(1, NODES)), "done"]
    head = "name: chain\nversion: sleipnir/1\nstart: n0\nstate: {n: int, trail: {type: list, reducer: append}}\nnodes:"
    nodes = [f'  n{at}: {{type: function, call: "f.py:work", next: {target}}}' for at, target in enumerate(targets)]
    return "\n".join([head, *nodes, '  done: {type: end, output: "{{trail}}"}', ""])


@pytest.mark.conformance("DU-11")
def test_a_thousand_runs_of_ten_nodes_end_each_with_its_own_state(redis_server: RedisServer, tmp_path: Path) -> None:
    with Stack(redis_server, tmp_path / "home", key_prefix="many", **CALM) as stack, stack.client() as client:
        agent = write_agent(tmp_path / "chain", chain(), f_py=WORK)
        batch = client.batch(agent, ({"n": n} for n in range(RUNS)), key="n")
        stack.start_scheduler()
        for number in range(4):
            stack.start_worker(f"worker-{number}", concurrency=2, ready=False)
        for number in range(4):
            stack.wait_for_worker(f"worker-{number}", 120)
        alone = client.submit(agent, state={"n": -1})
        assert alone.wait(120).status == "completed"
        assert batch.info().state == "running", "one run that comes late does not wait for a thousand"
        info = batch.wait(400)
        assert (info.state, info.completed) == ("done", RUNS)
        found = {result.key: result.output for result in batch.results()}
        assert found == {str(n): "[" + ",".join(f'"{n}/{at}"' for at in range(NODES)) + "]" for n in range(RUNS)}

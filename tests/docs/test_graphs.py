"""Every graph of the documents as it is written: it validates, and it runs to its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from sleipnir.client.client import Client
from sleipnir.graph.check import validate
from sleipnir.settings import Settings
from tests.docs.completions import COMPLETIONS, Completion, Run
from tests.docs.graphs import GRAPHS, completion_of, key_of, written
from tests.docs.pages import Block
from tests.docs.reader import Machine
from tests.processes import wait_until

TO_RUN = [block for block in GRAPHS if COMPLETIONS.get(key_of(block), Completion()).not_run is None]


def test_every_completed_graph_is_on_its_page() -> None:
    keys = {key_of(block) for block in GRAPHS}
    assert [key for key in COMPLETIONS if key not in keys] == []


@pytest.mark.parametrize("block", GRAPHS, ids=str)
def test_a_graph_has_no_errors(block: Block, tmp_path: Path) -> None:
    agent = written(block, completion_of(block), tmp_path)
    problems = [str(problem) for problem in validate(agent) if problem.level == "error"]
    assert not problems, "\n".join([(agent / "graph.yaml").read_text(), *problems])


@pytest.mark.parametrize("block", TO_RUN, ids=str)
def test_a_graph_runs_to_its_end(block: Block, machine: Machine, tmp_path: Path) -> None:
    completion = completion_of(block)
    for number, wanted in enumerate(completion.runs):
        agents = tmp_path / str(number)
        agent = written(block, completion, agents, wanted.start)
        settings = Settings(redis_url=machine.home.redis_url, home=machine.home.root, agents_dir=agents)
        with Client(settings) as client:
            run_to_its_end(client, agent, wanted, machine)


def run_to_its_end(client: Client, agent: Path, wanted: Run, machine: Machine) -> None:
    machine.improviser.follow(wanted.rules)
    for name, data in wanted.signals.items():
        client.signal(name, data)
    run = client.submit(agent, "What is it?", state=wanted.state, caller_dir=agent)
    for node, text in wanted.answers:
        wait_until(lambda: run.gates() or run.info().is_final, f"the run asks at {node!r}")
        run.answer(text, next(gate for gate in run.gates() if gate.node == node))
    for _ in range(wanted.breakpoints):
        wait_until(lambda: run.info().breakpoints or run.info().is_final, "the run is at a breakpoint")
        run.resume()
    info = run.wait(60)
    assert (info.status, info.error, run.output or "") == ("completed", None, wanted.output)
    assert not info.failed_visits.count

"""The short form of `make chaos`: a few random graphs, several times each, while everything is being killed."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ops.chaos.run import draw

ROOT = Path(__file__).parents[2]
SEED, GRAPHS = 3305, 7  # found by trying: small graphs that have it all


def test_its_graphs_have_maps_joins_and_loops_on_both_engines(tmp_path: Path) -> None:
    folders = draw(tmp_path / "agents", random.Random(SEED), GRAPHS, tmp_path / "effects", others=True)
    for kind in ("bsp", "dag"):
        text = "".join((folder / "graph.yaml").read_text() for folder in folders if folder.name.startswith(kind))
        assert all(part in text for part in ('"type": "map"', '"wait_for":', "again"))
    text = "".join((folder / "graph.yaml").read_text() for folder in folders)
    everything = ('"type": "llm"', '"type": "agent"', '"callbacks"', '"cache"', '"type": "wait"')
    assert all(part in text for part in everything)
    assert "'asks':" in "".join((folder / "node.py").read_text() for folder in folders if folder.name.startswith("dag"))


def campaign(*options: str) -> str:
    """What a short campaign prints."""
    command = [sys.executable, str(ROOT / "ops/chaos/run.py"), "--runs", "14", "--graphs", str(GRAPHS)]
    command += ["--seed", str(SEED), "--fast", "--drops", "10", "--duplicates", "50", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=230)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert "0 lost, 0 double commits, 0 stuck, 0 other broken promises" in done.stdout
    assert "0 changes of state" in done.stdout
    assert "of 6 graphs compared with runs without faults, 0 ended in another way" in done.stdout
    return done.stdout


@pytest.mark.timeout(240)
def test_no_promise_is_broken_while_everything_is_being_killed() -> None:
    printed = campaign("--kill-every", "1.5")
    found = re.search(r"(\d+) random runs", printed)
    assert found is not None, printed
    assert int(found[1]) >= 14, "and the forks of some of them"
    assert "fail-overs" not in printed


@pytest.mark.timeout(240)
def test_no_promise_is_broken_to_runs_that_lost_nothing_while_nodes_of_a_cluster_fail_over() -> None:
    printed = campaign("--kill-every", "1", "--nodes", "3", "--replicas", "1", "--partitions", "32")
    found = re.search(r"(\d+) fail-overs, of which \d+ lost writes", printed)
    assert found is not None, printed

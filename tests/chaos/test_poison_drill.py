"""The short form of `make poison`: each drill with a few runs of a few graphs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ops.chaos.poison import DRILLS

ROOT = Path(__file__).parents[2]
SEED, GRAPHS, RUNS = "548", "4", 4
TOGETHER = (("poison",), ("disk", "restore", "mixed"), ("outage", "promote", "clock"))


def test_every_drill_has_a_short_form() -> None:
    assert {drill for drills in TOGETHER for drill in drills} == DRILLS.keys()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("drills", TOGETHER, ids=",".join)
def test_every_promise_holds(drills: tuple[str, ...]) -> None:
    command = [sys.executable, str(ROOT / "ops/chaos/poison.py"), "--fast", "--seed", SEED, "--graphs", GRAPHS]
    command += ["--runs", str(RUNS * len(drills)), "--only", ",".join(drills), "--corpus", "0.05"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=590)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    for drill in drills:
        assert f"\n  {drill}: " in done.stdout
    assert "BROKEN" not in done.stdout
    assert "lost by Redis, as documented:" in done.stdout

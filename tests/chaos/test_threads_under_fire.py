"""The short form of `ops/chaos/threads.py`: turns of a few threads while everything is being killed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from ops.chaos.threads import Race, Reply, of_race

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("replies", "begun", "wrong"),
    [
        (("begun", "refused"), (1, 0), []),
        (("lost", "refused"), (1, 0), []),
        (("lost", "lost"), (0, 0), []),
        (("begun", "refused"), (0, 0), ["lost", "lost"]),
        (("begun", "refused"), (1, 1), ["double", "double"]),
        (("begun", "begun"), (1, 1), ["double"]),
        (("refused", "refused"), (0, 0), ["lost"]),
        (("lost", "begun"), (1, 1), ["double"]),
    ],
)
def test_two_turns_at_once_that_are_not_one_are_noticed(
    replies: tuple[Reply, Reply], begun: tuple[int, int], wrong: list[str]
) -> None:
    race = Race("agent", dict(zip(("a", "b"), replies, strict=True)))
    assert [each.kind for each in of_race(race, Counter(dict(zip(("a", "b"), begun, strict=True))))] == wrong


@pytest.mark.timeout(240)
def test_one_of_two_turns_wins_and_begins_with_the_last_state_while_everything_is_being_killed() -> None:
    command = [sys.executable, str(ROOT / "ops/chaos/threads.py"), "--threads", "4", "--turns", "2", "--seed", "5"]
    command += ["--kill-every", "1.5", "--fast", "--drops", "10"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=230)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    facts = json.loads(done.stdout)
    assert facts["broken"] == {} and 4 <= facts["turns"] <= 8 and facts["robot"]["refused"] > 0

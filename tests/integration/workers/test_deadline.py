"""Deadlines in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from sleipnir_workers.functions import deadline
from tests.unit.workers.test_deadline import call, spin


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_a_watchdog_of_its_own() -> None:
    with pytest.raises(deadline.DeadlinePassed):
        call(spin, timeout_s=0.05)  # the parent's watchdog runs when we fork
    child = os.fork()
    if child == 0:
        try:
            call(spin, timeout_s=0.1)
        except deadline.DeadlinePassed:
            os._exit(17)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17


def test_a_profiler_works_after_a_deadline() -> None:
    """With CPython 3.11 the first function that it follows never ended. In a process of its own, as this test would not
    end either."""
    code = """
import sys, threading
from sleipnir_workers.functions import deadline

def spin():
    while True: pass

for lost in (threading.Event(), threading.Event()):
    try:
        deadline.call(spin, timeout_s=0.05, lost=lost)
    except deadline.DeadlinePassed:
        print("interrupted")
seen = []
sys.setprofile(lambda frame, event, _: seen.append(event))
sorted(range(3), key=lambda n: -n)
sys.setprofile(None)
print(seen.count("call"))
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ended.stdout.split(), ended.stderr) == (["interrupted", "interrupted", "3"], "")

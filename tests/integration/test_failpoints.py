"""Failpoints in a process that is killed, or that loses a reply."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from sleipnir import failpoints
from sleipnir.settings import Settings


def python(code: str, points: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {failpoints.VARIABLE: points}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)


def test_a_process_is_killed_between_two_lines() -> None:
    code = "from sleipnir import failpoints; print('one', flush=True); failpoints.hit('a.before'); print('two')"
    done = python(code, "a.before=kill")
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "one\n")


def test_a_lost_reply_is_lost_after_the_call() -> None:
    code = "from sleipnir import failpoints; failpoints.around('a')(lambda: print('called'))()"
    done = python(code, "a.after=raise")
    assert done.stdout == "called\n"
    assert "ConnectionError: failpoint a.after" in done.stderr


def test_a_process_reports_its_failpoints_and_other_settings_still_apply() -> None:
    code = "from sleipnir.settings import Settings; from sleipnir.logs import configure; configure(Settings.from_env())"
    done = python(code, "claim.before=kill@3")
    assert (done.returncode, done.stderr.count("fails on purpose")) == (0, 1)
    assert Settings.from_env({failpoints.VARIABLE: "x.before=kill", "SLEIPNIR_LEASE_S": "3"}).lease_s == 3

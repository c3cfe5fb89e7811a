"""Failpoints by themselves; tests/system/test_failpoints.py dies at them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from sleipnir import failpoints
from sleipnir.errors import ConfigError
from sleipnir.settings import Settings
from sleipnir.store.scripts import Script


def python(code: str, points: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {failpoints.VARIABLE: points}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)


def test_without_the_variable_nothing_is_wrapped() -> None:
    def function() -> None: ...

    assert not failpoints.ACTIVE
    assert failpoints.around("point")(function) is function
    assert not hasattr(Script.__call__, "__wrapped__")


def test_a_failpoint_acts_once_at_the_time_it_names() -> None:
    point = failpoints.parse("own.after=raise@3")["own.after"]
    point.pass_by()
    point.pass_by()
    with pytest.raises(ConnectionError, match=r"failpoint own\.after"):
        point.pass_by()
    point.pass_by()


def test_a_process_is_killed_between_two_lines() -> None:
    code = "from sleipnir import failpoints; print('one', flush=True); failpoints.hit('a.before'); print('two')"
    done = python(code, "a.before=kill")
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "one\n")


def test_a_lost_reply_is_lost_after_the_call() -> None:
    code = "from sleipnir import failpoints; failpoints.around('a')(lambda: print('called'))()"
    done = python(code, "a.after=raise")
    assert done.stdout == "called\n"
    assert "ConnectionError: failpoint a.after" in done.stderr


def test_a_process_says_that_it_fails_on_purpose_and_other_settings_still_count() -> None:
    code = "from sleipnir.settings import Settings; from sleipnir.logs import configure; configure(Settings.from_env())"
    done = python(code, "claim.before=kill@3")
    assert (done.returncode, done.stderr.count("fails on purpose")) == (0, 1)
    assert Settings.from_env({failpoints.VARIABLE: "x.before=kill", "SLEIPNIR_LEASE_S": "3"}).lease_s == 3


@pytest.mark.parametrize("text", ["claim=kill", "claim.during=kill", "claim.before=explode", "claim.before=kill@0"])
def test_what_is_no_failpoint_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no failpoint"):
        failpoints.parse(text)

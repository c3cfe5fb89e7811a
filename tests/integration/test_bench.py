"""ops/bench/run.py as a command."""

from __future__ import annotations

import subprocess
import sys

from tests.unit.test_bench import ROOT

RUN = ROOT / "ops" / "bench" / "run.py"


def test_the_command_explains_itself_and_refuses_a_subject_that_it_does_not_have() -> None:
    told = subprocess.run([sys.executable, RUN, "--help"], capture_output=True, text=True, timeout=60)
    assert told.returncode == 0 and "--quick" in told.stdout
    refused = subprocess.run([sys.executable, RUN, "--only", "engin"], capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2 and "no subject is called engin" in refused.stderr

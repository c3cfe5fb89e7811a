"""`make conformance` can fail: a plugin that always says yes would prove nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance_report import IN_SCOPE, Checklist

ROOT = Path(__file__).parents[2]


def conformance_run(folder: Path, body: str, *options: str) -> subprocess.CompletedProcess[str]:
    """A pytest session of its own with the plugin, over one test file."""
    (folder / "test_rows.py").write_text(f"import pytest\n{body}\n")
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = conformance(*ids): rows\n")
    argv = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.conformance_report",
        "-p",
        "no:randomly",
        *options,
        str(folder),
    ]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    env["PYTHONPATH"] = str(ROOT)
    return subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=100)


ALL_ROWS = f"""
@pytest.mark.conformance(*{IN_SCOPE!r})
def test_all():
    pass
"""


def test_every_row_with_a_passed_test_is_a_success(tmp_path: Path) -> None:
    done = conformance_run(tmp_path, ALL_ROWS)
    assert done.returncode == 0, done.stdout
    assert f"{len(IN_SCOPE)} of {len(IN_SCOPE)} rows in scope are proven." in done.stdout
    assert "T05   passed   test_rows.py::test_all" in done.stdout


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["plain", "xdist"])
def test_one_failing_test_fails_its_row_even_if_another_test_of_the_row_passes(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    body = ALL_ROWS + '@pytest.mark.conformance("T05")\ndef test_bad():\n    assert False\n'
    done = conformance_run(tmp_path, body, *options)
    assert done.returncode == 1
    assert "T05   failed   test_rows.py::test_all" in done.stdout
    assert "Not proven: T05\n" in done.stdout


def test_a_row_without_a_test_fails_the_session(tmp_path: Path) -> None:
    done = conformance_run(tmp_path, ALL_ROWS.replace("'T05'", "'T06'"))
    assert done.returncode == 1
    assert "T05   missing  (no test)" in done.stdout


def test_a_skipped_test_proves_nothing(tmp_path: Path) -> None:
    done = conformance_run(tmp_path, '@pytest.mark.skip("later")' + ALL_ROWS)
    assert done.returncode == 1
    assert f"0 of {len(IN_SCOPE)} rows in scope are proven." in done.stdout


def test_a_broken_fixture_fails_its_row(tmp_path: Path) -> None:
    broken = "@pytest.fixture\ndef broken():\n    raise OSError\n"
    done = conformance_run(tmp_path, broken + ALL_ROWS.replace("test_all()", "test_all(broken)"))
    assert done.returncode == 1
    assert "T05   failed" in done.stdout


def test_a_failure_is_kept_if_the_same_test_passes_in_a_later_phase() -> None:
    checklist = Checklist()
    for outcome in ("failed", "passed"):
        checklist.add(["T05"], "test_x.py::test_a", outcome)
    assert checklist.result("T05") == "failed"


def test_the_scope_has_no_row_twice() -> None:
    assert len(set(IN_SCOPE)) == len(IN_SCOPE) == 712

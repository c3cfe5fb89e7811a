"""The Makefile, ops/setup.py and `.ci/run`: the README's commands, as a fresh shell runs them."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
OF_MAKE = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")
SHOWS_ITS_ENVIRONMENT = "#!/bin/sh\nexec env\n"


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with our Makefile, whose .venv is ready and whose programs print their environment."""
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    for program in (".venv/bin/python", "ops/check", "ops/demo"):
        file = tmp_path / program
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(SHOWS_ITS_ENVIRONMENT)
        file.chmod(0o755)
    (tmp_path / ".venv" / ".ready").touch()
    return tmp_path


@pytest.mark.parametrize(
    "target", ["demo", "test", "test-slow", "test-browser", "check", "conformance", "bench", "chaos"]
)
@pytest.mark.parametrize("flags", [[], ["--silent"], ["--keep-going", "-j2"]])
def test_what_make_starts_is_not_a_part_of_that_make(clone: Path, target: str, flags: list[str]) -> None:
    """T1 of the second review: a make that a test starts printed `Entering directory` into what the test compares."""
    env = {name: value for name, value in os.environ.items() if name not in OF_MAKE}
    done = subprocess.run(["make", *flags, target], cwd=clone, env=env, capture_output=True, text=True, check=True)
    names = {line.partition("=")[0] for line in done.stdout.splitlines()}
    assert "PATH" in names, done.stdout
    assert names.isdisjoint(OF_MAKE)


def test_the_tests_do_not_see_the_make_that_started_them() -> None:
    """T1 of the second review. However pytest was started: from another project's Makefile, too."""
    assert not [name for name in OF_MAKE if name in os.environ]


def test_ci_runs_the_commands_of_the_readme_as_they_are_written() -> None:
    """T1 of the second review: with --silent CI hid what every fresh clone showed."""
    readme = re.findall(r"`(make [\w-]+)`|^(make [\w-]+)$", (ROOT / "README.md").read_text(), re.MULTILINE)
    wanted = {first or second for first, second in readme}
    assert wanted == {"make demo", "make quick", "make test"}
    text = (ROOT / ".ci" / "run").read_text()
    assert wanted <= set(re.findall(r"^[^#\n]*?\b(make [\w-]+)(?= </dev/null)", text, re.MULTILINE))
    assert "--silent" not in text


PIP = """\
Collecting amqp==5.3.1 (from -r requirements.lock (line 7))
  Downloading amqp-5.3.1-py3-none-any.whl (50 kB)
WARNING: lxml 5.3 does not provide the extra 'html-clean'
Collecting celery==5.7.0 (from -r requirements.lock (line 9))
Installing collected packages: amqp, celery
Successfully installed amqp-5.3.1 celery-5.7.0
"""


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """ops/setup.py for a folder whose pip is a script that prints what pip prints."""
    spec = importlib.util.spec_from_file_location("ops_setup", ROOT / "ops" / "setup.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "requirements.lock").write_text("amqp==5.3.1 \\\n    --hash=sha256:0\ncelery[redis]==5.7.0 \\\n")
    (tmp_path / ".build").mkdir()
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(module, "LOG", tmp_path / ".build" / "setup.log")
    monkeypatch.setattr(sys, "executable", shutil.which("true"))  # makes no environment
    pip = tmp_path / ".venv" / "bin" / "python"
    pip.parent.mkdir(parents=True)
    (tmp_path / "printed").write_text(PIP)
    pip.write_text(f"#!/bin/sh\ncat '{tmp_path}/printed'\nexit $(cat '{tmp_path}/code' 2>/dev/null || echo 0)\n")
    pip.chmod(0o755)
    yield module


def test_setting_up_prints_a_line_per_step_and_none_of_pips(
    setup: ModuleType, capfd: pytest.CaptureFixture[str]
) -> None:
    """Finding U14 of the second review: a cold `make demo` said nothing for minutes but `WARNING: lxml`."""
    assert setup.main() == 0
    printed, errors = capfd.readouterr()
    first, *steps = printed.splitlines()
    assert first.startswith("setting up .venv with Python 3.")
    assert steps == [
        "  1 of 4: making the virtual environment",
        "  2 of 4: downloading 2 packages",
        "  3 of 4: installing them",
        "  4 of 4: installing Sleipnir itself",
    ]
    assert errors == ""
    assert "WARNING: lxml" in setup.LOG.read_text()


def test_a_step_that_fails_shows_the_end_of_what_pip_printed(
    setup: ModuleType, capfd: pytest.CaptureFixture[str]
) -> None:
    (setup.ROOT / "printed").write_text("\n" * 40 + "ERROR: no matching distribution found for amqp\n")
    (setup.ROOT / "code").write_text("1")
    assert setup.main() == 1
    errors = capfd.readouterr().err.splitlines()
    assert errors[0] == "error: this step failed:"
    assert errors[-2:] == ["ERROR: no matching distribution found for amqp", "All of it is in .build/setup.log."]
    assert len(errors) <= 20

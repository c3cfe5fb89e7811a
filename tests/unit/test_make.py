"""The Makefile and `.ci/run`: the README's commands, as a fresh shell runs them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OF_MAKE = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")
SHOWS_ITS_ENVIRONMENT = "#!/bin/sh\nexec env\n"


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with our Makefile, whose .venv is ready and whose programs print their environment."""
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    for program in (".venv/bin/python", ".venv/bin/sleipnir", "ops/check"):
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
    assert wanted == {"make demo", "make test"}
    text = (ROOT / ".ci" / "run").read_text()
    assert wanted <= set(re.findall(r"^[^#\n]*?\b(make [\w-]+)(?= </dev/null)", text, re.MULTILINE))
    assert "--silent" not in text

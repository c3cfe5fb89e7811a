"""The commands that build and test a project: from the variables of the run, else from the project's files.

The agents oracle and coder import this file. It runs on python3 from 3.9 on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path


def build_command(root: Path) -> str | None:
    """The shell command that builds the project in `root`, None if there is none that we know of."""
    return next(_build_commands(root), None)


def test_command(root: Path) -> str | None:
    """The shell command that runs the project's tests, None if there is none that we know of."""
    return next(_test_commands(root), None)


def manifests(root: Path) -> list[str]:
    """The files that say what kind of project it is."""
    return [name for name in _MANIFESTS if (root / name).is_file()]


_MANIFESTS = (
    "Makefile", "package.json", "pyproject.toml", "setup.py", "requirements.txt", "Cargo.toml", "go.mod", "pom.xml",
    "build.gradle", "build.gradle.kts", "CMakeLists.txt", "Gemfile", "composer.json", "Dockerfile",
)  # fmt: skip


# A file that a project has, and what builds and tests it then.
_BY_FILE = (
    ("Cargo.toml", "cargo build", "cargo test"),
    ("go.mod", "go build ./...", "go test ./..."),
    ("pom.xml", "mvn -q -DskipTests package", "mvn -q test"),
    ("gradlew", "./gradlew assemble", "./gradlew test"),
)


def _build_commands(root: Path) -> Iterator[str]:
    if _has_target(root, "build"):
        yield "make build"
    if "build" in _npm_scripts(root):
        yield "npm run build"
    yield from (build for file, build, _ in _BY_FILE if _has(root, file))


def _test_commands(root: Path) -> Iterator[str]:
    if _has_target(root, "test"):
        yield "make test"
    if "no test specified" not in _npm_scripts(root).get("test", "no test specified"):
        yield "npm test"
    yield from (test for file, _, test in _BY_FILE if _has(root, file))
    if _has(root, "pytest.ini") or "pytest" in _text(root, "pyproject.toml") + _text(root, "setup.cfg"):
        yield f"{_python(root)} -m pytest -q"
    if _has(root, "pyproject.toml") or _has(root, "setup.py") or any(root.glob("test*.py")):
        yield f"{_python(root)} -m unittest discover"


def _python(root: Path) -> str:
    return ".venv/bin/python" if _has(root, ".venv/bin/python") else "python3"


def _has(root: Path, name: str) -> bool:
    return (root / name).is_file()


def _text(root: Path, name: str) -> str:
    try:
        return (root / name).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _has_target(root: Path, target: str) -> bool:
    return re.search(rf"^{target}\s*:(?!=)", _text(root, "Makefile"), re.MULTILINE) is not None


def _npm_scripts(root: Path) -> dict[str, str]:
    try:
        scripts = json.loads(_text(root, "package.json"))["scripts"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    return {name: str(script) for name, script in scripts.items()} if isinstance(scripts, dict) else {}

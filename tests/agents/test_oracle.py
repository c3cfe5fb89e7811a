"""The agent oracle: its tools look closely at one project."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agents.in_process import Tools, git, write

OUTSIDE = "is outside the project. Paths are relative to the project directory: src/main.py."


@pytest.fixture
def oracle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    tools = Tools("oracle", tmp_path / "shop", monkeypatch)
    write(tmp_path, {"secret.txt": "the secret\n"})
    return tools


def info(oracle: Tools) -> dict[str, str]:
    """The facts that stand on a line of their own."""
    lines = oracle("get_project_info").splitlines()
    return {name: rest for name, colon, rest in (line.partition(": ") for line in lines) if colon}


def test_the_facts_of_a_project(oracle: Tools) -> None:
    readme = "# Shop\n" + "\nSells bells." * 50
    write(oracle.project, {"README.md": readme, "pyproject.toml": "[tool.pytest]\n", "shop/a.py": "a = 1\n"})
    git(oracle.project, "init", "-q", "-b", "trunk")
    git(oracle.project, "add", ".")
    git(oracle.project, "commit", "-q", "-m", "Sell bells")
    text = oracle("get_project_info")
    assert text.splitlines()[:7] == [
        "Project: shop",
        "Files: 3 (.md 1, .toml 1, .py 1)",
        "Manifests: pyproject.toml",
        "Build: unknown",
        "Tests: python3 -m pytest -q",
        "Top level: README.md, pyproject.toml, shop/",
        "Git: branch trunk; the last commits:",
    ]
    assert text.splitlines()[7].endswith(" Sell bells")
    assert "README.md, lines 1-30 of 52:\n1| # Shop\n" in text
    assert text.endswith("30| Sells bells.")


def test_a_project_without_anything_has_facts_too(oracle: Tools) -> None:
    assert oracle("get_project_info").splitlines() == [
        "Project: shop",
        "Files: 0 ()",
        "Manifests: none",
        "Build: unknown",
        "Tests: unknown",
        "Top level: ",
        "Git: not a repository, or without commits",
    ]


def test_a_readme_that_is_no_text_is_left_out(oracle: Tools, tmp_path: Path) -> None:
    (oracle.project / "README.pdf").write_bytes(b"%PDF\0\0")
    assert oracle("get_project_info").endswith("Git: not a repository, or without commits")
    (oracle.project / "README").symlink_to(tmp_path / "secret.txt")
    assert "secret" not in oracle("get_project_info")


@pytest.mark.parametrize(
    ("files", "build", "tests"),
    [
        ({"Makefile": "build: x\n\tcc x\ntest:\n\t./x\n"}, "make build", "make test"),
        ({"Makefile": "build := 1\ntests:\n\ttrue\n"}, "unknown", "unknown"),
        ({"package.json": '{"scripts": {"build": "tsc", "test": "vitest"}}'}, "npm run build", "npm test"),
        ({"package.json": '{"scripts": {"test": "echo \\"Error: no test specified\\""}}'}, "unknown", "unknown"),
        ({"package.json": "{"}, "unknown", "unknown"),
        ({"package.json": "[1]"}, "unknown", "unknown"),
        ({"package.json": '{"scripts": 7}'}, "unknown", "unknown"),
        ({"Cargo.toml": ""}, "cargo build", "cargo test"),
        ({"go.mod": ""}, "go build ./...", "go test ./..."),
        ({"pom.xml": ""}, "mvn -q -DskipTests package", "mvn -q test"),
        ({"gradlew": ""}, "./gradlew assemble", "./gradlew test"),
        ({"pytest.ini": ""}, "unknown", "python3 -m pytest -q"),
        ({"setup.cfg": "[tool:pytest]", ".venv/bin/python": ""}, "unknown", ".venv/bin/python -m pytest -q"),
        ({"test_a.py": ""}, "unknown", "python3 -m unittest discover"),
        ({"Makefile": "test:\n", "Cargo.toml": ""}, "cargo build", "make test"),
    ],
)
def test_how_a_project_is_built_and_tested_is_read_from_its_files(
    oracle: Tools, files: dict[str, str], build: str, tests: str
) -> None:
    write(oracle.project, files)
    facts = info(oracle)
    assert (facts["Build"], facts["Tests"]) == (build, tests)


def test_a_directory_is_listed_with_sizes_and_with_what_is_hidden(oracle: Tools, tmp_path: Path) -> None:
    write(oracle.project, {"b.py": "x" * 1500, ".hidden": "", "src/a.py": ""})
    (oracle.project / "gone").symlink_to("nowhere")
    assert oracle("list_directory").splitlines() == [
        ".: 4 entries",
        "src/",
        ".hidden (0 bytes)",
        "b.py (1,500 bytes)",
        "gone (no file)",
    ]
    assert oracle("list_directory", path="src").splitlines() == ["src: 1 entry", "a.py (0 bytes)"]


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("..", f"'..' {OUTSIDE}"),
        ("/", f"'/' {OUTSIDE}"),
        ("up", f"'up' {OUTSIDE}"),
        ("b.py", "'b.py' is a file, not a directory."),
        ("src", "'src' does not exist. No file has a name like it."),
        (".git", "'.git' belongs to git, whose own files these tools leave alone."),
    ],
)
def test_a_directory_that_cannot_be_listed_is_explained(oracle: Tools, path: str, error: str) -> None:
    write(oracle.project, {"b.py": ""})
    (oracle.project / "up").symlink_to("..")
    assert oracle.refusal("list_directory", path=path) == error


def test_the_first_of_very_many_entries_are_listed(oracle: Tools) -> None:
    write(oracle.project, {f"{n:03}": "" for n in range(150)})
    rows = oracle("list_directory").splitlines()
    assert (len(rows), rows[0], rows[-1]) == (102, ".: 150 entries", "(50 more)")


def test_code_is_searched_and_read_as_by_explore(oracle: Tools) -> None:
    write(oracle.project, {"a.py": "def f():\n    pass\n", "b.md": "def f\n"})
    assert oracle("search_code", pattern="def f", file_type="py") == "1 match in 1 file of type py:\na.py:1: def f():"
    assert oracle("read_file", path="a.py", lines="2") == "a.py, lines 2-2 of 2:\n2|     pass"
    assert oracle.refusal("read_file", path="../secret.txt") == f"'../secret.txt' {OUTSIDE}"
    assert "is not a regular expression" in oracle.refusal("search_code", pattern="*")

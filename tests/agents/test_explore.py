"""The agent explore: its tools find and read in a project, and nothing outside of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.agents.in_process import AGENTS, Tools, git, write

FILES = {
    "README.md": "# Shop\n\nSells bells.\n",
    "shop/__init__.py": "",
    "shop/cart.py": "class Cart:\n    def add(self, item):\n        self.items.append(item)\n",
    "shop/checkout.py": "from shop.cart import Cart\n\n\ndef pay(cart: Cart):\n    return sum(cart.items)\n",
    "shop/web/app.py": "PORT = 8080\n",
    "shop/web/static/style.css": "body { color: red }\n",
    "tests/test_cart.py": "def test_add():\n    assert True\n",
    "docs/cart.md": "How the cart works\n",
}
OUTSIDE = ["..", "../secret.txt", "shop/../../secret.txt", "/etc/passwd", "link", "linked_folder/secret.txt"]


@pytest.fixture
def explore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    """The agent in a project with a secret beside it, to which links lead."""
    tools = Tools("explore", tmp_path / "project", monkeypatch)
    write(tools.project, FILES)
    write(tmp_path, {"secret.txt": "the secret\n"})
    (tools.project / "link").symlink_to(tmp_path / "secret.txt")
    (tools.project / "linked_folder").symlink_to(tmp_path)
    return tools


def test_the_structure_shows_directories_first_as_they_come_and_counts_what_is_deeper(explore: Tools) -> None:
    assert explore("get_structure", depth=2).splitlines() == [
        "project/ (9 files)",
        "  README.md",
        "  docs/",
        "    cart.md",
        "  link",
        "  shop/",
        "    __init__.py",
        "    cart.py",
        "    checkout.py",
        "    web/ (2 files)",
        "  tests/",
        "    test_cart.py",
    ]


def test_a_part_of_the_structure_can_be_asked_for(explore: Tools) -> None:
    assert explore("get_structure", path="shop/web").splitlines() == [
        "shop/web/ (2 files)",
        "  app.py",
        "  static/",
        "    style.css",
    ]


def test_a_structure_that_is_too_large_is_shown_less_deep_and_then_cut(explore: Tools) -> None:
    write(explore.project, {f"many/{n // 20:03}/{n}.txt": "" for n in range(400)})
    rows = explore("get_structure").splitlines()
    assert "  many/" in rows
    assert "    007/ (20 files)" in rows
    assert len(rows) < 250
    write(explore.project, {f"{n:03}.txt": "" for n in range(300)})
    cut = explore("get_structure").splitlines()
    assert len(cut) == 252
    assert cut[-1] == "  (56 more: ask for one of the directories)"


def test_files_are_found_by_glob_and_by_part_of_their_path(explore: Tools) -> None:
    def found(pattern: str) -> list[str]:
        return explore("search_files", pattern=pattern).splitlines()[1:]

    assert found("*.CSS") == ["shop/web/static/style.css"]
    assert found("cart") == ["docs/cart.md", "shop/cart.py", "tests/test_cart.py"]
    assert found("shop/**/*.py") == ["shop/__init__.py", "shop/cart.py", "shop/checkout.py", "shop/web/app.py"]
    assert found("./shop/web/*") == ["shop/web/app.py", "shop/web/static/style.css"]
    assert found("test_?art.py") == ["tests/test_cart.py"]
    assert explore("search_files", pattern="*.rs") == "No file of 9 fits '*.rs'."
    assert explore.refusal("search_files", pattern=" ") == "The pattern is empty."


def test_the_first_of_very_many_files_are_named_and_the_rest_is_counted(explore: Tools) -> None:
    write(explore.project, {f"many/{n:03}.txt": "" for n in range(130)})
    rows = explore("search_files", pattern="*.txt").splitlines()
    assert (rows[0], rows[1], rows[100]) == ("130 files:", "many/000.txt", "many/099.txt")
    assert rows[101:] == ["(30 more: use a narrower pattern)"]


def test_lines_are_found_by_a_regular_expression(explore: Tools) -> None:
    assert explore("search_content", pattern=r"\bCart\b").splitlines() == [
        "3 matches in 9 files:",
        "shop/cart.py:1: class Cart:",
        "shop/checkout.py:1: from shop.cart import Cart",
        "shop/checkout.py:4: def pay(cart: Cart):",
    ]
    assert explore("search_content", pattern="(?i)CART", file_type="*.md").splitlines()[1:] == [
        "docs/cart.md:1: How the cart works"
    ]
    assert explore("search_content", pattern="Cart", file_type="css") == (
        "No line matches 'Cart' in 1 file of type css."
    )


def test_a_pattern_that_is_no_regular_expression_is_explained(explore: Tools) -> None:
    error = explore.refusal("search_content", pattern="pay(")
    assert error.startswith("'pay(' is not a regular expression: ")
    assert error.endswith(r"For the text itself use 'pay\\('.")
    assert explore.refusal("search_content", pattern="") == "The pattern is empty."


def test_what_is_no_text_or_too_large_or_secret_is_not_searched(explore: Tools, tmp_path: Path) -> None:
    (explore.project / "core").write_bytes(b"needle\0needle")
    (explore.project / "dump.sql").write_text("needle\n" * 200_000)
    write(explore.project, {".env": "needle=1\n", "server.pem": "needle\n", "node_modules/x/needle.js": "needle\n"})
    write(tmp_path, {"secret.txt": "needle\n"})
    assert explore("search_content", pattern="needle").startswith("No line matches")
    write(explore.project, {".env.example": "needle=\n"})
    assert ".env.example:1: needle=" in explore("search_content", pattern="needle")


def test_the_first_of_very_many_matches_are_given(explore: Tools) -> None:
    write(explore.project, {"long.txt": ("needle " + "x" * 3000 + "\n") * 300})
    rows = explore("search_content", pattern="needle").splitlines()
    assert (len(rows), rows[0]) == (101, "The first 100 matches; there are more:")
    assert all(len(row) < 600 and row.endswith("[line cut]") for row in rows[1:])


def test_a_file_is_read_with_line_numbers(explore: Tools) -> None:
    assert explore("read_file", path="shop/cart.py") == (
        "shop/cart.py, lines 1-3 of 3:\n1| class Cart:\n2|     def add(self, item):\n3|         self.items.append(item)"
    )
    assert explore("read_file", path=str(explore.project / "shop" / "web" / "app.py")).endswith("1| PORT = 8080")
    assert explore("read_file", path="shop/__init__.py") == "shop/__init__.py is empty."


@pytest.mark.parametrize(
    ("lines", "first", "last", "rest"),
    [
        ("7", 7, 7, None),
        (" 7 - 9 ", 7, 9, None),
        ("995-", 995, 1000, None),
        ("990-5000", 990, 1000, None),
        ("", 1, 400, '(600 more lines: ask for lines "401-")'),
        ("101-", 101, 500, '(500 more lines: ask for lines "501-")'),
    ],
)
def test_lines_of_a_file_can_be_asked_for(explore: Tools, lines: str, first: int, last: int, rest: str | None) -> None:
    write(explore.project, {"long.txt": "".join(f"line {n}\n" for n in range(1, 1001))})
    rows = explore("read_file", path="long.txt", lines=lines).splitlines()
    assert rows[:2] == [f"long.txt, lines {first}-{last} of 1000:", f"{first}| line {first}"]
    assert rows[-1] == (rest or f"{last}| line {last}")


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        ("0", 'lines must be like "40", "40-80" or "40-", not \'0\'.'),
        ("ten", 'lines must be like "40", "40-80" or "40-", not \'ten\'.'),
        ("-5", 'lines must be like "40", "40-80" or "40-", not \'-5\'.'),
        ("3-2", "lines '3-2' end before they begin."),
        ("99", "The file has 3 lines only."),
    ],
)
def test_lines_that_make_no_sense_are_explained(explore: Tools, lines: str, error: str) -> None:
    assert explore.refusal("read_file", path="shop/cart.py", lines=lines) == error


def test_a_file_is_cut_where_it_would_fill_the_models_context(explore: Tools) -> None:
    write(explore.project, {"wide.txt": ("x" * 5000 + "\n") * 300})
    text = explore("read_file", path="wide.txt")
    assert len(text) < 41_000
    assert "ask for lines" in text


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("shop/crat.py", "'shop/crat.py' does not exist. Did you mean 'shop/cart.py'?"),
        ("cart.py", "'cart.py' does not exist. Did you mean 'shop/cart.py'?"),
        ("qqqq", "'qqqq' does not exist. No file has a name like it."),
        ("shop", "'shop' is a directory, not a file."),
        ("", "'' is a directory, not a file."),
        (".git/config", "'.git/config' belongs to git, whose own files these tools leave alone."),
        ("deploy/.env", "'deploy/.env' usually holds secrets, which are not shown to models. Go on without it."),
        ("id_rsa", "'id_rsa' usually holds secrets, which are not shown to models. Go on without it."),
        ("x" * 5000, f"{'x' * 200!r} is not a path."),
        ("a\0b", "'a\\x00b' is not a path."),
        ("pipe", "'pipe' is a device or a pipe, not a file."),
        ("core", "'core' cannot be read: it is a binary file"),
        ("circle", "'circle' is not a path."),
    ],
)
def test_a_file_that_cannot_be_read_is_explained(explore: Tools, path: str, error: str) -> None:
    os.mkfifo(explore.project / "pipe")
    (explore.project / "core").write_bytes(b"\x7fELF\0\0")
    (explore.project / "circle").symlink_to("circle")
    assert explore.refusal("read_file", path=path) == error


def test_a_gigabyte_is_refused_at_once(explore: Tools) -> None:
    with (explore.project / "huge.bin").open("wb") as file:
        file.truncate(2**30)
    assert explore.refusal("read_file", path="huge.bin") == (
        "'huge.bin' has 1,073,741,824 bytes, more than the 10,000,000 that can be read."
    )


@pytest.mark.parametrize("path", OUTSIDE)
def test_nothing_outside_the_project_is_read(explore: Tools, path: str) -> None:
    error = f"{path!r} is outside the project. Paths are relative to the project directory: src/main.py."
    assert explore.refusal("read_file", path=path) == error
    assert explore.refusal("find_similar", path=path) == error
    assert explore.refusal("get_structure", path=path) == error


def test_a_link_inside_the_project_is_followed(explore: Tools) -> None:
    (explore.project / "latest.py").symlink_to("shop/cart.py")
    assert explore("read_file", path="latest.py").startswith("shop/cart.py, lines 1-3")
    (explore.project / "harmless.txt").symlink_to(".env")
    write(explore.project, {".env": "KEY=1\n"})
    assert "holds secrets" in explore.refusal("read_file", path="harmless.txt")


def test_lines_are_counted_as_editors_count_them(explore: Tools) -> None:
    (explore.project / "odd.txt").write_bytes(b"one\x0cstill one\r\ntwo\xe2\x80\xa8still two\n\nfour")
    assert explore("search_content", pattern="four").endswith("odd.txt:4: four")
    assert explore("read_file", path="odd.txt").splitlines()[0] == "odd.txt, lines 1-4 of 4:"


def test_bytes_that_are_not_utf8_do_not_stop_the_reading(explore: Tools) -> None:
    (explore.project / "old.txt").write_bytes("Gerät\n".encode("latin-1"))
    assert explore("read_file", path="old.txt").endswith("1| Ger\ufffdt")


def test_files_that_are_like_another_are_found(explore: Tools) -> None:
    assert explore("find_similar", path="shop/cart.py").splitlines() == [
        "Most like shop/cart.py, best first:",
        "tests/test_cart.py",
        "docs/cart.md",
        "shop/__init__.py",
        "shop/checkout.py",
    ]
    assert explore("find_similar", path="README.md") == "No file is like README.md."


def test_in_a_git_repository_what_git_ignores_is_left_out_and_what_is_new_is_not(explore: Tools) -> None:
    git(explore.project, "init", "-q")
    write(explore.project, {".gitignore": "build/\n", "build/out.py": "Cart\n"})
    git(explore.project, "add", ".gitignore", "shop")
    rows = explore("search_content", pattern="Cart", file_type="py").splitlines()
    assert len(rows) == 4
    assert "test_cart.py" in explore("get_structure")
    (explore.project / "shop" / "cart.py").unlink()  # git still has it
    assert "shop/cart.py" not in explore("search_files", pattern="cart")


def test_a_directory_that_git_ignores_is_a_project_too(explore: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    git(explore.project, "init", "-q")
    write(explore.project, {".gitignore": "build/\n", "build/out.py": "Cart\n"})
    monkeypatch.setenv("LLM_AGENT_VAR_PROJECT_DIR", "build")
    assert explore("get_structure").splitlines() == ["build/ (1 file)", "  out.py"]


def test_a_program_that_a_repository_names_is_not_run(explore: Tools) -> None:
    git(explore.project, "init", "-q")
    git(explore.project, "config", "core.fsmonitor", f"touch {explore.project}/ran; true")
    explore("get_structure")
    assert not (explore.project / "ran").exists()


def test_only_a_part_of_a_very_large_project_is_read_and_the_result_reports_that(
    explore: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("project.MAX_FILES", 4)
    assert explore("get_structure", depth=1).startswith("project/ (4 files and more)\n")
    assert explore("search_files", pattern="*.css") == "No file of 4 fits '*.css'. The project has more."
    assert explore("search_content", pattern="zzz") == (
        "No line matches 'zzz' in 4 files (the project has more files than are searched)."
    )


def test_without_git_a_project_is_walked(explore: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    before = explore("get_structure")
    monkeypatch.setenv("PATH", "")
    assert explore("get_structure") == before


def test_the_project_is_the_directory_of_the_run_or_that_of_the_variable(
    explore: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLM_AGENT_VAR_PROJECT_DIR", "shop")
    assert explore("get_structure", depth=1).startswith("shop/ (5 files)")
    monkeypatch.setenv("LLM_AGENT_VAR_PROJECT_DIR", str(explore.project / "docs"))
    assert explore("get_structure").splitlines() == ["docs/ (1 file)", "  cart.md"]
    # A worker without a working directory for the run is in the agent's folder: that is not what was meant.
    monkeypatch.chdir(AGENTS / "explore")
    monkeypatch.setenv("LLM_AGENT_VAR_PROJECT_DIR", ".")
    monkeypatch.setenv("GRAPH_CALLER_DIR", str(explore.project))
    assert explore("get_structure", depth=1).startswith("project/ (9 files)")
    monkeypatch.setenv("GRAPH_CALLER_DIR", str(tmp_path / "on another machine"))
    assert "does not exist on this machine" in explore.refusal("get_structure")
    monkeypatch.delenv("GRAPH_CALLER_DIR")
    assert explore.refusal("get_structure") == (
        "No project directory is known: set the variable project_dir to an absolute path."
    )

"""The agent coder: its tools change, build and test one project, and touch nothing else."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.agents.in_process import Tools, write

CART = "class Cart:\n    def add(self, item):\n        self.items.append(item)\n\n    def clear(self):\n        pass\n"
OUTSIDE = "is outside the project. Paths are relative to the project directory: src/main.py."


@pytest.fixture
def coder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    """The agent in a project with a file beside it, to which links lead."""
    tools = Tools("coder", tmp_path / "project", monkeypatch)
    write(tools.project, {"shop/cart.py": CART})
    write(tmp_path, {"outside.txt": "as it was\n"})
    (tools.project / "link").symlink_to(tmp_path / "outside.txt")
    (tools.project / "linked_folder").symlink_to(tmp_path)
    return tools


def cart(coder: Tools) -> str:
    return (coder.project / "shop" / "cart.py").read_text()


def test_a_new_file_is_written_with_the_directories_it_needs(coder: Tools) -> None:
    assert coder("write_file", path="docs/notes/a.md", content="# A\n\nä\n") == "Wrote docs/notes/a.md (new): 3 lines."
    assert (coder.project / "docs/notes/a.md").read_text() == "# A\n\nä\n"
    assert [entry.name for entry in (coder.project / "docs/notes").iterdir()] == ["a.md"]


def test_a_file_is_replaced_and_keeps_its_mode(coder: Tools) -> None:
    script = coder.project / "run.sh"
    write(coder.project, {"run.sh": "old"})
    script.chmod(0o750)
    assert coder("write_file", path="run.sh", content="new\r\n") == "Wrote run.sh (replaced): 1 line."
    assert script.read_bytes() == b"new\r\n"
    assert script.stat().st_mode & 0o777 == 0o750


def test_a_link_inside_the_project_stays_a_link(coder: Tools) -> None:
    (coder.project / "current.py").symlink_to("shop/cart.py")
    coder("write_file", path="current.py", content="changed\n")
    assert (coder.project / "current.py").is_symlink()
    assert cart(coder) == "changed\n"


def test_a_link_that_was_laid_where_a_file_is_prepared_is_not_followed(coder: Tools, tmp_path: Path) -> None:
    (coder.project / "shop" / ".cart.py.coder-new").symlink_to(tmp_path / "outside.txt")
    coder("write_file", path="shop/cart.py", content="changed\n")
    assert cart(coder) == "changed\n"
    assert (tmp_path / "outside.txt").read_text() == "as it was\n"
    assert [entry.name for entry in (coder.project / "shop").iterdir()] == ["cart.py"]


@pytest.mark.parametrize("path", ["../outside.txt", "link", "linked_folder/outside.txt", "linked_folder/new", "/etc/x"])
def test_nothing_outside_the_project_is_written_or_deleted(coder: Tools, tmp_path: Path, path: str) -> None:
    assert coder.refusal("write_file", path=path, content="") == f"{path!r} {OUTSIDE}"
    assert coder.refusal("delete_file", path=path) == f"{path!r} {OUTSIDE}"
    assert coder.refusal("patch_file", path=path, old_text="as", new_text="") == f"{path!r} {OUTSIDE}"
    assert (tmp_path / "outside.txt").read_text() == "as it was\n"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["outside.txt", "project"]


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("", "'' is not a file."),
        ("shop", "'shop' is not a file."),
        (".git/hooks/post-commit", "'.git/hooks/post-commit' belongs to git, whose own files these tools leave alone."),
        ("vendor/x/.git/config", "'vendor/x/.git/config' belongs to git, whose own files these tools leave alone."),
        (".env", "'.env' usually holds secrets, which are not shown to models. Go on without it."),
        ("shop/cart.py/x", "'shop/cart.py/x' cannot be written: a part of its path is a file."),
        ("x" * 300, f"{'x' * 200!r} is not a path."),
        ("a\0b", "'a\\x00b' is not a path."),
    ],
)
def test_a_file_that_cannot_be_written_is_explained(coder: Tools, path: str, error: str) -> None:
    assert coder.refusal("write_file", path=path, content="x") == error


def test_a_text_that_is_too_large_is_not_written(coder: Tools) -> None:
    error = "The text has 1,000,001 bytes; at most 1,000,000 can be written."
    assert coder.refusal("write_file", path="new/big.txt", content="x" * 1_000_001) == error
    assert not (coder.project / "new").exists()


def test_a_passage_is_replaced(coder: Tools) -> None:
    said = coder("patch_file", path="shop/cart.py", old_text="        pass\n", new_text="        self.items = []\n")
    assert said == "Changed shop/cart.py at line 6."
    assert cart(coder) == CART.replace("pass", "self.items = []")


def test_a_passage_is_deleted_and_put_in_front_of(coder: Tools) -> None:
    coder("patch_file", path="shop/cart.py", old_text="\n    def clear(self):\n        pass\n", new_text="")
    coder("patch_file", path="shop/cart.py", old_text="class Cart:\n", new_text="import os\n\n\nclass Cart:\n")
    assert cart(coder) == "import os\n\n\n" + CART.partition("\n    def clear")[0]


def test_a_passage_that_is_there_often_is_replaced_only_on_demand(coder: Tools) -> None:
    ask = {"path": "shop/cart.py", "old_text": "(self", "new_text": "(this"}
    assert coder.refusal("patch_file", **ask) == (
        "old_text is 2 times in 'shop/cart.py', at lines 2, 5. Take more lines of it."
    )
    assert cart(coder) == CART
    assert coder("patch_file", **ask, every=True) == "Changed shop/cart.py at lines 2, 5."
    assert cart(coder) == CART.replace("(self", "(this")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("        pass\n", "        return None\n"),
        ("        pass\n", "        pass\n        # nothing to do\n"),
        ("class Cart:\n", "import os\n\n\nclass Cart:\n"),
        ("def clear(self)", "def clear(self) -> None"),
    ],
)
def test_a_change_that_is_made_again_changes_nothing_more(coder: Tools, old: str, new: str) -> None:
    """As when a worker died after it had written, and before it could say so."""
    coder("patch_file", path="shop/cart.py", old_text=old, new_text=new)
    changed = cart(coder)
    assert changed != CART
    again = coder("patch_file", path="shop/cart.py", old_text=old, new_text=new)
    assert again == "Nothing to change: shop/cart.py has the new text already, and the old one nowhere else."
    assert cart(coder) == changed


def test_a_new_text_that_is_part_of_the_old_one_is_a_change(coder: Tools) -> None:
    coder("patch_file", path="shop/cart.py", old_text="self.items.append(item)", new_text="append(item)")
    assert cart(coder) == CART.replace("self.items.append", "append")


@pytest.mark.parametrize(
    ("old", "error"),
    [
        ("", "old_text is empty. To write a whole file use write_file."),
        ("def remove(self)", "'shop/cart.py' does not hold old_text. Read the file again: it may have changed."),
        (
            "def clear(self):\n    pass\n",
            "'shop/cart.py' does not hold old_text. "
            "Only its white space differs from what stands at line 5: read the lines and copy them.",
        ),
    ],
)
def test_a_passage_that_is_not_there_is_explained(coder: Tools, old: str, error: str) -> None:
    assert coder.refusal("patch_file", path="shop/cart.py", old_text=old, new_text="x") == error
    assert cart(coder) == CART


def test_the_line_ends_of_a_file_stay_as_they_are(coder: Tools) -> None:
    file = coder.project / "dos.txt"
    file.write_bytes(b"one\r\ntwo\r\nthree\r\n")
    assert coder("patch_file", path="dos.txt", old_text="one\ntwo\n", new_text="1\n2\n") == "Changed dos.txt at line 1."
    assert file.read_bytes() == b"1\r\n2\r\nthree\r\n"


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"Ger\xe4t", "'x' is not text in UTF-8; it cannot be changed here."),
        (b"x" * 1_000_001, "'x' has more than 1,000,000 bytes, too much to change."),
    ],
)
def test_a_file_that_is_no_text_is_not_patched(coder: Tools, content: bytes, error: str) -> None:
    (coder.project / "x").write_bytes(content)
    assert coder.refusal("patch_file", path="x", old_text="r", new_text="s") == error
    assert (coder.project / "x").read_bytes() == content


def test_a_file_to_patch_must_be_there(coder: Tools) -> None:
    error = "'cart.py' does not exist. Did you mean 'shop/cart.py'?"
    assert coder.refusal("patch_file", path="cart.py", old_text="a", new_text="b") == error


def test_changes_of_one_file_at_the_same_time_are_all_made(coder: Tools) -> None:
    """A model may ask for several in one turn, and the calls of a turn run in parallel."""
    words = [f"word{n:02}" for n in range(24)]
    write(coder.project, {"words.txt": "\n".join(words)})

    def change(word: str) -> None:
        coder("patch_file", path="words.txt", old_text=word, new_text=word.upper())

    threads = [threading.Thread(target=change, args=[word]) for word in words]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (coder.project / "words.txt").read_text() == "\n".join(words).upper()


def test_a_file_is_deleted_and_again_is_no_mistake(coder: Tools) -> None:
    assert coder("delete_file", path="shop/cart.py") == "Deleted shop/cart.py."
    assert not (coder.project / "shop" / "cart.py").exists()
    assert coder("delete_file", path="shop/cart.py") == "shop/cart.py is not there."
    assert coder.refusal("delete_file", path="shop") == "'shop' is a directory, not a file."
    assert coder.refusal("delete_file", path=".") == "'.' is a directory, not a file."


def test_the_project_is_looked_at_as_by_explore(coder: Tools) -> None:
    assert coder("get_structure", path="shop") == "shop/ (1 file)\n  cart.py"
    assert coder("search_files", pattern="*.py") == "1 file:\nshop/cart.py"
    assert coder("search_content", pattern="def clear") == "1 match in 2 files:\nshop/cart.py:5: def clear(self):"
    assert coder("read_file", path="shop/cart.py", lines="5").endswith("\n5|     def clear(self):")
    assert coder.refusal("read_file", path="link") == f"'link' {OUTSIDE}"


def test_the_commands_for_tests_are_from_the_projects_files(coder: Tools) -> None:
    write(coder.project, {"Makefile": "test:\n\t@pwd\n\t@echo oops >&2\n\t@exit 3\n"})
    result = coder("run_tests")
    assert (result["command"], result["exit_code"]) == ("make test", 2)
    assert str(result["output"]).splitlines()[:2] == [str(coder.project), "oops"]


def test_variables_of_a_run_set_the_commands_that_build_and_test(coder: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    write(coder.project, {"Makefile": "test:\n\tfalse\n"})
    monkeypatch.setenv("LLM_AGENT_VAR_BUILD_COMMAND", "echo built > built && echo fine")
    monkeypatch.setenv("LLM_AGENT_VAR_TEST_COMMAND", "cat built")
    assert coder("run_build") == {
        "command": "echo built > built && echo fine",
        "exit_code": 0,
        "output": "fine",
    }
    assert coder("run_tests") == {"command": "cat built", "exit_code": 0, "output": "built"}


def test_without_a_command_the_model_gets_a_text_to_report(coder: Tools) -> None:
    assert coder.refusal("run_build") == (
        "No build command is known for this project. Say in your report that it was not checked, and that the variable "
        "build_command would say how."
    )


def test_a_command_has_no_input_and_no_variables_of_the_tool(coder: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LLM_OUTPUT", "GRAPH_RUN_ID", "FORCE_COLOR", "CLICOLOR_FORCE", "AUTO_CONFIRM"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("LLM_AGENT_VAR_TEST_COMMAND", "cat; env; printf '\\033[1;31mred\\033[0m'")
    output = str(coder("run_tests")["output"])
    assert not [line for line in output.splitlines() if line.startswith(("LLM_", "GRAPH_", "FORCE", "CLI", "AUTO"))]
    assert "NO_COLOR=1" in output
    assert output.endswith("red")


def test_the_beginning_and_the_end_of_a_long_output_are_kept(coder: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM_AGENT_VAR_TEST_COMMAND", "echo first; seq 100000; printf '\\377'; echo last")
    output = str(coder("run_tests")["output"])
    assert output.startswith("first\n1\n2\n")
    assert output.endswith("100000\n\ufffdlast")
    assert "[576,907 bytes left out]" in output
    assert len(output) < 12_100


def test_a_command_that_cannot_be_found_is_a_result(coder: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM_AGENT_VAR_BUILD_COMMAND", "no-such-program")
    result = coder("run_build")
    assert result["exit_code"] == 127
    assert "no-such-program" in str(result["output"])

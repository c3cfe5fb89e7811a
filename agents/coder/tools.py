"""What the agent coder can do: read, change, build and test one project.

Rules. Nothing outside the project is written. The only commands are the project's build and test command. A call that
is made again, because a worker died in the middle, changes nothing more.
"""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / ".shared"))  # beside this agent, also on a worker

import commands
import project

MAX_WRITTEN_BYTES = 1_000_000
OUTPUT_BYTES = 12_000  # of a command: a third from its beginning, the rest from its end, where the summary is

_COLMINE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def get_structure(path: str = ".", depth: int = 3) -> str:
    """Show the directories and files of the project as a tree. Look here first.

    Args:
        path: the directory to start from, relative to the project; by default all of it
        depth: how many levels to show, by default 3; fewer are shown if the tree is large
    """
    return project.tree(path or ".", depth or 3)


def search_files(pattern: str) -> str:
    """Find files by name.

    Args:
        pattern: a glob such as "*.py" or "src/**/*.ts", or a part of a path such as "login"
    """
    return project.found_files(pattern)


def search_content(pattern: str, file_type: str | None = None) -> str:
    """Find lines in files by a regular expression. Gives at most 100 lines, each as path:line: text.

    Args:
        pattern: a Python regular expression, for example "def login|class Session"; "(?i)" at the start ignores case
        file_type: search only files with this extension, for example "py"
    """
    return project.search(pattern, file_type or "")


def read_file(path: str, lines: str | None = None) -> str:
    """Read a text file of the project, with line numbers. Gives at most 400 lines at once.

    Args:
        path: the file, relative to the project
        lines: which lines, for example "120", "120-180" or "400-"; by default from the start
    """
    return project.numbered(project.existing(path, "file"), str(lines or ""))


def write_file(path: str, content: str) -> str:
    """Write a new file, or replace all of one. To change a part of a file use patch_file.

    Args:
        path: the file, relative to the project; directories that are missing are made
        content: the whole text of the file
    """
    file = project.inside(path)
    if file == project.root() or (file.exists() and not file.is_file()):
        raise project.Refused(f"{path!r} is not a file.")
    before = "replaced" if file.exists() else "new"
    with _alone():
        _write(file, content)
    return f"Wrote {project.shown(file)} ({before}): {project.count_of(len(content.splitlines()), 'line')}."


def patch_file(path: str, old_text: str, new_text: str, every: bool = False) -> str:
    """Replace a passage of a file. The passage must be there exactly once, unless `every` is true.

    Args:
        path: the file, relative to the project
        old_text: the passage as it stands in the file, with its indentation and without line numbers; take so many
            lines that it is there only once
        new_text: what to put in its place; empty to delete the passage
        every: replace it wherever it stands
    """
    file = project.existing(path, "file")
    if not old_text:
        raise project.Refused("old_text is empty. To write a whole file use write_file.")
    with _alone():
        text = _exact_text(file)
        newline = "\r\n" if "\r\n" in text else "\n"
        old, new = (_with_newlines(part, newline) for part in (old_text, new_text))
        if _is_done(text, old, new):
            return f"Nothing to change: {project.shown(file)} has the new text already, and the old one nowhere else."
        lines = [_line_of(text, match.start()) for match in re.finditer(re.escape(old), text)]
        if not lines:
            raise project.Refused(f"{path!r} does not hold old_text. {_near(text, old_text)}")
        places = f"line {lines[0]}" if len(lines) == 1 else f"lines {', '.join(map(str, lines))}"
        if len(lines) > 1 and not every:
            raise project.Refused(f"old_text is {len(lines)} times in {path!r}, at {places}. Take more lines of it.")
        _write(file, text.replace(old, new))
        return f"Changed {project.shown(file)} at {places}."


def delete_file(path: str) -> str:
    """Delete one file of the project.

    Args:
        path: the file, relative to the project
    """
    file = project.inside(path)
    if not file.exists():
        return f"{path} is not there."
    try:
        project.existing(path, "file").unlink()
    except OSError as error:
        raise project.Refused(f"{path!r} cannot be deleted: {error.strerror}") from None
    return f"Deleted {project.shown(file)}."


def run_build() -> dict[str, object]:
    """Build the project with its build command, and give the exit code and the output.

    Calls of one turn run at the same time: build when your changes have been made, in the next turn.
    """
    return _run("build", commands.build_command)


def run_tests() -> dict[str, object]:
    """Run all of the project's tests with its test command, and give the exit code and the output.

    Calls of one turn run at the same time: test when your changes have been made, in the next turn.
    """
    return _run("test", commands.test_command)


@contextmanager
def _alone() -> Iterator[None]:
    """No other call changes the project meanwhile: those of one turn run at the same time."""
    directory = os.open(project.root(), os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def _exact_text(file: Path) -> str:
    """The text as it is, for a file that is written back."""
    if file.stat().st_size > MAX_WRITTEN_BYTES:
        raise project.Refused(f"{project.shown(file)!r} has more than {MAX_WRITTEN_BYTES:,} bytes, too much to change.")
    try:
        return file.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        raise project.Refused(f"{project.shown(file)!r} is not text in UTF-8; it cannot be changed here.") from None
    except OSError as error:
        raise project.Refused(f"{project.shown(file)!r} cannot be read: {error.strerror}") from None


def _with_newlines(text: str, newline: str) -> str:
    return text.replace("\r\n", "\n").replace("\n", newline)


def _is_done(text: str, old: str, new: str) -> bool:
    """Whether the change has been made: the new text is there, and the old one nowhere but in it."""
    rest = text.replace(new, "\0") if new and old in new else text
    return bool(new.strip()) and new in text and old not in rest


def _line_of(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def _near(text: str, wanted: str) -> str:
    """Where the same words stand with other white space."""
    words, lines = [line.split() for line in wanted.strip().splitlines()], text.split("\n")
    for number in range(1, len(lines) - len(words) + 2):
        if [line.split() for line in lines[number - 1 : number - 1 + len(words)]] == words:
            return f"Only its white space differs from what stands at line {number}: read the lines and copy them."
    return "Read the file again: it may have changed."


def _write(file: Path, text: str) -> None:
    """Replace a file at once: whoever reads it meanwhile sees the old text or the new one."""
    content = text.encode(errors="replace")
    if len(content) > MAX_WRITTEN_BYTES:
        raise project.Refused(f"The text has {len(content):,} bytes; at most {MAX_WRITTEN_BYTES:,} can be written.")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        scratch = file.with_name(f".{file.name[:100]}.coder-new")
        scratch.unlink(missing_ok=True)  # of a call that was killed; a link of this name must not be followed
        with scratch.open("xb") as opened:
            opened.write(content)
        if file.exists():
            scratch.chmod(file.stat().st_mode & 0o777)
        scratch.replace(file)
    except (FileExistsError, NotADirectoryError):
        raise project.Refused(f"{project.shown(file)!r} cannot be written: a part of its path is a file.") from None
    except OSError as error:
        raise project.Refused(f"{project.shown(file)!r} cannot be written: {error.strerror}") from None


def _run(kind: str, detected: Callable[[Path], str | None]) -> dict[str, object]:
    root = project.root()
    command = os.environ.get(f"LLM_AGENT_VAR_{kind.upper()}_COMMAND") or detected(root)
    if not command:
        raise project.Refused(
            f"No {kind} command is known for this project. Say in your report that it was not checked, and that the "
            f"variable {kind}_command would say how."
        )
    with tempfile.TemporaryFile() as output:
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=root,
            env=_command_environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
        return {"command": command, "exit_code": done.returncode, "output": _ends_of(output)}


def _command_environment() -> dict[str, str]:
    """This one without what is meant for tools of a model: above all colours."""
    for_tools = ("LLM_", "GRAPH_", "CLICOLOR", "FORCE_COLOR", "AUTO_CONFIRM")
    return {name: value for name, value in os.environ.items() if not name.startswith(for_tools)} | {"NO_COLOR": "1"}


def _ends_of(output: IO[bytes]) -> str:
    """All of an output, or where it begins and where it ends."""
    size, first = output.seek(0, os.SEEK_END), OUTPUT_BYTES // 3
    output.seek(0)
    if size <= OUTPUT_BYTES:
        return _plain(output.read())
    beginning = output.read(first)
    output.seek(size - (OUTPUT_BYTES - first))
    return f"{_plain(beginning)}\n[{size - OUTPUT_BYTES:,} bytes left out]\n{_plain(output.read())}"


def _plain(output: bytes) -> str:
    return _COLMINE.sub("", output.decode("utf-8", errors="replace")).strip()

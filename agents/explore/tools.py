"""What the agent explore can do: find and read, in one project."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / ".shared"))  # beside this agent, also on a worker

import project


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
        pattern: a glob such as "*.py", "test_*" or "src/**/*.ts", or a part of a path such as "login". Upper and lower
            case are the same.
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


def find_similar(path: str) -> str:
    """Find files that are like a given one by name, type and place: its tests, its siblings, its counterparts.

    Args:
        path: the file, relative to the project
    """
    return project.similar(path)

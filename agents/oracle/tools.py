"""What the agent oracle can do: look at one project, closely."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path, PurePosixPath

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / ".shared"))  # beside this agent, also on a worker

import commands
import project

README_LINES = 30


def get_project_info() -> str:
    """Say what kind of project it is: languages, manifests, how it is built and tested, the last commits, its README.

    Ask this first.
    """
    root = project.root()
    known, complete = project.files()
    kinds = Counter(PurePosixPath(path).suffix or "no extension" for path in known).most_common(8)
    top = sorted({path.split("/")[0] + ("/" if "/" in path else "") for path in known})
    facts = [
        f"Project: {root.name}",
        f"Files: {len(known)}{'' if complete else ' and more'} ({', '.join(f'{kind} {n}' for kind, n in kinds)})",
        f"Manifests: {', '.join(commands.manifests(root)) or 'none'}",
        f"Build: {commands.build_command(root) or 'unknown'}",
        f"Tests: {commands.test_command(root) or 'unknown'}",
        f"Top level: {', '.join(top[:60])}{' and more' if len(top) > 60 else ''}",
    ]
    return "\n".join([*facts, *_git(root), *_readme(root, known)])


def read_file(path: str, lines: str | None = None) -> str:
    """Read a text file of the project, with line numbers. Gives at most 400 lines at once.

    Args:
        path: the file, relative to the project
        lines: which lines, for example "120", "120-180" or "400-"; by default from the start
    """
    return project.numbered(project.existing(path, "file"), str(lines or ""))


def search_code(pattern: str, file_type: str | None = None) -> str:
    """Find lines in files by a regular expression. Gives at most 100 lines, each as path:line: text.

    Args:
        pattern: a Python regular expression, for example "def login|class Session"; "(?i)" at the start ignores case
        file_type: search only files with this extension, for example "py"
    """
    return project.search(pattern, file_type or "")


def list_directory(path: str = ".") -> str:
    """List a directory of the project, with the sizes of its files. Shows hidden and ignored entries too.

    Args:
        path: the directory, relative to the project; by default its top
    """
    return project.listing(path or ".")


def _git(root: Path) -> list[str]:
    branch = project.git(root, "rev-parse", "--abbrev-ref", "HEAD")
    commits = project.git(root, "log", "-5", "--no-color", "--date=short", "--format=%h %ad %s")
    if branch is None or commits is None:
        return ["Git: not a repository, or without commits"]
    return [f"Git: branch {branch.strip()}; the last commits:", *(f"  {line}" for line in commits.splitlines())]


def _readme(root: Path, known: list[str]) -> list[str]:
    name = next((path for path in known if "/" not in path and path.lower().startswith("readme")), None)
    try:
        return [] if name is None else [project.numbered(project.existing(name, "file"), f"1-{README_LINES}")]
    except project.Refused:  # it is no text, or a link that leads outside
        return []

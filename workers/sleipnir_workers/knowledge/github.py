"""What a crawl of `https://github.com/OWNER/REPOSITORY/tree/BRANCH**` means (spec 8.3): its Markdown files.

Which there are is asked of GitHub's API, once; they are fetched as they are. Change logs and licences are left out. A
folder after the branch takes what is in it (added by Sleipnir). A branch with a slash in its name cannot be told from a
folder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final
from urllib.parse import quote

from sleipnir_workers.knowledge.failures import Unloadable
from sleipnir_workers.knowledge.web import Web

API = "https://api.github.com"
RAW = "https://raw.githubusercontent.com"

_TREE = re.compile(r"https://github\.com/(?P<owner>[^/]+)/(?P<name>[^/]+)/tree/(?P<branch>[^/?#]+)(?P<folder>[^?#]*)")
_LEFT_OUT: Final = frozenset({"changelog", "changes", "license"})


@dataclass(frozen=True)
class Tree:
    """`folder` is without slashes around it; empty: all of the repository."""

    owner: str
    name: str
    branch: str
    folder: str

    @property
    def raw(self) -> str:
        """Where its files are, to be followed by their paths."""
        return f"{RAW}/{self.owner}/{self.name}/{self.branch}/"


def tree_of(url: str) -> Tree | None:
    """None for any other URL."""
    found = _TREE.fullmatch(url)
    return Tree(found["owner"], found["name"], found["branch"], found["folder"].strip("/")) if found else None


def markdown_files(tree: Tree, web: Web, *, notice: Callable[[str], None]) -> list[str]:
    """Paths in the repository, as they are written in URLs. Raises Unloadable."""
    url = f"{API}/repos/{tree.owner}/{tree.name}/git/trees/{tree.branch}?recursive=1"
    try:
        listed = json.loads(web.get(url).body)
        paths = [entry["path"] for entry in listed["tree"] if entry["type"] == "blob"]
    except (ValueError, KeyError, TypeError):
        raise Unloadable(url, "is not the list of files that GitHub's API gives") from None
    if listed.get("truncated"):
        notice(f"{url}: GitHub lists only a part of a repository of this size")
    return [quote(path) for path in paths if _is_taken(PurePosixPath(path), tree.folder)]


def _is_taken(path: PurePosixPath, folder: str) -> bool:
    return path.suffix == ".md" and path.stem.lower() not in _LEFT_OUT and path.is_relative_to(folder)

"""A crawl of `https://github.com/OWNER/REPOSITORY/tree/BRANCH**` (spec 8.3): its Markdown files.

GitHub's API lists them in one call; they are fetched without conversion. Change logs and licences are left out. A
folder after the branch limits the crawl to its files (added by Sleipnir). A branch with a slash in its name cannot be
distinguished from a folder.
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
    """`folder` has no slashes at its ends; empty: the whole repository."""

    owner: str
    name: str
    branch: str
    folder: str

    @property
    def raw(self) -> str:
        """The URL of its files, without their paths."""
        return f"{RAW}/{self.owner}/{self.name}/{self.branch}/"


def tree_of(url: str) -> Tree | None:
    """The tree that a URL names; None for any other URL."""
    match = _TREE.fullmatch(url)
    return Tree(match["owner"], match["name"], match["branch"], match["folder"].strip("/")) if match else None


def markdown_files(tree: Tree, web: Web, *, notice: Callable[[str], None]) -> list[str]:
    """Paths in the repository, as they are written in URLs. Raises Unloadable."""
    url = f"{API}/repos/{tree.owner}/{tree.name}/git/trees/{tree.branch}?recursive=1"
    try:
        listing = json.loads(web.get(url).body)
        paths = [entry["path"] for entry in listing["tree"] if entry["type"] == "blob"]
    except (ValueError, KeyError, TypeError):
        raise Unloadable(url, "is not a list of files of GitHub's API") from None
    if listing.get("truncated"):
        notice(f"{url}: GitHub lists only a part of a repository of this size")
    return [quote(path) for path in paths if _is_document(PurePosixPath(path), tree.folder)]


def _is_document(path: PurePosixPath, folder: str) -> bool:
    return path.suffix == ".md" and path.stem.lower() not in _LEFT_OUT and path.is_relative_to(folder)

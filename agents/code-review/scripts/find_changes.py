"""Find what differs from the base: committed since then, staged, changed, or not yet added.

In:  `initial_prompt`, what to look for; LLM_AGENT_VAR_REPOSITORY, LLM_AGENT_VAR_BASE, LLM_AGENT_VAR_MAX_FILES.
Out: `root`, `since`, `about`, `files`, `left_out`, `wishes`; or `problem`. `_next`.
"""

from __future__ import annotations

import fnmatch
import os
from pathlib import Path

import repository
from repository import GitError, git, plural

MAIN = ("origin/HEAD", "origin/main", "origin/master", "main", "master")
GENERATED = ("*.lock", "*-lock.json", "*-lock.yaml", "go.sum", "*.min.js", "*.min.css", "*.svg", "*.map", "*.snap")
CHANGES = {"A": "added", "M": "changed", "R": "renamed", "C": "copied", "T": "another type of file"}
SHOWN_LEFT_OUT = 20


def main() -> None:
    asked = os.path.expanduser(os.environ.get("LLM_AGENT_VAR_REPOSITORY") or ".")
    folder = Path(os.environ.get("GRAPH_CALLER_DIR") or ".", asked)
    if not folder.is_dir():
        repository.finish(problem=f"{folder} is no folder.", _next="no_repository")
        return
    try:
        root = git(folder, "rev-parse", "--show-toplevel").rstrip("\n")
        since, name = base(root, os.environ.get("LLM_AGENT_VAR_BASE", "").strip())
        changed = changes(root, since)
    except GitError as error:
        repository.finish(problem=f"In {folder}: {error}", _next="no_repository")
        return
    limit = max(1, int(os.environ.get("LLM_AGENT_VAR_MAX_FILES") or 40))
    files = [change for change in changed if not change["why_not"]]
    left_out = [f"{change['path']} ({change['why_not']})" for change in changed if change["why_not"]]
    left_out += [f"{change['path']} (more than {limit} files)" for change in files[limit:]]
    files = [{"path": change["path"], "change": change["change"]} for change in files[:limit]]
    about = f"{plural(len(files), 'file')} of {Path(root).name}, compared with {name}"
    if left_out:
        about += f"; {plural(len(left_out), 'file')} left out"
    repository.finish(
        root=root,
        since=since,
        about=f"{about}.",
        files=files,
        left_out=left_out[:SHOWN_LEFT_OUT],
        wishes=wishes(),
        _next="review_files" if files else "nothing_to_review",
    )


def wishes() -> str:
    asked = str(repository.state().get("initial_prompt", "")).strip()
    return f"The author asks: {asked}" if asked else ""


def base(root: str, asked: str) -> tuple[str, str]:
    """The commit to compare with, and what to call it. Raises GitError."""
    if asked:
        return fork(root, commit(root, asked)), asked
    head = known(root, "HEAD")
    if head is None:
        return repository.NOTHING, "an empty repository"
    for name in MAIN:
        main_commit = known(root, name)
        if main_commit is None:
            continue
        if main_commit != head:
            return fork(root, main_commit), name
        if git(root, "status", "--porcelain").strip():
            return head, "the last commit"
        break
    before = known(root, "HEAD~1")
    return (before, "the commit before") if before else (repository.NOTHING, "an empty repository")


def known(root: str, name: str) -> str | None:
    try:
        return commit(root, name)
    except GitError:
        return None


def commit(root: str, name: str) -> str:
    try:
        return git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}").strip()
    except GitError as error:
        raise GitError(f"there is no branch or commit {name!r}") from error


def fork(root: str, other: str) -> str:
    """The commit where this branch left the other: later commits of the other do not belong to this change."""
    try:
        return git(root, "merge-base", "HEAD", other).strip()
    except GitError:
        return other  # no common history


def changes(root: str, since: str) -> list[dict]:
    """Every file that differs, sorted, with the reason if it is not to be reviewed."""
    names = git(root, "diff", "--name-status", "-z", "--no-renames", since, "--").split("\0")
    pairs = zip(names[::2], names[1::2], strict=False)
    changed = [(path, CHANGES.get(letter[:1], "deleted")) for letter, path in pairs]
    new = git(root, "ls-files", "--others", "--exclude-standard", "-z").split("\0")
    changed += [(path, "not added to git yet") for path in new if path]
    binary = binaries(root, since)
    return [
        {"path": path, "change": change, "why_not": why_not(Path(root, path), path, change, binary)}
        for path, change in sorted(changed)
    ]


def binaries(root: str, since: str) -> set[str]:
    lines = git(root, "diff", "--numstat", "-z", "--no-renames", since, "--").split("\0")
    return {line.split("\t", 2)[2] for line in lines if line.startswith("-\t-\t")}


def why_not(file: Path, path: str, change: str, binary: set[str]) -> str:
    if change == "deleted":
        return "deleted"
    if file.is_symlink() or not file.is_file():
        return "no file"
    if path in binary or b"\0" in file.open("rb").read(8192):
        return "not text"
    if any(fnmatch.fnmatch(file.name, pattern) for pattern in GENERATED):
        return "generated"
    return ""


if __name__ == "__main__":
    main()

"""The common code of the scripts of this agent: the state, and git."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

NOTHING = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"  # git's name for the tree without files


class GitError(Exception):
    """git failed; the text is the first line of its message."""


def state() -> dict:
    return json.loads(os.environ.get("GRAPH_STATE") or Path(os.environ["GRAPH_STATE_FILE"]).read_text("utf-8"))


def finish(**output: object) -> None:
    """A script speaks once: one JSON object on stdout."""
    print(json.dumps(output, ensure_ascii=False))


def git(folder: Path | str, *words: str, may_differ: bool = False) -> str:
    """The output of a git command. It takes no lock, and starts no pager and no monitor that the repository configures.
    `may_differ`: exit code 1 says that there are differences."""
    options = ["--no-pager", "--no-optional-locks", "--literal-pathspecs", "-c", "core.fsmonitor=false"]
    command = ["git", "-C", str(folder), *options, *words]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode not in ((0, 1) if may_differ else (0,)):
        errors = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise GitError(errors[0] if errors else f"git {words[0]} failed")
    return done.stdout.decode("utf-8", "replace")


def plural(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"

"""Read the diff of one file, each line that is still there with its number in front.

In:  `file`, one of `files`; `root`, `since`.
Out: `diff`, and `lines`, how many lines the file has.
"""

from __future__ import annotations

import re
from pathlib import Path

import repository
from repository import git

CONTEXT_LINES = 12
MAX_DIFF = 60_000  # characters; the model is told that the rest was cut
MAX_LINE = 500
HUNK = re.compile(r"@@ -\d+(?:,\d+)? \+(\d+)(?:,\d+)? @@(.*)")


def main() -> None:
    state = repository.state()
    root, path = state["root"], state["file"]["path"]
    options = ["diff", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames", f"--unified={CONTEXT_LINES}"]
    if state["file"]["change"] == "not added to git yet":
        text = git(root, *options, "--no-index", "--", "/dev/null", path, may_differ=True)
    else:
        text = git(root, *options, state["since"], "--", path)
    diff = numbered(text)
    if len(diff) > MAX_DIFF:
        diff = diff[:MAX_DIFF] + "\n(The rest of the diff was cut.)"
    with Path(root, path).open("rb") as file:
        lines = sum(1 for _ in file)
    repository.finish(diff=diff, lines=lines)


def numbered(text: str) -> str:
    """The hunks: `  17 + added`, `  18   kept`, `     - removed`."""
    result: list[str] = []
    number = 0
    for line in text.split("\n"):
        if hunk := HUNK.match(line):
            number = int(hunk[1])
            result.append(f"@@{hunk[2]}")
        elif number and line[:1] in ("+", " "):
            result.append(f"{number:>5} {cut(line)}")
            number += 1
        elif number and line[:1] == "-":
            result.append(f"      {cut(line)}")
    return "\n".join(result) or "(Only its mode or name has changed.)"


def cut(line: str) -> str:
    return line if len(line) <= MAX_LINE else line[: MAX_LINE - 1] + "…"


if __name__ == "__main__":
    main()

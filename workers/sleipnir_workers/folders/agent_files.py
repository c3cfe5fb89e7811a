"""Find a file of an agent's folder. What a graph names must stay inside the folder, links followed."""

from __future__ import annotations

from pathlib import Path

from sleipnir.errors import NodeFailed


def agent_file(folder: Path, name: str, *, what: str) -> Path:
    """The file `name` of `folder`, as an absolute path with links followed.

    `what` starts the messages ("Script"). Raises NodeFailed (`not_found`, `outside`).
    """
    root = folder.resolve()
    try:
        path = (root / name).resolve()
        is_file = path.is_file()
    except (OSError, RuntimeError, ValueError):  # a link loop, a name too long, a NUL
        raise NodeFailed(f"{what} file not found: '{name}'", "not_found") from None
    if not path.is_relative_to(root):
        raise NodeFailed(
            f"{what} file '{name}' is outside the agent's folder; move it into the folder, next to graph.yaml",
            "outside",
        )
    if not is_file:
        raise NodeFailed(f"{what} file not found: '{name}'", "not_found")
    return path

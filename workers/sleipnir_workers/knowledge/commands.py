"""Commands of `document_loaders` (spec 8.3): programs of the user's that make text of a file, a URL or anything else.

A command is split as a shell would, and run without one, in the agent's folder. `$1` is what to load, `$2` a file to
write to; without `$2` the text is what is printed. Of the environment it sees what scripts see (sandbox.py), no keys.
All its processes are dead when it is over.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from sleipnir_workers import sandbox
from sleipnir_workers.knowledge.base import Document
from sleipnir_workers.knowledge.failures import UnreadableContent
from sleipnir_workers.knowledge.loaders.content import Content, limit, size

TIMEOUT_S: Final = 300.0
"""A repository is cloned, a book is read in this time."""

_PLACE = re.compile(r"\$[12]")


def run(command: str, subject: str, *, folder: Path, max_bytes: int, timeout_s: float = TIMEOUT_S) -> str:
    """The text that `command` makes of `subject`. Raises UnreadableContent, with what the command said."""
    with tempfile.TemporaryDirectory(prefix="sleipnir-loader-") as scratch:
        written = Path(scratch, "output")
        argv = _argv(command, {"$1": subject, "$2": str(written)})
        shown = shlex.join(argv)
        try:
            outcome = sandbox.run(
                argv,
                env=sandbox.clean_environment(os.environ),
                cwd=folder,
                timeout_s=timeout_s,
                lost=threading.Event(),
                max_stdout_bytes=max_bytes,
            )
        except (OSError, ValueError) as error:  # no more processes; a zero byte in a URL
            raise UnreadableContent(f"the command `{shown}` cannot be started ({error})") from None
        if outcome.reason == "timeout":
            raise UnreadableContent(f"the command `{shown}` was not done in {timeout_s:g} s")
        if outcome.reason == "stdout_limit":
            raise UnreadableContent(f"the command `{shown}` prints too much; {limit(max_bytes)}")
        if outcome.code != 0:
            ended = f"by signal {outcome.signal}" if outcome.code is None else f"with exit code {outcome.code}"
            raise UnreadableContent(
                f"the command `{shown}` ended {ended}: {outcome.stderr.strip() or 'it said nothing'}"
            )
        data = _written(written, shown, max_bytes) if "$2" in command else outcome.stdout
    try:
        return Content(data).text()
    except UnreadableContent as error:
        raise UnreadableContent(f"what the command `{shown}` gives {error}") from None


def documents(output: str, origin: str, subject: str) -> list[Document]:
    """What a protocol loader gave for `origin`, which is `LOADER:subject`: documents as JSON
    `[{"path", "contents"}, ...]`, whose paths get the origin before them, or one text."""
    listed = _json(output)
    if not _is_list_of(listed, "contents"):
        return [Document(origin, output)]
    return [Document(_below(origin, subject, _whole(each["path"])), _whole(each["contents"])) for each in listed]


def crawled(output: str) -> list[Document]:
    """What the loader `recursive_url` gave: JSON `[{"path", "text"}, ...]`. Raises UnreadableContent for anything
    else."""
    listed = _json(output)
    if not _is_list_of(listed, "text"):
        raise UnreadableContent('the loader `recursive_url` must print JSON `[{"path": "...", "text": "..."}]`')
    return [Document(_whole(each["path"]), _whole(each["text"]), "md") for each in listed]


def _argv(command: str, places: Mapping[str, str]) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UnreadableContent(f"its loader `{command}` cannot be split into words ({error})") from None
    if not words:
        raise UnreadableContent("its loader is an empty command")
    return [_PLACE.sub(lambda place: places[place[0]], word) for word in words]


def _written(file: Path, shown: str, max_bytes: int) -> bytes:
    try:
        with file.open("rb") as opened:
            data = opened.read(max_bytes + 1)
    except OSError as error:
        raise UnreadableContent(f"the command `{shown}` wrote no file at $2 ({error.strerror})") from None
    if len(data) > max_bytes:
        raise UnreadableContent(f"the command `{shown}` wrote {size(file.stat().st_size)}; {limit(max_bytes)}")
    return data


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _is_list_of(listed: Any, field: str) -> bool:
    return isinstance(listed, Sequence) and all(
        isinstance(each, Mapping) and isinstance(each.get("path"), str) and isinstance(each.get(field), str)
        for each in listed
    )


def _whole(text: str) -> str:
    """Without what JSON can escape and no text can hold: halves of characters, and zero bytes."""
    return text.encode(errors="replace").decode().replace("\0", "")


def _below(origin: str, subject: str, path: str) -> str:
    if path.startswith(origin):
        return path
    if path.startswith(subject):
        return origin + path[len(subject) :]
    return f"{origin}/{path}"

"""Commands of `document_loaders` (spec 8.3): the user's programs that convert a file, a URL or anything else to text.

A command is split as a shell would, and run without one, in the agent's folder. `$1` is the subject to load, `$2` a
file to write to; without `$2` the text is the output. It has the same environment as scripts (processes/sandbox.py),
without keys. All its processes are dead when `run` returns.
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

from sleipnir_workers.knowledge.base import Document
from sleipnir_workers.knowledge.failures import UnreadableContent
from sleipnir_workers.knowledge.loaders.content import Content, limit, size
from sleipnir_workers.processes import sandbox

TIMEOUT_S: Final = 300.0
"""Long enough to clone a repository or to read a book."""

_PLACEHOLDER = re.compile(r"\$[12]")


def run(command: str, subject: str, *, folder: Path, max_bytes: int, timeout_s: float = TIMEOUT_S) -> str:
    """The text that `command` makes of `subject`. Raises UnreadableContent with the output of the command."""
    with tempfile.TemporaryDirectory(prefix="sleipnir-loader-") as scratch:
        output = Path(scratch, "output")
        argv = _argv(command, {"$1": subject, "$2": str(output)})
        command_line = shlex.join(argv)
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
            raise UnreadableContent(f"the command `{command_line}` cannot be started ({error})") from None
        if outcome.reason == "timeout":
            raise UnreadableContent(f"the command `{command_line}` took longer than {timeout_s:g} s")
        if outcome.reason == "stdout_limit":
            raise UnreadableContent(f"the command `{command_line}` prints too much; {limit(max_bytes)}")
        if outcome.code != 0:
            ended = f"by signal {outcome.signal}" if outcome.code is None else f"with exit code {outcome.code}"
            raise UnreadableContent(
                f"the command `{command_line}` ended {ended}: {outcome.stderr.strip() or 'it printed nothing'}"
            )
        data = _written(output, command_line, max_bytes) if "$2" in command else outcome.stdout
    try:
        return Content(data).text()
    except UnreadableContent as error:
        raise UnreadableContent(f"the output of the command `{command_line}` {error}") from None


def documents(output: str, origin: str, subject: str) -> list[Document]:
    """The output of a protocol loader for `origin`, which is `LOADER:subject`: documents as JSON
    `[{"path", "contents"}, ...]`, whose paths are prefixed with the origin, or one text."""
    items = _json(output)
    if not _is_list_of(items, "contents"):
        return [Document(origin, output)]
    return [Document(_below(origin, subject, _storable(item["path"])), _storable(item["contents"])) for item in items]


def crawled(output: str) -> list[Document]:
    """The output of the loader `recursive_url`: JSON `[{"path", "text"}, ...]`. Raises UnreadableContent for anything
    else."""
    items = _json(output)
    if not _is_list_of(items, "text"):
        raise UnreadableContent('the loader `recursive_url` must print JSON `[{"path": "...", "text": "..."}]`')
    return [Document(_storable(item["path"]), _storable(item["text"]), "md") for item in items]


def _argv(command: str, values: Mapping[str, str]) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UnreadableContent(f"its loader `{command}` cannot be split into words ({error})") from None
    if not words:
        raise UnreadableContent("its loader is an empty command")
    return [_PLACEHOLDER.sub(lambda placeholder: values[placeholder[0]], word) for word in words]


def _written(file: Path, command_line: str, max_bytes: int) -> bytes:
    try:
        with file.open("rb") as opened:
            data = opened.read(max_bytes + 1)
    except OSError as error:
        raise UnreadableContent(f"the command `{command_line}` wrote no file at $2 ({error.strerror})") from None
    if len(data) > max_bytes:
        raise UnreadableContent(f"the command `{command_line}` wrote {size(file.stat().st_size)}; {limit(max_bytes)}")
    return data


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _is_list_of(value: Any, field: str) -> bool:
    return isinstance(value, Sequence) and all(
        isinstance(item, Mapping) and isinstance(item.get("path"), str) and isinstance(item.get(field), str)
        for item in value
    )


def _storable(text: str) -> str:
    """Without halves of surrogate pairs and zero bytes, which JSON can escape but text cannot hold."""
    return text.encode(errors="replace").decode().replace("\0", "")


def _below(origin: str, subject: str, path: str) -> str:
    if path.startswith(origin):
        return path
    if path.startswith(subject):
        return origin + path[len(subject) :]
    return f"{origin}/{path}"

"""JSON, and JSON by the line: as it is where people wrote it in lines, else with a line per value.

Text that is no JSON after all (comments in it, a part of a file) is taken as it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Final

from sleipnir_workers.knowledge.loaders.content import Content, LoadedText

_LONG_LINE: Final = 1000
"""Characters. With longer lines it was written by a program, and would be cut anywhere."""
_ESCAPED = re.compile(r"\\u[0-9a-fA-F]{4}")


def read(content: Content, extension: str, notice: Callable[[str], None]) -> LoadedText:
    text = content.text()
    if extension == "json":
        return LoadedText(_in_lines(text), "json")
    return LoadedText("\n".join(map(_readable, text.split("\n"))), "json")


def _in_lines(text: str) -> str:
    if max(map(len, text.split("\n"))) <= _LONG_LINE and not _ESCAPED.search(text):
        return text
    return _written_anew(text, indent=2)


def _readable(line: str) -> str:
    """A record stays on its line, with its characters written out."""
    return _written_anew(line, indent=None) if _ESCAPED.search(line) else line


def _written_anew(text: str, indent: int | None) -> str:
    try:
        written = json.dumps(json.loads(text), indent=indent, ensure_ascii=False)
        written.encode()  # half a character may be escaped, but not be written out
    except (ValueError, RecursionError):
        return text
    return written

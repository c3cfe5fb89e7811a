"""JSON and JSON Lines: unchanged if it was written in lines by people, else with a line per value.

Text that is not JSON (with comments, or a part of a file) is not converted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Final

from sleipnir_workers.knowledge.loaders.content import Content, LoadedText

_LONG_LINE: Final = 1000
"""Characters. Longer lines were written by a program, and would be split anywhere."""
_ESCAPED = re.compile(r"\\u[0-9a-fA-F]{4}")


def read(content: Content, extension: str, notice: Callable[[str], None]) -> LoadedText:
    text = content.text()
    if extension == "json":
        is_readable = max(map(len, text.split("\n"))) <= _LONG_LINE and not _ESCAPED.search(text)
        return LoadedText(text if is_readable else _reformatted(text, indent=2), "json")
    lines = [_reformatted(line, indent=None) if _ESCAPED.search(line) else line for line in text.split("\n")]
    return LoadedText("\n".join(lines), "json")


def _reformatted(text: str, indent: int | None) -> str:
    """Without escaped characters. Text that is not JSON is returned unchanged."""
    try:
        reformatted = json.dumps(json.loads(text), indent=indent, ensure_ascii=False)
        reformatted.encode()  # half a surrogate pair can be escaped, but not encoded
    except (ValueError, RecursionError):
        return text
    return reformatted

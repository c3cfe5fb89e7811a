"""Which sources a search is about: globs over their paths, as a question gives them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

_PART: Final = re.compile(r"\*\*/|\*\*|\*|\?|\[[!^]?\]?[^\]]*\]|\{[^{}]*\}|.", re.DOTALL)


def matcher(globs: Sequence[str]) -> Callable[[str], bool]:
    """Whether a path or URL matches one of the globs.

    `*` and `?` stay within a folder, `**` does not; `[a-z]` and `{md,txt}` are alternatives. A glob is matched against
    a whole path or its end from any folder on, so `*.md` and `guide/**` need not say where that is; one that begins
    with `/` is matched against whole paths alone. One that ends with `/` means all that is below.
    """
    pattern = re.compile("|".join(f"(?:{_regex(glob)})" for glob in globs), re.DOTALL)
    return lambda path: pattern.fullmatch(path) is not None


def _regex(glob: str) -> str:
    anywhere = "" if glob.startswith("/") else "(?:.*/)?"
    return anywhere + _translated(glob + "**" if glob.endswith("/") else glob)


def _translated(glob: str) -> str:
    return "".join(_of(part) for part in _PART.findall(glob))


def _of(part: str) -> str:
    match part:
        case "**/":
            return "(?:.*/)?"
        case "**":
            return ".*"
        case "*":
            return "[^/]*"
        case "?":
            return "[^/]"
    if part.startswith("{") and len(part) > 1:
        return "(?:" + "|".join(_translated(each) for each in part[1:-1].split(",")) + ")"
    if part.startswith("[") and len(part) > 1:
        negated = part[1] in "!^"
        characters = part[2 if negated else 1 : -1].replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]")
        return f"[{'^' if negated else ''}{characters.replace('^', chr(92) + '^')}]" if characters else re.escape(part)
    return re.escape(part)

"""Select the sources of a search by globs over their paths, as a question gives them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from sleipnir.graph.patterns import Pattern, PatternRefused, compiled, escaped, shown

_PART: Final = re.compile(r"\*\*/|\*\*|\*|\?|\[[!^]?\]?[^\]]*\]|\{[^{}]*\}|.", re.DOTALL)


_ANY: Final = r"[\s\S]"
MOST_CHARACTERS: Final = 400
"""Characters of a glob."""


def matcher(globs: Sequence[str]) -> Callable[[str], bool]:
    """A function that tells whether a path or URL matches one of the globs.

    `*` and `?` stay within a folder, `**` does not; `[a-z]` and `{md,txt}` are alternatives. A glob is matched against
    a whole path or its end from any folder on, so `*.md` and `guide/**` match in all places; one that begins with `/`
    is matched against whole paths only. One that ends with `/` matches all paths below.

    Raises PatternRefused for a glob that is too long. Matching takes linear time, because globs are untrusted.
    """
    patterns = [_pattern(glob) for glob in globs]
    return lambda path: any(pattern.found_in(path) for pattern in patterns)


def _pattern(glob: str) -> Pattern:
    if len(glob) > MOST_CHARACTERS:
        raise PatternRefused(f"the glob {shown(glob)} has {len(glob):,} characters, at most {MOST_CHARACTERS:,}")
    try:
        return compiled(f"^(?:{_regex(glob)})$", most_characters=20 * MOST_CHARACTERS)
    except PatternRefused as error:
        raise PatternRefused(f"the glob {shown(glob)} cannot be matched: {error}") from None


def _regex(glob: str) -> str:
    anywhere = "" if glob.startswith("/") else f"(?:{_ANY}*/)?"
    return anywhere + _translated(glob + "**" if glob.endswith("/") else glob)


def _translated(glob: str) -> str:
    return "".join(_translated_part(part) for part in _PART.findall(glob))


def _translated_part(part: str) -> str:
    match part:
        case "**/":
            return f"(?:{_ANY}*/)?"
        case "**":
            return f"{_ANY}*"
        case "*":
            return "[^/]*"
        case "?":
            return "[^/]"
    if part.startswith("{") and len(part) > 1:
        return "(?:" + "|".join(_translated(choice) for choice in part[1:-1].split(",")) + ")"
    if part.startswith("[") and len(part) > 1:
        negated = part[1] in "!^"
        characters = part[2 if negated else 1 : -1].replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]")
        return f"[{'^' if negated else ''}{characters.replace('^', chr(92) + '^')}]" if characters else escaped(part)
    return escaped(part)

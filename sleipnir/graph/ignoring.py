"""Comments in a definition that suppress findings: `# sleipnir: ignore SLP403, SLP305`.

Rules. At the end of a line, a comment covers that line and the values below it: a node's key covers the node. On a line
of its own it covers the next line that is not a comment. Only warnings are suppressed: an error stops every run. Text
inside a scalar is not a comment.
"""

from __future__ import annotations

import bisect
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from sleipnir.errors import Problem
from sleipnir.graph.codes import CODE, CODES
from sleipnir.graph.findings import in_file_order
from sleipnir.graph.loaded import LoadedGraph
from sleipnir.graph.source import YamlDocument

MOST: Final = 500  # comments of one file; each is compared with every value

_COMMENT: Final = re.compile(r"(?:^|(?<=\s))#[ \t]*sleipnir:[ \t]*ignore\b([^\n#]*)")


@dataclass(frozen=True)
class _Ignored:
    """One comment: its place, its codes, and the lines that it covers."""

    line: int
    column: int
    codes: Sequence[str]
    lines: range


def without_ignored(problems: Sequence[Problem], loaded: LoadedGraph, file: str) -> list[Problem]:
    """`problems` without those that comments ignore, plus the problems of the comments."""
    if loaded.document is None or "sleipnir:" not in loaded.document.text:
        return list(problems)
    comments = list(_comments(loaded.document))
    kept = [problem for problem in problems if problem.file != file or not _is_ignored(problem, comments)]
    complaints = [complaint for comment in comments for complaint in _complaints(comment, kept, file)]
    own = in_file_order([*(each for each in kept if each.file == file), *complaints])
    return [*own, *(each for each in kept if each.file != file)]


def _is_ignored(problem: Problem, comments: Sequence[_Ignored]) -> bool:
    if problem.level == "error" or problem.line is None:
        return False
    return any(problem.line in comment.lines and problem.code in comment.codes for comment in comments)


def _complaints(comment: _Ignored, problems: Sequence[Problem], file: str) -> Iterator[Problem]:
    def warning(message: str, hint: str) -> Problem:
        return Problem("warning", message, file, comment.line, comment.column, hint=hint, code="SLP106")

    if not comment.codes:
        yield warning("the comment names no code, so it ignores nothing", "Write `# sleipnir: ignore SLP403`.")
    errors = {
        each.code for each in problems if each.file == file and each.level == "error" and each.line in comment.lines
    }
    for code in comment.codes:
        if code not in CODES:
            yield warning(f"there is no finding {code}", "`sleipnir validate` prints the code of each finding.")
        elif code in errors:
            yield warning(f"{code} is an error here and cannot be ignored", "Errors refuse every run; repair it.")


def _comments(document: YamlDocument) -> Iterator[_Ignored]:
    text = document.text
    starts = [0, *(match.end() for match in re.finditer("\n", text))]
    texts = sorted(_texts(document))
    for match in itertools.islice(_COMMENT.finditer(text), MOST):
        before = bisect.bisect_right(texts, (match.start(), len(text))) - 1
        if before >= 0 and match.start() < texts[before][1]:
            continue
        line = bisect.bisect_right(starts, match.start())
        target = line if text[starts[line - 1] : match.start()].strip() else _next_line(text, starts, line)
        codes = tuple(dict.fromkeys(CODE.findall(match[1])))
        yield _Ignored(line, match.start() - starts[line - 1] + 1, codes, _covered(document, starts, target))


def _texts(document: YamlDocument) -> Iterator[tuple[int, int]]:
    """The scalars, without the first line of a `|` or `>`, where a comment may stand."""
    for begin, end in document.spans.values():
        if document.text[begin : begin + 1] in ("|", ">"):
            newline = document.text.find("\n", begin, end)
            yield (newline if newline >= 0 else end, end)
        else:
            yield begin, end


def _next_line(text: str, starts: Sequence[int], line: int) -> int:
    for number in range(line + 1, len(starts) + 1):
        end = starts[number] if number < len(starts) else len(text)
        content = text[starts[number - 1] : end].strip()
        if content and not content.startswith("#"):
            return number
    return line


def _covered(document: YamlDocument, starts: Sequence[int], line: int) -> range:
    """The lines of the values that begin on a line: for a key, its whole value."""
    paths = [path for path, (at, _) in document.positions.items() if at == line and path]
    if not paths:
        return range(line, line + 1)
    top = min(paths, key=len)
    depth, last = len(top), line
    for path, (_, end) in document.spans.items():
        if any(path[: len(each)] == each for each in paths if len(each) == depth):
            last = max(last, bisect.bisect_right(starts, max(end - 1, 0)))
    return range(line, last + 1)

"""Writing to people: narration and messages on stderr, results on stdout.

Rule. Text that came from an agent, a model or another person passes `printable` before it reaches a terminal, because
control sequences in it could change the display. Results are written by `result` and `as_json_text`: to a file or a
pipe they are data and are written unchanged.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any, TextIO

import click

from sleipnir.runs.plain_text import TURNS, printable

_IN_JSON = {code: f"\\u{code:04x}" for code in (*range(0x7F, 0xA0), *TURNS)}
_STYLE = re.compile(r"(\x1b\[[0-9;]*m)")


MARK = "▸ "
"""The beginning of a line of narration."""

ReadLine = Callable[[], str]


def result(text: str, *, end: str = "\n") -> None:
    """Write a result to stdout and flush it: unchanged, but to a terminal as `printable` text."""
    sys.stdout.write((printable(text) if sys.stdout.isatty() else text) + end)  # click.echo would drop some of it
    sys.stdout.flush()  # a program that talks to `sleipnir chat` waits for it


def as_json_text(value: Any, indent: int | None = None) -> str:
    """JSON that is safe on a terminal and the same value to a program: every control character is escaped."""
    return json.dumps(value, indent=indent, ensure_ascii=False).translate(_IN_JSON)


def first_line(text: str) -> str:
    """The first non-empty line, with ` …` if there are more: enough to recognise the text."""
    first, *more = [line.strip() for line in text.splitlines() if line.strip()] or [""]
    return printable(first) + (" …" if more else "")


def wants_colour(stream: TextIO) -> bool:
    """Whether to style output to this stream: it is a terminal, and styles are not disabled."""
    context = click.get_current_context(silent=True)
    refused = (context is not None and context.color is False) or bool(os.environ.get("NO_COLOR"))
    return stream.isatty() and not refused and os.environ.get("TERM") != "dumb"


def can_redraw() -> bool:
    """Whether narration goes to a terminal on which a line can be redrawn."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def narrate_lines(lines: Iterable[str]) -> None:
    """Narration on stderr: dim on a terminal."""
    dim = wants_colour(sys.stderr)
    for line in lines:
        note(click.style(line, dim=True) if dim else line)


def note(text: str) -> None:
    """A message to the person at the terminal, on stderr. Colours in it are kept, other control characters escaped.

    Not click.echo: it writes past a progress bar, into it.
    """
    parts = _STYLE.split(text)
    print("".join(part if number % 2 else printable(part) for number, part in enumerate(parts)), file=sys.stderr)


def error(text: str) -> None:
    """`error: text` on stderr; the word is red on a terminal."""
    label = click.style("error:", fg="red", bold=True) if wants_colour(sys.stderr) else "error:"
    note(f"{label} {printable(text)}")


def can_ask() -> bool:
    """Whether there is a person: questions are written to stderr and answers read from stdin."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def typed_line(prompt: str, read_line: ReadLine) -> str | None:
    """The input line after the prompt; None at the end of the input."""
    sys.stderr.write(prompt)
    sys.stderr.flush()
    line = read_line()
    if not line:
        note("")
        return None
    return line.removesuffix("\n")

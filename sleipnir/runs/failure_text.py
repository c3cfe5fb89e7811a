"""Shortens an error's text to one line: where it happened, and the cause.

The text of a failed run begins with the agent, the node and the script. The cause, the last output of the script, is at
its end, where a narrow column cuts it off.
"""

from __future__ import annotations

import re
from typing import Final

_AT_NODE = re.compile(r"\bat node '([^'\n]+)': ")
_WRAPPING = re.compile(
    r"(?:Agent '[^'\n]+' failed: )?Graph execution failed for agent '[^'\n]+'(?: \([^)\n]*\))?: |at node '([^'\n]+)': "
)
_NO_CAUSE = re.compile(r"[\W_]*|at \S.*|Node\.js v\S+", re.DOTALL)
"""Lines at the end of an output that are not a cause: marks below a line of code, frames and the version of Node.js."""


RECURSION_LIMIT_REACHED: Final = (
    "Recursion limit of {limit} reached without hitting a stop condition. You can increase the limit by setting the "
    "`recursion_limit` config key."
)
"""LangGraph's text for a run that is not done after as many super-steps."""


def cause_of(error: str) -> str:
    """The first line; if it only introduces the output (`failed with exit code 1:`), the last significant line is put
    before it: `TypeError: ... (Script 'a.py' failed with exit code 1)`."""
    first, *rest = _unwrapped(error)[1].strip().splitlines() or [""]
    if not first.endswith(":"):
        return first
    head = first.rstrip(": ")
    last = next((line.strip() for line in reversed(rest) if not _NO_CAUSE.fullmatch(line.strip())), "")
    return f"{last} ({head})" if last else head


def failure_of(error: str) -> tuple[str | None, str]:
    """The node at which a run failed, according to its error, and the cause."""
    match = _AT_NODE.search(error)
    message = error[match.end() :] if match else error
    return match and match[1], cause_of(message)


def in_one_line(error: str) -> str:
    """`call/parse: TypeError: ... (Script 'a.py' failed with exit code 1)`; the path is through child runs."""
    nodes, _ = _unwrapped(error)
    return f"{'/'.join(nodes)}: {cause_of(error)}" if nodes else cause_of(error)


def without_output(error: str) -> str:
    """The text with the cause instead of the script's whole output, for readers who have seen the output."""
    _, text = _unwrapped(error)
    if not text.strip().partition("\n")[0].endswith(":"):
        return error
    return error.removesuffix(text) + cause_of(text)


def _unwrapped(error: str) -> tuple[list[str], str]:
    """The nodes at the beginning of the text, outermost first, and the remaining text."""
    nodes, at = [], 0
    while match := _WRAPPING.match(error, at):
        nodes += [match[1]] if match[1] else []
        at = match.end()
    return nodes, error[at:]

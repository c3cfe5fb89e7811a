"""The names of signals."""

from __future__ import annotations

import re
from typing import Final

MOST_NAME: Final = 200
NAME: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.:/@-]{{0,{MOST_NAME - 1}}}")
"""The name of a signal."""


def name_problem(name: str) -> str | None:
    """Why a text is no name of a signal; None: it is one."""
    if NAME.fullmatch(name):
        return None
    return (
        f"{name!r:.80} is no name of an event: it needs 1 to {MOST_NAME} letters, digits and _ . : / @ -, and begins "
        "with a letter or a digit"
    )

"""Python's own parser, for texts that are read and never run.

Rules. One thread at a time, and again if it fails. In Python 3.11 the parser counts its depth for all threads together,
so that it may fail with SystemError over a sound text when another parse comes in between: one of another thread, or of
this one, as traceback parses lines of source and may be called by a finalizer at any moment.
"""

from __future__ import annotations

import ast
import threading
import warnings
from typing import Literal

_ONE_AT_A_TIME = threading.Lock()
_TRIES = 5


def statements(text: str, version: tuple[int, int] | None = None) -> list[ast.stmt]:
    """The statements of a file, as Python `version` reads them (None: this one). Raises SyntaxError; ValueError,
    RecursionError or MemoryError for what is no text of Python at all."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an odd escape in the author's file is none of our business here
        found = _parsed(text, "exec", version)
    assert isinstance(found, ast.Module)
    return found.body


def expression(text: str) -> ast.expr:
    """One expression. Raises as `statements`."""
    found = _parsed(text, "eval", None)
    assert isinstance(found, ast.Expression)
    return found.body


def _parsed(text: str, mode: Literal["exec", "eval"], version: tuple[int, int] | None) -> ast.AST:
    with _ONE_AT_A_TIME:
        for left in reversed(range(_TRIES)):
            try:
                return ast.parse(text, mode=mode, feature_version=version)
            except SystemError:
                if not left:
                    raise
    raise AssertionError("a parse ends, well or not")

"""Python's own parser, for texts that are read and never run.

Rules. One thread at a time, and without the garbage collector. In Python 3.11 the parser counts its depth for all
threads together, so that it may fail with SystemError over a sound text when another parse comes in between. Only a
finalizer can let one in, of another thread or of its own: traceback parses the lines of source that it prints.
"""

from __future__ import annotations

import ast
import gc
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_ONE_AT_A_TIME = threading.Lock()


def statements(text: str, version: tuple[int, int] | None = None) -> list[ast.stmt]:
    """The statements of a file, as Python `version` reads them (None: this one). Raises SyntaxError; ValueError,
    RecursionError or MemoryError for what is no text of Python at all."""
    with _undisturbed(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an odd escape in the author's file is none of our business here
        return ast.parse(text, feature_version=version).body


def expression(text: str) -> ast.expr:
    """One expression. Raises as `statements`."""
    with _undisturbed():
        return ast.parse(text, mode="eval").body


@contextmanager
def _undisturbed() -> Iterator[None]:
    with _ONE_AT_A_TIME:
        collects = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if collects:
                gc.enable()

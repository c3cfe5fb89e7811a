"""Python's own parser, for source that is parsed and never run.

Rules. One thread at a time, and without the garbage collector. In Python 3.11 the parser counts its depth for all
threads together, so a second parse in between can make it fail with SystemError on a correct text. Only a finalizer can
start one meanwhile: traceback parses the source lines that it prints.
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
    """The statements of a file, as Python `version` parses them (None: this one). Raises SyntaxError; ValueError,
    RecursionError or MemoryError for text that is not Python at all."""
    with _undisturbed(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as an invalid escape in the author's file
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

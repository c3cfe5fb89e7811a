"""Reading Python while somebody else does, too."""

from __future__ import annotations

import ast
import contextlib
import gc
import threading
import traceback

import pytest

from sleipnir.graph.python_source import expression, statements

TEXT = "\n".join(f"def f{number}(a, b=({number}, [1, 2, {{3: 4}}])):\n    return a + b[0]\n" for number in range(300))


def test_a_sound_text_is_read_while_other_threads_parse_and_tracebacks_are_printed() -> None:
    stop, found = threading.Event(), []

    def parse_too() -> None:
        while not stop.is_set():
            with contextlib.suppress(SystemError):  # what this is about
                ast.parse("((1 + 2) * [3])")

    class Finalized:
        def __init__(self) -> None:
            self.own = self  # a cycle: it is finalized whenever the collector comes by

        def __del__(self) -> None:
            try:
                (lambda: 1 / (len(TEXT) - len(TEXT)))()
            except ZeroDivisionError as error:
                "".join(traceback.format_exception(error))

    others = [threading.Thread(target=parse_too) for _ in range(2)]
    thresholds = gc.get_threshold()
    gc.set_threshold(200)
    try:
        for thread in others:
            thread.start()
        for _ in range(20):
            Finalized()
            found.append(len(statements(TEXT)))
    finally:
        gc.set_threshold(*thresholds)
        stop.set()
        for thread in others:
            thread.join()
    assert found == [300] * 20


def test_a_syntax_error_of_python_is_reported() -> None:
    for read in (statements, expression):
        with pytest.raises(SyntaxError):
            read("1 +")
    with pytest.raises(SyntaxError):
        statements("match x:\n    case 1: pass\n", (3, 9))

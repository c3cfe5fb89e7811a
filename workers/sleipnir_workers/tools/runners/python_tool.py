"""Call one function of a Python tools file: started by the worker as `python3 python_tool.py`, never imported.

It is run by the python3 of the tools, of any version from 3.9 on, so it uses the standard library only. LLM_TOOL_FILE
and LLM_TOOL_FUNCTION name the function, LLM_TOOL_DATA_FILE holds the arguments; the return value is written to
LLM_OUTPUT (spec 4.3). An exception ends it with code 1 and a traceback that begins in the author's file.
"""

from __future__ import annotations

import json
import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def main() -> None:
    path, name = os.environ.pop("LLM_TOOL_FILE"), os.environ.pop("LLM_TOOL_FUNCTION")
    with open(os.environ["LLM_TOOL_DATA_FILE"], encoding="utf-8") as file:  # noqa: PTH123
        arguments = json.load(file)
    own_folder = os.path.dirname(os.path.realpath(__file__))  # noqa: PTH120
    sys.path[:] = [os.path.dirname(path), *(entry for entry in sys.path if entry != own_folder)]  # noqa: PTH120
    sys.argv = [path]
    try:
        text = as_text(call(getattr(load(path), name), arguments))
    except Exception as error:
        import traceback

        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        traceback.print_exception(type(error), error, trace)
        sys.exit(1)
    if text is not None:
        with open(os.environ["LLM_OUTPUT"], "w", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            file.write(text)


def load(path: str) -> ModuleType:
    """The module of the file. It is not `__main__`, and its name is used by no library."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("sleipnir_tool", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["sleipnir_tool"] = module
    spec.loader.exec_module(module)
    return module


def call(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    result = function(**arguments, **missing_as_none(function, arguments))
    if not hasattr(result, "__await__"):
        return result
    import asyncio

    async def awaited() -> Any:
        return await result

    return asyncio.run(awaited())


def missing_as_none(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, None]:
    """None for the parameters that were not given and have no default: their type allows None.

    Without `inspect`, whose import would cost more than the rest of this file.
    """
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    code = getattr(function, "__code__", None)
    if code is None:
        return {}
    names = code.co_varnames[: code.co_argcount]
    defaults = getattr(function, "__defaults__", None) or ()
    has_default = {*names[len(names) - len(defaults) :], *(getattr(function, "__kwdefaults__", None) or ())}
    keywords = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    return {name: None for name in (*names, *keywords) if name not in arguments and name not in has_default}


def as_text(result: Any) -> str | None:
    """The text for LLM_OUTPUT; None: no text, as for None and for objects that are not JSON."""
    if isinstance(result, (str, int, float)):
        return str(result)
    if isinstance(result, (dict, list)):
        return json.dumps(result, indent=2, ensure_ascii=False)
    return None


main()

"""Call one function of a Python tools file: loaded by python_tool.py, which the worker starts for each call.

It is run by the python3 of the tools, of any version from 3.9 on, so it uses the standard library only. LLM_TOOL_FILE
and LLM_TOOL_FUNCTION name the function, LLM_TOOL_DATA_FILE holds the arguments; the return value is written to
LLM_OUTPUT (spec 4.3). An exception ends it with code 1 and a traceback that begins in the author's file.

What it imports is there in any interpreter: `typing`, `types` and `importlib` would cost more than the rest of a call.
"""

from __future__ import annotations

import json
import os
import sys
from _frozen_importlib import ModuleSpec
from _frozen_importlib_external import SourceFileLoader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

RUNNER, QUESTIONS = "sleipnir_tool_runner", "sleipnir_tool_questions"


class SleipnirFinder:
    """Finds the module `sleipnir` in interpreters that do not have it. It is asked last."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        if name != "sleipnir":
            return None
        loader: Any = questions().SleipnirLoader(sys.modules[RUNNER].answers)
        return ModuleSpec(name, loader)


def questions() -> Any:
    """The module of tool_questions.py."""
    folder = os.path.dirname(os.path.realpath(__file__))  # noqa: PTH120
    return sys.modules.get(QUESTIONS) or load(QUESTIONS, os.path.join(folder, "tool_questions.py"))  # noqa: PTH118


def allow_questions(question: str, answers_file: str | None) -> None:
    """Let the call ask. `question` is the file that a question is written to; `answers_file` has the answers of the
    executions before, if there are any."""
    runner = sys.modules[RUNNER] = type(sys)(RUNNER)

    def attribute(name: str) -> Any:
        if name != "answers":
            raise AttributeError(name)
        answers = questions().answers_of_call(question, answers_file)
        runner.__dict__["answers"] = answers
        return answers

    runner.__dict__["__getattr__"] = attribute
    sys.meta_path.append(SleipnirFinder)


def has_asked(error: BaseException) -> bool:
    asking: Any = sys.modules.get(QUESTIONS)
    return asking is not None and isinstance(error, asking.CallAsked)


def main(own_files: tuple[str, ...]) -> None:
    """Run the call that the environment names. Frames of `own_files` are in no traceback."""
    path, name = os.environ.pop("LLM_TOOL_FILE"), os.environ.pop("LLM_TOOL_FUNCTION")
    question, answers_file = os.environ.pop("LLM_INTERRUPT", None), os.environ.pop("LLM_ANSWERS_FILE", None)
    with open(os.environ["LLM_TOOL_DATA_FILE"], encoding="utf-8") as file:  # noqa: PTH123
        arguments = json.load(file)
    own_folder = os.path.dirname(os.path.realpath(__file__))  # noqa: PTH120
    sys.path[:] = [os.path.dirname(path), *(entry for entry in sys.path if entry != own_folder)]  # noqa: PTH120
    sys.argv = [path]
    if question is not None:
        allow_questions(question, answers_file)
    try:
        # The module is not `__main__`, and its name is used by no library.
        text = as_text(call(getattr(load("sleipnir_tool", path), name), arguments))
    except BaseException as error:
        if has_asked(error):
            return
        if not isinstance(error, Exception):
            raise
        import traceback

        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename in own_files:
            trace = trace.tb_next
        traceback.print_exception(type(error), error, trace)
        sys.exit(1)
    if text is not None:
        with open(os.environ["LLM_OUTPUT"], "w", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            file.write(text)


def load(name: str, path: str) -> ModuleType:
    """The module of a file, under this name."""
    loader = SourceFileLoader(name, path)
    spec = ModuleSpec(name, loader, origin=path)
    spec.has_location = True
    module = type(sys)(name)
    module.__file__, module.__loader__, module.__spec__ = path, loader, spec
    sys.modules[name] = module
    loader.exec_module(module)
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
    """None for the parameters that were not given and have no default: their type allows None."""
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

"""Call one function of a Python tools file: started by the worker as `python3 python_tool.py`, never imported.

It is run by the python3 of the tools, of any version from 3.9 on, so it uses the standard library only. LLM_TOOL_FILE
and LLM_TOOL_FUNCTION name the function, LLM_TOOL_DATA_FILE holds the arguments; the return value is written to
LLM_OUTPUT (spec 4.3). An exception ends it with code 1 and a traceback that begins in the author's file.

`from sleipnir import interrupt, resume_value, has_resume_value` works in any interpreter: without Sleipnir, a module of
that name has these functions only. The question is written to LLM_INTERRUPT (tools/questions.py).
"""

from __future__ import annotations

import json
import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class CallAsked(BaseException):
    """The call has asked a person, and ends. No tool can catch it with `except Exception`."""


class CallAnswer:
    def __init__(self, value: Any) -> None:
        self.value = value


class CallAnswers:
    """The answers to what the call has asked before; the same rules as in sleipnir.python_graph.interrupts."""

    def __init__(self, file: str, given: list[dict[str, Any]]) -> None:
        self.file, self.calls, self.positions, self.has_asked = file, 0, 0, False
        self.numbered = [each for each in given if each["key"] is None]
        self.keyed = [each for each in given if each["key"] is not None]
        self.cleared: dict[str, int] = {}

    def take(self, value: Any, key: str | None, schema: Any, timeout_ms: int | None, *, rules: Any = None) -> Any:
        if self.has_asked:
            raise CallAsked
        at, self.calls = self.calls, self.calls + 1
        if key is not None and (given := self.left(key)):
            return given[0]["value"]
        if key is None and self.positions < len(self.numbered):
            found = self.numbered[self.positions]
            self.positions += 1
            if found["at"] == at:
                return found["value"]
            self.positions = -1  # below: in another order
        if self.positions != len(self.numbered):
            raise ValueError(
                "the tool asks its questions in another order than before its answers were given. Ask in the same "
                "order in each execution, or give each question a key"
            )
        question = {"value": value, "key": key, "at": at}
        if schema is not None:
            question["schema"] = schema
        if timeout_ms is not None:
            question["timeout"] = timeout_ms / 1000
        if rules is not None:
            question["rules"] = {**vars(rules), "comment": "required" if rules.comment else None}
        text = json.dumps(question)
        with open(self.file, "w", encoding="utf-8") as file:  # noqa: PTH123
            file.write(text)
        self.has_asked = True
        raise CallAsked

    def left(self, key: str) -> Sequence[dict[str, Any]]:
        return [each for each in self.keyed if each["key"] == key][self.cleared.get(key, 0) :]

    def known(self, key: str) -> CallAnswer | None:
        given = self.left(key)
        return CallAnswer(given[0]["value"]) if given else None

    def clear(self, key: str) -> None:
        if self.left(key):
            self.cleared[key] = self.cleared.get(key, 0) + 1


def answers_of_call() -> CallAnswers | None:
    """None: the call cannot ask."""
    question, given = os.environ.pop("LLM_INTERRUPT", None), os.environ.pop("LLM_ANSWERS_FILE", None)
    if question is None:
        return None
    if given is None:
        return CallAnswers(question, [])
    with open(given, encoding="utf-8") as file:  # noqa: PTH123
        return CallAnswers(question, json.load(file))


class SleipnirModule:
    """Finds the module `sleipnir` in interpreters that do not have it. It is asked last."""

    def __init__(self, answers: CallAnswers) -> None:
        self.answers = answers

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "sleipnir":
            return None
        from importlib.machinery import ModuleSpec

        return ModuleSpec(name, self)  # type: ignore[arg-type]

    def create_module(self, spec: Any) -> None:
        return None

    def exec_module(self, module: Any) -> None:
        answers = self.answers

        def interrupt(
            value: Any, key: str | None = None, *, response_schema: Any = None, timeout: float | None = None
        ) -> Any:
            if response_schema is not None and not isinstance(response_schema, (dict, bool)):
                raise TypeError("response_schema must be a JSON Schema: classes need Sleipnir in this interpreter")
            return answers.take(value, key, response_schema, None if timeout is None else max(1, int(timeout * 1000)))

        def resume_value(key: str, default: Any = CallAnswers) -> Any:
            found = answers.known(key)
            if found is None and default is CallAnswers:  # not given
                raise KeyError(f"no question {key!r} of this visit has an answer")
            return default if found is None else found.value

        module.interrupt, module.resume_value = interrupt, resume_value
        module.has_resume_value, module.clear_resume_value = lambda key: answers.known(key) is not None, answers.clear


def main() -> None:
    path, name = os.environ.pop("LLM_TOOL_FILE"), os.environ.pop("LLM_TOOL_FUNCTION")
    with open(os.environ["LLM_TOOL_DATA_FILE"], encoding="utf-8") as file:  # noqa: PTH123
        arguments = json.load(file)
    own_folder = os.path.dirname(os.path.realpath(__file__))  # noqa: PTH120
    sys.path[:] = [os.path.dirname(path), *(entry for entry in sys.path if entry != own_folder)]  # noqa: PTH120
    sys.argv = [path]
    answers = answers_of_call()
    if answers is not None:
        runner = sys.modules["sleipnir_tool_runner"] = ModuleType("sleipnir_tool_runner")
        runner.answers = answers  # type: ignore[attr-defined]
        sys.meta_path.append(SleipnirModule(answers))
    try:
        text = as_text(call(getattr(load(path), name), arguments))
    except CallAsked:
        return
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

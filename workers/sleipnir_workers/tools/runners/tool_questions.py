"""What a call of a Python tool needs to ask a person: loaded by python_call.py when the tool does, under another name.

`from sleipnir import interrupt, resume_value, has_resume_value` works in any interpreter: without Sleipnir, a module of
that name has these functions only. The question is written to LLM_INTERRUPT (tools/questions.py).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


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


def answers_of_call(question: str, answers_file: str | None) -> CallAnswers:
    """`question` and `answers_file` as in python_call.allow_questions."""
    if answers_file is None:
        return CallAnswers(question, [])
    with open(answers_file, encoding="utf-8") as file:  # noqa: PTH123
        return CallAnswers(question, json.load(file))


class SleipnirLoader:
    """Makes a module `sleipnir` that has the functions for questions."""

    def __init__(self, answers: CallAnswers) -> None:
        self.answers = answers

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

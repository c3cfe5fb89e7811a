"""Interrupts: Python code of a node, or of a tool, asks a person (spec/graph-package.md F27, spec/langgraph-api.md 6).

Rules. `interrupt` ends the execution, and the node runs again from its beginning with the answer. An answer belongs to
the visit and the key, or, without a key, to the position among the questions without one. Positions must not change
from one execution to the next. Node code cannot swallow the end of an execution: what was asked is asked, whatever the
node returns or raises after it.
"""

from __future__ import annotations

import contextvars
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NotRequired, get_origin, get_type_hints

from sleipnir.graph import schema as json_schema
from sleipnir.graph.answer_rules import AnswerRules, answer_rules_of
from sleipnir.graph.model import Json
from sleipnir.graph.plain import compact_json, first_not_json
from sleipnir.messages import MOST_ANSWER_SCHEMA_BYTES, MOST_QUESTION_BYTES, InterruptQuestion, WaitRequest
from sleipnir.python_graph.errors import GraphInterrupt
from sleipnir.python_graph.schema import is_pydantic, is_typed_dict
from sleipnir.runs.interrupts import UsedAnswer, problem_of


@dataclass(frozen=True)
class Interrupt:
    """A question that a run waits for. `value` says what is asked, `id` names it in a mapping of answers,
    `response_schema` is the JSON Schema of the answer."""

    value: Any
    id: str
    response_schema: Any = field(default=None, kw_only=True)


class VisitAnswers:
    """The answers that one execution of a visit of `node` gets, and the question that ends it (None: it asks none)."""

    def __init__(self, node: str, answers: Sequence[UsedAnswer] = ()) -> None:
        self.question: InterruptQuestion | None = None
        self.given = tuple(answers)
        self._node = node
        self._by_key: dict[str, list[UsedAnswer]] = {}
        for answer in answers:
            if answer.key is not None:
                self._by_key.setdefault(answer.key, []).append(answer)
        self._cleared: dict[str, int] = {}
        self._by_position = [answer for answer in answers if answer.key is None]
        self._calls = self._positions = 0

    def named(self) -> dict[str, Json]:
        """The answers by the names of their questions, for scripts."""
        positions = {self._name(number): each.value for number, each in enumerate(self._by_position)}
        return {**positions, **{key: each[-1].value for key, each in self._by_key.items()}}

    def known(self, key: str) -> UsedAnswer | None:
        """The answer that counts for the question of this name. None: there is none, or it was cleared."""
        if (given := self._keyed(key)) is not None:
            return given
        numbered = (each for number, each in enumerate(self._by_position) if self._name(number) == key)
        return next(numbered, None)

    def clear(self, key: str) -> None:
        """Let the next answer for the key count, if there is one, else none."""
        if self._cleared.get(key, 0) < len(self._by_key.get(key, ())):
            self._cleared[key] = self._cleared.get(key, 0) + 1

    def skip(self, count: int) -> None:
        """The next `count` questions without a key were those of a graph that the node has called, which has got their
        answers."""
        self._calls += count
        self._positions += count

    def ask(
        self,
        value: Any,
        key: str | None,
        schema: Json,
        timeout: float | None,
        at: int | None = None,
        rules: Mapping[str, Any] | None = None,
    ) -> InterruptQuestion:
        """What a script asks after it has got all answers, `at` so many questions (None: those with an answer). Raises
        ValueError for a question with an answer, and for what cannot be asked."""
        _refuse(key, schema, timeout)
        if at is None and key in self._by_key:
            raise ValueError(f"the question {key!r} has an answer already")
        name = self._name(len(self._by_position)) if key is None else key
        at = len(self.given) if at is None else at
        who = answer_rules_of(rules)
        return InterruptQuestion(name, _plain(value), key, at, schema, _in_ms(timeout), rules=who)

    def take(
        self,
        value: Any,
        key: str | None,
        schema: Json,
        timeout_ms: int | None,
        wait: WaitRequest | None = None,
        *,
        rules: AnswerRules | None = None,
    ) -> Json:
        """The answer. Raises GraphInterrupt if there is none yet, ValueError for a question in another place than in
        an earlier execution, and for what cannot be asked."""
        if self.question is not None:
            raise GraphInterrupt(self.question.value)
        at, self._calls = self._calls, self._calls + 1
        found = self._positional(at) if key is None else self._keyed(key)
        if found is not None:
            return found.value
        if self._positions < len(self._by_position):
            raise ValueError(self._changed())
        name = self._name(len(self._by_position)) if key is None else key
        self.question = InterruptQuestion(name, _plain(value), key, at, schema, timeout_ms, wait, rules)
        raise GraphInterrupt(value)

    def _keyed(self, key: str) -> UsedAnswer | None:
        given, cleared = self._by_key.get(key, ()), self._cleared.get(key, 0)
        return given[cleared] if cleared < len(given) else None

    def _positional(self, at: int) -> UsedAnswer | None:
        number = self._positions
        if number == len(self._by_position):
            return None
        self._positions += 1
        found = self._by_position[number]
        if found.at != at:
            raise ValueError(self._changed())
        return found

    def _name(self, number: int) -> str:
        return f"{self._node}#{number}"

    def _changed(self) -> str:
        return (
            f"node '{self._node}' asks its questions in another order than before its answers were given. Ask in the "
            "same order in each execution, or give each question a key"
        )


answering: Final[contextvars.ContextVar[VisitAnswers | None]] = contextvars.ContextVar("sleipnir_answers", default=None)


def interrupt(
    value: Any,
    key: str | None = None,
    *,
    response_schema: Any = None,
    timeout: float | None = None,
    rules: Mapping[str, Any] | None = None,
) -> Any:
    """Ask a person, from within a node: end this execution, and return the answer in the next one.

    `value` is any JSON; it says what is asked. `key` names the question (None: its position does, as `<node>#<index>`);
    within one visit a key has one answer. `response_schema` is a JSON Schema, or a class (a pydantic model, TypedDict
    or dataclass), of which the answer becomes an instance. The visit fails if there is no answer after `timeout`
    seconds. `rules` say who may answer on the fleet, with the keys of an approval node: `assignees`, `role`,
    `not_author`, `quorum`, `comment`; in one process the program that runs the graph answers.

    Raises RuntimeError outside of a node, and ValueError for a question that cannot be asked.
    """
    answers = _answers("interrupt")
    adapter = None if response_schema is None or isinstance(response_schema, dict | bool) else _adapter(response_schema)
    schema = response_schema if adapter is None else adapter.json_schema()
    _refuse(key, schema, timeout)
    answer = answers.take(value, key, schema, _in_ms(timeout), rules=answer_rules_of(rules))
    return answer if adapter is None else adapter.validate_python(answer)


_NONE: Final = object()


def resume_value(key: str, default: Any = _NONE, *, response_schema: Any = None) -> Any:
    """The answer to the question of this visit that is named `key`, or `default`, without asking.

    `response_schema` is as for `interrupt`. Raises KeyError if there is no answer and no `default`, ValueError for an
    answer that does not match the schema, and RuntimeError outside of a node.
    """
    found = _answers("resume_value").known(key)
    if found is None and default is _NONE:
        raise KeyError(f"no question {key!r} of this visit has an answer")
    if found is None:
        return default
    if response_schema is None or not isinstance(response_schema, dict | bool):
        return found.value if response_schema is None else _adapter(response_schema).validate_python(found.value)
    if problem := problem_of(response_schema, found.value):
        raise ValueError(f"the answer to {key!r} does not match the schema: {problem}")
    return found.value


def has_resume_value(key: str) -> bool:
    """Whether the question of this visit that is named `key` has an answer. Raises RuntimeError outside of a node."""
    return _answers("has_resume_value").known(key) is not None


def clear_resume_value(key: str) -> None:
    """Drop the answer to the question with this key, so that `interrupt` asks it again: the next execution gets both
    answers, one after the other, if it clears the first one again. Raises RuntimeError outside of a node."""
    _answers("clear_resume_value").clear(key)


TOOL_RUNNER: Final = "sleipnir_tool_runner"
"""The module that has the answers of a call in the process of a Python tool (tools/runners/python_call.py)."""


def _answers(function: str) -> VisitAnswers:
    answers = answering.get() or getattr(sys.modules.get(TOOL_RUNNER), "answers", None)
    if answers is None:
        raise RuntimeError(f"{function}() was called outside of a node")
    return answers


def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter, create_model

    if not is_typed_dict(kind):
        return TypeAdapter(kind)
    # pydantic takes those of `typing` from Python 3.12 on: a model with the same keys stands for it.
    hints = get_type_hints(kind, include_extras=True)  # the class does not know its NotRequired if hints are texts
    optional = {name for name, hint in hints.items() if get_origin(hint) is NotRequired}
    required = kind.__required_keys__ - optional
    fields: Any = {name: (hint, ... if name in required else None) for name, hint in get_type_hints(kind).items()}
    return _DictAdapter(create_model(kind.__name__, **fields))


class _DictAdapter:
    """A TypedDict as an adapter: the answer stays a dict."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def json_schema(self) -> Json:
        schema: Json = self._model.model_json_schema()
        return schema

    def validate_python(self, answer: Json) -> dict[str, Any]:
        values = self._model.model_validate(answer)
        return {name: getattr(values, name) for name in values.model_fields_set}


def _in_ms(timeout: float | None) -> int | None:
    return None if timeout is None else max(1, int(timeout * 1000))


def _refuse(key: Any, schema: Json, timeout: Any) -> None:
    """Raises ValueError for a key that is no text, a timeout that is no time, and what is no JSON Schema, or one that
    cannot be applied."""
    if key is not None and (not isinstance(key, str) or not key.strip()):
        raise ValueError(f"the key of an interrupt must be a text, not {key!r}")
    is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if timeout is not None and not (is_number and 0 < timeout < 10**9):
        raise ValueError(f"the timeout of an interrupt must be a positive number of seconds, not {timeout!r}")
    if schema is None:
        return
    if problem := json_schema.problem(schema):
        raise ValueError(f"the schema of an interrupt cannot be used: {problem.message}")
    if (size := len(compact_json(schema).encode())) > MOST_ANSWER_SCHEMA_BYTES:
        raise ValueError(f"the schema of an interrupt has {size:,} bytes, at most {MOST_ANSWER_SCHEMA_BYTES:,} fit")


def _plain(value: Any) -> Json:
    """What is asked as JSON. Raises ValueError."""
    if is_pydantic(type(value)):
        value = value.model_dump(mode="json")
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if problem := first_not_json({"value": value}):
        raise ValueError(f"what an interrupt asks must be JSON: {problem}")
    if (size := len(compact_json(value).encode())) > MOST_QUESTION_BYTES:
        raise ValueError(
            f"what an interrupt asks has {size:,} bytes, at most {MOST_QUESTION_BYTES:,} fit: store it, and ask with a "
            "reference to it"
        )
    return value

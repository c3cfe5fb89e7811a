"""Selects the reply to a request: by rule, in order, or by a function; as Python, YAML or JSON.

A script file is a list of replies, or an object with any of

    rules:                          tried first, in order; the first rule with all conditions true replies
      - match: "^ping"              a pattern anywhere in the last message
        reply: pong
      - turn: 1                     the first answer of a conversation
        reply: {calls: [{name: search, arguments: {q: bells}}]}
      - result_of: search           the request ends with a result of this tool
        reply: {text: done, delay_s: 0.5}
    replies: [REPLY, ...]           then these, each once, in the order of the requests
    default: REPLY                  then this, without limit
    embeddings: [REPLY, ...]        the same for embedding requests, and
    reranks: [REPLY, ...]           for rerank requests, such as failures; later requests succeed
    dimensions: 64                  of vectors

where REPLY is a text or an object with the fields of `Reply`. A file `*.py` has a function `answer(request)` that
returns a text or a `Reply`.
"""

from __future__ import annotations

import json
import re
import runpy
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, cast

from sleipnir.errors import ConfigError
from sleipnir.testing.meaning import DIMENSIONS
from sleipnir.testing.reply import STRICT, Reply
from sleipnir.testing.request import Request

Chooser: TypeAlias = Callable[[Request], "Reply | str"]

SHOWN_CHARACTERS = 200  # of the last message, if the script has no reply for it


@dataclass(frozen=True)
class Rule:
    """A reply with conditions; None is no condition. Raises ConfigError for an invalid pattern."""

    __pydantic_config__: ClassVar[Any] = STRICT

    reply: Reply | str
    match: str | None = None
    """A pattern anywhere in the last message's text."""
    model: str | None = None
    """The model's name in the request, without the client."""
    turn: int | None = None
    """The number of the requested answer in the conversation, from 1."""
    tool_results: bool | None = None
    """Whether the request ends with results of tools."""
    result_of: str | None = None
    """A tool with a result at the end of the request."""
    conversation: str | None = None
    """The key in the test's marker."""
    times: int | None = None
    """How often the rule replies in one conversation. None: without limit."""

    def __post_init__(self) -> None:
        try:
            re.compile(self.match or "")
        except re.error as error:
            raise ConfigError(f"the rule's match {self.match!r} is not a pattern: {error}") from error

    def holds(self, request: Request) -> bool:
        """Whether all conditions of the rule are true for the request."""
        return (
            (self.match is None or re.search(self.match, request.prompt, re.DOTALL) is not None)
            and self.model in (None, request.model)
            and self.turn in (None, request.turn)
            and self.tool_results in (None, bool(request.tool_results))
            and (self.result_of is None or self.result_of in {result.name for result in request.tool_results})
            and self.conversation in (None, request.conversation)
        )


@dataclass(frozen=True)
class Script:
    """Rules first, then the replies in order, then the default. None: a request without a reply gets status 400, which
    clients do not retry.

    `embeddings` and `reranks` are the replies to requests of these kinds, in order. Unless they are failures, their
    content is computed from the texts, as are all later answers; vectors have `dimensions`.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    rules: Sequence[Rule] = ()
    replies: Sequence[Reply | str] = ()
    default: Reply | str | None = None
    embeddings: Sequence[Reply] = ()
    reranks: Sequence[Reply] = ()
    dimensions: int = DIMENSIONS

    def chooser(self) -> Chooser:
        """A function that gives the replies from the beginning. Not thread-safe."""
        remaining = iter(self.replies)
        used: Counter[tuple[int, str | None]] = Counter()

        def choose(request: Request) -> Reply | str:
            for number, rule in enumerate(self.rules):
                key = (number, request.conversation)
                if (rule.times is None or used[key] < rule.times) and rule.holds(request):
                    used[key] += 1
                    return rule.reply
            chosen = next(remaining, self.default)
            return _no_reply(request) if chosen is None else chosen

        return choose


def computed(replies: Iterable[Reply] | Chooser) -> Chooser:
    """These replies in order, then empty ones, whose content is computed."""
    if callable(replies):
        return replies
    remaining = iter(tuple(replies))
    return lambda _: next(remaining, Reply())


def load(path: Path) -> Script | Chooser:
    """The script in a file: YAML, JSON, or a Python file's function `answer`. Raises ConfigError."""
    try:
        if path.suffix == ".py":
            return _function(path)
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the script {str(path)!r}: {error}") from error
    return parse(_json(text, path) if path.suffix == ".json" else _yaml(text, path), str(path))


def parse(data: Any, name: str = "script") -> Script:
    """The script that JSON data describes. Raises a ConfigError that begins with `name` and has the place."""
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(Script).validate_python({"replies": data} if isinstance(data, list) else data)
    except ValidationError as error:
        errors = [each for each in error.errors() if _is_real(each)]
        problems = [f"{name}: {_place(each['loc'])}{each['msg']}" for each in errors]
        raise ConfigError("\n".join(problems)) from None


def _is_real(problem: Any) -> bool:
    """Whether an error is worth reporting. A reply is a text or an object: "an object is not a text" is not."""
    return "str" not in problem["loc"] or not isinstance(problem["input"], dict)


def _place(location: tuple[int | str, ...]) -> str:
    """`rules[0].reply.status: `, without pydantic's names of alternatives."""
    names = {"Reply", "str"}
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in location if part not in names]
    return "".join(parts).lstrip(".") + ": " if parts else ""


def _no_reply(request: Request) -> Reply:
    shown = request.prompt[:SHOWN_CHARACTERS]
    message = f"model server: no reply is left in the script for turn {request.turn}; the last message is {shown!r}"
    return Reply(status=400, error=message)


def _json(text: str, path: Path) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error


def _yaml(text: str, path: Path) -> Any:
    from sleipnir.graph.source import read

    document = read(text, str(path))
    problems = [str(problem) for problem in document.problems if problem.level == "error"]
    if problems:
        raise ConfigError("\n".join(problems))
    return document.data


def _function(path: Path) -> Chooser:
    function = runpy.run_path(str(path)).get("answer")
    if not callable(function):
        raise ConfigError(f"{path}: there is no function answer(request)")
    return cast(Chooser, function)

"""In a helper process: what a conditional edge chooses (condition.py). It may not end; the process is killed then."""

from __future__ import annotations

from typing import Any

from sleipnir.graph.choice import chosen
from sleipnir.graph.expression import ExpressionError
from sleipnir.graph.model import Branch, Choice
from sleipnir.graph.template import TemplateError


def answer(request: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
    branch = Branch(
        by=request["by"],
        cases=[Choice(when=when, to=to) for when, to in request["cases"]],
        default=request["default"],
        many=request["many"],
    )
    state = request["state"]
    try:
        return {"labels": chosen(branch, lambda keys: state)}, b""
    except (ExpressionError, TemplateError, ValueError, RecursionError, MemoryError) as error:
        return {"problem": str(error) or type(error).__name__}, b""

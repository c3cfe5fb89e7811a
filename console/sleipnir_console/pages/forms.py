"""What people type into forms, as bodies of the API: with the same checks, and kept when one of them fails."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from sleipnir.errors import SleipnirError
from sleipnir_console.error_responses import problem_in
from sleipnir_console.pages.page_route import form_of
from sleipnir_console.problems import HttpProblem

Body = TypeVar("Body", bound=BaseModel)

REFUSALS = (HttpProblem, SleipnirError, RequestValidationError)
"""What a form is shown again for, with its text and the reason."""


def body_of(request: Request, model: type[Body], **given: Any) -> Body:
    """The body that the form stands for. A field that is empty is not given; `given` are values that are no text.
    Raises RequestValidationError."""
    form = form_of(request)
    typed = {name: form[name].strip() for name in model.model_fields if form.get(name, "").strip()}
    try:
        return model(**{**typed, **given})
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from None


def number_of(form: Mapping[str, str], name: str) -> int | float | None:
    """The number in a field; None: it is empty. Raises HttpProblem for another text."""
    text = form.get(name, "").strip()
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise HttpProblem("refused", f"{name} is a number, not {text!r:.60}")
    return int(number) if number.is_integer() else number


def refusal_of(request: Request, error: Exception) -> HttpProblem:
    """Why a form was refused, in words for who filled it in."""
    found = problem_in(request, error)
    if found.type == "store-unavailable":
        return HttpProblem(found.type, "Redis does not answer. Send the form again when it is back.")
    return found


def typed(request: Request, *names: str) -> Mapping[str, str]:
    """The fields of a form that is shown again; empty ones for a form that is new."""
    form = form_of(request) if hasattr(request.state, "form") else {}
    return {name: form.get(name, "") for name in names}

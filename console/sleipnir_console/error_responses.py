"""The answers to requests that fail: in the form of the protocol that the path belongs to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

import structlog
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from sleipnir.errors import SleipnirError
from sleipnir_console.openai_errors import PATHS, openai_response
from sleipnir_console.problems import MOST_PROBLEMS, HttpProblem, problem_of


def response_of(problem: HttpProblem, scope: Scope) -> Response:
    """The answer to the request of this scope."""
    if scope["path"].startswith(PATHS):
        return openai_response(problem)
    found = scope.get("sleipnir_request_id")
    return problem.response(found if isinstance(found, str) else None)


Answer: TypeAlias = Callable[[Request, HttpProblem], Response]


def add_handlers(app: FastAPI, answer: Answer) -> None:
    """Answer every error as `answer` says."""
    for kind, problem_for in _HANDLED.items():
        app.add_exception_handler(kind, _handler(problem_for, answer))


def problem_in(request: Request, error: Exception) -> HttpProblem:
    """The problem that an error is, if it says what is wrong with the request; else the error is raised again."""
    for kind, problem_for in _HANDLED.items():
        if kind is not Exception and isinstance(error, kind):
            return problem_for(request, error)
    raise error


def _handler(
    problem_for: Callable[[Request, Any], HttpProblem], answer: Answer
) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def handle(request: Request, error: Exception) -> Response:
        return answer(request, problem_for(request, error))

    return handle


def _of_fields(request: Request, error: RequestValidationError) -> HttpProblem:
    """Without the values, which may hold secrets or a megabyte."""
    errors = error.errors()[:MOST_PROBLEMS]
    if any(each["type"] == "json_invalid" for each in errors):
        return HttpProblem("bad-request", "the body is not JSON")
    wrong = [{"field": _field(each["loc"]), "message": _message(each)} for each in errors]
    detail = "; ".join(f"{each['field']}: {each['message']}" for each in wrong[:5])
    return HttpProblem("invalid-request", detail, {"errors": wrong})


def _field(location: tuple[str | int, ...]) -> str:
    return ".".join(map(str, location))


def _message(error: Mapping[str, Any]) -> str:
    if error["type"] == "extra_forbidden":
        return f"there is no field {error['loc'][-1]!r}"
    return str(error["msg"])


def _of_http(request: Request, error: HTTPException) -> HttpProblem:
    """Those of Starlette: unknown paths and methods, bodies that are not JSON."""
    name = {404: "not-found", 405: "method-not-allowed", 413: "too-large"}.get(error.status_code, "bad-request")
    detail = f"there is no {request.url.path}" if error.status_code == 404 else str(error.detail)
    headers = dict(error.headers or {})
    if name == "method-not-allowed":
        methods = {method.strip() for method in headers.get("Allow", "").split(",")}  # of one of the routes only
        headers["Allow"] = ", ".join(sorted(methods | request.app.state.methods_of(request.url.path)))
    return HttpProblem(name, detail, headers=headers)


def _of_bug(request: Request, error: Exception) -> HttpProblem:
    structlog.get_logger().error("request failed", request=request.scope.get("sleipnir_request_id"), exc_info=error)
    return HttpProblem("internal", "the server failed; its log has the reason")


_HANDLED: Final[Mapping[type[Exception], Callable[[Request, Any], HttpProblem]]] = {
    HttpProblem: lambda request, error: error,
    SleipnirError: lambda request, error: problem_of(error),
    RequestValidationError: _of_fields,
    HTTPException: _of_http,
    Exception: _of_bug,
}

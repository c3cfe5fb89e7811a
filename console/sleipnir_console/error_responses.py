"""The answers to requests that fail: in the form of the protocol that the path belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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


def add_handlers(app: FastAPI) -> None:
    """Answer every error in one of these forms."""
    app.add_exception_handler(HttpProblem, _of_problem)
    app.add_exception_handler(SleipnirError, _of_client)
    app.add_exception_handler(RequestValidationError, _of_fields)
    app.add_exception_handler(HTTPException, _of_http)
    app.add_exception_handler(Exception, _of_bug)


async def _of_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, HttpProblem)
    return response_of(error, request.scope)


async def _of_client(request: Request, error: Exception) -> Response:
    assert isinstance(error, SleipnirError)
    return response_of(problem_of(error), request.scope)


async def _of_fields(request: Request, error: Exception) -> Response:
    """Without the values, which may hold secrets or a megabyte."""
    assert isinstance(error, RequestValidationError)
    errors = error.errors()[:MOST_PROBLEMS]
    if any(each["type"] == "json_invalid" for each in errors):
        return response_of(HttpProblem("bad-request", "the body is not JSON"), request.scope)
    wrong = [{"field": _field(each["loc"]), "message": _message(each)} for each in errors]
    detail = "; ".join(f"{each['field']}: {each['message']}" for each in wrong[:5])
    return response_of(HttpProblem("invalid-request", detail, {"errors": wrong}), request.scope)


def _field(location: tuple[str | int, ...]) -> str:
    return ".".join(map(str, location))


def _message(error: Mapping[str, Any]) -> str:
    if error["type"] == "extra_forbidden":
        return f"there is no field {error['loc'][-1]!r}"
    return str(error["msg"])


async def _of_http(request: Request, error: Exception) -> Response:
    """Those of Starlette: unknown paths and methods, bodies that are not JSON."""
    assert isinstance(error, HTTPException)
    name = {404: "not-found", 405: "method-not-allowed", 413: "too-large"}.get(error.status_code, "bad-request")
    detail = f"there is no {request.url.path}" if error.status_code == 404 else str(error.detail)
    return response_of(HttpProblem(name, detail, headers=dict(error.headers or {})), request.scope)


async def _of_bug(request: Request, error: Exception) -> Response:
    structlog.get_logger().error("request failed", request=request.scope.get("sleipnir_request_id"), exc_info=error)
    return response_of(HttpProblem("internal", "the server failed; its log has the reason"), request.scope)

"""Errors in the form of OpenAI's protocol: `{"error": {message, type, param, code}}`. The `code` is the type of our
problem, but for an unknown model; what belongs to that type is there too.

Rule. A client of OpenAI repeats what failed with 409, 429 and 5xx. It is told not to where that would start another
run: when a run has failed, and when it goes on without the server.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from starlette.responses import Response

from sleipnir_console.problems import HttpProblem

PATHS: Final = "/v1/"
"""What the paths of OpenAI's protocol begin with."""
_STATUSES: Final[Mapping[str, int]] = {"invalid-request": 400, "refused": 400, "too-many-streams": 429}
"""Where clients of OpenAI expect another status than ours."""
_KINDS: Final[Mapping[int, str]] = {
    401: "authentication_error", 403: "permission_error", 429: "rate_limit_error",
}  # fmt: skip
_NOT_AGAIN: Final = frozenset(("run-failed", "stopping", "internal", "unreadable-record"))


def openai_error(problem: HttpProblem) -> dict[str, Any]:
    """The member `error` of an answer, or of the last piece of a stream."""
    status = _status(problem)
    kind = _KINDS.get(status, "server_error" if status >= 500 else "invalid_request_error")
    more = {name: value for name, value in problem.more.items() if name not in ("message", "type")}
    return {"message": problem.detail, "type": kind, "param": None, "code": problem.type, **more}


def openai_response(problem: HttpProblem) -> Response:
    """The answer to a request."""
    headers = dict(problem.headers)
    if problem.kind.retry_after_s is not None:
        headers.setdefault("Retry-After", str(problem.kind.retry_after_s))
    if problem.type in _NOT_AGAIN:
        headers["x-should-retry"] = "false"
    body = json.dumps({"error": openai_error(problem)}, ensure_ascii=False).encode("utf-8", "replace")
    return Response(body, _status(problem), headers, "application/json")


def _status(problem: HttpProblem) -> int:
    return _STATUSES.get(problem.type, problem.kind.status)

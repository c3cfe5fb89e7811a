"""Errors as problem documents (RFC 9457): `{type, title, status, detail, instance}`, and what belongs to the type.

Rule. A type never changes its meaning: programs branch on it. docs/http-api.md lists all of them (a test compares).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import structlog
from starlette.responses import Response

from sleipnir.client.access import LoginNotFound, TokenNotFound, UserNotFound
from sleipnir.errors import (
    AgentNotFound,
    AnswerRefused,
    BatchNotFound,
    BundleError,
    GateAnswered,
    GateClaimed,
    GateError,
    GraphError,
    HookNotFound,
    JobNotFound,
    KnowledgeError,
    NotReplicated,
    RecordUnreadable,
    RunNotFound,
    ScheduleNotFound,
    SessionBusy,
    SleipnirError,
    StoreUnavailable,
    ThreadBusy,
    ToolFileError,
    TooManyQueued,
    UsageError,
    WebhookNotFound,
)

TYPE_BASE: Final = "urn:sleipnir:problem:"
MEDIA_TYPE: Final = "application/problem+json"
RETRY_AFTER_S: Final = 2
"""A restart of Redis takes seconds; schedulers and workers reconnect within two."""
MOST_PROBLEMS: Final = 100
"""Findings and wrong fields that one document lists."""


@dataclass(frozen=True)
class ProblemType:
    """A kind of error. `retry_after_s`: the same request may succeed after so many seconds."""

    name: str
    status: int
    title: str
    meaning: str
    retry_after_s: int | None = None


TYPES: Final[Mapping[str, ProblemType]] = {
    each.name: each
    for each in (
        ProblemType("bad-request", 400, "The request is malformed", "The server cannot read it as HTTP or as JSON."),
        ProblemType(
            "invalid-request", 422, "The request has fields that are wrong",
            "`errors` lists each with its `field`, as `body.prompt`, and a `message`. Unknown fields are refused.",
        ),
        ProblemType(
            "refused", 422, "The request cannot be carried out", "`detail` says why. Nothing was changed.",
        ),
        ProblemType(
            "invalid-agent", 422, "The definition of the agent is wrong",
            "`problems` lists the findings of `sleipnir validate`. Nothing was submitted.",
        ),
        ProblemType(
            "unauthenticated", 401, "The credentials are missing or not valid", "Nothing is known of the caller.",
        ),
        ProblemType(
            "forbidden", 403, "The caller may not do this",
            "`permission` is what the route needs.",
        ),
        ProblemType(
            "csrf", 403, "The request does not prove that its page is ours",
            "A cookie authenticates it, and `X-CSRF-Token` is not the `csrf` of that login (`GET /api/v1/me`).",
        ),
        ProblemType(
            "too-many-attempts", 429, "Too many logins have failed",
            "Of this user, or from this address. Further attempts are refused for `Retry-After` seconds.",
        ),
        ProblemType(
            "cross-origin", 403, "The request comes from the page of another site",
            "Its `Origin` or `Host` is not that of this server.",
        ),
        ProblemType("not-found", 404, "There is no such thing", "`detail` says what is missing."),
        ProblemType("method-not-allowed", 405, "The path does not take this method", "`Allow` lists the methods."),
        ProblemType(
            "busy", 409, "Another run goes on there",
            "The session or the thread has a run that is not over, or too many queued turns. `what` is `session`, "
            "`thread` or `queue`.",
        ),
        ProblemType(
            "already-answered", 409, "Somebody has answered the question",
            "`answered_by`, `answered_at_ms`, `answer` (null: not known, `[redacted]`: secret) and `reason` say who, "
            "when, what and why.",
        ),
        ProblemType(
            "claimed", 409, "Another person holds the question",
            "`claimed_by`, `claimed_at_ms` and `until_ms` say who, since when and until when. "
            "`/claim` with `take_over` takes it over.",
        ),
        ProblemType(
            "may-not-answer", 403, "The question is not for this person",
            "`why` is `author` (who has submitted the run), `people` (`assignees` and `role` say who may), `comment` "
            "(one is required) or `voices` (too many people have answered it).",
        ),
        ProblemType(
            "no-question", 409, "The question is not open", "It has expired, its run is over, or there never was one.",
        ),
        ProblemType(
            "unsupported-media-type", 415, "The body has another media type", "`detail` lists those that are taken.",
        ),
        ProblemType("too-large", 413, "The body is too large", "`limit_bytes` is the limit."),
        ProblemType(
            "too-slow", 408, "The body did not arrive", "Nothing came for half a minute. Send the request again.",
        ),
        ProblemType(
            "unreadable-record", 500, "A stored record cannot be read",
            "It is damaged, or a newer release of Sleipnir wrote it.",
        ),
        ProblemType(
            "internal", 500, "The server failed", "A bug. The log of the server has it under the request's id.",
        ),
        ProblemType(
            "store-unavailable", 503, "Redis does not answer",
            "It is unknown whether anything was changed. Repeat the request after `Retry-After` seconds.",
            RETRY_AFTER_S,
        ),
        ProblemType(
            "too-many-streams", 503, "Too many runs are being followed", "Another server has room, or this one later.",
            RETRY_AFTER_S,
        ),
        ProblemType(
            "too-many-requests", 429, "The server takes no more of these now",
            "So many requests wait for runs here, or turns are queued in the conversation.", RETRY_AFTER_S,
        ),
        ProblemType(
            "run-failed", 500, "The run has failed, or was cancelled",
            "Only where a request waits for its run: `run_id` and `status` say which one.",
        ),
        ProblemType(
            "stopping", 503, "The server is being stopped", "Another one, or the next one, takes the request.",
            RETRY_AFTER_S,
        ),
    )
}  # fmt: skip


@dataclass
class HttpProblem(Exception):
    """An error to answer with. `more` has the members of the document that belong to its type."""

    type: str
    detail: str
    more: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.type}: {self.detail}"

    @property
    def kind(self) -> ProblemType:
        return TYPES[self.type]

    def document(self, instance: str | None = None) -> dict[str, Any]:
        """The problem document; `instance` is the id of the request."""
        kind = self.kind
        found: dict[str, Any] = {"type": TYPE_BASE + kind.name, "title": kind.title, "status": kind.status}
        found["detail"] = self.detail
        if instance:
            found["instance"] = f"urn:sleipnir:request:{instance}"
        return {**found, **self.more}

    def response(self, instance: str | None = None) -> Response:
        """The answer to a request."""
        headers = dict(self.headers)
        if self.kind.retry_after_s is not None:
            headers.setdefault("Retry-After", str(self.kind.retry_after_s))
        body = json.dumps(self.document(instance), ensure_ascii=False).encode("utf-8", "replace")
        return Response(body, self.kind.status, headers, MEDIA_TYPE)


def problem_of(error: SleipnirError) -> HttpProblem:
    """The problem that an error of the client is."""
    detail = str(error)
    match error:
        case NotReplicated():
            return HttpProblem("store-unavailable", detail)
        case StoreUnavailable():  # its text has addresses of the deployment: for the log
            structlog.get_logger().warning("Redis does not answer", error=detail)
            return HttpProblem("store-unavailable", "Redis does not answer, or cannot be used now")
        case (
            RunNotFound()
            | BatchNotFound()
            | AgentNotFound()
            | ScheduleNotFound()
            | JobNotFound()
            | WebhookNotFound()
            | HookNotFound()
            | UserNotFound()
            | TokenNotFound()
            | LoginNotFound()
        ):
            return HttpProblem("not-found", detail)
        case SessionBusy() | ThreadBusy() | TooManyQueued():
            what = {SessionBusy: "session", ThreadBusy: "thread", TooManyQueued: "queue"}[type(error)]
            return HttpProblem("busy", detail, {"what": what})
        case GraphError():
            return HttpProblem("invalid-agent", detail.partition("\n")[0], {"problems": _findings(error)})
        case BundleError() | ToolFileError():
            return HttpProblem("invalid-agent", detail, {"problems": []})
        case RecordUnreadable():
            return HttpProblem("unreadable-record", detail)
        case AnswerRefused():
            who = {"why": error.why, "assignees": list(error.assignees), "role": error.role}
            return HttpProblem("may-not-answer", detail, who)
        case GateAnswered():
            more = {"answered_by": error.by, "answered_at_ms": error.at_ms, "answer": None, "reason": None}
            return HttpProblem("already-answered", detail, more)
        case GateClaimed():
            held = {"claimed_by": error.person, "claimed_at_ms": error.at_ms, "until_ms": error.until_ms}
            return HttpProblem("claimed", detail, held)
        case GateError() | UsageError() | KnowledgeError():
            return HttpProblem("refused", detail)
        case _:
            return HttpProblem("internal", detail)


def _findings(error: GraphError) -> list[dict[str, Any]]:
    return [{**asdict(problem), "file": Path(problem.file).name} for problem in error.problems[:MOST_PROBLEMS]]


def as_markdown() -> str:
    """The table of the types in docs/http-api.md."""
    rows = [f"| `{each.name}` | {each.status} | {each.title}. {each.meaning} |\n" for each in TYPES.values()]
    return "".join(["| type | status | meaning |\n", "|---|---|---|\n", *rows])

"""Which runs a request asks for: the filters of `ps`, as parameters of its URL."""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request

from sleipnir.messages import RunStatus
from sleipnir.runs.cards import tag_of
from sleipnir.runs.run_filters import ANY_NAMESPACE
from sleipnir_console.permissions import UNSEEN, caller_of
from sleipnir_console.problems import HttpProblem
from sleipnir_console.strict_model import MOST_INT

_OTHER_NAMES: Final = frozenset(("status", "agent", "tag", "namespace", "after", "limit"))


class AskedRuns(BaseModel):
    """All that is given must fit; of a parameter that is repeated any, of tags all."""

    model_config = ConfigDict(extra="forbid")

    status: list[RunStatus] = Field(default=[], description="Only these; repeatable.")
    reason: list[str] = Field(default=[], description="Why they wait or are paused, as for `sleipnir ps`; repeatable.")
    agent: list[str] = Field(default=[], description="Only of these agents; repeatable.")
    version: str | None = Field(default=None, description="The digest of the agent's bundle, or its beginning.")
    tag: list[str] = Field(default=[], description="`key=value`, repeatable: only runs with all of them.")
    namespace: str | None = Field(
        default=None,
        description="`*` for all. Default: that of the server, or of the batch or parent. Others need a role in `*`.",
    )
    batch: str | None = Field(default=None, description="Only started rows of this batch.")
    parent: str | None = Field(default=None, description="Only runs that this run has started.")
    thread: str | None = Field(default=None, description="Only turns of this thread: `agent/name`.")
    children: bool = Field(default=False, description="Also runs that other runs have started.")
    rows: bool = Field(default=True, description="Also rows of batches.")
    since_ms: int | None = Field(default=None, ge=0, le=MOST_INT, description="Submitted at this time or later.")
    before_ms: int | None = Field(default=None, ge=0, le=MOST_INT, description="Submitted before this time.")
    ended_since_ms: int | None = Field(default=None, ge=0, le=MOST_INT, description="Ended at this time or later.")
    ended_before_ms: int | None = Field(default=None, ge=0, le=MOST_INT, description="Ended before this time.")
    cost_min: float | None = Field(default=None, ge=0, description="USD, as of the last change of status.")
    cost_max: float | None = Field(default=None, ge=0, description="USD, as of the last change of status.")
    node: str | None = Field(default=None, description="Only runs that failed at this node.")
    text: str | None = Field(default=None, max_length=1_000, description="Only runs that failed with this message.")
    fingerprint: str | None = Field(default=None, description="Only runs of this group of failures.")

    def query(self, request: Request) -> dict[str, Any]:
        """The keywords for Client.runs and Client.run_count. Raises HttpProblem for a namespace that the caller may not
        see, and UsageError for what is no tag."""
        chosen = self.model_dump(exclude=set(_OTHER_NAMES), exclude_none=True)
        return {
            **chosen,
            "status": set(self.status) or None,
            "agents": self.agent,
            "tags": dict(map(tag_of, self.tag)),
            "namespace": seen_namespace(request, self.namespace),
        }


class AskedPage(AskedRuns):
    """Runs, and which page of them."""

    after: str | None = Field(default=None, max_length=120, description="The cursor of the page before.")
    limit: int = Field(default=50, ge=1, le=500, description="At most so many.")


AskedNamespace: TypeAlias = Annotated[
    str | None,
    Query(description="`*` for all. Default: that of the server. Others need a role in `*`.", max_length=63),
]


def seen_namespace(request: Request, asked: str | None) -> str | None:
    """The namespace of a query; None: what the client takes. Without a role in all of them it is that of the server,
    whatever batch or run is named too."""
    own: str = request.app.state.namespace
    if caller_of(request).may("viewer", everywhere=True):
        return asked
    if asked not in (None, own, ANY_NAMESPACE):
        raise HttpProblem("not-found", UNSEEN)
    return own

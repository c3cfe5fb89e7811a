"""Jobs over HTTP."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sleipnir.client.http.connections import ApiRequest, ServerConnections, part
from sleipnir.client.http.decoding import decoded, of_json
from sleipnir.client.http.run_filters import filter_parameters
from sleipnir.client.http.runs import SUBMIT_S, agent_name
from sleipnir.client.jobs import Jobs, PageOfJobs
from sleipnir.errors import AgentNotFound, JobNotFound
from sleipnir.jobs.records import DELAY_S, JobInfo, JobPreview, Refusal
from sleipnir.store.runs.requests import random_id

if TYPE_CHECKING:
    from pathlib import Path


class HttpJobs(Jobs):
    """The jobs of a server."""

    def __init__(self, server: ServerConnections) -> None:
        self._server = server

    def preview(
        self, /, action: str, status: Collection[str] | None = None, *, runs: Sequence[str] | None = None, **query: Any
    ) -> JobPreview:
        """As Jobs.preview."""
        found = self._call("POST", "/preview", body=_asked(action, status, runs, query), repeats=True)
        return decoded(JobPreview, found)

    def submit(
        self,
        /,
        action: str,
        status: Collection[str] | None = None,
        *,
        runs: Sequence[str] | None = None,
        why: str = "",
        rate: float | None = None,
        delay_s: float = DELAY_S,
        timeout: float | None = None,
        fresh_children: bool = False,
        before: str | None = None,
        state: Mapping[str, Any] | None = None,
        agent: str | Path | None = None,
        model: str | None = None,
        request_id: str | None = None,
        **query: Any,
    ) -> JobInfo:
        """As Jobs.submit; `agent` is a name."""
        named = None if agent is None else agent_name(agent)
        given = {
            "why": why, "rate": rate, "delay_s": delay_s, "timeout_s": timeout, "fresh_children": fresh_children,
            "before": before, "state": state, "agent": named, "model": model,
        }  # fmt: skip
        body = _asked(action, status, runs, query) | {name: v for name, v in given.items() if v is not None}
        headers = {"Idempotency-Key": request_id or random_id()}
        answer = self._call(
            "POST", "", body=body, headers=headers, missing=AgentNotFound, repeats=True, timeout_s=SUBMIT_S
        )
        return decoded(JobInfo, answer)

    def get(self, job: str) -> JobInfo:
        """As Jobs.get."""
        return decoded(JobInfo, self._call("GET", f"/{part(job)}"))

    def page(self, limit: int = 50, *, after: str | None = None, namespace: str | None = None) -> PageOfJobs:
        """As Jobs.page, up to 500."""
        found = self._call("GET", "", query={"limit": limit, "after": after, "namespace": namespace})
        return PageOfJobs(decoded(list[JobInfo], found["items"]), found["after"])

    def refusals(self, job: str, limit: int = 200) -> list[Refusal]:
        """As Jobs.refusals."""
        return decoded(list[Refusal], self._call("GET", f"/{part(job)}/refusals", query={"limit": limit}))

    def stop(self, job: str, why: str = "") -> JobInfo:
        """As Jobs.stop."""
        return decoded(JobInfo, self._call("POST", f"/{part(job)}/stop", body={"why": why}, repeats=True))

    def _call(self, method: str, rest: str, **given: Any) -> Any:
        return of_json(self._server.call(ApiRequest(method, f"/jobs{rest}", **{"missing": JobNotFound, **given})))


def _asked(
    action: str, status: Collection[str] | None, runs: Sequence[str] | None, query: Mapping[str, Any]
) -> dict[str, Any]:
    asked = {name: value for name, value in filter_parameters(status, query).items() if value not in (None, [])}
    return {"action": action, **({"filter": asked} if asked else {}), **({} if runs is None else {"runs": list(runs)})}

"""Runs over HTTP."""

from __future__ import annotations

import html
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from sleipnir import waiting
from sleipnir.client.http.connections import ApiRequest, ServerConnections, StreamFrame, part
from sleipnir.client.http.decoding import decoded, of_json
from sleipnir.client.http.unserved import not_served, refusing
from sleipnir.client.missing_processes import missing_among
from sleipnir.client.run import Run, pause_ms
from sleipnir.errors import GateError, RunNotFound, UsageError
from sleipnir.runs.handling import VoiceCount
from sleipnir.runs.views import (
    DEFAULT_MODES,
    DefinitionText,
    GateInfo,
    LateResult,
    Lineage,
    MissingProcesses,
    RunEvent,
    RunInfo,
    RunTree,
    StepInfo,
    StreamEvent,
    StreamMode,
    TreeEvent,
)
from sleipnir.settings import Settings

if TYPE_CHECKING:
    from sleipnir.graph.model import Json
    from sleipnir.runs.execution_trace import Trace
    from sleipnir.runs.state_differences import StateDifference

PAGE: Final = 500
SUBMIT_S: Final = 900.0
"""A submission may build knowledge bases first."""
_EVENTS: Final[tuple[StreamMode, ...]] = ("updates", "tools", "events")
_FEW: Final[StreamMode] = "custom"
"""A stream has one mode at least: this one has the fewest events."""
_LOOK_S: Final = 0.5
_NEWEST: Final = 1_000
_LEVELS: Final = 16


@refusing("Run")
class HttpRun(Run):
    """A run of a server. Nothing is cached: every call asks it."""

    def __init__(self, server: ServerConnections, run_id: str, settings: Settings) -> None:
        self._server, self.id, self.settings = server, run_id, settings

    def _repr_html_(self) -> str:
        return f"<code>{html.escape(repr(self))}</code>"

    def _path(self, rest: str = "") -> str:
        return f"/runs/{part(self.id)}{rest}"

    def _get(self, rest: str, **query: Any) -> Any:
        return self._server.get(self._path(rest), query, missing=RunNotFound)

    def _post(self, rest: str, body: Any = None, *, repeats: bool, timeout_s: float | None = None) -> bytes:
        request = ApiRequest(
            "POST", self._path(rest), None, body, repeats=repeats, missing=RunNotFound, timeout_s=timeout_s
        )
        return self._server.call(request)

    # Looking at it.

    def info(self) -> RunInfo:
        """As Run.info."""
        return decoded(RunInfo, self._get("")["run"])

    def _record(self) -> RunInfo:
        return self.info()

    @property
    def output(self) -> str | None:
        """As Run.output."""
        found: str | None = self._get("")["output"]
        return found

    def missing(self) -> MissingProcesses:
        """As Run.missing, in a few requests."""
        return missing_of(self._server, [self.id])

    def tree(self) -> RunTree:
        """As Run.tree."""
        return decoded(RunTree, self._get("/tree"))

    def active(self) -> list[RunInfo]:
        """As Run.active, with a request for each run, down to 16 levels."""
        found = [self.info()]
        level: Sequence[str] = found[0].awaits
        for _ in range(_LEVELS):
            infos = [info for info in infos_of(self._server, level) if not info.is_final]
            found += infos
            level = [run for info in infos for run in info.awaits]
        return found

    def lineage(self, *, limit: int = 20) -> Lineage:
        """As Run.lineage, of at most 500 forks of each run."""
        return decoded(Lineage, self._get("/lineage", limit=limit))

    def forks(self, *, first: int = 0, limit: int = 100) -> Lineage:
        """As Run.forks, of the first 500 forks."""
        if first + limit > PAGE:
            raise not_served(f"Run.forks beyond the first {PAGE}", "the API has only these")
        own = _of_lineage(self.lineage(limit=max(1, first + limit)), self.id)
        if own is None:
            return Lineage(self.id, self.info())
        return replace(own, forks=own.forks[first : first + limit])

    def history(self, *, after: int | None = None, limit: int | None = None) -> list[StepInfo]:
        """As Run.history, in pages."""
        found: list[StepInfo] = []
        while limit is None or len(found) < limit:
            wanted = PAGE if limit is None else min(PAGE, limit - len(found))
            page = self._get("/history", after=after, limit=wanted)
            found += decoded(list[StepInfo], page["items"])
            if (after := page["after"]) is None:
                break
        return found

    def trace(self, *, depth: int = 16, limit: int = 10_000, after: int | None = None) -> Trace:
        """As Run.trace."""
        from sleipnir.runs.execution_trace import Trace

        return decoded(Trace, self._get("/trace", depth=depth, limit=limit, after=after))

    def source(self) -> DefinitionText:
        """As Run.source."""
        return decoded(DefinitionText, self._get("/source"))

    def late_results(self) -> list[LateResult]:
        """As Run.late_results."""
        return decoded(list[LateResult], self._get("/late-results"))

    def execution_errors(self) -> list[dict[str, Any]]:
        """As Run.execution_errors."""
        return decoded(list[dict[str, Any]], self._get("/execution-errors"))

    def state(self) -> dict[str, Any]:
        """As Run.state."""
        return decoded(dict[str, Any], self._get("/state")["state"])

    def state_at(self, step: int) -> dict[str, Any]:
        """As Run.state_at."""
        return decoded(dict[str, Any], self._get("/state", at=_step(step))["state"])

    def state_difference(self, first: int, second: int) -> StateDifference:
        """As Run.state_difference."""
        from sleipnir.runs.state_differences import StateDifference

        found = self._get("/state/difference", first=_step(first), second=_step(second))
        return decoded(StateDifference, found)

    # Following it.

    def wait(self, timeout_s: float | None = None) -> RunInfo:
        """As Run.wait, over restarts of the server."""
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not (info := self.info()).is_final:
            if until_s is not None and time.monotonic() >= until_s:
                raise TimeoutError(f"not over after {timeout_s:g} s: {self.id}")
            for _ in self._frames([_FEW], None, children=False, until_s=until_s):
                pass
        return info

    def events(self, after: str = "0", follow: bool = True) -> Iterator[RunEvent]:
        """As Run.events; `after` is the id of an event of this client. Without `follow`, only of a run that is over."""
        if not follow and not self.info().is_final:
            raise not_served("Run.events of a run that goes on, without `follow`", "the API sends them as they happen")
        yield from self.stream(_EVENTS, None if after in ("0", "0-0") else after)

    def stream(
        self,
        modes: Collection[StreamMode] | None = DEFAULT_MODES,
        cursor: str | None = None,
        *,
        terminal_only: bool = False,
        lifecycle: bool = True,
        final_messages: bool = False,
        subgraphs: bool = False,
        event_scope: str | None = None,
    ) -> Iterator[StreamEvent]:
        """As Run.stream, over breaks of the connection and restarts of the server."""
        from sleipnir.client import streaming

        if terminal_only or event_scope is not None:
            what = "terminal_only" if terminal_only else "event_scope"
            raise not_served(f"Run.stream with `{what}`", "the API has no such parameter")
        visible = streaming.VisibleEvents(terminal_only, lifecycle, final_messages)
        wanted = sorted(streaming.wanted_modes(modes, visible))
        frames = self._frames(wanted or [_FEW], cursor, children=subgraphs)
        of = TreeEvent if subgraphs else StreamEvent
        found = (event for frame in frames if _is_wanted(event := _event(of, frame), wanted))
        if not final_messages:
            return found
        return (event for event in streaming.with_messages(found) if event is not None)

    def _frames(
        self, modes: Sequence[str], cursor: str | None, *, children: bool, until_s: float | None = None
    ) -> Iterator[StreamFrame]:
        query = {"mode": list(modes), "children": children}
        request = ApiRequest("GET", self._path("/events"), query, repeats=True, missing=RunNotFound)
        return self._server.frames(request, cursor, until_s)

    # Its questions.

    def gates(self) -> list[GateInfo]:
        """As Run.gates."""
        return decoded(list[GateInfo], self._get("/gates"))

    def _newest_steps(self, run: str) -> Iterator[StepInfo]:
        """Of the last 1,000 ones."""
        of = HttpRun(self._server, run, self.settings)
        return reversed(of.history(after=max(0, of.info().step - _NEWEST) or None))

    def _question(self, seq: int, text_of: Callable[[GateInfo], str]) -> GateInfo | None:
        path = f"/gates/{part(self.id)}/{seq}"
        return decoded(GateInfo, self._server.get(path, missing=RunNotFound))

    def _give(self, gate: GateInfo, value: Json, text: str, comment: str | None) -> VoiceCount | None:
        path = f"/gates/{part(gate.run)}/{gate.seq}.{gate.attempt}/answer"
        body = {"answer": value, "comment": comment}
        receipt = of_json(self._server.call(ApiRequest("POST", path, None, body, repeats=True, missing=GateError)))
        return VoiceCount(receipt["voices"], receipt["quorum"]) if receipt["outcome"] == "counted" else None

    def answered(self, seq: int, *, among: int = _NEWEST) -> StepInfo | None:
        """As Run.answered, among the last 1,000 steps."""
        for step in self._newest_steps(self.id):
            if step.answers(seq):
                return step
        return None

    def _last_event(self) -> str:
        return ""

    def _event_after(self, event: str, within_s: float) -> str:
        waiting.sleep(min(_LOOK_S, within_s))
        return event

    # Steering it.

    def cancel(self) -> None:
        """As Run.cancel."""
        self._post("/cancel", repeats=False)

    def pause(self, by: str | None = None, reason: str | None = None, *, timeout: float | None = None) -> None:
        """As Run.pause; who pauses it is said by the token."""
        _refuse_by("Run.pause", by)
        pause_ms(timeout)
        self._post("/pause", {"reason": reason, "timeout_s": timeout}, repeats=True)

    def resume(self) -> None:
        """As Run.resume. Not repeated: it may have come to another breakpoint meanwhile."""
        self._post("/resume", repeats=False)

    def retry(self, *, fresh_children: bool = False) -> None:
        """As Run.retry."""
        self._post("/retry", {"fresh_children": fresh_children}, repeats=False)

    def skip(
        self,
        node: str | int,
        value: Any = None,
        *,
        to: str | Sequence[str] = (),
        by: str | None = None,
        reason: str | None = None,
    ) -> int:
        """As Run.skip; who skips it is said by the token."""
        _refuse_by("Run.skip", by)
        targets = [to] if isinstance(to, str) else list(to)
        body = {"node": node, "value": value, "to": targets, "reason": reason}
        return int(of_json(self._post("/skip", body, repeats=True))["seq"])

    def fork(
        self,
        *,
        at: int | None = None,
        before: str | None = None,
        state: Mapping[str, Any] | None = None,
        agent: str | Path | None = None,
        model: str | None = None,
        overrides: Mapping[str, Mapping[str, Any]] | None = None,
        patches: Mapping[str, Any] | None = None,
        thread: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> Run:
        """As Run.fork; `agent` is a name. Not repeated: each request makes a fork."""
        return self._forked("/fork", tags, at=at, before=before, state=state, agent=agent, model=model,
                            overrides=overrides, patches=patches, thread=thread)  # fmt: skip

    def update_state(
        self,
        values: Mapping[str, Any],
        as_node: str | None = None,
        *,
        mode: Literal["reduce", "set"] = "reduce",
        at: int | None = None,
        thread: str | None = None,
    ) -> Run:
        """As Run.update_state. Not repeated: each request makes a fork."""
        return self._forked("/update", None, values=dict(values), as_node=as_node, mode=mode, at=at, thread=thread)

    def rewind(
        self,
        *,
        at: int | None = None,
        before: str | None = None,
        state: Mapping[str, Any] | None = None,
        agent: str | Path | None = None,
        model: str | None = None,
        overrides: Mapping[str, Mapping[str, Any]] | None = None,
        patches: Mapping[str, Any] | None = None,
        thread: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> Run:
        """As Run.rewind; `agent` is a name. Not repeated."""
        return self._forked("/rewind", tags, at=at, before=before, state=state, agent=agent, model=model,
                            overrides=overrides, patches=patches, thread=thread)  # fmt: skip

    def _forked(self, rest: str, tags: Mapping[str, str] | None, **given: Any) -> Run:
        if tags:
            raise not_served("Run.fork with `tags`", "the API gives a fork the tags of its source")
        body = {name: value for name, value in given.items() if value is not None}
        if "agent" in body:
            body["agent"] = agent_name(body["agent"])
        made = of_json(self._post(rest, body, repeats=False, timeout_s=SUBMIT_S))
        return HttpRun(self._server, made["id"], self.settings)


def agent_name(agent: object) -> str:
    """The name of an agent. Raises NotServed for what is none."""
    if not isinstance(agent, str) or "/" in agent or agent in ("", "."):
        raise not_served(f"{agent!r:.80} as an agent", "the server has its own agents, which are named")
    return agent


def infos_of(server: ServerConnections, run_ids: Sequence[str]) -> list[RunInfo]:
    """The runs that are there, each by a request."""
    found = []
    for run_id in run_ids:
        try:
            found.append(decoded(RunInfo, server.get(f"/runs/{part(run_id)}", missing=RunNotFound)["run"]))
        except RunNotFound:
            continue
    return found


def missing_of(server: ServerConnections, run_ids: Sequence[str]) -> MissingProcesses:
    """See Run.missing, for several runs."""

    def has_scheduler() -> bool:
        return bool(server.get("/health")["schedulers"])

    return missing_among(run_ids, lambda level: infos_of(server, level), has_scheduler)


def as_they_end(server: ServerConnections, run_ids: Sequence[str], timeout_s: float | None) -> Iterator[RunInfo]:
    """Each run when it has ended: all of them are looked at again and again."""
    until_s = None if timeout_s is None else time.monotonic() + timeout_s
    left = list(dict.fromkeys(run_ids))
    while True:
        for run_id in left[:]:
            info = decoded(RunInfo, server.get(f"/runs/{part(run_id)}", missing=RunNotFound)["run"])
            if info.is_final:
                left.remove(run_id)
                yield info
        if not left:
            return
        if until_s is not None and time.monotonic() >= until_s:
            raise TimeoutError(f"not over after {timeout_s:g} s: {', '.join(left)}")
        waiting.sleep(_LOOK_S if until_s is None else min(_LOOK_S, max(0.0, until_s - time.monotonic())))


def _event(of: type[StreamEvent], frame: StreamFrame) -> StreamEvent:
    data = of_json(frame.data.encode("utf-8", "replace"))
    return decoded(of, {**data, "id": frame.id})


def _is_wanted(event: StreamEvent, wanted: Sequence[str]) -> bool:
    """Without a mode, what is always included is: it is of no text and of no node's code."""
    return bool(wanted) or event.mode != _FEW or event.type not in ("custom", "chunk")


def _of_lineage(lineage: Lineage, run_id: str) -> Lineage | None:
    left = [lineage]
    while left:
        found = left.pop()
        if found.id == run_id:
            return found
        left += found.forks
    return None


def _step(step: int) -> int:
    if isinstance(step, bool) or not isinstance(step, int):
        raise UsageError(f"a step is a whole number, not {step!r:.60}")
    return step


def _refuse_by(what: str, by: str | None) -> None:
    if by is not None:
        raise not_served(f"{what} with `by`", "who acts is said by the token")

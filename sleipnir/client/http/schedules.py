"""Schedules over HTTP."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from sleipnir.batches.rows import PROMPT, BadRow, Row
from sleipnir.client.http.batches import HttpBatch
from sleipnir.client.http.connections import ApiRequest, ServerConnections, part
from sleipnir.client.http.decoding import decoded, of_json
from sleipnir.client.http.runs import SUBMIT_S, HttpRun, agent_name
from sleipnir.client.schedule import Schedule
from sleipnir.errors import ScheduleNotFound, UsageError
from sleipnir.schedules.records import Fire, Overlap, ScheduledRun, ScheduleInfo
from sleipnir.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from sleipnir.client.batch import Batch, Given
    from sleipnir.client.run import Run
    from sleipnir.client.scheduled_rows import ScheduleRows
    from sleipnir.python_graph.compiled import CompiledGraph

MOST_FIRES: Final = 100


class HttpSchedule(Schedule):
    """A schedule of a server."""

    def __init__(self, server: ServerConnections, name: str, settings: Settings) -> None:
        self._server, self.name, self._settings = server, name, settings

    def _detail(self, limit: int = MOST_FIRES) -> Any:
        return self._server.get(f"/schedules/{part(self.name)}", {"limit": limit}, missing=ScheduleNotFound)

    def _change(self, method: str, rest: str = "", *, repeats: bool = False, **given: Any) -> bytes:
        path = f"/schedules/{part(self.name)}{rest}"
        return self._server.call(
            ApiRequest(method, path, repeats=repeats, missing=ScheduleNotFound, timeout_s=SUBMIT_S, **given)
        )

    def info(self) -> ScheduleInfo:
        """As Schedule.info."""
        return decoded(ScheduleInfo, self._detail(1)["schedule"])

    def fires(self, limit: int = MOST_FIRES) -> list[Fire]:
        """As Schedule.fires."""
        return decoded(list[Fire], self._detail(limit)["fires"])

    def runs(self, limit: int = 10) -> list[ScheduledRun]:
        """As Schedule.runs."""
        return decoded(list[ScheduledRun], self._detail(limit)["runs"])

    def pause(self, reason: str = "") -> None:
        """As Schedule.pause."""
        self._change("POST", "/pause", body={"reason": reason}, repeats=True)

    def resume(self) -> None:
        """As Schedule.resume."""
        self._change("POST", "/resume", repeats=True)

    def remove(self, reason: str = "") -> None:
        """As Schedule.remove."""
        self._change("DELETE", query={"reason": reason})

    def run_now(self) -> Run:
        """As Schedule.run_now. Not repeated: each request starts a run."""
        if self.info().plan.batch is not None:
            raise UsageError(f"schedule {self.name!r} starts batches, not a run")
        made = of_json(self._change("POST", "/run-now"))
        return HttpRun(self._server, made["id"], self._settings)

    def batch_now(self) -> Batch:
        """As Schedule.batch_now. Not repeated: each request starts a batch."""
        if self.info().plan.batch is None:
            raise UsageError(f"schedule {self.name!r} starts runs, not a batch")
        return HttpBatch(self._server, of_json(self._change("POST", "/run-now"))["id"])

    def edit(
        self,
        *,
        agent: str | Path | CompiledGraph | None = None,
        prompt: Any = None,
        state: Mapping[str, Any] | None = None,
        cron: str | None = None,
        every: float | str | None = None,
        at: str | None = None,
        tz: str | None = None,
        overlap: Overlap | None = None,
        catch_up: float | str | None = None,
        jitter: float | str | None = None,
        reason: str = "",
    ) -> None:
        """As Schedule.edit; `agent` is a name."""
        times = times_of(cron=cron, every=every, at=at, tz=tz, overlap=overlap, catch_up=catch_up, jitter=jitter)
        named = None if agent is None else agent_name(agent)
        body = {"agent": named, "prompt": prompt, "state": state, "reason": reason, **times}
        self._change("PATCH", body={name: value for name, value in body.items() if value is not None})


def batch_of(given: ScheduleRows) -> dict[str, Any]:
    """The rows of a schedule as the API takes them."""
    rows = list(given.rows)
    plan = {"key": given.key, "name": given.name, "parallel": given.parallel, "canary": given.canary}
    known = {name: value for name, value in plan.items() if value is not None}
    as_text = any(isinstance(row, Row) and row.as_text for row in rows)
    return {"rows": list(_columns(rows)), "priority": given.priority, "as_text": as_text, **known}


def _columns(rows: Iterable[Given]) -> Iterator[dict[str, Any]]:
    for row in rows:
        if isinstance(row, BadRow):
            raise UsageError(f"a row cannot be run, and no schedule is added: {row}")
        if not isinstance(row, Row):
            yield dict(row)
        else:
            yield {PROMPT: row.prompt, **row.state}


def times_of(**given: float | str | None) -> dict[str, str]:
    """The parts of a time plan as the API takes them: durations are texts."""
    return {
        name: f"{value:g}s" if isinstance(value, int | float) else value
        for name, value in given.items()
        if value is not None
    }

"""What can be done with a run: the words of the button, what happens then, the call of the API that is the same."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from sleipnir.client.async_client import AsyncRun
from sleipnir.errors import UsageError
from sleipnir.runs.views import RunInfo
from sleipnir_console.permissions import Permission

Form: TypeAlias = Mapping[str, str]
Does: TypeAlias = Callable[[AsyncRun, Form], Awaitable[str]]
"""Carries it out; returns the id of the run to show then."""
MOST_REASON: Final = 1_000


@dataclass(frozen=True)
class RunAction:
    """`label` is that of its button, `means` what it does, `body` that of the call of the API. `field` is the name of a
    text that may be given with it, and its label."""

    name: str
    label: str
    icon: str
    means: str
    does: Does
    body: str | None = None
    field: tuple[str, str] | None = None
    destroys: bool = False
    permission: Permission = "operator"


async def _pause(run: AsyncRun, form: Form) -> str:
    await run.pause(reason=form.get("reason", "").strip()[:MOST_REASON] or None)
    return run.id


async def _resume(run: AsyncRun, form: Form) -> str:
    await run.resume()
    return run.id


async def _cancel(run: AsyncRun, form: Form) -> str:
    await run.cancel()
    return run.id


async def _retry(run: AsyncRun, form: Form) -> str:
    await run.retry()
    return run.id


async def _fork(run: AsyncRun, form: Form) -> str:
    at = form.get("at", "")
    if at and not (at.isascii() and at.isdigit() and len(at) < 16):
        raise UsageError(f"{at[:40]!r} is no step of a run")
    agent = (await run.info()).agent if form.get("now") else None
    forked = await run.fork(at=int(at) if at else None, before=form.get("before", "").strip() or None, agent=agent)
    return forked.id


ACTIONS: Final[Mapping[str, RunAction]] = {
    each.name: each
    for each in (
        RunAction("pause", "Pause", "pause", "Active visits finish and are committed; no other visit starts.", _pause,
                  '{"reason": "..."}', ("reason", "Reason, shown to others")),
        RunAction("resume", "Resume", "s-running", "The run goes on, also past a breakpoint.", _resume),
        RunAction("retry", "Retry", "retry", "The run goes on from what failed, with its current state.", _retry, "{}"),
        RunAction("fork", "Fork", "fork", "A new run goes on from an earlier step. This one stays as it is.", _fork,
                  '{"before": "NODE"}', ("before", "Before the last visit of this node (empty: the last checkpoint)")),
        RunAction("cancel", "Cancel run", "stop",
                  "Scripts and model calls stop within one heartbeat. It cannot be undone.",
                  _cancel, destroys=True),
    )
}  # fmt: skip


def actions_of(info: RunInfo) -> list[RunAction]:
    """Those that make sense for the run as it is."""
    names = ["fork"] if info.step > 0 else []
    if not info.is_final:
        names = ["resume" if info.status == "paused" else "pause", *names, "cancel"]
    elif info.status == "failed":
        names = ["retry", *names]
    return [ACTIONS[name] for name in names]

"""What can be done with a batch: the words of the button, what happens then, the call of the API that is the same."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from starlette.requests import Request

from sleipnir.batches.records import BatchInfo
from sleipnir.client.async_client import AsyncBatch
from sleipnir_console.connection import client_of
from sleipnir_console.pages.forms import body_of, number_of
from sleipnir_console.pages.page_route import form_of
from sleipnir_console.routes.batches import (
    BatchForkRequest,
    BatchPauseRequest,
    BatchResumeRequest,
    ParallelRequest,
)

Does: TypeAlias = Callable[[Request, AsyncBatch], Awaitable[str]]
"""Carries it out; returns the id of the batch to show then."""


@dataclass(frozen=True)
class ActionField:
    """A field of the form of an action. `kind` is a type of `<input>`."""

    name: str
    label: str
    kind: str = "text"
    hint: str = ""


@dataclass(frozen=True)
class BatchAction:
    """`label` is that of its button, `means` what it does, `body` that of the call of the API."""

    name: str
    label: str
    icon: str
    means: str
    does: Does
    body: str | None = None
    fields: tuple[ActionField, ...] = ()
    destroys: bool = False


async def _pause(request: Request, batch: AsyncBatch) -> str:
    await batch.pause(timeout=body_of(request, BatchPauseRequest, **_numbers(request, "timeout_s")).timeout_s)
    return batch.id


async def _resume(request: Request, batch: AsyncBatch) -> str:
    body = body_of(request, BatchResumeRequest, **_numbers(request, "max_cost_usd", "max_tokens"))
    await batch.resume(max_cost_usd=body.max_cost_usd, max_tokens=body.max_tokens)
    return batch.id


async def _parallel(request: Request, batch: AsyncBatch) -> str:
    given = number_of(form_of(request), "parallel")
    await batch.set_parallel(body_of(request, ParallelRequest, parallel=given).parallel)
    return batch.id


async def _retry(request: Request, batch: AsyncBatch) -> str:
    await batch.retry_failed()
    return batch.id


async def _cancel(request: Request, batch: AsyncBatch) -> str:
    await batch.cancel()
    return batch.id


async def _fork(request: Request, batch: AsyncBatch) -> str:
    failed = form_of(request).get("failed") == "on"
    body = body_of(request, BatchForkRequest, failed=failed, **_numbers(request, "canary"))
    return (await client_of(request).fork_batch(batch.batch, **body.model_dump())).id


def _numbers(request: Request, *names: str) -> dict[str, int | float]:
    found = {name: number_of(form_of(request), name) for name in names}
    return {name: number for name, number in found.items() if number is not None}


_BUDGET: Final = (
    ActionField(
        "max_cost_usd", "Cost limit in USD", hint="Empty: as it is. A batch that has used its budget needs more"
    ),
)
ACTIONS: Final[Mapping[str, BatchAction]] = {
    each.name: each
    for each in (
        BatchAction("pause", "Pause", "pause", "No more rows begin. Those under way go on.", _pause,
                    '{"timeout_s": 60}',
                    (ActionField("timeout_s", "Pause rows under way too, after so many seconds",
                               hint="Empty: they go on. 0: at once"),)),
        BatchAction("resume", "Resume", "s-running", "Rows begin again, also after canary rows.", _resume,
                    '{"max_cost_usd": 100}', _BUDGET),
        BatchAction("parallel", "Set parallel", "limits", "Rows under way go on.", _parallel, '{"parallel": 64}'),
        BatchAction("retry-failed", "Redo", "retry",
                    "All failed rows go on from where they failed, after the rows that wait.", _retry),
        BatchAction("fork", "Fork", "fork",
                    "A new batch, whose rows go on from an earlier step of these. This one stays as it is.", _fork,
                    '{"before": "NODE", "failed": true}',
                    (ActionField("before", "Before the last visit of this node", hint="Empty: the last checkpoint"),
                     ActionField("name", "Name of the new batch"),
                     ActionField("model", "Model of all llm nodes", hint="Empty: as it is"),
                     ActionField("canary", "Canary rows", hint="So many rows run first; then it asks"),
                     ActionField("failed", "Only rows that failed", "checkbox"))),
        BatchAction("cancel", "Cancel batch", "stop",
                    "No more rows begin, and those under way are cancelled. It cannot be undone.", _cancel,
                    destroys=True),
    )
}  # fmt: skip


def actions_of(info: BatchInfo) -> list[BatchAction]:
    """Those that make sense for the batch as it is, besides `parallel`, which has a place of its own."""
    names = []
    if info.state in ("running", "accepting"):
        names.append("pause")
    elif info.state in ("paused", "canary", "over_budget"):
        names.append("resume")
    if info.failed and info.state not in ("cancelling", "cancelled"):
        names.append("retry-failed")
    if info.total > info.waiting:
        names.append("fork")
    if not info.is_over and info.state != "cancelling":
        names.append("cancel")
    return [ACTIONS[name] for name in names]

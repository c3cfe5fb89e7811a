"""The fleet: queues, workers, model limits, cached results, signals."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field

from sleipnir.models.limits import MOST, MOST_REASON, LimitUse
from sleipnir.runs.signals import SignalInfo, SignalReceipt
from sleipnir.runs.throughput import Throughput
from sleipnir.runs.views import WorkerInfo
from sleipnir_console.asked_runs import AskedNamespace, seen_namespace
from sleipnir_console.connection import client_of
from sleipnir_console.permissions import GuardedRoute, requires
from sleipnir_console.strict_model import AgentName, Limit, StrictModel

router = APIRouter(tags=["fleet"], route_class=GuardedRoute)


class ResetLimit(StrictModel):
    """Which limit has the bounds of limits.yaml again, and why."""

    pattern: str = Field(
        max_length=500, description="As in limits.yaml; of a tool behind `tool:`.", examples=["openai:*"]
    )
    reason: str = Field(default="", max_length=MOST_REASON, description="For the audit, and others who look at it.")


class ChangedLimit(ResetLimit):
    """Which limit has which bounds, and why."""

    requests_per_minute: int | None = Field(default=None, gt=0, le=MOST)
    tokens_per_minute: int | None = Field(default=None, gt=0, le=MOST)
    max_parallel: int | None = Field(default=None, gt=0, le=MOST)


class QueueInfo(BaseModel):
    """A queue: its messages in the broker, and the live workers that consume it. `oldest_ms`: for how long the next
    visit, which is approximately the oldest, has waited; null: it is not known."""

    name: str
    length: int
    workers: int
    oldest_ms: int | None


class CachedResults(BaseModel):
    """The cached results of a node: how many, how large, and until when the last one is kept."""

    agent: str
    node: str
    entries: int
    size_bytes: int
    until_ms: int


class Removed(BaseModel):
    """How many there were."""

    removed: int


class Signal(StrictModel):
    """A named event for all visits that wait for it."""

    name: str = Field(description="Letters, digits and `_ . : / @ -`.", examples=["payment/4711"])
    data: Any = Field(default=None, description="JSON that the visits get.")
    id: str | None = Field(
        default=None, description="Makes a repetition safe: a signal whose id is known changes nothing."
    )


@router.get("/queues", operation_id="list_queues", summary="Queues with their lengths")
@requires("viewer")
async def list_queues(request: Request) -> list[QueueInfo]:
    """Queues that have messages or workers. A broker that cannot be asked reports no lengths."""
    health = await client_of(request).health()
    names = sorted({*health.queues, *(queue for worker in health.workers for queue in worker.queues)})
    return [
        QueueInfo(
            name=name,
            length=health.queues.get(name, 0),
            workers=sum(name in worker.queues for worker in health.workers),
            oldest_ms=health.oldest_ms.get(name),
        )
        for name in names
    ]


@router.get("/workers", operation_id="list_workers", summary="Workers that announced themselves")
@requires("viewer")
async def list_workers(request: Request) -> list[WorkerInfo]:
    """As they last announced themselves."""
    return list((await client_of(request).health()).workers)


@router.get("/limits", operation_id="list_limits", summary="The use of model limits")
@requires("viewer")
async def list_limits(request: Request) -> list[LimitUse]:
    """Requests and tokens of the last minute, held permits, and waiting callers, of the limits in the server's
    limits.yaml."""
    return await client_of(request).limits()


@router.post("/limits/set", operation_id="set_limit", summary="Give a limit other bounds")
@requires("operator", everywhere=True)
async def set_limit(request: Request, body: ChangedLimit) -> LimitUse:
    """In the place of those of limits.yaml, for all workers, until it is reset; bounds that are null are as written
    there."""
    given = body.model_dump(exclude={"pattern"})
    return await client_of(request).set_limit(body.pattern, **given)


@router.post("/limits/reset", operation_id="reset_limit", summary="Give a limit the bounds of limits.yaml again")
@requires("operator", everywhere=True)
async def reset_limit(request: Request, body: ResetLimit) -> LimitUse:
    """Idempotent."""
    return await client_of(request).reset_limit(body.pattern, reason=body.reason)


@router.get("/throughput", operation_id="get_throughput", summary="Visits a second, hops, ended runs, cost")
@requires("viewer")
async def get_throughput(request: Request, namespace: AskedNamespace = None) -> Throughput:
    """What the schedulers have committed in the last hour and day, as of some seconds ago. Visits and hops are those of
    all namespaces."""
    return await client_of(request).throughput(namespace=seen_namespace(request, namespace))


@router.get("/cache", operation_id="list_cached_results", summary="Cached results by node")
@requires("viewer")
async def list_cached_results(
    request: Request,
    agent: Annotated[AgentName | None, Query(description="Only of this agent.")] = None,
    node: Annotated[str | None, Query(description="Only of this node.")] = None,
) -> list[CachedResults]:
    """Nodes that have some, with number and size."""
    return [
        CachedResults(
            agent=use.agent, node=use.node, entries=use.entries, size_bytes=use.bytes_, until_ms=use.until_ms
        )
        for use in await client_of(request).cached_results(agent, node)
    ]  # fmt: skip


@router.delete("/cache", operation_id="clear_cache", summary="Remove cached results")
@requires("operator", everywhere=True)
async def clear_cache(
    request: Request,
    agent: Annotated[AgentName | None, Query(description="Only of this agent.")] = None,
    node: Annotated[str | None, Query(description="Only of this node; needs `agent`.")] = None,
) -> Removed:
    """Those of one node, of all nodes of an agent, or all."""
    return Removed(removed=await client_of(request).clear_cache(agent, node))


@router.post("/signals", operation_id="send_signal", summary="Send an event to all visits that wait for it")
@requires("operator")
async def send_signal(request: Request, body: Signal) -> SignalReceipt:
    """`reached` is how many waiting visits it has reached so far."""
    return await client_of(request).signal(body.name, body.data, id=body.id)


@router.get("/signals", operation_id="list_signals", summary="Events that were sent last")
@requires("viewer")
async def list_signals(request: Request, limit: Limit = 50) -> list[SignalInfo]:
    """The newest first. `data` is JSON text; null: it is not kept any more."""
    return await client_of(request).signals(limit)

"""Threads and sessions: the list, the ones used last first, and one thread with its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal, TypeAlias
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from sleipnir.runs.conversation_pages import PageOfConversations
from sleipnir.runs.views import SessionInfo, ThreadInfo
from sleipnir_console.asked_runs import seen_namespace
from sleipnir_console.connection import client_of
from sleipnir_console.pages.page_route import PageRoute, next_page, same_as
from sleipnir_console.pages.rendering import render
from sleipnir_console.pages.run_states import Colour, StateSummary, state_of
from sleipnir_console.permissions import caller_of, requires
from sleipnir_console.routes.conversations import After, Name, get_thread, remove_thread
from sleipnir_console.strict_model import AgentName, AgentPath, Limit

router = APIRouter(route_class=PageRoute)

SHOWN_RUNS: Final = 100
Kind: TypeAlias = Literal["threads", "sessions"]
GONE: Final = StateSummary("cancelled", "Gone", "its last run has expired, and its state with it")


@dataclass(frozen=True)
class ConversationRow:
    """A thread or a session. `size` is how many turns or messages it has; `run` the last run, or the one that goes on
    in it; `path` its page."""

    conversation: ThreadInfo | SessionInfo
    size: int
    state: StateSummary | None
    run: str | None
    path: str


@router.get("/threads", operation_id="show_threads")
@requires("viewer")
@same_as("/threads")
async def show_threads(
    request: Request,
    kind: Kind = "threads",
    agent: Annotated[AgentName | Literal[""] | None, Query()] = None,
    limit: Limit = 50,
    after: After = None,
) -> Response:
    """A page of threads, or of sessions, the ones used last first."""
    client, namespace = client_of(request), seen_namespace(request, None)
    read = client.threads if kind == "threads" else client.sessions
    found: PageOfConversations[ThreadInfo] | PageOfConversations[SessionInfo]
    found = await read(agent or None, namespace=namespace, limit=limit, after=after)
    kept = {name: value for name, value in (("kind", kind), ("agent", agent or "")) if value not in ("", "threads")}
    first = f"/threads?{urlencode(kept)}" if kept else "/threads"
    return render(
        request, "threads.html", title=kind.capitalize(), kind=kind, agent=agent or "", rows=_rows(found),
        next=None if found.after is None else f"/threads?{urlencode({**kept, 'after': found.after})}", first=first,
        is_first=after is None, agents=sorted(each.name for each in await client.agents()),
        now_ms=await client.now_ms(),
        api=f"/api/v1/{kind}" + (f"?{urlencode({'agent': agent})}" if agent else ""),
    )  # fmt: skip


@router.get("/threads/{agent}/{name}", operation_id="show_thread")
@requires("viewer")
@same_as("/threads/{agent}/{name}")
async def show_thread(request: Request, agent: AgentPath, name: Name) -> Response:
    """One thread: its runs, the last one first, as far back as they are stored."""
    thread = await get_thread(request, agent, name)
    client = client_of(request)
    runs = await client.thread_runs(agent, name, SHOWN_RUNS, namespace=thread.namespace)
    state, now_ms = _state(thread), await client.now_ms()
    return render(
        request, "thread.html", title=f"{state.word}: thread {name} of {agent}", thread=thread, state_now=state,
        runs=[(run, state_of(run, now_ms)) for run in runs], shown=SHOWN_RUNS, now_ms=now_ms,
        may_start=caller_of(request).may("operator"),
        path=_path(thread), playground=f"/playground/{quote(agent, safe='')}/{quote(name, safe='')}",
        api=f"/api/v1{_path(thread)}",
    )  # fmt: skip


@router.post("/threads/{agent}/{name}/remove", operation_id="send_thread_removal")
@requires("operator")
async def send_thread_removal(request: Request, agent: AgentPath, name: Name) -> Response:
    """Removes a thread. Its runs stay as long as other ended runs."""
    await remove_thread(request, agent, name)
    return next_page("/threads")


def _rows(found: Sequence[ThreadInfo | SessionInfo]) -> list[ConversationRow]:
    return [
        ConversationRow(each, each.turns, _state(each), each.run, _path(each))
        if isinstance(each, ThreadInfo)
        else ConversationRow(
            each, each.messages, StateSummary("running", "Running") if each.run else None, each.run,
            f"/playground/{quote(each.agent, safe='')}/{quote(each.name, safe='')}",
        )
        for each in found
    ]  # fmt: skip


def _path(thread: ThreadInfo) -> str:
    return f"/threads/{quote(thread.agent, safe='')}/{quote(thread.name, safe='')}"


def _state(thread: ThreadInfo) -> StateSummary:
    if thread.status is None:
        return GONE
    colour = _COLOURS.get(thread.status, "waiting")
    return StateSummary(colour, thread.status.capitalize(), f"{len(thread.queued):,} queued" if thread.queued else "")


_COLOURS: Final[Mapping[str, Colour]] = {
    "submitted": "submitted", "running": "running", "waiting": "waiting", "paused": "paused",
    "completed": "completed", "failed": "failed", "cancelled": "cancelled",
}  # fmt: skip

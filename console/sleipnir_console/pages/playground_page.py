"""The playground: a chat with an agent, as people have it, beside the graph of its newest run.

A conversation is a session of a config.yaml agent, or a thread of a graph agent. Each message is a run in it; what the
run says streams into the page, and what it asks is answered there.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, TypeAlias
from urllib.parse import quote

from fastapi import APIRouter, Path, Request
from markupsafe import Markup
from starlette.responses import Response

from sleipnir.client.async_client import AsyncClient, AsyncRun
from sleipnir.errors import RunNotFound, SleipnirError, StoreUnavailable, UsageError
from sleipnir.graph.draw import page_svg
from sleipnir.runs.conversation_pages import PageOfConversations
from sleipnir.runs.run_progress import progress_of
from sleipnir.runs.views import GateInfo, RunInfo
from sleipnir_console.asked_runs import seen_namespace
from sleipnir_console.connection import client_of
from sleipnir_console.pages.formats import json_text
from sleipnir_console.pages.forms import REFUSALS, body_of, refusal_of
from sleipnir_console.pages.gate_rows import has_own_words, is_for, path_of, question_of
from sleipnir_console.pages.markdown import markdown_html
from sleipnir_console.pages.page_route import PageRoute, form_of, next_page
from sleipnir_console.pages.rendering import render
from sleipnir_console.pages.run_states import StateSummary, state_of
from sleipnir_console.permissions import caller_of, requires
from sleipnir_console.routes.agents import get_agent
from sleipnir_console.routes.runs import Submission, submit_run
from sleipnir_console.strict_model import AgentPath

router = APIRouter(route_class=PageRoute)

Name: TypeAlias = Annotated[str, Path(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:@+-]*$")]

MOST_LISTED: Final = 50
MOST_MESSAGES: Final = 100
MOST_TURNS: Final = 20
MOST_TEXT: Final = 8_000
"""Characters of one message that are shown."""
MOST_DRAWN: Final = 300


@dataclass(frozen=True)
class SpeechSummary:
    """What was said: by `user`, by the `assistant`, or by a `tool`. `run` is the run that said it, if that is known,
    `state` its state. `chars` is the length of all of the text."""

    role: str
    text: str
    chars: int
    run: str | None = None
    state: StateSummary | None = None

    @classmethod
    def of(cls, role: str, value: Any, run: str | None = None, state: StateSummary | None = None) -> SpeechSummary:
        text = json_text(value)
        return cls(role, text[:MOST_TEXT], len(text), run, state)


@dataclass(frozen=True)
class QuestionSummary:
    """A question of a run, with what answers it here. `may`: whether the caller may."""

    gate: GateInfo
    text: Markup
    path: str
    may: bool
    own_words: bool


@dataclass(frozen=True)
class ConversationSummary:
    """A conversation as the page shows it: `said` the oldest first, `left_out` messages before these. `live` is the run
    that goes on, `newest` the last one."""

    said: Sequence[SpeechSummary] = ()
    left_out: int = 0
    newest: RunInfo | None = None
    live: RunInfo | None = None
    questions: Sequence[QuestionSummary] = field(default=())


@router.get("/playground/{agent}", operation_id="show_playground")
@requires("viewer")
async def show_playground(request: Request, agent: AgentPath) -> Response:
    """The conversations with an agent, the one used last first."""
    found = await get_agent(request, agent)
    client, namespace = client_of(request), seen_namespace(request, None)
    read = client.sessions if found.kind == "config" else client.threads
    listed: PageOfConversations[Any] = await read(agent, namespace=namespace, limit=MOST_LISTED)
    return render(
        request, "conversations.html", title=f"Playground of {agent}", agent=found, listed=listed,
        more=f"/threads?kind={'sessions' if found.kind == 'config' else 'threads'}&agent={quote(agent)}",
        now_ms=await client.now_ms(), fresh=f"p{secrets.token_hex(4)}",
        may_start=caller_of(request).may("operator"), path=f"/playground/{quote(agent)}",
        api=f"/api/v1/{'sessions' if found.kind == 'config' else 'threads'}?agent={quote(agent)}",
    )  # fmt: skip


@router.get("/playground/{agent}/{session}", operation_id="show_conversation")
@requires("viewer")
async def show_conversation(request: Request, agent: AgentPath, session: Name) -> Response:
    """A conversation; one that has not begun is empty."""
    return await _page(request, agent, session)


@router.post("/playground/{agent}/{session}", operation_id="send_message")
@requires("operator")
async def send_message(request: Request, agent: AgentPath, session: Name) -> Response:
    """The next message. The same form sent twice is one message; what cannot be sent is shown again."""
    form = form_of(request)
    text = form.get("message", "").replace("\r\n", "\n")
    try:
        if not text.strip():
            raise UsageError("there is no message")
        found = await get_agent(request, agent)
        place = {"session": session} if found.kind == "config" else {"thread": session}
        body = body_of(request, Submission, agent=agent, prompt=text, **place)
        await submit_run(request, Response(), body, form.get("request") or None)
    except REFUSALS as error:
        return await _page(request, agent, session, typed=text, error=error)
    return next_page(f"/playground/{quote(agent)}/{quote(session)}")


async def _page(
    request: Request, name: str, session: str, *, typed: str = "", error: Exception | None = None
) -> Response:
    agent, client = await get_agent(request, name), client_of(request)
    is_config, now_ms = agent.kind == "config", await client.now_ms()
    if is_config:
        chat = await _of_session(request, client, name, session, now_ms)
    else:
        chat = await _of_thread(request, client, name, session, now_ms)
    newest = chat.live or chat.newest
    refused = None if error is None else refusal_of(request, error)
    api = f"/api/v1/runs/{newest.id}" if newest is not None else None
    return render(
        request,
        "playground.html",
        status=200 if refused is None else refused.kind.status,
        title=f"{session}, chat with {name}",
        agent=agent,
        session=session,
        is_config=is_config,
        chat=chat,
        newest=newest,
        newest_state=state_of(newest, now_ms) if newest is not None else None,
        drawing=await _drawing(client, newest, now_ms) if newest is not None else None,
        writers=[] if chat.live is None else [each.seq for each in chat.live.visits],
        events_path=f"{api}/events?mode=updates&mode=events&mode=messages" if chat.live is not None else None,
        starters=agent.conversation_starters[:6],
        typed=typed,
        refused=refused,
        request_id=secrets.token_hex(16),
        may_start=caller_of(request).may("operator"),
        page_path=f"/playground/{quote(name)}/{quote(session)}",
        list_path=f"/playground/{quote(name)}",
        now_ms=now_ms,
    )


async def _of_session(
    request: Request, client: AsyncClient, agent: str, session: str, now_ms: int
) -> ConversationSummary:
    """What a session keeps, and the run that has it now."""
    info = await client.session(agent, session)
    if info is None:
        return ConversationSummary()
    messages = await client.said(agent, session)
    said = [each for message in messages[-MOST_MESSAGES:] for each in _messages(message)]
    left_out = info.dropped + max(0, len(messages) - MOST_MESSAGES)
    live = await _info(client, info.run) if info.run is not None else None
    if live is None:  # sessions do not say which run was the last one: it is looked for among the newest of the agent
        runs = await client.runs(MOST_LISTED, agents=[agent])
        return ConversationSummary(said, left_out, next((each for each in runs if each.session == session), None))
    if live.is_final:  # failed or cancelled: it has added nothing
        said += await _turn(client, live, now_ms) if live.status != "completed" else []
        return ConversationSummary(said, left_out, live)
    said += await _turn(client, live, now_ms)
    return ConversationSummary(said, left_out, live, live, await _questions(request, client, live))


async def _of_thread(request: Request, client: AsyncClient, agent: str, name: str, now_ms: int) -> ConversationSummary:
    """The last runs of a thread, each a message and its output."""
    runs = await client.thread_runs(agent, name, MOST_TURNS)
    said = [each for info in reversed(runs) for each in await _turn(client, info, now_ms)]
    if not runs:
        return ConversationSummary()
    left_out = 2 * max(0, runs[-1].turn - 1)
    live = next((info for info in reversed(runs) if not info.is_final), None)
    questions = await _questions(request, client, live) if live is not None else ()
    return ConversationSummary(said, left_out, runs[0], live, questions)


async def _turn(client: AsyncClient, info: RunInfo, now_ms: int) -> list[SpeechSummary]:
    """The message that a run was given, and what it said to it."""
    run = await client.run(info.id)
    try:
        prompt = (await run.state_at(0)).get("initial_prompt", "")
    except (RunNotFound, UsageError):
        prompt = ""
    found = [SpeechSummary.of("user", prompt)] if prompt else []
    if info.status == "completed":
        return [*found, SpeechSummary.of("assistant", await run.output() or "", info.id)]
    if info.is_final:
        return [*found, SpeechSummary.of("assistant", info.error or "", info.id, state_of(info, now_ms))]
    return found


def _messages(message: Mapping[str, Any]) -> list[SpeechSummary]:
    """A message in the format for models, as it is shown."""
    role, content = str(message.get("role", "")), message.get("content")
    found = []
    if role in ("user", "assistant") and content:
        found.append(SpeechSummary.of(role, _text(content)))
    for call in message.get("tool_calls") or ():
        function = call.get("function", {}) if isinstance(call, Mapping) else {}
        found.append(SpeechSummary.of("tool", f"{function.get('name')}({function.get('arguments', '')})"))
    if role == "tool":
        found.append(SpeechSummary.of("tool", _text(content or "")))
    return found


def _text(content: Any) -> Any:
    """The text of a content that may have parts."""
    if isinstance(content, list):
        texts = [part.get("text", f"({part.get('type')})") for part in content if isinstance(part, Mapping)]
        return "\n".join(map(str, texts))
    return content


async def _info(client: AsyncClient, run_id: str) -> RunInfo | None:
    try:
        run: AsyncRun = await client.run(run_id)
        return await run.info()
    except RunNotFound:
        return None


async def _questions(request: Request, client: AsyncClient, info: RunInfo) -> list[QuestionSummary]:
    run = await client.run(info.id)
    return [
        QuestionSummary(
            gate, markdown_html(question_of(gate)), path_of(gate), is_for(gate, caller_of(request)),
            has_own_words(gate) and gate.schema is None,
        )
        for gate in await run.gates()
    ]  # fmt: skip


async def _drawing(client: AsyncClient, info: RunInfo, now_ms: int) -> Markup | None:
    run = await client.run(info.id)
    try:
        graph = await run.graph()
    except StoreUnavailable:
        raise
    except SleipnirError:
        return None
    if len(graph.nodes) > MOST_DRAWN:
        return None
    steps = await run.history(after=max(0, info.step - 1_000) or None, limit=2_000)
    links = {name: f"/runs/{info.id}?node={quote(name)}" for name in graph.nodes}
    progress = progress_of(info, steps, now_ms)
    return Markup(await asyncio.to_thread(page_svg, graph, progress=progress, links=links, selected=None))

"""The MCP server as an object: which tools there are, and what a call does. It knows no transport.

    server = AgentServer(settings, ServerOptions(agents=("triage",)))    # an mcp.server.lowlevel.Server
    server.streamable_http_app(stateless_http=True)                       # or server.run(read, write, ...)

Rules. Every failure is a result that says so, for the client's model; no traceback and no secret is in it. Redis is
connected to by the first call that needs it, and again by each later one. A call whose client is gone leaves its run
alone; one that the client cancels cancels it, unless `detach`.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

import anyio
import anyio.to_thread
import structlog
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.types import (
    CallToolRequestParams,
    ElicitResult,
    ListToolsResult,
    PaginatedRequestParams,
    Tool,
    ToolAnnotations,
)

from sleipnir import __version__
from sleipnir.client.async_client import AsyncClient, AsyncRun
from sleipnir.errors import GraphError, SleipnirError, StoreUnavailable, UsageError
from sleipnir.mcp_server import run_tools
from sleipnir.mcp_server.arguments import CallArguments, checked, read
from sleipnir.mcp_server.catalogue import AgentCatalogue, AgentTool
from sleipnir.mcp_server.following import AwaitedRun, RepeatedCall, Result
from sleipnir.mcp_server.options import ServerOptions
from sleipnir.mcp_server.questions import ANSWER
from sleipnir.mcp_server.results import RUN_SCHEMA, error_result
from sleipnir.runs.actor import Actor
from sleipnir.runs.sessions import TEMP
from sleipnir.settings import Settings

NAME: Final = "sleipnir"
INSTRUCTIONS: Final = (
    "Each tool runs an agent; its runs are durable and go on without you. A run that takes longer than a call may wait "
    "returns its run_id: pass it to wait_for_run. If a run asks a question, the user decides."
)
CANCEL_S: Final = 5.0  # for the request to cancel a run, when its call was cancelled

Context = ServerRequestContext["Serving", Any]
ActorOf = Callable[[Any], Actor]
"""Whose call it is, by the HTTP request (starlette.requests.Request)."""


@dataclass
class Serving:
    """What all calls of one server share. `client_is_gone` is set by a transport whose only client has left."""

    client: AsyncClient
    catalogue: AgentCatalogue
    options: ServerOptions
    namespace: str
    actor_of: ActorOf | None = None
    is_stopping: Callable[[], bool] = lambda: False
    calls: str = field(default_factory=lambda: uuid.uuid4().hex)
    client_is_gone: bool = False

    def acting_for(self, request: Any) -> Serving:
        """The same in the name of the sender of an HTTP request. None: there is none."""
        if request is None or self.actor_of is None:
            return self
        return replace(self, client=self.client.acting_as(self.actor_of(request)))

    @property
    def runs(self) -> run_tools.VisibleRuns:
        """The runs that its clients see."""
        return run_tools.VisibleRuns(self.client, self.namespace, self.catalogue.titles())


class AgentServer(Server["Serving"]):
    """The MCP server of one deployment."""

    def __init__(
        self,
        settings: Settings,
        options: ServerOptions,
        actor_of: ActorOf | None = None,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """`actor_of` is whose call an HTTP request is; None: the user's of this process. `is_stopping`: whether the
        process is being stopped, which ends calls and leaves their runs alone. Raises AgentNotFound and GraphError for
        agents that are named and cannot run."""
        self._settings, self._options, self._actor_of = settings, options, actor_of
        self._is_stopping = is_stopping
        self._catalogue = AgentCatalogue(settings, None if options.agents is None else tuple(options.agents))
        self._catalogue.check()
        self.serving: Serving | None = None
        super().__init__(
            NAME,
            version=__version__,
            title="Sleipnir",
            instructions=INSTRUCTIONS,
            lifespan=_lifespan,
            on_list_tools=_list_tools,
            on_call_tool=_call_tool,
        )

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Serving]:
        """What calls share, while the server serves."""
        client = AsyncClient(self._settings, by=Actor.here("mcp"))
        self.serving = Serving(
            client, self._catalogue, self._options, self._settings.namespace, self._actor_of, self._is_stopping
        )
        try:
            yield self.serving
        finally:
            with anyio.CancelScope(shield=True):
                await client.close()


@asynccontextmanager
async def _lifespan(server: Server[Serving]) -> AsyncIterator[Serving]:
    assert isinstance(server, AgentServer)
    async with server.opened() as serving:
        yield serving


async def _list_tools(context: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
    serving = context.lifespan_context
    agents = await anyio.to_thread.run_sync(serving.catalogue.tools)
    answers = [run_tools.ANSWER_QUESTION] if serving.options.answers else []
    general = [run_tools.WAIT_FOR_RUN, run_tools.SHOW_RUN, run_tools.LIST_RUNS, *answers, run_tools.CANCEL_RUN]
    return ListToolsResult(tools=[*map(_declared, agents), *general])


def _declared(tool: AgentTool) -> Tool:
    return Tool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=tool.input_schema,
        output_schema=RUN_SCHEMA,
        annotations=ToolAnnotations(title=tool.title, read_only_hint=False, destructive_hint=True),
    )


async def _call_tool(context: Context, params: CallToolRequestParams) -> Result:
    try:
        return await _called(context, params)
    except SleipnirError as error:
        return error_result(_told(error, is_remote=context.request is not None))
    except Exception as error:  # a bug of ours must not end the server, nor reach the client's model
        structlog.get_logger().exception("a call has failed", tool=params.name)
        return error_result(f"Sleipnir's MCP server has a bug ({type(error).__name__}); its log has the details")


def _told(error: SleipnirError, *, is_remote: bool) -> str:
    """An error for a client. One on another machine is not told of addresses and folders of this one."""
    if isinstance(error, GraphError):
        return str(error).partition("\n")[0] if is_remote else "\n".join([str(error), *map(str, error.problems)])
    if isinstance(error, StoreUnavailable) and is_remote:
        structlog.get_logger().warning("Redis does not answer", error=str(error))
        return "Redis does not answer, or cannot be used now"
    return str(error)


async def _called(context: Context, params: CallToolRequestParams) -> Result:
    serving = context.lifespan_context.acting_for(context.request)
    match params.name:
        case "list_runs":
            return await run_tools.list_runs(serving.runs, params.arguments)
        case "show_run":
            return await run_tools.show_run(serving.runs, params.arguments)
        case "wait_for_run":
            return await _wait_for_run(context, serving, params)
        case "answer_question" if serving.options.answers:
            return await run_tools.answer_question(serving.runs, params.arguments)
        case "cancel_run":
            return await run_tools.cancel_run(serving.runs, params.arguments)
    return await _run_agent(context, serving, params)


async def _wait_for_run(context: Context, serving: Serving, params: CallToolRequestParams) -> Result:
    given = checked(run_tools.WAIT_FOR_RUN.input_schema, params.arguments)
    run = await serving.runs.run(given["run_id"])
    return await _followed(context, serving, run, params, since_ms=await serving.client.now_ms())


async def _run_agent(context: Context, serving: Serving, params: CallToolRequestParams) -> Result:
    tool = await anyio.to_thread.run_sync(serving.catalogue.tool, params.name)
    given = read(tool.input_schema, params.arguments)
    if params.request_state is not None:
        run, since_ms = await serving.runs.run(RepeatedCall.of(params.request_state).run_id), None
    else:
        run, since_ms = await _submitted(context, serving, tool, given), 0
    try:
        since_ms = await serving.client.now_ms() if since_ms is None else since_ms
        return await _followed(context, serving, run, params, since_ms=since_ms)
    except SleipnirError as error:
        reason = _told(error, is_remote=context.request is not None)
        return error_result(f"run {run.id} was submitted and goes on, but following it failed: {reason}")
    except anyio.get_cancelled_exc_class():
        is_cancelled = not (context.lifespan_context.client_is_gone or serving.is_stopping())
        if is_cancelled and not serving.options.detach:
            await _cancel(run)
        raise


async def _submitted(context: Context, serving: Serving, tool: AgentTool, given: CallArguments) -> AsyncRun:
    """Submit a run of an agent. A call that is cancelled meanwhile has either no run, or one that is cancelled."""
    options = serving.options
    await serving.client.prepare_knowledge(tool.agent)  # this may take long; what follows is not interrupted
    more: Mapping[str, Any] = {} if options.cwd is None else {"cwd": options.cwd}
    with anyio.CancelScope(shield=True):
        run = await serving.client.submit(
            tool.agent,
            given.prompt,
            state=given.state or None,
            variables=given.variables,
            thread=given.thread,
            session=_session(tool, given),
            max_cost_usd=options.max_cost_usd,
            max_tokens=options.max_tokens,
            request_id=given.request_id or _request_id(context),
            **more,
        )
    return run


def _session(tool: AgentTool, given: CallArguments) -> str | None:
    """The session of a run: the given one, else the agent's own, as for `submit` on the command line."""
    loop = tool.graph.loop
    own = loop.agent_session if loop is not None else None
    return given.session or (None if own == TEMP else own)


def _request_id(context: Context) -> str | None:
    """What names a call, so that one that is delivered twice starts one run. None: its number says nothing, because
    its connection is not known."""
    if context.request is None:
        connection = context.lifespan_context.calls
    else:
        connection = context.request.headers.get("mcp-session-id")
    if connection is None:
        return None
    return f"mcp {hashlib.sha256(f'{connection} {context.request_id}'.encode()).hexdigest()}"


async def _followed(
    context: Context, serving: Serving, run: AsyncRun, params: CallToolRequestParams, *, since_ms: int
) -> Result:
    before = None if params.request_state is None else RepeatedCall.of(params.request_state)
    followed = AwaitedRun(
        context, serving.client, run, serving.options.wait_s, answers=serving.options.answers, before=before
    )
    answer = (params.input_responses or {}).get(ANSWER)
    if before is not None and isinstance(answer, ElicitResult):
        again = await followed.use(answer)
        if again is not None:
            return again
    return await followed.result(since_ms=since_ms)


async def _cancel(run: AsyncRun) -> None:
    """Cancel the run of a call that was cancelled."""
    with anyio.move_on_after(CANCEL_S, shield=True):
        try:
            await run.cancel()
        except UsageError:
            pass  # it is over
        except SleipnirError as error:
            structlog.get_logger().warning("the run of a cancelled call goes on", run=run.id, error=str(error))

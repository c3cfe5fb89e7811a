"""One connection to an MCP server: its catalogue and its calls. All code of this module runs on one event loop.

The connection has a task of its own, because the SDK requires enter and exit in the same task. It ends when the server
ends, when it is stopped, or when opening it times out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from sleipnir.errors import MachineFailed
from sleipnir.graph import schema as json_schema
from sleipnir.tools.mcp_config import McpServer, RemoteServer, StdioServer
from sleipnir_workers.mcp.catalogue import Catalogue, Tool
from sleipnir_workers.mcp.failures import ConnectionLost, McpFailed
from sleipnir_workers.mcp.server_process import LastWords, child_transport

if TYPE_CHECKING:
    from mcp import Client
    from mcp.client import IncomingMessage, Transport

MOST_TOOLS = 10_000  # an endless list must not fill the memory
CONNECT_S = 10.0  # of one HTTP connection
PROBE_S = 2.0
READ_S = 24 * 3600.0  # between two bytes; the timeout of a call is set by its caller
_HIDDEN_STATUS = ("Server returned an error response", "Not Found")  # the SDK's only text for a 401, and for a 404
_TERMINATED = "Session terminated"  # the SDK's text for a server that has forgotten our session


class Connection:
    """A connection, opened at once. Await `opened` before its use."""

    def __init__(self, server: McpServer, *, start_s: float, on_over: Callable[[Connection], None]) -> None:
        self.server = server
        self.users = 0
        self.last_answer_at = 0.0
        self.has_ended = False
        """It ended, and everything is cleaned up."""
        self.was_refused = False
        """It ended because the network connection for a request was refused: the server did not get that request."""
        self._name = f"MCP server '{server.name}'"
        self._start_s = start_s
        self._on_over = on_over
        self._words = LastWords()
        self._reason = ""
        self._status = 0
        self._failure: McpFailed | MachineFailed | None = None
        self._machine: MachineFailed | None = None
        self._stopping = asyncio.Event()
        self._settled = asyncio.Event()
        self._listing = asyncio.Lock()
        self._catalogue: Catalogue | None = None
        self._output_schemas: dict[str, dict[str, Any] | None] = {}
        self._changes = 0
        self._client: Client | None = None
        self._task = asyncio.create_task(self._live(), name=f"mcp {server.name}")

    async def opened(self) -> None:
        """Wait until it is open. Raises McpFailed if opening fails."""
        await self._settled.wait()
        if self._failure is not None:
            raise self._failure

    async def catalogue(self, *, instead_of: Catalogue | None = None) -> Catalogue:
        """The server's tools as last listed; they are listed again if `instead_of` is the last list."""
        async with self._listing:
            if self._catalogue is None or self._catalogue is instead_of:
                changes = self._changes
                catalogue = Catalogue(self.server.name, await self._list())
                if changes != self._changes:
                    return catalogue  # correct at the time of the request; the next caller lists again
                self._catalogue = catalogue
            return self._catalogue

    async def call(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The server's CallToolResult as JSON. Raises ConnectionLost and McpFailed."""
        result = await self._answer(lambda client: client.call_tool(tool, arguments))
        if not result.is_error and (problem := self._structure_problem(tool, result)):
            raise self._refused(RuntimeError(problem))
        answer: dict[str, Any] = result.model_dump(
            mode="json", by_alias=True, exclude_none=True, include={"content", "structured_content", "is_error"}
        )
        return answer

    def _structure_problem(self, tool: str, result: Any) -> str | None:
        """How a result violates the tool's own output schema. Both come from the server, so the check is bounded."""
        schema = self._output_schemas.get(tool)
        if schema is None:
            return None
        if result.structured_content is None and "structured_content" not in result.model_fields_set:
            return f"Tool {tool} has an output schema but did not return structured content"
        try:
            violation = json_schema.violation(schema, result.structured_content)
        except json_schema.NotChecked as error:
            return f"The structured content returned by tool {tool} cannot be checked: {error}"
        return violation and f"Invalid structured content returned by tool {tool}: {violation}"

    async def answers(self) -> bool:
        """Whether the server answers a small request; distinguishes a slow tool from a server that hangs."""
        try:
            async with asyncio.timeout(PROBE_S):
                await self._answer(partial(_page, None))
        except (TimeoutError, ConnectionLost):
            return False
        except McpFailed:
            pass  # an error is an answer
        return True

    @property
    def is_open(self) -> bool:
        """It was opened, and has neither been stopped nor ended."""
        return self._settled.is_set() and not self._stopping.is_set() and not self.has_ended

    @property
    def is_ending(self) -> bool:
        return self._stopping.is_set() or self.has_ended

    def stop(self) -> None:
        """Start to end it; `over` waits for the end."""
        self._stopping.set()
        if not self._settled.is_set():
            self._task.cancel()

    async def over(self) -> None:
        """Wait until its process and its network connections are gone."""
        await asyncio.wait([self._task])

    def why(self) -> str:
        """How it ended, and the last lines of the server, as the end of a sentence."""
        reason = f": {self._reason}" if self._reason else ""
        last_lines = str(self._words)
        return self.server.clean(f"{reason}; its last lines:\n{last_lines}" if last_lines else reason)

    async def _live(self) -> None:
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(self._start_s):
                    self._client = await self._open(stack)
                    await self.catalogue()
                watching = asyncio.create_task(self._watch(self._client))
                stack.callback(watching.cancel)
                self._settled.set()
                await self._stopping.wait()
        except Exception as error:
            innermost = _innermost(error)
            self._machine = innermost if isinstance(innermost, MachineFailed) else None
            self.was_refused = _is_refusal(innermost)
            self._reason = self._explained(innermost)
        finally:
            self.has_ended = True
            self._reason = self._words.end or self._reason
            if not self._settled.is_set():
                self._failure = self._machine or McpFailed(f"{self._name} {self._not_opened()}{self.why()}")
                self._settled.set()
            self._on_over(self)

    def _not_opened(self) -> str:
        if isinstance(self.server, RemoteServer):
            return f"could not be reached at {self.server.host}"
        return "could not be started"

    def _explained(self, error: BaseException) -> str:
        """The reason of an end, in short."""
        if isinstance(error, TimeoutError):
            return f"it did not answer within {self._start_s:g} s"
        text = self._text_of(error)
        return text.replace(self._name, "it", 1)

    async def _open(self, stack: AsyncExitStack) -> Client:
        from mcp import Client

        client = Client(await self._transport(stack), cache=None, message_handler=self._on_message)
        opened = await stack.enter_async_context(client)
        # The SDK checks results with jsonschema, whose patterns backtrack; `_structure_problem` checks them instead.
        opened.session.validate_tool_result = _no_check  # type: ignore[method-assign]
        return opened

    async def _transport(self, stack: AsyncExitStack) -> Transport:
        if isinstance(self.server, StdioServer):
            return child_transport(self.server, self._words, self._stopping.set)
        assert isinstance(self.server, RemoteServer)
        if self.server.transport == "sse":
            from mcp.client.sse import sse_client

            headers = dict(self.server.headers)
            return sse_client(self.server.url, headers, timeout=CONNECT_S, sse_read_timeout=READ_S)
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        http = httpx2.AsyncClient(
            headers=dict(self.server.headers),
            timeout=httpx2.Timeout(CONNECT_S, read=READ_S),
            event_hooks={"response": [self._note_status]},
        )
        return streamable_http_client(self.server.url, http_client=await stack.enter_async_context(http))

    async def _note_status(self, response: Any) -> None:
        if response.status_code >= 400 and response.request.method == "POST":
            self._status = response.status_code

    async def _list(self) -> list[Tool]:
        tools: list[Tool] = []
        cursor: str | None = None
        while True:
            page = await self._answer(partial(_page, cursor))
            self._output_schemas |= {tool.name: tool.output_schema for tool in page.tools}
            tools += [_tool(tool) for tool in page.tools]
            if len(tools) > MOST_TOOLS:
                raise McpFailed(f"{self._name} lists more than {MOST_TOOLS} tools")
            if not page.next_cursor or page.next_cursor == cursor:
                return tools
            cursor = page.next_cursor

    async def _answer(self, ask: Callable[[Client], Any]) -> Any:
        from mcp import MCPError
        from mcp.types import CONNECTION_CLOSED

        assert self._client is not None
        try:
            answer = await ask(self._client)
        except MCPError as error:
            if error.code == CONNECTION_CLOSED or self.has_ended:
                raise ConnectionLost(str(error)) from error
            if str(error) == _TERMINATED:
                raise ConnectionLost(str(error), not_executed=True) from error
            self.last_answer_at = asyncio.get_running_loop().time()
            raise self._refused(error) from error
        except Exception as error:  # an invalid result, or one that violates the tool's schema
            raise self._refused(error) from error
        self.last_answer_at = asyncio.get_running_loop().time()
        return answer

    def _refused(self, error: Exception) -> McpFailed:
        text = self.server.clean(self._text_of(error))
        return McpFailed(f"{self._name} answered with an error: {text}")

    def _text_of(self, error: BaseException) -> str:
        text = str(error) or type(error).__name__
        return f"HTTP status {self._status}" if self._status and text in _HIDDEN_STATUS else text

    async def _on_message(self, message: IncomingMessage) -> None:
        from mcp.types import ToolListChangedNotification

        if isinstance(message, ToolListChangedNotification):
            self._forget_catalogue()

    async def _watch(self, client: Client) -> None:
        """Subscribe to changes of tools, if the protocol needs a subscription. Without one, a missing tool causes a new
        list."""
        capabilities = client.server_capabilities
        if capabilities is None or capabilities.tools is None or not capabilities.tools.list_changed:
            return
        # Fails with an older protocol, which notifies without a subscription, and at the end of the connection.
        with suppress(Exception):
            async with client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    self._forget_catalogue()
        self._forget_catalogue()

    def _forget_catalogue(self) -> None:
        self._changes += 1
        self._catalogue = None


def _innermost(error: BaseException) -> BaseException:
    """The SDK's transports raise exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _is_refusal(error: BaseException) -> bool:
    import httpx2

    return isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)


async def _page(cursor: str | None, client: Client) -> Any:
    return await client.list_tools(cursor=cursor)


async def _no_check(name: str, result: Any) -> None:
    pass


def _tool(tool: Any) -> Tool:
    hints = tool.annotations
    repeatable = hints is not None and bool(hints.read_only_hint or hints.idempotent_hint)
    return Tool(tool.name, tool.description or tool.title or "", tool.input_schema, repeatable)

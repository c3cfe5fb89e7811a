"""The connections of this process to MCP servers: opened at first use, kept, closed after a long idle time.

Rules. One event loop on one thread serves all servers; any number of threads may send requests. A server is its entry
of mcp.json: a changed entry is another server, and the old server ends when idle. A server that died is restarted, once
per request. A request in progress at its death is repeated if that is safe: search and describe always, a call only if
the server declares its tool idempotent or read-only. Child processes die with this process.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, TypeAlias, TypeVar

from sleipnir.tools.mcp_config import McpServer, RemoteServer, StdioServer, login_needed
from sleipnir_workers.execution.execution import VisitLost
from sleipnir_workers.mcp.catalogue import Catalogue, Tool, described, not_found
from sleipnir_workers.mcp.connection import Connection
from sleipnir_workers.mcp.declarations import MOST_TOP_K, TOP_K
from sleipnir_workers.mcp.failures import ConnectionLost, McpFailed

START_S = 30.0  # a server that npx first downloads takes half of it
CALL_S = 120.0
IDLE_S = 600.0
CLOSE_S = 3.5  # a worker that stops has four seconds
TICK_S = 0.1  # the longest time until a lost visit is noticed

T = TypeVar("T")
Work: TypeAlias = Callable[[], Coroutine[Any, Any, T]]


class Connections:
    """The connections of one process. Every method blocks; they raise McpFailed, and VisitLost when `lost` is set."""

    def __init__(self, *, start_s: float = START_S, idle_s: float = IDLE_S) -> None:
        self._start_s, self._idle_s = start_s, idle_s
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self._connections: dict[McpServer, Connection] = {}  # this and the attributes below: used on the loop only
        self._all: set[Connection] = set()
        self._idle: dict[Connection, asyncio.TimerHandle] = {}

    def count_tools(self, server: McpServer) -> int:
        """The number of its tools."""
        return len(self._run(partial(self._catalogue, server), None))

    def search(
        self,
        server: McpServer,
        query: str,
        top_k: int = TOP_K,
        *,
        timeout_s: float = CALL_S,
        lost: threading.Event | None = None,
    ) -> list[dict[str, str]]:
        """The tools that match the query best, at most MOST_TOP_K."""
        work = partial(self._catalogue, server)
        catalogue = self._run(partial(self._within, timeout_s, server, "a search", work), lost)
        return catalogue.search(query, max(1, min(top_k, MOST_TOP_K)))

    def describe(
        self, server: McpServer, tool: str, *, timeout_s: float = CALL_S, lost: threading.Event | None = None
    ) -> dict[str, Any]:
        """The schema of the arguments of `mcp_invoke_<server>` for this tool."""
        work = partial(self._tool, server, tool)
        return described(self._run(partial(self._within, timeout_s, server, f"a question about '{tool}'", work), lost))

    def invoke(
        self,
        server: McpServer,
        tool: str,
        arguments: dict[str, Any],
        *,
        timeout_s: float = CALL_S,
        lost: threading.Event | None = None,
    ) -> dict[str, Any]:
        """The CallToolResult as JSON: `content`, `isError`, `structuredContent` if any; of any size."""
        work = partial(self._call, server, tool, arguments)
        return self._run(partial(self._within, timeout_s, server, f"a call of '{tool}'", work), lost)

    def close(self) -> None:
        """End every connection and every child process. Waiting callers get McpFailed. Idempotent."""
        with self._lock:
            self._closed = True
            loop, thread, self._loop = self._loop, self._thread, None
        if loop is None or thread is None:
            return
        ended = asyncio.run_coroutine_threadsafe(self._end_all(), loop)
        concurrent.futures.wait([ended], CLOSE_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(CLOSE_S)

    # From any thread to the loop

    def _run(self, work: Work[T], lost: threading.Event | None) -> T:
        with self._lock:
            loop = self._running_loop()
            future = asyncio.run_coroutine_threadsafe(work(), loop)
        while not concurrent.futures.wait([future], None if lost is None else TICK_S).done:
            if lost is not None and lost.is_set():
                future.cancel()
                raise VisitLost("the visit was lost while an MCP server was asked")
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise McpFailed("this worker is stopping") from None

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        """Requires the lock, so that `close` sees what is submitted."""
        if self._closed:
            raise McpFailed("this worker is stopping")
        if self._loop is None:
            _import_sdk()
            self._loop = asyncio.new_event_loop()
            # A daemon thread, so that a program without `close` can exit. Its children die with it (server_process.py).
            self._thread = threading.Thread(target=_serve, args=(self._loop,), name="mcp", daemon=True)
            self._thread.start()
        return self._loop

    # On the loop

    async def _within(self, timeout_s: float, server: McpServer, what: str, work: Work[T]) -> T:
        started = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(timeout_s):
                return await work()
        except TimeoutError:
            await self._retire_if_it_hangs(server, started)
            raise McpFailed(f"MCP server '{server.name}' did not answer {what} within {timeout_s:g} s") from None

    async def _catalogue(self, server: McpServer) -> Catalogue:
        return await self._with(server, lambda connection: connection.catalogue(), repeat=True)

    async def _tool(self, server: McpServer, name: str) -> Tool:
        """Raises McpFailed for a tool that is missing from a fresh list too."""
        catalogue = await self._catalogue(server)
        if (tool := catalogue.get(name)) is None:
            catalogue = await self._with(
                server, lambda connection: connection.catalogue(instead_of=catalogue), repeat=True
            )
            if (tool := catalogue.get(name)) is None:
                raise McpFailed(not_found(name, server.name))
        return tool

    async def _call(self, server: McpServer, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        tool = await self._tool(server, name)
        return await self._with(server, lambda connection: connection.call(name, arguments), repeat=tool.repeatable)

    async def _with(self, server: McpServer, ask: Callable[[Connection], Awaitable[T]], *, repeat: bool) -> T:
        """Send a request to a running server. `repeat`: if it dies, repeat the request to a new one."""
        try:
            return await self._ask(server, ask)
        except _ConnectionDied as death:
            if not (repeat or death.not_executed):
                raise McpFailed(
                    f"{_broken(server)} during the call, and whether it did what it was asked is not known"
                    f"{death.connection.why()}"
                ) from death
        try:
            return await self._ask(server, ask)
        except _ConnectionDied as death:
            raise McpFailed(f"{_broken(server)} twice{death.connection.why()}") from death

    async def _ask(self, server: McpServer, ask: Callable[[Connection], Awaitable[T]]) -> T:
        connection = self._connection(server)
        connection.users += 1
        self._cancel_idle_timer(connection)
        try:
            await connection.opened()
            return await ask(connection)
        except ConnectionLost as error:
            connection.stop()
            await connection.over()
            # A refused request ends the connection for all requests in progress; the server may have got the others.
            not_executed = error.not_executed or (connection.was_refused and connection.users == 1)
            raise _ConnectionDied(connection, not_executed=not_executed) from error
        finally:
            connection.users -= 1
            if connection.users == 0 and not connection.has_ended:
                self._start_idle_timer(connection)

    def _connection(self, server: McpServer) -> Connection:
        connection = self._connections.get(server)
        if connection is None or connection.is_ending:
            if self._closed:
                raise McpFailed("this worker is stopping")
            if isinstance(server, RemoteServer) and server.needs_login:
                raise McpFailed(login_needed(server.name))
            connection = Connection(server, start_s=self._start_s, on_over=self._drop)
            self._connections[server] = connection
            self._all.add(connection)
        return connection

    def _start_idle_timer(self, connection: Connection) -> None:
        """Start the idle time of a connection without users, or end it if it was replaced."""
        if self._connections.get(connection.server) is not connection:
            connection.stop()
        else:
            self._idle[connection] = asyncio.get_running_loop().call_later(self._idle_s, connection.stop)

    def _cancel_idle_timer(self, connection: Connection) -> None:
        if (timer := self._idle.pop(connection, None)) is not None:
            timer.cancel()

    async def _retire_if_it_hangs(self, server: McpServer, since: float) -> None:
        """Stop sending requests to a server that has not answered since then, and does not answer now. Requests in
        progress may continue."""
        connection = self._connections.get(server)
        if (
            connection is None
            or not connection.is_open
            or connection.last_answer_at >= since
            or await connection.answers()
        ):
            return
        if self._connections.get(server) is connection:
            del self._connections[server]
        self._cancel_idle_timer(connection)
        if connection.users == 0:
            connection.stop()

    def _drop(self, connection: Connection) -> None:
        self._cancel_idle_timer(connection)
        self._all.discard(connection)
        if self._connections.get(connection.server) is connection:
            del self._connections[connection.server]

    async def _end_all(self) -> None:
        live = list(self._all)
        for connection in live:
            connection.stop()
        await asyncio.gather(*(connection.over() for connection in live))


def _broken(server: McpServer) -> str:
    name = f"MCP server '{server.name}'"
    return f"{name} died" if isinstance(server, StdioServer) else f"the connection to {name} broke"


class _ConnectionDied(Exception):
    def __init__(self, connection: Connection, *, not_executed: bool) -> None:
        super().__init__(connection.server.name)
        self.connection, self.not_executed = connection, not_executed


def _import_sdk() -> None:
    """Takes half a second, so it runs outside the loop, which runs the timeouts of servers."""
    try:
        import mcp  # noqa: F401
    except ImportError as error:
        raise McpFailed(f"this worker has no MCP SDK ({error}); `pip install '.[llm]'` in a checkout") from error


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    logging.getLogger("httpx2").setLevel(logging.WARNING)  # at info it logs URLs, which may contain a secret
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

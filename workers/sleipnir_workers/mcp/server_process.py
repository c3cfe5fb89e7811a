"""An MCP server that is a child process: it is started, exchanges lines of JSON, and stops with all its children.

Rules. Its environment is a clean one (processes/sandbox.py) plus the variables of mcp.json. It leads its own process
group, which dies with this worker in every case (sleipnir.local.launch, group_guard); the process is reaped only after
its group was killed. The last lines of its stderr are kept, because they explain its death.

The SDK's own stdio transport is not used: its children outlive a killed worker, and inherit more of the environment.
All code of this module runs on one event loop.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from io import FileIO
from typing import TYPE_CHECKING, Any, cast

from sleipnir.errors import EXHAUSTED, MachineFailed
from sleipnir.local import launch
from sleipnir.tools.mcp_config import StdioServer
from sleipnir_workers.mcp.failures import McpFailed
from sleipnir_workers.processes import group_guard
from sleipnir_workers.processes.sandbox import clean_environment

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp.client._transport import TransportStreams
    from mcp.shared.message import SessionMessage

GRACE_S = 1.0  # after its stdin was closed, and again after SIGTERM; a worker has four seconds to stop
LINGER_S = 0.25  # for the last lines of stderr, if another process still has it open
POLL_S = 0.02
MESSAGE_BYTES = 64 * 2**20  # a server that writes a longer line is stopped
TAIL_LINES = 10
TAIL_CHARACTERS = 2_000
_CHUNK = 64 * 1024


class LastWords:
    """The last lines of a server's output, and how it ended if it ended by itself; for messages."""

    def __init__(self) -> None:
        self._text = ""
        self.end = ""

    def add(self, text: str) -> None:
        self._text = (self._text + text)[-2 * TAIL_CHARACTERS :]

    def __str__(self) -> str:
        lines = [line for line in self._text.splitlines() if line.strip()]
        return "\n".join(lines[-TAIL_LINES:])[-TAIL_CHARACTERS:]


class ServerProcess:
    """The process of one server."""

    def __init__(self, server: StdioServer) -> None:
        """Start it. Raises McpFailed."""
        env = {**clean_environment(os.environ), **server.env}
        _check_command(server, env)
        try:
            self._process = self._start(server, env)
        except (OSError, ValueError) as error:  # out of processes; a NUL in an argument
            if isinstance(error, OSError) and error.errno in EXHAUSTED:
                raise MachineFailed.of(error, "cannot start an MCP server") from error
            raise McpFailed(f"its command cannot be started: {error}") from error
        # Unbuffered, so they are plain files: a read returns None for "no data yet", and fails after they are closed.
        self.stdin = cast(FileIO, self._process.stdin)
        self.stdout = cast(FileIO, self._process.stdout)
        self.stderr = cast(FileIO, self._process.stderr)
        for pipe in (self.stdin, self.stdout, self.stderr):
            os.set_blocking(pipe.fileno(), False)

    def _start(self, server: StdioServer, env: dict[str, str]) -> subprocess.Popen[bytes]:
        guard = group_guard.guard
        tell_fd = guard.tell_fd()
        try:
            process = subprocess.Popen(
                launch.command([server.command, *server.args], tell_fd=tell_fd),
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=env,
                cwd=server.cwd,
                pass_fds=(tell_fd,),
                start_new_session=True,
            )
        finally:
            os.close(tell_fd)
        try:
            guard.add(process.pid)
        except OSError:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        return process

    async def stop(self, all_read: Callable[[], bool]) -> str:
        """Close its stdin, wait, send SIGTERM, wait, kill the rest of its group. Returns how it ended.

        `all_read` is true after the end of stderr.
        """
        _close(self.stdin)
        by_itself = await self._wait_for(self._has_exited, GRACE_S)
        if not by_itself:
            self._signal(signal.SIGTERM)
            await self._wait_for(self._has_exited, GRACE_S)
        self._signal(signal.SIGKILL)
        await self._wait_for(all_read, LINGER_S)
        self._reap()
        return _ended(self._process.returncode) if by_itself else "it closed its stdout and did not exit"

    def close(self) -> None:
        """Close its pipes, and kill and reap it if it was not stopped: `stop` may have been cancelled."""
        if self._process.returncode is None:
            self._signal(signal.SIGKILL)
            self._reap()
        for pipe in (self.stdin, self.stdout, self.stderr):
            _close(pipe)

    def _reap(self) -> None:
        # Dead, but not reaped yet: its process group id is not reused before this.
        os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        group_guard.guard.remove(self._process.pid)
        self._process.wait()

    async def _wait_for(self, condition: Callable[[], bool], seconds: float) -> bool:
        import anyio

        deadline = anyio.current_time() + seconds
        while not condition():
            if anyio.current_time() >= deadline:
                return False
            await anyio.sleep(POLL_S)
        return True

    def _has_exited(self) -> bool:
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None

    def _signal(self, signum: signal.Signals) -> None:
        with suppress(
            ProcessLookupError, PermissionError
        ):  # the group has ended; macOS reports EPERM for a group of zombies
            os.killpg(self._process.pid, signum)


def _close(pipe: FileIO) -> None:
    import anyio

    if not pipe.closed:
        anyio.notify_closing(pipe)  # wakes its waiters, and the loop stops watching the descriptor
        pipe.close()


def _check_command(server: StdioServer, env: dict[str, str]) -> None:
    if not server.cwd.is_dir():
        raise McpFailed(f"its directory '{server.cwd}' does not exist on this worker")
    if os.sep in server.command:
        if not os.access(server.cwd / server.command, os.X_OK):
            raise McpFailed(f"its command '{server.command}' does not exist on this worker, or cannot be executed")
    elif shutil.which(server.command, path=env.get("PATH", os.defpath)) is None:
        raise McpFailed(f"its command '{server.command}' was not found on the PATH of this worker")


def _ended(code: int) -> str:
    if code >= 0:
        return f"it exited with code {code}"
    return f"it was killed by signal {-code}"


@asynccontextmanager
async def child_transport(
    server: StdioServer, words: LastWords, on_end: Callable[[], None]
) -> AsyncIterator[TransportStreams]:
    """Start a server, and yield its streams in the form of the SDK's Client. On exit the server is stopped.

    `on_end` is called at the end of its output. Raises McpFailed if it cannot be started.
    """
    import anyio

    child = ServerProcess(server)
    to_client, from_server = anyio.create_memory_object_stream[Any](0)
    to_server, from_client = anyio.create_memory_object_stream[Any](0)
    stdout_ended, stderr_ended = anyio.Event(), anyio.Event()

    async def keep_stderr() -> None:
        while chunk := await _read(child.stderr):
            words.add(chunk.decode(errors="replace"))
        stderr_ended.set()

    async def receive() -> None:
        await _receive(child, to_client, words)
        stdout_ended.set()
        on_end()

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(keep_stderr)
            tasks.start_soon(receive)
            tasks.start_soon(_send, child, from_client)
            try:
                yield from_server, to_server
            finally:
                with anyio.CancelScope(shield=True):
                    from_server.close()
                    to_server.close()
                    was_over = stdout_ended.is_set()
                    end = await child.stop(stderr_ended.is_set)
                    words.end = words.end or (end if was_over else "")
                tasks.cancel_scope.cancel()
    finally:
        child.close()
        for stream in (to_client, from_server, to_server, from_client):
            stream.close()


async def _receive(child: ServerProcess, to_client: MemoryObjectSendStream[Any], words: LastWords) -> None:
    """Pass on the server's messages until its stdout ends. Without a listener reading continues: else the server could
    not exit."""
    import anyio

    lines = _Lines()
    async with to_client:
        while chunk := await _read(child.stdout):
            for line in lines.add(chunk):
                if (message := _parsed(line)) is None:
                    words.add(line.decode(errors="replace") + "\n")  # a banner, or stray output
                    continue
                with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                    await to_client.send(message)
            if lines.is_too_long:
                words.end = f"it wrote a message of more than {MESSAGE_BYTES} bytes"
                return


async def _send(child: ServerProcess, from_client: MemoryObjectReceiveStream[Any]) -> None:
    import anyio

    async with from_client:
        async for message in from_client:
            text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            try:
                await _write(child.stdin, text.encode() + b"\n")
            except (
                OSError,
                ValueError,
                anyio.ClosedResourceError,
            ):  # it has exited or is being stopped; the end of its stdout gives the reason
                return


class _Lines:
    """Splits bytes into lines."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def add(self, chunk: bytes) -> Iterator[bytes]:
        start = len(self._rest)
        self._rest += chunk
        while (end := self._rest.find(b"\n", start)) >= 0:
            line = bytes(self._rest[:end])
            del self._rest[: end + 1]
            start = 0
            yield line

    @property
    def is_too_long(self) -> bool:
        return len(self._rest) > MESSAGE_BYTES


def _parsed(line: bytes) -> SessionMessage | None:
    from mcp.shared.message import SessionMessage
    from mcp.types import jsonrpc_message_adapter

    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError:
        return None


async def _read(pipe: FileIO) -> bytes:
    """The available bytes, at least one; empty at the end."""
    import anyio

    while (chunk := pipe.read(_CHUNK)) is None:
        await anyio.wait_readable(pipe)
    return chunk


async def _write(pipe: FileIO, data: bytes) -> None:
    """Raises OSError if the other end is closed, ValueError if this end is."""
    import anyio

    left = memoryview(data)
    while left:
        if (written := pipe.write(left)) is None:
            await anyio.wait_writable(pipe)
        else:
            left = left[written:]

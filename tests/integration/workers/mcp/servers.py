"""MCP servers for tests: child processes of two kinds, and one on a loopback port."""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sleipnir.tools.mcp_config import RemoteServer, StdioServer

HERE = Path(__file__).parent


def lab_on_stdio(name: str = "lab") -> StdioServer:
    """lab_server.py, written with the SDK."""
    return StdioServer(name, command=sys.executable, cwd=HERE, args=("lab_server.py",), env={"GIVEN": "yes"})


def plain(fault: str = "none", name: str = "plain") -> StdioServer:
    """plain_server.py, written without, which starts sooner."""
    return StdioServer(name, command=sys.executable, cwd=HERE, args=("-I", "-S", "plain_server.py", fault))


@contextmanager
def lab_on_http(port: int = 0, *, sse: bool = False, many: int = 0) -> Iterator[RemoteServer]:
    """The server of lab_server.py, served by this process on a loopback port."""
    import uvicorn

    from tests.integration.workers.mcp.lab_server import lab

    listening = socket.create_server(("127.0.0.1", port))
    app = lab(many).sse_app() if sse else lab(many).streamable_http_app()
    config = uvicorn.Config(app, log_config=None, lifespan="on", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{listening.getsockname()[1]}"
    try:
        yield RemoteServer("web", url=f"{address}/sse" if sse else f"{address}/mcp", transport="sse" if sse else "http")
    finally:
        server.force_exit = server.should_exit = True
        thread.join(10)
        listening.close()


def write_mcp_json(folder: Path) -> None:
    """A configuration directory with an MCP server."""
    args = ["-I", "-S", "plain_server.py", "none"]
    server = {"command": sys.executable, "args": args, "cwd": str(HERE)}
    (folder / "functions").mkdir(parents=True)
    (folder / "functions" / "mcp.json").write_text(json.dumps({"mcpServers": {"plain": server}}))

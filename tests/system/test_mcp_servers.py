"""MCP servers of real workers end with them: asked to where the worker is told to stop, killed where it is killed."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.integration.workers.mcp.servers import HERE
from tests.processes import RedisServer, Stack, wait_until, write_agent
from tests.waiting import is_running

GRAPH = """
name: served
start: a
nodes:
  a: {{type: function, call: "f.py:f", queue: {queue}, next: done}}
  done: {{type: end, output: "{{{{pids}}}}"}}
"""
# A function runs in the process that holds the connections.
F_PY = """
import sys
from pathlib import Path
from sleipnir.tools.mcp_config import StdioServer
from sleipnir_workers import mcp

here, told = Path({here!r}), {told!r}
plain = ("-I", "-S", "plain_server.py", "none")
server = StdioServer("s", command=sys.executable, cwd=here, args=plain, env={{"ENDED": told}})


def f(state):
    ask = mcp.process_connections().invoke
    return {{"pids": [int(ask(server, tool, {{}})["content"][0]["text"]) for tool in ("stderr", "spawn")]}}
"""
WORKERS = {
    "threads": ("threads", signal.SIGTERM),
    "solo": ("solo", signal.SIGTERM),
    "prefork": ("prefork", signal.SIGTERM),
    "killed": ("prefork", signal.SIGKILL),
}


@pytest.mark.conformance("X17")
def test_servers_and_all_they_started_end_with_their_worker(redis_server: RedisServer, tmp_path: Path) -> None:
    """A worker of each pool, all at once."""
    with Stack(redis_server, tmp_path / "home", key_prefix="served") as stack, stack.client() as client:
        stack.start_scheduler()
        runs = {}
        for name, (pool, _) in WORKERS.items():
            stack.start_worker(name, name, pool=pool, concurrency=1, ready=False)
            code = F_PY.format(here=str(HERE), told=str(tmp_path / f"{name}.ended"))
            runs[name] = client.submit(write_agent(tmp_path / name, GRAPH.format(queue=name), f_py=code))
        for name, run in runs.items():
            assert run.wait(60).status == "completed", (name, run.info().error)
        pids = {name: run.state()["pids"] for name, run in runs.items()}
        assert all(is_running(pid) for both in pids.values() for pid in both)
        for name, (_, signum) in WORKERS.items():
            stack.signal(name, signum)
        codes = {name: stack.processes[name].wait(60) for name in WORKERS}
        assert codes == {name: -signum if signum == signal.SIGKILL else 0 for name, (_, signum) in WORKERS.items()}
        for name, both in pids.items():
            wait_until(lambda both=both: not any(map(is_running, both)), f"nothing of {name}'s is left")  # type: ignore[misc]
    asked = {name for name in WORKERS if (tmp_path / f"{name}.ended").exists()}
    assert asked >= {"threads", "solo", "prefork"}, "their stdin was closed, as the protocol has it"

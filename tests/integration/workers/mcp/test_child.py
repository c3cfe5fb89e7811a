"""The process of an MCP server: its lines, its last words, and that it never outlives whoever started it."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from sleipnir.tools.mcp_config import StdioServer
from sleipnir_workers.mcp import server_process
from sleipnir_workers.mcp.failures import McpFailed
from sleipnir_workers.mcp.server_process import TAIL_CHARACTERS, LastWords, child_transport
from tests.integration.workers.mcp.servers import HERE, plain
from tests.waiting import wait_until


def python(code: str) -> StdioServer:
    return StdioServer("s", command=sys.executable, cwd=HERE, args=("-I", "-S", "-c", code))


async def words_of(code: str) -> LastWords:
    """Wait until a server of this code says no more, and end it."""
    words, ended = LastWords(), asyncio.Event()
    async with child_transport(python(code), words, ended.set):
        await ended.wait()
    return words


def test_lines_are_split_regardless_of_how_the_bytes_arrive() -> None:
    lines = server_process._Lines()
    chunks = [b"a", b"b\nc\n", b"\nd\xc3", b"\xb6\n"]
    assert [line for chunk in chunks for line in lines.add(chunk)] == [b"ab", b"c", b"", "dö".encode()]
    assert not lines.is_too_long


def test_the_last_words_are_ten_lines_at_most_and_not_long_ones() -> None:
    words = LastWords()
    for number in range(1000):
        words.add(f"line {number}\n\n")
    assert str(words) == "\n".join(f"line {number}" for number in range(990, 1000))
    words.add("x" * 100_000)
    assert len(str(words)) == TAIL_CHARACTERS


@pytest.mark.parametrize(
    ("code", "end"),
    [
        ("raise SystemExit(4)", "it exited with code 4"),
        ("import os; os.kill(os.getpid(), 9)", "it was killed by signal 9"),
        ("import os, signal; os.close(1); signal.pause()", "it closed its stdout and did not exit"),
    ],
)
def test_the_way_in_which_a_server_ended_is_reported(code: str, end: str) -> None:
    assert asyncio.run(words_of(code)).end == end


def test_a_message_without_an_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_process, "MESSAGE_BYTES", 100_000)
    words = asyncio.run(words_of("import sys\nwhile True: sys.stdout.write('x' * 65536)"))
    assert words.end == "it wrote a message of more than 100000 bytes"


def test_what_a_server_prints_on_stdout_is_among_its_last_words() -> None:
    assert str(asyncio.run(words_of("print('Traceback: no such module')"))) == "Traceback: no such module"


def test_a_server_whose_end_is_not_awaited_is_killed_too() -> None:
    async def cancelled_twice() -> int:
        started, others = asyncio.Event(), plain_servers()

        async def live() -> None:
            async with child_transport(plain("stays"), LastWords(), lambda: None):
                started.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(live())
        await asyncio.wait({task, asyncio.create_task(started.wait())}, return_when=asyncio.FIRST_COMPLETED)
        assert not task.done(), task
        [pid] = wait_until(lambda: plain_servers() - others, "its process has begun")  # it may have forked only
        task.cancel()
        await asyncio.sleep(0)
        while not task.done():
            task.cancel()
            await asyncio.sleep(0)
        return pid

    assert not Path(f"/proc/{asyncio.run(cancelled_twice())}").exists()


def plain_servers() -> set[int]:
    """The processes of plain_server.py that this one has started."""
    return {int(entry.name) for entry in Path("/proc").iterdir() if is_plain_server(entry)}


def is_plain_server(process: Path) -> bool:
    try:
        parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
        return (
            parent == int(Path("/proc/self").readlink().name)
            and b"plain_server.py" in (process / "cmdline").read_bytes()
        )
    except (OSError, ValueError, IndexError):
        return False


def test_a_server_that_cannot_be_started_leaves_nothing_behind() -> None:
    async def start() -> None:
        async with child_transport(StdioServer("s", command="no-such-command", cwd=HERE), LastWords(), lambda: None):
            raise AssertionError("it cannot be started")

    with pytest.raises(McpFailed, match="was not found on the PATH"):
        asyncio.run(start())

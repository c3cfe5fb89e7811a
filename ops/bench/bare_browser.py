"""Chromium with as little around it as possible: its memory is that of its pages.

Playwright keeps the answers to all requests of a page, in the memory of the page. Here nothing listens to what a page
does: a few commands of the DevTools protocol go over a pipe, as lines of JSON that end with a zero byte.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from ops.bench.figures import BenchFailed
from sleipnir.local import launch
from tests.browser.browsers import browser_path
from tests.waiting import wait_until

AS_3_AND_4 = """
import fcntl, os, sys
given = [fcntl.fcntl(int(each), fcntl.F_DUPFD, 10) for each in sys.argv[1:3]]
for number, wanted in zip(given, (3, 4)):
    os.dup2(number, wanted)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""The browser reads commands from 3, and writes to 4."""
PATIENCE_S = 60.0
LOADED = "document.readyState === 'complete' && performance.getEntriesByType('navigation')[0].loadEventEnd > 0"
OPTIONS = ("--headless", "--no-sandbox", "--no-first-run", "--remote-debugging-pipe", "--window-size=1440,900")


class BareBrowser:
    """A running one."""

    def __init__(self, commands: IO[bytes], replies: IO[bytes]) -> None:
        self._commands, self._replies, self._number, self._rest = commands, replies, 0, b""
        self._sessions: dict[str, str] = {}

    def open(self, url: str, cookie: tuple[str, str]) -> str:
        """A page in a window of its own, which has this cookie; its id."""
        context = self.send("Target.createBrowserContext")["browserContextId"]
        name, value = cookie
        self.send("Storage.setCookies", cookies=[{"name": name, "value": value, "url": url}], browserContextId=context)
        return str(self.send("Target.createTarget", url=url, browserContextId=context)["targetId"])

    def go_to(self, page: str, url: str) -> None:
        """Load another page there, to its end."""
        self.send("Page.navigate", page, url=url)
        wait_until(lambda: self.evaluate(page, LOADED), f"{url} is loaded", PATIENCE_S)

    def send(self, method: str, page: str | None = None, **parameters: Any) -> Any:
        """One command, to the browser or to a page, and its result."""
        session = {} if page is None else {"sessionId": self._session(page)}
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters, **session}
        self._commands.write(json.dumps(message).encode() + b"\0")
        self._commands.flush()
        while (reply := self._reply()).get("id") != message["id"]:
            pass  # an event
        if "error" in reply:
            raise BenchFailed(f"{method}: {reply['error']['message']}")
        return reply["result"]

    def evaluate(self, page: str, expression: str) -> Any:
        """What a page says to an expression in JavaScript."""
        reply = self.send("Runtime.evaluate", page, expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in reply:
            raise BenchFailed(f"the page failed: {reply['exceptionDetails']['text']}")
        return reply["result"].get("value")

    def renderers(self) -> list[int]:
        """The processes that draw pages."""
        processes = self.send("SystemInfo.getProcessInfo")["processInfo"]
        return [each["id"] for each in processes if each["type"] == "renderer"]

    def _session(self, page: str) -> str:
        if page not in self._sessions:
            self._sessions[page] = self.send("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        return self._sessions[page]

    def _reply(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            if not (more := os.read(self._replies.fileno(), 65_536)):
                raise BenchFailed("the browser has ended")
            self._rest += more
        text, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(text)
        return found


@contextmanager
def bare_browser() -> Iterator[BareBrowser]:
    """A browser, which ends with the block."""
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        command = [sys.executable, "-I", "-c", AS_3_AND_4, str(theirs_in), str(theirs_out), browser_path(), *OPTIONS]
        process = subprocess.Popen(
            launch.command([*command, f"--user-data-dir={folder}", "about:blank"]),
            pass_fds=(theirs_in, theirs_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            with os.fdopen(ours_out, "wb") as commands, os.fdopen(ours_in, "rb", buffering=0) as replies:
                yield BareBrowser(commands, replies)
        finally:
            process.terminate()
            process.wait()

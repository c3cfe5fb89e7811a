"""Pages of the console among very many runs: first byte, first paint in Chromium, memory.

    python -m ops.bench.console_pages [--runs 1000000] [--open 200] [--events 28800]

Runs are written directly, as `ops.bench.run_lists` does. One server answers. `--open` pages are held open for
OPEN_S: each follows the events of a run and asks for its page again as a browser does. `--events` are those of eight
hours at one a second: they are written to the stream of one run as fast as a page in Chromium takes them, with as many
pieces of text. Exits with 1 if a figure is above its limit.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import sync_playwright

from ops.bench.run_lists import fill
from sleipnir.access.records import EVERY
from sleipnir.client.client import Client
from sleipnir.store.connect import connect
from sleipnir.store.store import Store
from sleipnir_workers.visits.live import LiveText
from tests.browser.browsers import browser_path
from tests.console import console_of
from tests.processes import RedisServer, Stack, write_agent
from tests.waiting import wait_until

ASKING = """
name: asking
version: sleipnir/1
start: sure
nodes:
  sure: {type: approval, question: 'sure?', options: ['yes'], routes: {'yes': done}, on_other: done}
  done: {type: end}
"""
PAGES: Final = (
    "/", "/runs", "/runs?status=failed", "/runs?agent=agent0", "/runs?tag=customer%3Dc77", "/runs?text=writing+of+c",
    "/runs/@", "/runs/@?tab=events", "/runs/@?tab=state", "/inbox/role", "/inbox/all", "/agents", "/agents/asking",
    "/agents/asking?tab=versions", "/playground/asking", "/playground/asking/one", "/schedules", "/fleet", "/audit",
    "/users", "/me", "/menu", "/failures", "/batches",
)  # fmt: skip
"""`@` is a run that waits for a person. A page that this release does not have is left out, and named."""
CALLS: Final = 9
OPEN_S: Final = 30.0
POLL_S: Final = 3.0
MOST_BYTE_MS, MOST_PAINT_MS, MOST_SERVER_MB, MOST_PAGE_MB = 300.0, 1_000.0, 300.0, 150.0
PASSWORD: Final = "correct horse battery"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--open", type=int, default=200)
    parser.add_argument("--events", type=int, default=28_800)
    asked = parser.parse_args()
    server = RedisServer()
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            Stack(server, Path(folder), key_prefix="pages", log_level="info") as stack,
        ):
            return measure(stack, Path(folder), asked.runs, asked.open, asked.events)
    finally:
        server.stop()


def measure(stack: Stack, folder: Path, runs: int, open_pages: int, events: int) -> int:
    """All figures, printed; the number of them that are too high, at most 1."""
    agent = write_agent(folder / "agents" / "asking", ASKING)
    with Store.open(stack.settings) as store, stack.client() as client:
        fill(store, runs)
        stack.start_scheduler()
        asking = [client.submit(agent).id for _ in range(open_pages)]
        wait_until(lambda: client.gate_count() >= open_pages, "they ask", 120)
        client.access.add_user("admin", PASSWORD, {EVERY: "admin"})
        token = client.access.create_token("admin").text
        with console_of(stack) as console:
            url, pid = f"http://127.0.0.1:{console.port}", stack.processes[console.name].pid
            pages = [path.replace("@", asking[0]) for path in PAGES]
            known = [path for path in pages if _status(url, path, token) == 200]
            if missing := [path for path in pages if path not in known]:
                tell(f"not there: {', '.join(missing)}")
            bytes_ms = first_bytes(url, known, token)
            paints_ms = first_paints(url, known, client)
            for path in known:
                print(f"{path:40} first byte {bytes_ms[path]:6.0f} ms, first paint {paints_ms[path]:6.0f} ms")
            server_mb = asyncio.run(held_open(url, asking, token, pid))
            page_mb = long_open(url, client, asking[0], events)
    print(
        f"{open_pages} open pages: the server has {server_mb:.0f} MB; a page after {events:,} events: {page_mb:.0f} MB"
    )
    worst = max(bytes_ms.values()), max(paints_ms.values())
    is_over = worst[0] > MOST_BYTE_MS or worst[1] > MOST_PAINT_MS
    return int(is_over or server_mb > MOST_SERVER_MB or page_mb > MOST_PAGE_MB)


def _status(url: str, path: str, token: str) -> int:
    try:
        return int(_open(url, path, token).status)
    except urllib.error.HTTPError as error:
        return int(error.code)


def _open(url: str, path: str, token: str) -> Any:
    headers = {"Authorization": f"Bearer {token}", "Accept": "text/html"}
    return urllib.request.urlopen(urllib.request.Request(url + path, headers=headers), timeout=60)


def first_bytes(url: str, paths: Sequence[str], token: str) -> dict[str, float]:
    """Milliseconds from a request on a new connection to the first byte of the body: the median."""
    found: dict[str, float] = {}
    for path in paths:
        times = []
        for _ in range(CALLS):
            began_s = time.perf_counter()
            with _open(url, path, token) as response:
                response.read(1)
                times.append((time.perf_counter() - began_s) * 1000)
        found[path] = statistics.median(times)
    return found


def first_paints(url: str, paths: Sequence[str], client: Client) -> dict[str, float]:
    """Milliseconds from the navigation to the first paint of content, of a browser that has the static files."""
    found: dict[str, float] = {}
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=browser_path(), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        _log_in(page, url)
        for path in paths:
            times = []
            for _ in range(3):
                page.goto(url + path)
                page.wait_for_function("performance.getEntriesByName('first-contentful-paint').length")
                times.append(page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
            found[path] = statistics.median(times)
        browser.close()
    return found


def _log_in(page: Any, url: str) -> None:
    page.goto(f"{url}/login")
    page.get_by_label("User").fill("admin")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url(f"{url}/**")


async def held_open(url: str, runs: Sequence[str], token: str, pid: int) -> float:
    """The most memory of the server in MB while each run has an open page."""
    host, port = url.removeprefix("http://").split(":")
    most = rss_mb(pid)
    tasks = [asyncio.create_task(_one_page(host, int(port), run, token)) for run in runs]
    end_s = time.monotonic() + OPEN_S
    while time.monotonic() < end_s:
        await asyncio.sleep(0.5)
        most = max(most, rss_mb(pid))
    for task in tasks:
        task.cancel()
    broken = [each for each in await asyncio.gather(*tasks, return_exceptions=True) if isinstance(each, OSError)]
    if broken:
        raise SystemExit(f"{len(broken)} of {len(runs)} pages were cut off: {broken[0]}")
    return most


async def _one_page(host: str, port: int, run: str, token: str) -> None:
    """What a browser asks for that has the page of a run open."""
    reader, writer = await asyncio.open_connection(host, port)
    path = f"/api/v1/runs/{run}/events?mode=updates&mode=events&mode=messages"
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
    await writer.drain()
    listening = asyncio.create_task(_drain(reader))
    try:
        while not listening.done():
            own, sent = await asyncio.open_connection(host, port)
            head = f"GET /runs/{run} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n"
            sent.write(f"{head}Accept: text/html\r\nHX-Request: true\r\nConnection: close\r\n\r\n".encode())
            if b" 200 " not in await own.readline():
                raise OSError("the page of a run was not answered")
            await _drain(own)
            sent.close()
            await asyncio.sleep(POLL_S)
        raise OSError("the events of a run were cut off")
    finally:
        listening.cancel()
        writer.close()


async def _drain(reader: asyncio.StreamReader) -> None:
    while await reader.read(65_536):
        pass


def rss_mb(pid: int) -> float:
    """The resident memory of a process in MB."""
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmRSS")) / 1000


def long_open(url: str, client: Client, run: str, events: int) -> float:
    """The memory of a page in MB, its heap after a collection, when so many events and pieces of text came to it."""
    redis = connect(client.settings.redis_url or "")
    stream = client.store.keys.of_run(run).events
    [gate] = client.run(run).gates()
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=browser_path(), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        _log_in(page, url)
        page.goto(f"{url}/runs/{run}")
        session = page.context.new_cdp_session(page)
        with LiveText(client.store).open(run, gate.node, gate.seq, gate.attempt) as writer:
            for number in range(events):
                data = {"seq": gate.seq, "node": gate.node, "attempt": 1, "number": number}
                redis.xadd(stream, {"e": json.dumps([["visit_opened", data]])}, maxlen=1_000, approximate=True)
                writer.write(f"word {number} ")
                if number % 200 == 0:
                    page.evaluate("1")  # the page is alive
        page.wait_for_function(f"document.querySelector('#written pre').textContent.includes('{events - 1} ')")
        session.send("HeapProfiler.collectGarbage")
        used = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]} if (
            session.send("Performance.enable") is not None
        ) else {}  # fmt: skip
        tell(f"nodes {used['Nodes']:,.0f}, listeners {used['JSEventListeners']:,.0f}")
        browser.close()
    redis.close()
    return float(used["JSHeapUsedSize"]) / 1e6


def tell(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

"""Pages of the console among very many runs: first byte, first paint in Chromium, memory of a page and of the server.

The runs are written directly, as `ops.bench.run_lists` does. Beside them are real ones: some that ask a person, wide
ones of 5,003 visits, and one that goes on for as long as it is looked at. One server answers, for a user who is logged
in. First bytes and paints of all pages are measured while nothing else works on the machine.

A page that was open for eight hours is one that got the events of eight hours at EVENTS_PER_S: a run makes as many real
visits as that takes, faster, with a piece of text for each event. Two pages in Chromium follow it.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ops.bench.bare_browser import BareBrowser, bare_browser
from ops.bench.engine import Stack, finish, stack, write_agent
from ops.bench.figures import BenchFailed, NotMeasured, Values
from ops.bench.http_api import ASKING, console
from ops.bench.run_lists import fill
from sleipnir.access.records import EVERY
from sleipnir.client.client import Run
from sleipnir_console.authentication import COOKIE
from tests.browser.browsers import BROWSERS, browser_path
from tests.waiting import wait_until

PAGES: Final = (
    "/", "/runs", "/runs?status=failed", "/runs?agent=agent0", "/runs?tag=customer%3Dc77", "/runs?text=writing+of+c",
    "/runs/@asking", "/runs/@asking?tab=events", "/runs/@asking?tab=state", "/inbox/mine", "/inbox/role", "/inbox/all",
    "/inbox/overdue", "/decisions/@asking/@gate", "/batches", "/batches/@batch", "/batches/@batch?state=failed",
    "/failures", "/agents", "/agents/asking", "/agents/asking?tab=source", "/agents/asking?tab=versions",
    "/playground/asking", "/threads", "/threads?agent=agent0", "/jobs", "/new-job?action=cancel&run=@asking",
    "/new-job?action=retry&all=true&agent=agent0", "/new-job?action=cancel&all=true", "/schedules", "/webhooks",
    "/incoming", "/fleet", "/incident",
    "/audit", "/users", "/me", "/menu",
)  # fmt: skip
"""`@name` is a run, a batch or a question of the scene."""
WIDE_PAGES: Final = ("/runs/@wide", "/runs/@wide?tab=events", "/runs/@wide?tab=state", "/runs/@wide?visit=2500")
ROWS, ITEMS, WIDE_RUNS = 500, 5_000, 3
QUESTIONS = 3_000
"""Open questions in the inbox."""
CALLS, PAINTS = 7, 3
OPEN_PAGES, OPEN_S, POLL_S = 200, 30.0, 3.0
HOURS_S, EVENTS_PER_S, EVENTS_PER_VISIT = 8 * 3600, 1, 3
PAUSE_S = 0.005
LOOK_S = 0.2
PATIENCE_S = 600.0
PASSWORD: Final = "correct horse battery"

WIDE = """
name: wide
start: list
nodes:
  list: {type: function, call: "steps.py:items", next: each}
  each: {type: map, for_each: "{{items}}", as: item, node: work, collect: results, max_parallel: 100, next: done}
  work: {type: function, call: "steps.py:work"}
  done: {type: end, output: "ok"}
"""
STEPS = f"""
def items(state):
    return {{"items": list(range({ITEMS}))}}


def work(state):
    return {{"result": 1}}
"""
LONG = """
name: long
start: again
settings: {max_loop_iterations: 1000000}
nodes:
  again: {type: function, call: 'loop.py:again', next: done}
  done: {type: end}
"""
LOOP = f"""
import time


def again(state):
    time.sleep({PAUSE_S})
    count = state.get("count", 0) + 1
    return {{"count": count, "_next": "again" if count < int(state["initial_prompt"]) else "done"}}
"""


@dataclass(frozen=True)
class Server:
    """The server, and how a user is known to it."""

    url: str
    pid: int
    token: str
    cookie: tuple[str, str]


def measure(runs: int) -> Values:
    """All figures, with `runs` runs in Redis."""
    _check_installed()
    with stack(workers=2) as engine, ExitStack() as opened:
        agents = {
            "asking": write_agent(engine.home / "asking", ASKING),
            "wide": write_agent(engine.home / "wide", WIDE, "steps.py", STEPS),
            "long": write_agent(engine.home / "long", LONG, "loop.py", LOOP),
        }
        began_s = time.monotonic()
        fill(engine.client.settings, runs)
        names, asking, wide = _scene(engine, agents)
        tell(f"{runs:,} runs and the scene are there after {time.monotonic() - began_s:.0f} s")
        engine.client.access.add_user("admin", PASSWORD, {EVERY: "admin"})
        token = engine.client.access.create_token("admin").text
        login = engine.client.access.log_in("admin", PASSWORD, "127.0.0.1", by="the bench")
        port, pid = opened.enter_context(console(engine))
        server = Server(f"http://127.0.0.1:{port}", pid, token, (COOKIE, login.cookie))
        return {
            "console_runs": runs,
            **pages(server, {**names, "@wide": wide[-1].id}),
            **opening(server, wide[:-1]),
            **held_open(server, [run.id for run in asking[:OPEN_PAGES]]),
            **followed(engine, server, agents["long"]),
        }


def _check_installed() -> None:
    try:
        browser_path()
    except AssertionError:
        raise NotMeasured(f"none of {', '.join(BROWSERS)} is on PATH") from None


def _scene(engine: Stack, agents: dict[str, Path]) -> tuple[dict[str, str], list[Run], list[Run]]:
    """What the pages are about: ids by name, the runs that ask, and the wide ones."""
    client = engine.client
    asking = [client.submit(agents["asking"], f"order {number}") for number in range(QUESTIONS)]
    batch = client.batch(agents["asking"], ({"prompt": f"row {row}"} for row in range(ROWS)))
    wide = [client.submit(agents["wide"]) for _ in range(WIDE_RUNS + 1)]
    wait_until(lambda: client.gate_count() >= QUESTIONS, "they ask", PATIENCE_S)
    finish(wide, client)
    [gate] = asking[0].gates()
    return {"@asking": asking[0].id, "@gate": f"{gate.seq}.{gate.attempt}", "@batch": batch.id}, asking, wide


# Time


def opening(server: Server, wide: Sequence[Run]) -> Values:
    """Runs of 5,003 visits, which the server has not read yet: until the page is loaded, and its first byte."""
    with bare_browser() as browser:
        page = browser.open(f"{server.url}/menu", server.cookie)
        times = [_opened_ms(browser, page, f"{server.url}/runs/{run.id}") for run in wide]
        again = [_opened_ms(browser, page, f"{server.url}/runs/{run.id}") for run in wide]
    return {
        "console_long_run_ms": max(load for _, load in times),
        "console_long_run_byte_ms": max(byte for byte, _ in times),
        "console_long_run_again_ms": max(load for _, load in again),
    }


def _opened_ms(browser: BareBrowser, page: str, url: str) -> tuple[float, float]:
    """First byte, and the end of loading."""
    browser.go_to(page, url)
    timing = browser.evaluate(page, "performance.getEntriesByType('navigation')[0].toJSON()")
    return timing["responseStart"], timing["loadEventEnd"]


def pages(server: Server, names: dict[str, str]) -> Values:
    """Of the slowest page."""
    paths = [_path_of(path, names) for path in (*PAGES, *WIDE_PAGES)]
    bytes_ms = first_bytes(server, paths)
    paints_ms = first_paints(server, paths)
    for path in sorted(paths, key=lambda path: -bytes_ms[path]):
        tell(f"{path:56} first byte {bytes_ms[path]:6.0f} ms, first paint {paints_ms[path]:6.0f} ms")
    return {
        "console_pages": len(paths),
        "console_byte_ms": max(bytes_ms.values()),
        "console_byte_median_ms": statistics.median(bytes_ms.values()),
        "console_paint_ms": max(paints_ms.values()),
        "console_paint_median_ms": statistics.median(paints_ms.values()),
    }


def _path_of(path: str, names: dict[str, str]) -> str:
    for name, value in names.items():
        path = path.replace(name, value)
    return path


def first_bytes(server: Server, paths: Sequence[str]) -> dict[str, float]:
    """Milliseconds from a request on a new connection to the first byte of the body: the median."""
    found: dict[str, float] = {}
    for path in paths:
        times = []
        for _ in range(CALLS):
            began_s = time.perf_counter()
            with closing(_asked(server, path)) as response:
                response.read(1)
                times.append((time.perf_counter() - began_s) * 1000)
        found[path] = statistics.median(times)
    return found


def _asked(server: Server, path: str) -> Any:
    headers = {"Authorization": f"Bearer {server.token}", "Accept": "text/html"}
    try:
        return urllib.request.urlopen(urllib.request.Request(server.url + path, headers=headers), timeout=60)
    except urllib.error.HTTPError as error:
        raise BenchFailed(f"{path} was answered with {error.code}") from None


def first_paints(server: Server, paths: Sequence[str]) -> dict[str, float]:
    """Milliseconds from the navigation to the first paint of content, of a browser that has the static files."""
    found: dict[str, float] = {}
    with bare_browser() as browser:
        page = browser.open(f"{server.url}/menu", server.cookie)
        for path in paths:
            times = []
            for _ in range(PAINTS):
                browser.go_to(page, server.url + path)
                times.append(browser.evaluate(page, PAINTED))
            found[path] = statistics.median(times)
    return found


PAINTED: Final = """new Promise(done => new PerformanceObserver(list => {
    const [paint] = list.getEntriesByName('first-contentful-paint');
    if (paint) done(paint.startTime);
}).observe({ type: 'paint', buffered: true }))"""


# Memory of the server


def held_open(server: Server, runs: Sequence[str]) -> Values:
    """The most memory of the server while each run has an open page: its events, and the page again every POLL_S."""
    before, (most, asked) = memory_mb(server.pid, "VmRSS"), asyncio.run(_held_open(server, runs))
    return {
        "console_server_mb": most,
        "console_server_growth_mb": most - before,
        "console_open_asked_per_s": asked / OPEN_S,
    }


async def _held_open(server: Server, runs: Sequence[str]) -> tuple[float, int]:
    host, port = server.url.removeprefix("http://").split(":")
    answered, most = [0], 0.0
    tasks = [asyncio.create_task(_one_page(host, int(port), run, server.token, answered)) for run in runs]
    end_s = time.monotonic() + OPEN_S
    while time.monotonic() < end_s:
        await asyncio.sleep(0.5)
        most = max(most, memory_mb(server.pid, "VmRSS"))
    for task in tasks:
        task.cancel()
    broken = [each for each in await asyncio.gather(*tasks, return_exceptions=True) if isinstance(each, OSError)]
    if broken:
        raise BenchFailed(f"{len(broken)} of {len(runs)} pages were cut off: {broken[0]}")
    return most, answered[0]


async def _one_page(host: str, port: int, run: str, token: str, answered: list[int]) -> None:
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
            answered[0] += 1
            await asyncio.sleep(POLL_S)
        raise OSError("the events of a run were cut off")
    finally:
        listening.cancel()
        writer.close()


async def _drain(reader: asyncio.StreamReader) -> None:
    while await reader.read(65_536):
        pass


def memory_mb(pid: int, kind: str) -> float:
    """The memory of a process in MB: `VmRSS` is all that is resident, `RssAnon` what is its own."""
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith(kind)) / 1000


# Memory of a page


def followed(engine: Stack, server: Server, agent: Path) -> Values:
    """Two pages of a run, its timeline and its events, while it makes the visits of eight hours."""
    from sleipnir_workers.visits.live import LiveText

    visits = HOURS_S * EVENTS_PER_S // EVENTS_PER_VISIT
    live = LiveText(engine.client.store)
    run = engine.client.submit(agent, str(visits))
    wait_until(lambda: run.info().step > 0, "it goes on", PATIENCE_S)
    with bare_browser() as browser:
        urls = [f"{server.url}/runs/{run.id}?tab={tab}" for tab in ("timeline", "events")]
        open_pages = [browser.open(url, server.cookie) for url in urls]
        first_mb, half_mb, most_mb, at, told_s = 0.0, 0.0, 0.0, 0, time.monotonic()
        while not (info := run.info()).is_final:
            if info.step > at:
                with live.open(run.id, "again", info.step, 1) as writer:
                    for number in range(at * EVENTS_PER_VISIT, info.step * EVENTS_PER_VISIT):
                        writer.write(f"word {number} ")
                at = info.step
            now_mb = max(memory_mb(pid, "RssAnon") for pid in browser.renderers())
            most_mb = max(most_mb, now_mb)
            first_mb = first_mb or (most_mb if at >= visits // 10 else 0.0)
            half_mb = half_mb or (most_mb if at >= visits // 2 else 0.0)
            if time.monotonic() - told_s > 15:
                told_s = time.monotonic()
                tell(f"{at:,} of {visits:,} visits, {now_mb:.0f} MB")
            time.sleep(LOOK_S)
        if info.status != "completed":
            raise BenchFailed(f"the run that is followed ended as {info.status}: {info.error}")
        for page in open_pages:
            wait_until(lambda page=page: "Completed" in browser.evaluate(page, STATE), "the page has followed", 60)  # type: ignore[misc]
        metrics = [_metrics(browser, page) for page in open_pages]
    return {
        "console_page_events": visits * EVENTS_PER_VISIT,
        "console_page_mb": most_mb,
        "console_page_half_mb": half_mb,
        "console_page_first_mb": first_mb,
        "console_page_heap_mb": max(each["JSHeapUsedSize"] for each in metrics) / 1e6,
        "console_page_nodes": max(each["Nodes"] for each in metrics),
    }


STATE: Final = "document.querySelector('#run-state').textContent"


def _metrics(browser: BareBrowser, page: str) -> dict[str, float]:
    """Chromium's counters of a page, after a collection."""
    browser.send("Performance.enable", page)
    browser.send("HeapProfiler.collectGarbage", page)
    return {each["name"]: each["value"] for each in browser.send("Performance.getMetrics", page)["metrics"]}


def tell(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)

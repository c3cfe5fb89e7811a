#!/usr/bin/env python3
"""A drill of the HTTP API: Redis is away for a while, as after a crash of its machine.

    python ops/redis_away.py [--seconds 20]

While Redis is away each request must be answered within `MOST_WAIT_S` with 503, the problem `store-unavailable` and
`Retry-After`, and the server must be alive and not ready. When Redis is back, the server must answer again by itself
within `MOST_BACK_S`; a listener of a run, and a client that waits for one, must hear of its end.

Prints a line for each part; exit code 1 if one does not hold.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Final

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from sleipnir.client.client import Client  # noqa: E402
from sleipnir.client.run import Run  # noqa: E402
from tests.console import Console, console_of  # noqa: E402
from tests.processes import RedisServer, Stack, write_agent  # noqa: E402
from tests.waiting import wait_until  # noqa: E402

MOST_WAIT_S: Final = 5.0
MOST_BACK_S: Final = 10.0
PAUSE_S: Final = 0.1
ENDS_S: Final = 60.0
AGENT: Final = """
name: asking
version: sleipnir/1
start: sure
nodes:
  sure: {type: approval, question: "sure?", options: ["yes"], routes: {"yes": done}, on_other: done}
  done: {type: end, output: done}
"""


class Watchers:
    """A listener of a run and a client that waits for it, each in a thread. `ended` has what they have heard."""

    def __init__(self, listened: Run, awaited: Run) -> None:
        self.ended: dict[str, str] = {}
        self._threads = [
            threading.Thread(target=self._listen, args=(listened,), daemon=True),
            threading.Thread(target=self._wait, args=(awaited,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _listen(self, run: Run) -> None:
        for event in run.stream(["events"]):
            self.ended["listener"] = event.type

    def _wait(self, run: Run) -> None:
        self.ended["client"] = run.wait(ENDS_S * 2).status

    def hear_the_end(self) -> bool:
        return self.ended.get("listener") == "run_ended" and self.ended.get("client") == "completed"


def asked_while_away(console: Console, seconds: float) -> tuple[int, float, list[str]]:
    """How many requests were made, how long the slowest took, and what was wrong."""
    wrong, longest_s, count, ends_s = list[str](), 0.0, 0, time.monotonic() + seconds
    while time.monotonic() < ends_s:
        for path, status in (("/runs", 503), ("/health/ready", 503), ("/health/live", 200)):
            began_s = time.monotonic()
            answer = console.get(path)
            longest_s, count = max(longest_s, time.monotonic() - began_s), count + 1
            if answer.status != status:
                wrong.append(f"{path}: {answer.status}")
            elif status == 503 and (answer.problem != "store-unavailable" or "Retry-After" not in answer.headers):
                wrong.append(f"{path}: {answer.problem}")
        time.sleep(PAUSE_S)
    return count, longest_s, wrong


def main() -> int:
    """All of it, on a stack of its own."""
    parser = argparse.ArgumentParser(description="The HTTP API while Redis is away.")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long Redis is away (default: 20)")
    seconds = parser.parse_args().seconds
    redis = RedisServer()
    try:
        with tempfile.TemporaryDirectory(prefix="away-") as name:
            agents = Path(name) / "agents"
            write_agent(agents / "asking", AGENT)
            with Stack(redis, Path(name) / "home", agents_dir=agents) as stack, console_of(stack) as console:
                stack.start_scheduler()
                with Client(f"http://127.0.0.1:{console.port}") as client:
                    run = client.submit("asking")
                    wait_until(run.gates, "it asks", ENDS_S)
                    watchers = Watchers(client.run(run.id), client.run(run.id))
                    redis.kill()
                    count, longest_s, wrong = asked_while_away(console, seconds)
                    served = not wrong and longest_s <= MOST_WAIT_S
                    print(
                        f"Redis away for {seconds:g} s: {count} requests, the longest {longest_s:.2f} s, "
                        f"{len(wrong)} wrong {wrong[:3] or ''}: {'held' if served else 'FAILED'}",
                        flush=True,
                    )
                    redis.start()
                    began_s = time.monotonic()
                    wait_until(lambda: console.get("/runs").status == 200, "the server answers again", ENDS_S)
                    back_s = time.monotonic() - began_s
                    run.answer("yes")
                    wait_until(watchers.hear_the_end, "both hear of the end of the run", ENDS_S)
                    is_soon = back_s <= MOST_BACK_S
                    print(
                        f"Redis is back: the server answered after {back_s:.2f} s, a listener and a client that waits "
                        f"heard of the end of their run: {'held' if is_soon else 'FAILED'}"
                    )
    finally:
        redis.stop()
    return 0 if served and is_soon else 1


if __name__ == "__main__":
    sys.exit(main())

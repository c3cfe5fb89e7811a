"""A process that calls a limited model with many callers: `python -m tests.limited JSON`, until it is killed.

The JSON holds url, prefix, name, callers, window_ms, call_ms, lease_ms and limit (the fields of a Limit). Each grant is
a line on stdout: the time at which Redis counted it.
"""

from __future__ import annotations

import heapq
import json
import sys
import threading
import time
from typing import Any

from sleipnir.models.limits import GrantedPermit, Limit
from sleipnir.store.connect import connect
from sleipnir.store.keys import Keys
from sleipnir.store.limits import Limiter


def main(plan: dict[str, Any]) -> None:
    client, keys, limit = connect(plan["url"]), Keys(plan["prefix"]), Limit(**plan["limit"])
    limiter = Limiter(client, keys, lease_ms=plan["lease_ms"], window_ms=plan["window_ms"])
    window, pause = keys.of_limit(limit.pattern).window, threading.Event()
    todo: list[tuple[int, int, int, GrantedPermit | None]] = [(0, number, 0, None) for number in range(plan["callers"])]
    while True:
        at_ms, number, calls, granted = heapq.heappop(todo)
        pause.wait(max(0.0, at_ms / 1000 - time.time()))
        if granted is not None:
            limiter.release(granted)
            heapq.heappush(todo, (at_ms, number, calls + 1, None))
            continue
        answer = limiter.take([limit], f"{plan['name']}/{number}/{calls}")
        if isinstance(answer, GrantedPermit):
            print(client.hget(window, f"h{answer.holder}").split(":")[2], flush=True)
            heapq.heappush(todo, (int(time.time() * 1000) + plan["call_ms"], number, calls, answer))
        else:
            heapq.heappush(todo, (answer.retry_at_ms, number, calls, None))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

"""What we do with a Redis server as a whole."""

from __future__ import annotations

import threading
import time

from sleipnir.store.connect import connect, unblock_all
from tests.processes import RedisServer, wait_until


def test_blocking_reads_of_all_clients_end_when_they_are_told_to(redis_server: RedisServer) -> None:
    names = {"reader-0", "reader-1"}  # this server has other clients that wait, too
    readers = [connect(redis_server.url, socket_timeout=60, client_name=name) for name in sorted(names)]
    replies: list[object] = []
    threads = [
        threading.Thread(target=lambda: replies.append(readers[0].blpop("nothing", 30))),
        threading.Thread(target=lambda: replies.append(readers[1].xread({"none": "$"}, block=30_000))),
    ]
    started = time.monotonic()
    for thread in threads:
        thread.start()
    client = connect(redis_server.url)
    wait_until(lambda: names <= {each["name"] for each in client.client_list() if "b" in each["flags"]}, "both wait")
    unblock_all(client)
    for thread in threads:
        thread.join(10)
    assert [reply for reply in replies if reply] == []
    assert len(replies) == 2
    assert time.monotonic() - started < 20

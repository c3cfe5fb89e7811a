"""What we do with a Redis server as a whole."""

from __future__ import annotations

import threading
import time

import pytest

from sleipnir.errors import StoreUnavailable
from sleipnir.store.connect import connect, store_errors, unblock_all
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


def test_a_full_redis_is_a_passing_refusal_of_commands_and_of_scripts_and_is_named_so() -> None:
    """Finding T2 of the second review: the text of Redis 7 has no `OOM` where redis-py has cut it off."""
    server = RedisServer()
    client = connect(server.url)
    try:
        client.config_set("maxmemory", "1")
        script = "return redis.call('SET', KEYS[1], 'x')"
        pipe = client.pipeline(transaction=False)
        pipe.eval(script, 1, "key")
        [of_pipeline] = pipe.execute(raise_on_error=False)
        for refused in (
            lambda: client.set("key", "x"),
            lambda: client.eval(script, 1, "key"),
            lambda: _raise(of_pipeline),
        ):
            with pytest.raises(StoreUnavailable, match=r"refuses to write for now: .*OOM"), store_errors(server.url):
                refused()
    finally:
        client.close()
        server.stop()


def _raise(error: Exception) -> None:
    raise error

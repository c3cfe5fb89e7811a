"""What we do with a Redis server as a whole."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path

import pytest
import redis

from sleipnir.errors import StoreUnavailable
from sleipnir.settings import Settings
from sleipnir.store.connect import connect, store_errors, unblock_all
from sleipnir.store.fast_client import execute_all
from sleipnir.store.live import Piece
from sleipnir.store.store import Store
from tests.processes import RedisServer, wait_until


@pytest.mark.one_redis
def test_blocking_reads_of_all_clients_can_be_ended(redis_server: RedisServer) -> None:
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


@pytest.mark.one_redis  # of a cluster, a client has connections to some nodes only
def test_a_closed_store_leaves_no_connection_open(redis_server: RedisServer, tmp_path: Path) -> None:
    """Workers and writers of live text have connections of their own, one for each thread."""
    settings = Settings(**redis_server.addresses, home=tmp_path, key_prefix="closed", partitions=2)
    client = connect(redis_server.url)

    def opened() -> int:
        return sum(each["name"] == "to-be-closed" for each in client.client_list())

    claimed, closed = threading.Event(), threading.Event()
    with Store.open(settings, client_name="to-be-closed") as store:
        store.live.add({"gone": [Piece(1, 1, "node", 0, "text")]})
        store.visits.count_leased(["run1:node:1:1"])

        def work() -> None:
            store.visits.count_leased(["run1:node:1:1"])
            claimed.set()
            closed.wait(30)

        worker = threading.Thread(target=work)
        worker.start()
        assert claimed.wait(30)
        assert opened() >= 4, "at least one of the pool, one of each thread, one of live text"
    try:
        wait_until(lambda: opened() == 0, "all are closed")
    finally:
        closed.set()
        worker.join()
        client.close()


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


def test_replies_of_several_commands_come_in_order_and_errors_among_them(redis_server: RedisServer) -> None:
    client = connect(redis_server.url)
    client.set("text", "x")
    replies = execute_all(client, [("ECHO", "a"), ("LPUSH", "text", 1), ["ECHO", b"b"]])
    assert (replies[0], replies[2]) == ("a", "b")
    assert isinstance(replies[1], redis.exceptions.ResponseError)
    assert client.delete("text") == 1


def test_commands_are_sent_again_over_a_new_connection(redis_server: RedisServer) -> None:
    client = connect(redis_server.url, client_name="to-be-killed")
    client.ping()
    other = connect(redis_server.url)
    [found] = [each for each in other.client_list() if each["name"] == "to-be-killed"]
    other.client_kill_filter(_id=found["id"])
    assert execute_all(client, [("ECHO", "a"), ("ECHO", "b")]) == ["a", "b"]


def test_what_is_interrupted_leaves_no_reply_for_the_next_command(redis_server: RedisServer) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    client = connect(redis_server.url)
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(KeyboardInterrupt):
            execute_all(client, [("BLPOP", "nothing", 2), ("ECHO", "late")])
    finally:
        signal.signal(signal.SIGALRM, before)
    assert client.echo("next") == "next"

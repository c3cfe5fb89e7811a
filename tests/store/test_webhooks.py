"""Webhooks on a real Redis and a real receiver: each event is delivered, signed, in the order of its run, whatever the
receiver does. Time is an argument of the sender."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sleipnir.batches.records import BatchPlan, place_of
from sleipnir.client.webhooks import NewWebhook, Webhooks
from sleipnir.errors import ConfigError, UsageError
from sleipnir.messages import Usage
from sleipnir.runs.run import RunSpec
from sleipnir.settings import Settings
from sleipnir.store.scripts import run_in_order
from sleipnir.store.store import Store
from sleipnir.webhook_sender.request import ReceiverClient
from sleipnir.webhook_sender.sender import AT_ONCE, WebhookSender
from sleipnir.webhooks.addresses import AddressGuard
from sleipnir.webhooks.signatures import SigningKeys
from tests.receiver import Receiver, receiver, status
from tests.store.test_advance import ASKS, advance_of
from tests.store.test_batches import ID, SPEC, rows
from tests.waiting import wait_until

LOCAL = AddressGuard.of("127.0.0.0/8")
MINUTE = 60_000
HOUR = 60 * MINUTE


class World:
    """A scheduler without workers whose runs ask, a sender with a clock that is ahead by `ahead_ms`, and a receiver."""

    def __init__(self, store: Store, home: Path, receiver: Receiver, *, timeout_s: float = 5.0) -> None:
        self.store, self.receiver, self.ahead_ms = store, receiver, 0
        self.settings = Settings(redis_url=store.url, broker_url=store._settings.broker_url, home=home)
        self.webhooks = Webhooks(store, self.settings, "ann@desk (cli)")
        self.advance = advance_of(store, ASKS)
        self.client = ReceiverClient(LOCAL, timeout_s=timeout_s)

    def add(self, name: str = "w", on: tuple[str, ...] = ("run_ended",), **only: Any) -> NewWebhook:
        return self.webhooks.add(name, f"{self.receiver.url}/{name}", on, **only)

    def sender(self, **more: Any) -> WebhookSender:
        keys = SigningKeys.of_file(self.settings.webhook_key_file)
        given = {"name": "s", "timeout_ms": 5_000, "retry_ms": 3 * 24 * HOUR, "clock": self.now_ms, **more}
        return WebhookSender(self.store, keys, given.pop("receiver", self.client), **given)

    def now_ms(self) -> int:
        return self.store.now_ms() + self.ahead_ms

    def start(self, run: str, spec: RunSpec | None = None) -> None:
        self.store.runs.create(run, spec or RunSpec("agent", "digest"), {"initial_prompt": run})
        self.go_on()

    def go_on(self) -> None:
        while self.advance.run_once() > 0:
            pass

    def end(self, run: str) -> None:
        self.store.runs.answer(run, 1, "Ann")
        self.go_on()

    def send(self, sender: WebhookSender | None = None) -> None:
        """Rounds until nothing is due."""

        async def rounds() -> None:
            sending = sender or self.sender()
            while await sending.round():
                await sending.settled()

        asyncio.run(rounds())

    def log(self, name: str = "w") -> list[tuple[str, str, int]]:
        return [(each.of, each.status, each.attempts) for each in self.webhooks.deliveries(name)]

    def notes(self) -> int:
        redis = self.store._client
        return sum(redis.xlen(key) for key in redis.scan_iter(f"{self.store.keys.prefix}:*:webhooks", _type="stream"))


@pytest.fixture
def world(store: Store, tmp_path: Path) -> Iterator[World]:
    with receiver() as state:
        yield World(store, tmp_path, state)


def run_of(number: int) -> str:
    return f"run{number:09}"


def test_the_end_of_a_run_is_sent_signed_and_logged(world: World) -> None:
    made = world.add()
    spec = RunSpec("agent", "digest", namespace="shop", tags={"customer": "acme"})
    world.start(run_of(1), spec)
    assert world.notes() == 0, "a question is nothing that it is about"
    world.end(run_of(1))
    assert world.notes() == 1
    world.send()
    [got] = world.receiver.got
    assert got.is_signed(made.secret)
    assert (got.path, got.headers["content-type"]) == ("/w", "application/json")
    data = got.data
    assert data["type"] == "run_ended"
    ended = data["data"]
    facts = {
        "run": run_of(1),
        "agent": "agent",
        "namespace": "shop",
        "tags": {"customer": "acme"},
        "status": "completed",
    }
    assert {key: ended[key] for key in facts} == facts
    assert ended["ended_ms"] >= ended["created_ms"]
    assert world.log() == [(run_of(1), "delivered", 1)]
    assert world.notes() == 0
    world.send()
    assert len(world.receiver.got) == 1


def test_without_webhooks_nothing_is_noted(world: World) -> None:
    world.start(run_of(1))
    world.end(run_of(1))
    redis = world.store._client
    assert not [key for key in redis.scan_iter(f"{world.store.keys.prefix}:*") if "webhooks" in key]


def test_a_webhook_hears_only_what_it_is_about(world: World) -> None:
    world.add("agent", agent="other")
    world.add("tag", tags={"customer": "acme"})
    world.add("space", namespace="shop")
    world.add("gates", ("gate_opened",))
    world.start(run_of(1), RunSpec("agent", "digest", tags={"customer": "acme", "x": "y"}))
    world.start(run_of(2), RunSpec("other", "digest", namespace="shop"))
    world.end(run_of(1))
    world.end(run_of(2))
    world.send()
    got = sorted((each.path, each.data["type"], each.data["data"]["run"]) for each in world.receiver.got)
    assert got == [
        ("/agent", "run_ended", run_of(2)),
        ("/gates", "gate_opened", run_of(1)),
        ("/gates", "gate_opened", run_of(2)),
        ("/space", "run_ended", run_of(2)),
        ("/tag", "run_ended", run_of(1)),
    ]


def test_the_end_of_a_child_run_is_not_sent(world: World) -> None:
    world.add(on=("run_ended", "gate_opened"))
    world.start(run_of(1), RunSpec("agent", "digest", parent=run_of(9), parent_seq=1, root=run_of(9), depth=1))
    world.end(run_of(1))
    world.send()
    assert [each["type"] for each in world.receiver.bodies()] == ["gate_opened"]


def test_what_happened_before_a_webhook_was_added_is_not_sent(world: World) -> None:
    world.add("first", ("gate_opened",))
    world.start(run_of(1))
    noted_ms = world.store.now_ms()
    wait_until(lambda: world.store.now_ms() > noted_ms, "the next millisecond")
    world.add("second", ("gate_opened",))
    world.send()
    assert [each.path for each in world.receiver.got] == ["/first"]


def test_the_question_of_a_gate_is_sent_while_it_is_open(world: World) -> None:
    world.add(on=("gate_opened",))
    world.start(run_of(1))
    world.send()
    world.start(run_of(2))
    world.end(run_of(2))
    world.send()
    first, second = (each["data"] for each in world.receiver.bodies())
    assert (first["question"], first["visit"], first["is_open"]) == (f"{run_of(1)}?", 1, True)
    assert second["is_open"] is False
    assert "question" not in second


def test_a_receiver_that_is_down_for_an_hour_gets_everything_in_the_order_of_each_run(world: World) -> None:
    """Two webhooks: that of the other receiver is not held up."""
    world.add(on=("gate_opened", "run_ended"))
    numbers = range(1, 13)
    world.receiver.answer = status(503)
    for number in numbers:
        world.start(run_of(number))
        world.end(run_of(number))
    with receiver() as other:
        world.webhooks.add("well", f"{other.url}/well", ["run_ended"])
        world.start(run_of(99))
        world.end(run_of(99))
        while world.ahead_ms < HOUR:
            world.send()
            world.ahead_ms += 5 * MINUTE
        assert [each["data"]["run"] for each in other.bodies()] == [run_of(99)]
    assert {each["type"] for each in world.receiver.bodies()} == {"gate_opened"}, "what follows waits"
    world.receiver.answer, world.receiver.got = status(200), []
    for _ in range(24):
        world.ahead_ms += 5 * MINUTE
        world.send()
    for number in (*numbers, 99):
        types = [each["type"] for each in world.receiver.bodies() if each["data"]["run"] == run_of(number)]
        assert types == ["gate_opened", "run_ended"]
    ids = [each.id for each in world.receiver.got]
    assert len(ids) == len(set(ids)) == 26
    info = world.webhooks.get("w")
    assert (info.waiting, info.delivered, info.failed, info.failing_ms) == (0, 26, 0, None)


def test_a_delivery_is_given_up_after_its_time_and_sent_again_on_request(world: World) -> None:
    made = world.add()
    world.receiver.answer = status(500)
    world.start(run_of(1))
    world.end(run_of(1))
    for _ in range(40):
        world.send(world.sender(retry_ms=6 * HOUR))
        world.ahead_ms += 20 * MINUTE
    [delivery] = world.webhooks.deliveries("w")
    assert (delivery.status, delivery.status_code, delivery.error) == ("failed", 500, "status 500")
    assert delivery.attempts == len(world.receiver.got) > 5
    assert world.webhooks.get("w").failing_ms is not None
    world.receiver.answer = status(200)
    world.webhooks.redeliver(delivery.id)
    assert world.webhooks.redeliver(delivery.id).status == "waiting", "once is enough"
    world.send()
    assert {each.id for each in world.receiver.got} == {delivery.id}
    assert world.receiver.got[-1].is_signed(made.secret)
    assert world.log() == [(run_of(1), "delivered", 1)]
    with pytest.raises(UsageError, match="no delivery"):
        world.webhooks.redeliver("msg_unknown")


def test_a_sender_that_dies_after_it_was_sent_repeats_it_with_the_same_id(world: World) -> None:
    world.add()
    world.start(run_of(1))
    world.end(run_of(1))

    class Dead(BaseException):
        pass

    class Dying:
        async def post(self, url: str, headers: Any, body: bytes) -> Any:
            await world.client.post(url, headers, body)
            raise Dead

    async def dies() -> None:
        sender = world.sender(receiver=Dying())
        await sender.round()
        [task] = sender._tries
        with pytest.raises(Dead):
            await task

    asyncio.run(dies())
    world.send()
    assert len(world.receiver.got) == 1, "it is taken until its time is over"
    world.ahead_ms += MINUTE
    world.send()
    assert len({each.id for each in world.receiver.got}) == 1
    assert len(world.receiver.got) == 2
    assert world.log() == [(run_of(1), "delivered", 1)]


def test_notes_that_are_read_twice_make_one_delivery(world: World) -> None:
    """A sender died after it had queued them."""
    world.add()
    world.start(run_of(1))
    world.end(run_of(1))
    redis, keys = world.store._client, world.store.keys
    [key] = [key for key in redis.scan_iter(f"{keys.prefix}:*:webhooks", _type="stream") if redis.xlen(key)]
    [(id_, fields)] = redis.xrange(key)
    world.send()
    redis.delete(key)
    redis.xadd(key, fields, id=id_)
    world.send()
    assert len(world.receiver.got) == 1
    assert world.notes() == 0


def test_the_try_of_a_frozen_sender_counts_no_more_when_another_has_taken_it(world: World) -> None:
    world.add()
    world.start(run_of(1))
    world.end(run_of(1))
    queues, token = world.store.webhooks, world.webhooks.get("w").webhook.token
    queues.queue_noted([world.webhooks.get("w").webhook], world.now_ms())
    [[first], _] = queues.take({token: 1}, world.now_ms(), lease_ms=1_000)
    assert queues.take({token: 1}, world.now_ms(), lease_ms=1_000) == ([], {})
    world.ahead_ms += MINUTE
    world.send()
    assert not queues.tried(first, first.delivery, world.now_ms())
    assert world.log() == [(run_of(1), "delivered", 1)]


def test_a_receiver_that_hangs_holds_up_nobody_else(world: World) -> None:
    world.client = ReceiverClient(LOCAL, timeout_s=0.3)
    world.add("bad")
    world.receiver.answer = lambda handler, _: world.receiver.stop.wait(20) and None
    with receiver() as other:
        world.webhooks.add("good", other.url, ["run_ended"])
        for number in range(3 * AT_ONCE):
            world.start(run_of(number))
            world.end(run_of(number))

        async def rounds() -> None:
            sender = world.sender()
            while len(other.got) < 3 * AT_ONCE:
                await sender.round()
                assert sum(sender._busy.values()) <= 2 * AT_ONCE
                await asyncio.sleep(0.01)
            await sender.settled()

        asyncio.run(asyncio.wait_for(rounds(), 60))
    tried = [each for each in world.webhooks.deliveries("bad") if each.attempts]
    assert {each.error for each in tried} == {"no response within 0.3 s"}
    assert {each.status for each in world.webhooks.deliveries("bad")} == {"waiting"}


def redirects(receiver: Receiver) -> Any:
    return status(307, Location=f"{receiver.url}/secret")


def endless(handler: Any, _: Any) -> None:
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(b"x" * 65_536)


def endless_headers(handler: Any, _: Any) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        handler.wfile.write(b"X: " + b"x" * 65_536)


def test_a_redirect_is_not_followed(world: World) -> None:
    world.add()
    world.receiver.answer = redirects(world.receiver)
    world.start(run_of(1))
    world.end(run_of(1))
    world.send()
    assert [each.path for each in world.receiver.got] == ["/w"]
    [delivery] = world.webhooks.deliveries("w")
    assert (delivery.status, delivery.status_code) == ("waiting", 307)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (endless, None),
        (endless_headers, "the response is no HTTP: its headers have more than 65,536 bytes"),
        (
            lambda handler, _: handler.wfile.write(b"SSH-2.0\r\n\r\n"),
            "the response is no HTTP: it begins with 'SSH-2.0'",
        ),
        (lambda handler, _: None, "the connection failed: it was closed before a response"),
        (status(503, Retry_After="1800"), "status 503"),
    ],
)
def test_whatever_a_receiver_answers_is_an_outcome(world: World, answer: Any, expected: str | None) -> None:
    world.add()
    world.receiver.answer = answer
    world.start(run_of(1))
    world.end(run_of(1))
    world.send()
    [delivery] = world.webhooks.deliveries("w")
    assert (delivery.status, delivery.error) == ("waiting" if expected else "delivered", expected)
    if delivery.status_code == 503:
        assert delivery.next_ms is not None and delivery.next_ms - world.now_ms() > 29 * MINUTE


@pytest.mark.parametrize(
    ("url", "addresses", "why"),
    [
        ("https://intern.example", ["10.0.0.8"], "10.0.0.8 is not a public address"),
        ("https://mixed.example", ["93.184.216.34", "169.254.169.254"], "169.254.169.254 is not a public address"),
        ("https://six.example", ["::ffff:192.168.1.1"], "::ffff:192.168.1.1 is not a public address"),
        ("http://clear.example", ["93.184.216.34"], "http:// goes to allowed private networks only"),
    ],
)
def test_addresses_that_are_not_allowed_are_refused(url: str, addresses: list[str], why: str) -> None:
    from sleipnir.webhook_sender.request import ReceiverError

    async def resolve(host: str, port: int) -> list[str]:
        return addresses

    client = ReceiverClient(LOCAL, timeout_s=5, resolve=resolve)
    with pytest.raises(ReceiverError, match=why):
        asyncio.run(client.post(url, {}, b"{}"))


def test_the_connection_goes_to_the_address_that_was_checked(world: World) -> None:
    """The name resolves once: a second answer, as in DNS rebinding, is never asked for."""
    asked: list[str] = []

    async def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"]

    url = world.receiver.url.replace("127.0.0.1", "nowhere.invalid")
    response = asyncio.run(ReceiverClient(LOCAL, timeout_s=5, resolve=resolve).post(url, {"webhook-id": "x"}, b"{}"))
    assert (response.status_code, asked) == (204, ["nowhere.invalid"])
    assert world.receiver.got[0].headers["host"].startswith("nowhere.invalid:")


def test_a_paused_webhook_keeps_what_happens_until_it_is_resumed(world: World) -> None:
    world.add()
    world.webhooks.pause("w", reason="the receiver moves")
    world.start(run_of(1))
    world.end(run_of(1))
    world.send()
    assert world.receiver.got == []
    assert world.webhooks.get("w").waiting == 1
    world.webhooks.resume("w")
    world.send()
    assert len(world.receiver.got) == 1
    changes = [(entry.what, entry.on, entry.by, entry.reason) for entry in world.store.access.entries()]
    assert changes == [
        ("webhook added", "webhook w", "ann@desk (cli)", None),
        ("webhook paused", "webhook w", "ann@desk (cli)", "the receiver moves"),
        ("webhook resumed", "webhook w", "ann@desk (cli)", None),
    ]


def test_a_removed_webhook_leaves_nothing(world: World) -> None:
    world.add()
    world.receiver.answer = status(500)
    world.start(run_of(1))
    world.end(run_of(1))
    world.send()
    world.webhooks.remove("w")
    redis = world.store._client
    left = [key for key in redis.scan_iter(f"{world.store.keys.prefix}:*") if "webhooks" in key]
    assert [key for key in left if not key.endswith((":senders", "}:webhooks"))] == []
    world.start(run_of(2))
    world.end(run_of(2))
    assert world.notes() == 0
    with pytest.raises(UsageError, match="there is no webhook 'w'"):
        world.webhooks.get("w")


def test_what_a_client_that_died_left_undone_is_repaired(world: World) -> None:
    world.add()
    token = world.webhooks.get("w").webhook.token
    keys, redis = world.store.keys, world.store._client
    for partition in range(keys.partitions):
        tag = keys.of_partition(partition).tag
        assert redis.hdel(f"{tag}:webhooks:wanted", token) == 1
        redis.hset(f"{tag}:webhooks:wanted", "gone", " run_ended ")
    world.send()
    for partition in range(keys.partitions):
        assert redis.hgetall(f"{keys.of_partition(partition).tag}:webhooks:wanted") == {token: " run_ended "}


def test_no_secret_is_stored(world: World) -> None:
    made = world.add()
    world.start(run_of(1))
    world.end(run_of(1))
    world.send()
    client = world.store._bytes
    secret = made.secret.removeprefix("whsec_").encode()
    key = world.settings.webhook_key_file.read_bytes().strip()
    for name in client.scan_iter(f"{world.store.keys.prefix}:*"):
        dump = client.dump(name)
        assert secret not in dump and key not in dump
    assert world.settings.webhook_key_file.stat().st_mode & 0o77 == 0


def test_a_sender_with_another_key_sends_nothing_and_one_with_both_does(world: World) -> None:
    world.add()
    world.start(run_of(1))
    world.end(run_of(1))
    file = world.settings.webhook_key_file
    old = file.read_text()
    file.write_text("ab" * 32 + "\n")
    world.send()
    assert world.receiver.got == []
    file.write_text("ab" * 32 + "\n" + old)
    made = world.add("new")
    world.start(run_of(2))
    world.end(run_of(2))
    world.send()
    assert sorted(each.path for each in world.receiver.got) == ["/new", "/w", "/w"]
    assert all(each.is_signed(made.secret) == (each.path == "/new") for each in world.receiver.got)
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        world.add("third")


def test_the_end_of_a_batch_is_sent_once(world: World) -> None:
    world.add(on=("batch_done",))
    store = world.store
    store.batches.add(ID, SPEC, BatchPlan(), rows(0, 1))
    [batch] = store.batches.look({}).batches.values()
    assert batch is not None
    store.batches.admit([(batch, 2)], store.now_ms())
    store.batches.seal(ID)
    ends = [
        store.batches.ended(place_of(ID, row), outcome, 3, Usage(calls=1))
        for row, outcome in ((0, "completed"), (1, "failed"))
    ]
    run_in_order(store._client, [*ends, *ends])
    world.send()
    [body] = world.receiver.bodies()
    data = body["data"]
    assert (body["type"], data["batch"], data["total"], data["completed"], data["failed"]) == (
        "batch_done",
        ID,
        2,
        1,
        1,
    )


def test_a_question_that_expires_is_told_of_before_if_it_is_still_open(world: World) -> None:
    """The end of a question is written by hand: only the code of a node can ask for one here."""
    world.add(on=("gate_expiring",))
    for number in (1, 2):
        world.start(run_of(number))
        keys = world.store.keys.of_run(run_of(number))
        gate = json.loads(world.store._client.hget(keys.gates, "1"))
        world.store._client.hset(keys.gates, "1", json.dumps(gate | {"due_ms": gate["opened_ms"] + 3 * HOUR}))
    world.send()
    world.end(run_of(2))
    world.ahead_ms = 2 * HOUR - MINUTE
    world.send()
    assert world.receiver.got == []
    world.ahead_ms = 2 * HOUR + MINUTE
    world.send()
    world.send()
    [body] = world.receiver.bodies()
    assert (body["type"], body["data"]["run"], body["data"]["visit"]) == ("gate_expiring", run_of(1), 1)
    later = world.store._client.zcard(f"{world.store.keys.prefix}:{{webhooks}}:later")
    assert later == 0


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda w: w.add("a b", "https://x.example", ["run_ended"]), "cannot name a webhook"),
        (lambda w: w.add("a", "ftp://x.example", ["run_ended"]), "no address of a webhook"),
        (lambda w: w.add("a", "https://u:p@x.example", ["run_ended"]), "no user and no password"),
        (lambda w: w.add("a", "https://x.example:99999", ["run_ended"]), "no URL"),
        (lambda w: w.add("a", "https://x.example/\r\nX: y", ["run_ended"]), "printable ASCII"),
        (lambda w: w.add("a", "https://x.example", []), "needs what it is about"),
        (lambda w: w.add("a", "https://x.example", ["run_started"]), "is nothing that a webhook can be about"),
        (lambda w: w.add("a", "https://x.example", ["run_ended"], tags={"": "x"}), "key of a tag"),
        (lambda w: w.pause("a"), "there is no webhook 'a'"),
    ],
)
def test_what_is_wrong_is_refused(world: World, call: Callable[[Webhooks], object], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        call(world.webhooks)

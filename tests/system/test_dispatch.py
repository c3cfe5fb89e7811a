"""Our hand-made Celery envelopes are what Celery and kombu themselves would have put on the wire."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.app.task import Context
from kombu.transport.redis import Channel

from sleipnir.messages import BATCH_PRIORITY, TASK_NAME, VisitCall
from sleipnir.settings import Settings
from sleipnir.store.address import celery_broker
from sleipnir.store.fleet import QueueBacklog
from sleipnir.store.keys import line_of, lines_of
from sleipnir.store.store import Store
from sleipnir_scheduler.dispatch import KombuDispatcher, Published, RedisDispatcher, body, envelope, headers, message
from sleipnir_scheduler.instance import linger_s
from sleipnir_workers.celeryconfig import celery_config
from tests.processes import RedisServer

CALL = VisitCall("run000000001", "a", 3, 2, "agent", "digest")


@pytest.fixture
def celery_s(redis_server: RedisServer, tmp_path: Path) -> Any:
    """The message that Celery would have made of the call."""
    app = Celery("contract")
    app.config_from_object(celery_config(Settings(**redis_server.addresses, home=tmp_path)))
    return app.amqp.as_task_v2(
        CALL.task_id,
        TASK_NAME,
        args=(CALL.to_json(),),
        kwargs={},
        root_id=CALL.run,
        shadow=CALL.shown_name,
        argsrepr=headers(CALL)["argsrepr"],
        ignore_result=True,
    )


def test_headers_and_body_are_those_of_celery_s_protocol_2(celery_s: Any) -> None:
    mine = headers(CALL)
    assert mine == {name: celery_s.headers.get(name) for name in mine}
    args, kwargs, canvas = json.loads(json.dumps(celery_s.body))
    assert body(CALL) == [args, kwargs, {}]
    assert not any(canvas.values())


def test_what_a_message_leaves_out_is_what_celery_assumes(celery_s: Any) -> None:
    left_out = {name: value for name, value in celery_s.headers.items() if name not in headers(CALL)}
    assert left_out.pop("lang") == "py"
    assert left_out.pop("timelimit") == [None, None]
    assert "gen" in left_out.pop("origin")  # who sent it: for people who read messages
    assumed = {name: getattr(Context, name) for name in left_out}
    assert {name: value or None for name, value in left_out.items()} == {n: v or None for n, v in assumed.items()}


@pytest.mark.parametrize("name", ["a", 'a "quoted" 100% {name}s\n', "größer"])
def test_an_envelope_from_the_template_equals_that_of_its_message(name: str) -> None:
    others = VisitCall("zzzzzzzzzzzz", name, 1, 1, name, name), VisitCall("a1", name, 10**9, 7, name, name)
    batched = [replace(call, batch=batch) for call in (CALL, *others) for batch in ("nightly.2", "A_b-3")]
    for call in (CALL, *others, *batched):
        made = json.loads(envelope(call, name))
        assert made == message(call, name, made["properties"]["delivery_tag"])
        assert VisitCall.from_json(json.loads(made["body"])[0][0]) == replace(call, batch="")
        assert made["headers"]["argsrepr"].endswith(f" batch={call.batch}" if call.batch else f" agent={call.agent}")


def test_publishing_returns_the_length_of_the_queue(redis_server: RedisServer, tmp_path: Path) -> None:
    call = replace(CALL, attempt=1)
    with Store.open(Settings(**redis_server.addresses, home=tmp_path, key_prefix="ahead")) as store:
        dispatcher = RedisDispatcher(store)
        assert dispatcher.publish([(call, "scripts")] * 3) == Published(3, ahead=0)
        assert dispatcher.publish([(call, "scripts")]) == Published(1, ahead=3)
        assert dispatcher.publish([(call, "scripts"), (call, "llm")]) == Published(2, ahead=0)
        assert dispatcher.publish([]) == Published(0)


def test_a_visit_that_has_had_its_turn_is_first_in_line(redis_server: RedisServer, tmp_path: Path) -> None:
    with Store.open(Settings(**redis_server.addresses, home=tmp_path, key_prefix="again")) as store:
        dispatcher = RedisDispatcher(store)
        calls = [replace(CALL, seq=seq, attempt=attempt) for seq, attempt in ((1, 1), (2, 1), (3, 2), (4, 3))]
        assert dispatcher.publish((call, "scripts") for call in calls).messages == 4
        line = [json.loads(text) for text in store._broker.lrange(store.keys.broker_prefix + "scripts", 0, -1)]
        taken = [json.loads(message["body"])[0][0]["seq"] for message in reversed(line)]
        assert taken == [3, 4, 1, 2]


def test_visits_of_batches_have_a_line_of_their_own_behind_others(redis_server: RedisServer, tmp_path: Path) -> None:
    with Store.open(Settings(**redis_server.addresses, home=tmp_path, key_prefix="behind")) as store:
        of_batch = replace(CALL, attempt=1, batch="nightly")
        RedisDispatcher(store).publish([(of_batch, "scripts"), (replace(CALL, attempt=1), "scripts")])
        first, second = lines_of("scripts")
        taken = [store._broker.rpop(store.keys.broker_prefix + line) for line in (first, second)]
        before, after = (json.loads(text or "") for text in taken)
        assert before["properties"]["priority"] == 0
        assert after["properties"]["priority"] == BATCH_PRIORITY
        assert after["headers"]["argsrepr"].endswith(" batch=nightly")
        assert after == message(of_batch, "scripts", after["properties"]["delivery_tag"])
    options = celery_config(Settings(**redis_server.addresses, home=tmp_path))["broker_transport_options"]
    assert options["priority_steps"] == [0, BATCH_PRIORITY]
    channel = Channel.__new__(Channel)
    channel.priority_steps = options["priority_steps"]
    assert [channel._q_for_pri("scripts", priority) for priority in options["priority_steps"]] == [first, second]


def test_the_scheduler_lingers_only_while_the_workers_have_work() -> None:
    assert linger_s(done=5, backlog=4) == 0
    assert linger_s(done=25, backlog=4) == linger_s(done=5, backlog=9) == 0.002
    assert linger_s(done=5, backlog=15) == 0.006
    assert linger_s(done=5, backlog=10_000) == 0.010


def test_no_two_envelopes_have_the_same_tag() -> None:
    tags = {json.loads(envelope(CALL, "scripts"))["properties"]["delivery_tag"] for _ in range(100)}
    assert len(tags) == 100


def test_both_dispatchers_put_the_same_message_on_the_list(redis_server: RedisServer, tmp_path: Path) -> None:
    by_hand = _published(redis_server, tmp_path, "hand")
    by_kombu = _published(redis_server, tmp_path, "kombu")
    assert by_hand["headers"] == by_kombu["headers"]
    assert by_hand["content-type"] == by_kombu["content-type"]
    assert by_hand["content-encoding"] == by_kombu["content-encoding"]
    assert json.loads(by_hand["body"]) == json.loads(by_kombu["body"])
    mine, theirs = by_hand["properties"], by_kombu["properties"]
    assert mine.keys() <= theirs.keys()
    for name in ("correlation_id", "delivery_info", "priority", "body_encoding"):
        assert mine[name] == theirs[name], name


def _published(redis: RedisServer, folder: Path, prefix: str) -> dict[str, Any]:
    settings = Settings(**redis.addresses, home=folder, key_prefix=f"wire-{prefix}")
    with Store.open(settings) as store:
        if prefix == "hand":
            assert RedisDispatcher(store).publish([(CALL, "scripts")]) == Published(1)
        else:
            options = celery_config(settings)["broker_transport_options"]
            assert KombuDispatcher(celery_broker(str(settings.broker)).url, options).publish(
                [(CALL, "scripts")]
            ) == Published(1)
        assert store.fleet.queue_lengths()["scripts"] == 1
        message: dict[str, Any] = json.loads(store._broker.lindex(store.keys.broker_prefix + "scripts", 0))
    return message


def test_another_broker_reports_the_lengths_of_its_queues() -> None:
    """Finding C20 of the second review: nothing is published into a queue that still holds what was published."""
    dispatcher = KombuDispatcher("memory://")
    assert dispatcher.look(["looked-at"]) == {"looked-at": QueueBacklog(0)}, "a queue that is not there holds nothing"
    dispatcher.publish([(CALL, "looked-at"), (CALL, "looked-at")])
    assert dispatcher.look(["looked-at"]) == {"looked-at": QueueBacklog(2)}


def test_a_queue_reports_when_its_oldest_message_was_published(store: Store) -> None:
    """Finding C20 of the second review."""
    times = iter([1_000, 2_000, 3_000])
    dispatcher = RedisDispatcher(store, lambda: next(times))
    first = replace(CALL, attempt=1)
    for call in (first, replace(first, run="another00001"), replace(first, attempt=2)):
        dispatcher.publish([(call, "scripts")])
    found = dispatcher.look(["scripts"])
    assert found[line_of("scripts", "")] == QueueBacklog(3, 1_000, has_returned=True)
    assert found[line_of("scripts", "any")] == QueueBacklog(0, None, has_returned=False)

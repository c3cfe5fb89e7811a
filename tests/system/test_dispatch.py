"""Our hand-made Celery envelopes are what Celery and kombu themselves would have put on the wire."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from celery import Celery

from sleipnir.messages import TASK_NAME, VisitCall
from sleipnir.settings import Settings
from sleipnir.store.connect import broker_url
from sleipnir.store.store import Store
from sleipnir_scheduler.dispatch import KombuDispatcher, RedisDispatcher, body, headers
from sleipnir_workers.celeryconfig import celery_config
from tests.processes import RedisServer

CALL = VisitCall("run000000001", "a", 3, 2, "agent", "digest")


def test_headers_and_body_are_those_of_celery_s_protocol_2(redis_server: RedisServer, tmp_path: Path) -> None:
    app = Celery("contract")
    app.config_from_object(celery_config(Settings(redis_url=redis_server.url, home=tmp_path)))
    message = app.amqp.as_task_v2(
        CALL.task_id,
        TASK_NAME,
        args=(CALL.to_json(),),
        kwargs={},
        root_id=CALL.run,
        shadow=CALL.shown_name,
        argsrepr=headers(CALL)["argsrepr"],
        ignore_result=True,
        origin=headers(CALL)["origin"],
    )
    ours = headers(CALL)
    assert {name: ours[name] for name in ours if name != "origin"} == {
        name: message.headers.get(name) for name in ours if name != "origin"
    }
    assert set(message.headers) - set(ours) <= {"stamped_headers", "stamps"}
    assert json.loads(json.dumps(message.body)) == body(CALL)


def test_both_dispatchers_put_the_same_message_on_the_list(redis_server: RedisServer, tmp_path: Path) -> None:
    by_hand = _published(redis_server, tmp_path, "hand")
    by_kombu = _published(redis_server, tmp_path, "kombu")
    assert by_hand["headers"] == by_kombu["headers"]
    assert by_hand["content-type"] == by_kombu["content-type"]
    assert by_hand["content-encoding"] == by_kombu["content-encoding"]
    assert json.loads(by_hand["body"]) == json.loads(by_kombu["body"])
    ours, theirs = by_hand["properties"], by_kombu["properties"]
    assert ours.keys() - {"reply_to"} <= theirs.keys()
    for name in ("correlation_id", "delivery_mode", "delivery_info", "priority", "body_encoding"):
        assert ours[name] == theirs[name], name


def _published(redis: RedisServer, folder: Path, prefix: str) -> dict[str, Any]:
    settings = Settings(redis_url=redis.url, home=folder, key_prefix=f"wire-{prefix}")
    with Store.open(settings) as store:
        if prefix == "hand":
            assert RedisDispatcher(store).publish([(CALL, "scripts")]) == 1
        else:
            options = celery_config(settings)["broker_transport_options"]
            assert KombuDispatcher(broker_url(redis.url), options).publish([(CALL, "scripts")]) == 1
        assert store.fleet.queue_lengths()["scripts"] == 1
        message: dict[str, Any] = json.loads(store._client.lindex(store.keys.broker_prefix + "scripts", 0))
    return message

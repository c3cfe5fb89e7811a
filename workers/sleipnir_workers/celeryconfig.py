"""Celery's settings, as data. docs/celery-settings.md has the reasons and measurements; in short: leases own retries,
so the broker only has to carry hints."""

from __future__ import annotations

import socket
from typing import Any

from celery.app.amqp import AMQP
from kombu import Connection, Queue

from sleipnir.messages import BATCH_PRIORITY, QUEUES
from sleipnir.settings import Settings
from sleipnir.store.address import celery_broker, is_redis
from sleipnir.store.connect import ASKING_SENTINELS
from sleipnir.store.keys import Keys
from sleipnir_workers.consumer.unreadable import tolerant

FLUSH_EVENTS_S = 0.2


class SteadyConnection(Connection):  # type: ignore[misc]  # kombu has no types
    """Retries every second while the broker is away. Celery's own pauses grow to 30 s, and no setting changes that."""

    def ensure_connection(self, *args: Any, **kwargs: Any) -> Any:
        return super().ensure_connection(
            *args, **({"interval_start": 1, "interval_step": 0, "interval_max": 1} | kwargs)
        )

    def get_transport_cls(self) -> type[Any]:
        return tolerant(super().get_transport_cls())


class SteadyAMQP(AMQP):  # type: ignore[misc]  # nor has Celery
    Connection = SteadyConnection


def celery_config(settings: Settings) -> dict[str, Any]:
    """The configuration of one worker (or Flower) process."""
    url = settings.broker or "redis://localhost:6379/0"
    broker = celery_broker(url)
    config: dict[str, Any] = {
        "broker_url": broker.url,
        "result_backend": None,  # a backend that is down acknowledges tasks and drops their results
        "task_ignore_result": True,
        "worker_consumer": "sleipnir_workers.consumer.unreadable:VisitConsumer",
        "task_serializer": "json",
        "accept_content": ["json"],
        "task_queues": [Queue(name) for name in QUEUES],
        "task_default_queue": "functions",
        "task_create_missing_queues": True,  # `queue:` on a node may name any queue that a worker serves with -Q
        "task_repr_maxlevels": 2,
        "task_acks_late": True,
        "task_acks_on_failure_or_timeout": True,
        "task_reject_on_worker_lost": False,  # the reaper owns redelivery
        "task_send_sent_event": False,
        "worker_prefetch_multiplier": 1,
        "worker_send_task_events": settings.task_events,
        "worker_enable_remote_control": True,
        "worker_disable_rate_limits": True,
        # A fenced duplicate is cheap, a killed node is not.
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        "worker_hijack_root_logger": False,
        "worker_redirect_stdouts": False,
        "worker_max_tasks_per_child": 10_000,
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "broker_channel_error_retry": True,
    }
    if broker.ssl is not None:
        config["broker_use_ssl"] = dict(broker.ssl)
    if is_redis(url):
        config["broker_transport_options"] = {**_redis_options(settings), **broker.options}
        if "sentinel_kwargs" in broker.options:
            config["broker_transport_options"]["sentinel_kwargs"] = {
                **ASKING_SENTINELS,
                **broker.options["sentinel_kwargs"],
            }
        config["worker_disable_prefetch"] = True
    return config


def _redis_options(settings: Settings) -> dict[str, Any]:
    return {
        "global_keyprefix": Keys(settings.key_prefix).broker_prefix,
        "client_name": "sleipnir-worker",
        "priority_steps": [0, BATCH_PRIORITY],
        "ack_emulation": False,  # leases replace it: half of a worker's work per task
        "health_check_interval": 2,  # a BRPOP that stays silent is given up after 3 to 5 s
        "socket_timeout": 2,
        "socket_connect_timeout": 5,
        "socket_keepalive": True,
        "socket_keepalive_options": {
            socket.TCP_KEEPIDLE: 30,
            socket.TCP_KEEPINTVL: 5,
            socket.TCP_KEEPCNT: 3,
        },
        "body_encoding": "utf-8",
    }

"""Webhooks in Redis: what has happened that they are about, and their deliveries.

    a commit notes it ─► a sender queues deliveries ─► it tries them ─► delivered, or failed after days

1. A commit notes what happened in the same script, if a webhook needs it. So nothing is lost, and without webhooks
   nothing is written.
2. A sender makes deliveries of the notes of a partition, in order, and deletes the notes afterwards. The id of a
   delivery follows from its note, so that a sender that dies in between, or two at once, queue it once.
3. The deliveries about one run or batch are a lane: the next one is tried when the one before is over. A sender takes
   the first one of a lane for a time; if it dies, another one takes it then.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sleipnir.decoding import read_text
from sleipnir.errors import RecordUnreadable
from sleipnir.runs.run import Gate, RunSpec
from sleipnir.store import webhook_keys
from sleipnir.store.connect import Client, clock_ms
from sleipnir.store.keys import Keys
from sleipnir.store.record_text import record
from sleipnir.store.scripts import Arg, LuaScript, checked, run_batch
from sleipnir.store.webhook_keys import WebhookKeys
from sleipnir.webhooks.occasions import MOST_TEXT, Occasion, delivery_of, expiring_at_ms, is_wanted
from sleipnir.webhooks.records import (
    MOST_KEPT,
    MOST_WAITING,
    OccasionName,
    Webhook,
    WebhookDelivery,
    WebhookInfo,
)

_ADD = LuaScript("webhook_add")
_TAKE = LuaScript("webhook_take")
_TRIED = LuaScript("webhook_tried")

PAGE: Final = 100
"""Notes of a partition that are read at once, and questions that expire."""
AGAIN_MS: Final = 60_000
SILENT_MS: Final = 30_000
"""A sender that has said nothing for so long is gone."""
UNFINISHED_MS: Final = 3_600_000
"""So long the queue of a webhook lives whose adding was interrupted."""

_NOTE_OF: Final[Mapping[OccasionName, str]] = {
    "run_ended": "run_ended", "gate_opened": "gate", "gate_expiring": "gate", "batch_done": "batch_done",
    "budget_reached": "budget_reached",
}  # fmt: skip
_NUMBERS: Final = frozenset(
    ("created_ms", "started_ms", "ended_ms", "tokens_in", "tokens_out", "total", "completed", "failed", "cancelled")
)


@dataclass(frozen=True)
class TakenDelivery:
    """A delivery that a sender may try until `until_ms`; then another one takes it."""

    token: str
    lane: str
    until_ms: int
    delivery: WebhookDelivery


@dataclass(frozen=True)
class ExpiringGate:
    """A question whose end a webhook is told of."""

    token: str
    run: str
    seq: int
    opened_ms: int


class WebhookQueues:
    """`keep_ms`: how long deliveries that are over are kept."""

    def __init__(self, client: Client, keys: Keys, *, keep_ms: int) -> None:
        self._client, self._keys, self._keep_ms = client, keys, keep_ms

    # Clients

    def open(self, token: str, now_ms: int) -> None:
        """Prepare the queue of a webhook that is being added."""
        stats = self._of(token).stats
        pipe = self._client.pipeline(transaction=True)
        pipe.hset(stats, "since_ms", now_ms)
        pipe.pexpire(stats, UNFINISHED_MS)
        pipe.execute()

    def begin(self, webhook: Webhook) -> None:
        """Let commits note what a webhook is about, from now on."""
        self._client.persist(self._of(webhook.token).stats)
        self._want(webhook)

    def remove(self, token: str) -> None:
        """Remove the queue of a webhook that is removed."""
        self._unwant(token)
        self._client.unlink(*self._of(token).all)

    def infos(self, webhooks: Sequence[Webhook]) -> list[WebhookInfo]:
        pipe = self._client.pipeline(transaction=False)
        for webhook in webhooks:
            keys = self._of(webhook.token)
            pipe.hmget(keys.stats, ["delivered", "failed", "lost", "failing_ms"])
            pipe.hlen(keys.deliveries)
            pipe.zcard(keys.log)
        replies = pipe.execute()
        infos = []
        for webhook, stats, known, over in zip(webhooks, replies[::3], replies[1::3], replies[2::3], strict=True):
            delivered, failed, lost = (int(count or 0) for count in stats[:3])
            failing_ms = None if stats[3] is None else int(stats[3])
            infos.append(WebhookInfo(webhook, max(0, known - over), delivered, failed, lost, failing_ms))
        return infos

    def deliveries(self, token: str, limit: int) -> list[WebhookDelivery]:
        """Those that wait, the next ones first, then those that are over, the last ones first. One that cannot be
        read is left out."""
        keys = self._of(token)
        lanes = self._client.zrange(keys.due, 0, limit - 1)
        waiting = [text for text in (self._client.hmget(keys.lanes, lanes) if lanes else []) if text]
        ids = [id_ for text in waiting for id_ in text.split()][:limit]
        ids += self._client.zrevrange(keys.log, 0, limit - 1)
        return list(self._read(keys, list(dict.fromkeys(ids))[:limit]))

    def find(self, webhooks: Sequence[Webhook], id_: str) -> tuple[Webhook, WebhookDelivery] | None:
        """The delivery of that id, and its webhook. None: there is none. Raises RecordUnreadable."""
        pipe = self._client.pipeline(transaction=False)
        for webhook in webhooks:
            pipe.hget(self._of(webhook.token).deliveries, id_)
        for webhook, text in zip(webhooks, pipe.execute(), strict=True):
            if text is not None:
                return webhook, read_text(WebhookDelivery, text, "webhook delivery", id_)
        return None

    def again(self, token: str, delivery: WebhookDelivery, now_ms: int) -> int:
        """Let a delivery that is over wait again, after the others about its run. 1: it does, 0: it waits already, or
        is gone, -1: too many wait."""
        return int(self._add([(token, delivery)], now_ms, again=True)[0])

    def lost_notes(self) -> int:
        """How much happened that no webhook was told of, because no sender ran for long."""
        pipe = self._client.pipeline(transaction=False)
        for partition in range(self._keys.partitions):
            pipe.hvals(webhook_keys.notes_of(self._keys, partition).lost)
        return sum(int(count) for counts in pipe.execute() for count in counts)

    def senders(self) -> list[str]:
        """The senders that run now."""
        oldest_ms = clock_ms(self._client) - SILENT_MS
        names: list[str] = self._client.zrangebyscore(webhook_keys.senders(self._keys), oldest_ms, "+inf")
        return names

    # Senders

    def now_ms(self) -> int:
        return clock_ms(self._client)

    def announce(self, sender: str, now_ms: int) -> None:
        key = webhook_keys.senders(self._keys)
        pipe = self._client.pipeline(transaction=False)
        pipe.zadd(key, {sender: now_ms})
        pipe.zremrangebyscore(key, "-inf", f"({now_ms - 20 * SILENT_MS}")
        pipe.execute()

    def leave(self, sender: str) -> None:
        self._client.zrem(webhook_keys.senders(self._keys), sender)

    def want_again(self, webhooks: Mapping[str, Webhook], tokens: Mapping[int, Sequence[str]]) -> None:
        """Repair what commits note: of `webhooks` by token, as they were read after `tokens`. A client that died
        while it added or removed one leaves it undone."""
        for partition, known in tokens.items():
            gone = [token for token in known if token not in webhooks]
            if gone:
                self._client.hdel(webhook_keys.notes_of(self._keys, partition).wanted, *gone)
        for token, webhook in webhooks.items():
            if any(token not in known for known in tokens.values()):
                self.begin(webhook)

    def wanted(self) -> dict[int, list[str]]:
        """The tokens of webhooks for which the commits of each partition note something."""
        pipe = self._client.pipeline(transaction=False)
        for partition in range(self._keys.partitions):
            pipe.hkeys(webhook_keys.notes_of(self._keys, partition).wanted)
        return dict(enumerate(pipe.execute()))

    def queue_noted(self, webhooks: Sequence[Webhook], now_ms: int) -> int:
        """Queue the deliveries of what was noted, in order, a page of each partition. Returns how many notes that were.
        `webhooks` must have been read before."""
        pipe = self._client.pipeline(transaction=False)
        for partition in range(self._keys.partitions):
            pipe.xrange(webhook_keys.notes_of(self._keys, partition).notes, "-", "+", count=PAGE)
        pages = pipe.execute()
        for partition, page in enumerate(pages):
            if page:
                self._queue_page(partition, page, webhooks, now_ms)
        return sum(map(len, pages))

    def _queue_page(
        self, partition: int, page: Sequence[tuple[str, Mapping[str, str]]], webhooks: Sequence[Webhook], now_ms: int
    ) -> None:
        specs = self._specs([fields for _, fields in page])
        owed: list[tuple[str, WebhookDelivery]] = []
        for (id_, fields), spec in zip(page, specs, strict=True):
            if spec is None:  # it has expired while no sender ran, or is of a newer release
                self._client.hincrby(webhook_keys.notes_of(self._keys, partition).lost, fields["t"], 1)
                continue
            if fields["t"] == "gate":
                owed += self._of_gate(f"{partition}/{id_}", id_, fields, spec, webhooks)
                continue
            occasion = _occasion(f"{partition}/{id_}", fields["t"], id_, fields, spec)
            owed += [(each.token, delivery_of(each, occasion)) for each in webhooks if is_wanted(each, occasion)]
        self._add(owed, now_ms)
        self._client.xdel(webhook_keys.notes_of(self._keys, partition).notes, *(id_ for id_, _ in page))

    def _of_gate(
        self, source: str, id_: str, fields: Mapping[str, str], spec: RunSpec, webhooks: Sequence[Webhook]
    ) -> list[tuple[str, WebhookDelivery]]:
        """The deliveries of a question that has opened; when it expires is remembered."""
        seq, opened_ms = int(fields["seq"]), int(fields["opened_ms"])
        gate = self._gate(fields["of"], seq, opened_ms)
        data = {"visit": seq, "opened_ms": opened_ms, "is_open": gate is not None, **_asked(gate)}
        opened = _occasion(source, "gate_opened", id_, {"of": fields["of"]}, spec, data)
        expiring = _occasion(source, "gate_expiring", id_, {"of": fields["of"]}, spec)
        if gate is not None and gate.due_ms is not None:
            at_ms = expiring_at_ms(opened_ms, gate.due_ms)
            told = {
                _text(ExpiringGate(each.token, fields["of"], seq, opened_ms)): at_ms
                for each in webhooks
                if is_wanted(each, expiring)
            }
            if told:
                self._client.zadd(webhook_keys.later(self._keys), told)
        return [(each.token, delivery_of(each, opened)) for each in webhooks if is_wanted(each, opened)]

    def queue_expiring(self, webhooks: Mapping[str, Webhook], now_ms: int) -> int:
        """Queue deliveries about questions that expire soon. One whose end has moved is looked at again. Returns how
        many were looked at."""
        later = webhook_keys.later(self._keys)
        texts = self._client.zrangebyscore(later, "-inf", now_ms, start=0, num=PAGE)
        for text in texts:
            gate_text = ExpiringGate(**json.loads(text))
            webhook, gate = webhooks.get(gate_text.token), None
            if webhook is not None:
                gate = self._gate(gate_text.run, gate_text.seq, gate_text.opened_ms)
            if webhook is not None and gate is not None and gate.due_ms is not None:
                at_ms = expiring_at_ms(gate.opened_ms, gate.due_ms)
                if at_ms > now_ms:
                    self._client.zadd(later, {text: at_ms}, xx=True)
                    continue
                self._queue_expiring(webhook, gate_text, gate, now_ms)
            self._client.zrem(later, text)
        return len(texts)

    def _queue_expiring(self, webhook: Webhook, of: ExpiringGate, gate: Gate, now_ms: int) -> None:
        [spec] = self._specs([{"t": "gate", "of": of.run}])
        if spec is None:
            return
        data = {"visit": of.seq, "opened_ms": of.opened_ms, "is_open": True, **_asked(gate)}
        fields, source = {"of": of.run}, f"{of.run}/{of.seq}/{of.opened_ms}"
        self._add(
            [
                (
                    webhook.token,
                    delivery_of(webhook, _occasion(source, "gate_expiring", str(now_ms), fields, spec, data)),
                )
            ],
            now_ms,
        )

    def take(
        self, free: Mapping[str, int], now_ms: int, *, lease_ms: int
    ) -> tuple[list[TakenDelivery], dict[str, str]]:
        """Deliveries that are due, up to so many of each webhook, by token; and why the records of others cannot be
        read, by the token of their webhook. Each is for `lease_ms`."""
        until_ms = now_ms + lease_ms
        vectors = []
        for token, most in free.items():
            keys = self._of(token)
            args: dict[str, Arg] = {
                "now_ms": now_ms, "until_ms": until_ms, "most": most, "oldest_ms": now_ms - self._keep_ms,
                "kept": MOST_KEPT,
            }  # fmt: skip
            names = {"deliveries": keys.deliveries, "lanes": keys.lanes, "due": keys.due, "log": keys.log}
            vectors.append(_TAKE.vector(names, args))
        taken, unreadable = [], {}
        for token, reply in zip(free, run_batch(self._client, _TAKE, vectors), strict=True):
            found = checked(reply)
            for lane, id_, text in zip(found[::3], found[1::3], found[2::3], strict=True):
                try:
                    delivery = read_text(WebhookDelivery, text, "webhook delivery", id_)
                except RecordUnreadable as error:
                    unreadable[token] = str(error)  # it is due again later, perhaps to a newer release
                    continue
                taken.append(TakenDelivery(token, lane, until_ms, delivery))
        return taken, unreadable

    def tried(self, taken: TakenDelivery, after: WebhookDelivery, now_ms: int) -> bool:
        """Note how a try ended. False: another sender has taken the delivery, or it is gone."""
        args: dict[str, Arg] = {
            "lane": taken.lane, "id": after.id, "until_ms": taken.until_ms, "record": record(after), "now_ms": now_ms,
            "next_ms": "" if after.next_ms is None else after.next_ms,
            "outcome": "" if after.status == "waiting" else after.status,
        }  # fmt: skip
        return bool(_TRIED(self._client, self._script_keys(taken.token), args))

    def _add(self, owed: Sequence[tuple[str, WebhookDelivery]], now_ms: int, *, again: bool = False) -> list[int]:
        vectors = []
        for token, delivery in owed:
            args: dict[str, Arg] = {
                "id": delivery.id, "lane": delivery.of, "record": record(delivery), "now_ms": now_ms,
                "most": MOST_WAITING, "again": int(again),
            }  # fmt: skip
            vectors.append(_ADD.vector(self._script_keys(token), args))
        return [int(checked(reply)) for reply in run_batch(self._client, _ADD, vectors)]

    def _want(self, webhook: Webhook) -> None:
        kinds = dict.fromkeys(_NOTE_OF[name] for name in webhook.on if name in _NOTE_OF)  # type: ignore[index]
        pipe = self._client.pipeline(transaction=False)
        for partition in range(self._keys.partitions):
            pipe.hset(webhook_keys.notes_of(self._keys, partition).wanted, webhook.token, f" {' '.join(kinds)} ")
        pipe.execute()

    def _unwant(self, token: str) -> None:
        pipe = self._client.pipeline(transaction=False)
        for partition in range(self._keys.partitions):
            pipe.hdel(webhook_keys.notes_of(self._keys, partition).wanted, token)
        pipe.execute()

    def _specs(self, notes: Sequence[Mapping[str, str]]) -> list[RunSpec | None]:
        """The specs of the runs or batches of notes; None: it has expired, or this release cannot read it."""
        pipe = self._client.pipeline(transaction=False)
        for note in notes:
            if note["t"] == "batch_done":
                pipe.hget(self._keys.of_batch(note["of"]).batch, "spec")
            else:
                pipe.get(self._keys.of_run(note["of"]).spec)
        specs: list[RunSpec | None] = []
        for note, text in zip(notes, pipe.execute(), strict=True):
            try:
                specs.append(read_text(RunSpec, text, "spec", note["of"]) if text else None)
            except RecordUnreadable:
                specs.append(None)
        return specs

    def _gate(self, run_id: str, seq: int, opened_ms: int) -> Gate | None:
        """The question, if it is still open."""
        text, answer = self._client.hmget(self._keys.of_run(run_id).gates, str(seq), f"{seq}:answer")
        if text is None or answer is not None:
            return None
        try:
            gate = read_text(Gate, text, "question", run_id)
        except RecordUnreadable:
            return None
        return gate if gate.opened_ms == opened_ms else None

    def _read(self, keys: WebhookKeys, ids: Sequence[str]) -> Iterator[WebhookDelivery]:
        for id_, text in zip(ids, self._client.hmget(keys.deliveries, ids) if ids else [], strict=True):
            try:
                if text is not None:
                    yield read_text(WebhookDelivery, text, "webhook delivery", id_)
            except RecordUnreadable:
                continue

    def _of(self, token: str) -> WebhookKeys:
        return webhook_keys.keys_of(self._keys, token)

    def _script_keys(self, token: str) -> dict[str, str]:
        keys = self._of(token)
        return {
            "stats": keys.stats, "deliveries": keys.deliveries, "lanes": keys.lanes, "due": keys.due, "log": keys.log
        }  # fmt: skip


def _occasion(
    source: str,
    name: str,
    entry: str,
    fields: Mapping[str, str],
    spec: RunSpec,
    data: Mapping[str, Any] | None = None,
) -> Occasion:
    """`source` names it among all others. The time is that of the entry of its note."""
    return Occasion(
        source,
        name,
        fields["of"],
        int(entry.partition("-")[0]),
        spec.agent,
        spec.namespace,
        spec.tags or {},
        spec.parent is not None,
        _data(fields) if data is None else data,
    )


def _data(fields: Mapping[str, str]) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for name, text in fields.items():
        if name in _NUMBERS:
            data[name] = int(float(text))
        elif name == "cost_usd":
            data[name] = float(text)
        elif name not in ("t", "of"):
            data[name] = text
    return data


MOST_ASSIGNEES: Final = 20
"""People of a question who are named in a delivery."""


def _asked(gate: Gate | None) -> dict[str, Any]:
    """What is asked, without the payload of an interrupt, which may be of any size."""
    if gate is None:
        return {}
    return {
        "node": gate.node, "kind": gate.kind, "question": gate.question[:MOST_TEXT], "options": list(gate.options)[:50],
        "due_ms": gate.due_ms, "attempt": gate.attempt,
        "assignees": [] if gate.rules is None else list(gate.rules.assignees)[:MOST_ASSIGNEES],
    }  # fmt: skip


def _text(gate: ExpiringGate) -> str:
    return json.dumps(vars(gate))

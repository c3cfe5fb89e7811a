"""Runs as a release has stored them: a scheduler by hand, a worker that follows a script, and Redis' keys as JSON.

`tests/fixtures/stored_runs/record.py` records runs with it, and `tests/store/test_stored_runs.py` finishes them.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sleipnir.client.client import Client
from sleipnir.messages import (
    OVERLAY_END,
    OVERLAYS,
    RESULT,
    SAID,
    ResultHeader,
    ToolCall,
    VisitCall,
    overlay_text,
)
from sleipnir.runs.actor import Actor
from sleipnir.runs.claims import Claim
from sleipnir.settings import Settings
from sleipnir.store.store import Store
from sleipnir_scheduler.instance import Instance

PARTITIONS: Final = 2
LEASE_MS: Final = 600_000
WORKER, TOKEN = "worker", "token"
SOON_MS: Final = 5_000  # a slow machine sets timers of one moment one after the other
MOST_ROUNDS: Final = 2_000
OF_THIS_DEPLOYMENT: Final = ("generation", "schedulers", "instances", "workers", "broker:")
"""Keys that another deployment must not take over: who serves this one, and what Celery holds."""

ORDERED_HASHES: Final = ("--hash-max-ziplist-value", "100000", "--hash-max-ziplist-entries", "10000")
"""Options of a redis-server whose hashes keep the order in which fields were added. Visits that a retry runs again get
their numbers in the order of such a hash."""

Script = Mapping[str, Any]
"""What workers and people do, as JSON: the same in every attempt to finish a run.

`work`       by `node`, `node:role` or `node:tool:name`, with or without `agent.` before it, a list of replies: to the
             turns of a model, or to attempts. The last one is repeated. See Reply.
`again`      the same for a run that was retried, before `work`
`answers`    by node, and by the kind of the question, what a person says; "yes" if neither is there
`unanswered` nodes whose questions nobody answers
`retries`    how often the run at the top is retried if it fails
`retried`    whether it has been retried before
"""

Keys = Mapping[str, Any]
"""What is stored, by the names of the keys without the prefix, as [type, value] or [type, value, ms to live]."""

Reply = Mapping[str, Any]
"""`delta`, and fields of ResultHeader; `sends` and `calls` are lists of lists. A value "$key" in `delta` is that of the
state key, {"+": "key"} one more. `said` are messages for the session. `lost`: the worker dies. `back`: it gives the
visit back. `later`: it has met a limit. `hang`: it goes on for ever."""


def settings_of(redis_url: str, home: Path, **more: Any) -> Settings:
    """Of a deployment whose lost leases show soon, and whose scheduler keeps its partitions while a test is slow."""
    return Settings(
        redis_url=redis_url, home=home, partitions=PARTITIONS, lease_s=0.5, heartbeat_s=0.1, owner_ttl_s=600.0, **more
    )


@dataclass(frozen=True)
class Assigned:
    """A visit that a worker may claim, or has claimed. `visit` is its record as it is stored."""

    run: str
    seq: int
    visit: Mapping[str, Any]
    call: VisitCall

    @property
    def names(self) -> tuple[str, str]:
        """Under which the script has its replies."""
        node, role, part = self.call.node, self.call.role, self.visit.get("part") or {}
        name = node if role == "node" else f"{node}:tool:{part['tool']}" if role == "tool" else f"{node}:{role}"
        return f"{self.call.agent}.{name}", name


@dataclass
class Deployment:
    """Schedulers, workers and clients of one Redis, without processes and threads: all happens when it is called."""

    settings: Settings
    script: Script = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.client = Client(self.settings, by=Actor("person", "", "test"))
        self.store = self.client.store
        self.redis = self.store._client
        self._start_scheduler()
        self.retried = bool(self.script.get("retried"))
        self._left = self.script.get("retries", 0)

    def _start_scheduler(self) -> None:
        stopped = threading.Event()
        stopped.set()  # services do not wait between two rounds
        self.instance = Instance(self.settings, self.store, stopped)
        self.services = {name: once for name, (once, _) in self.instance.services().items()}
        self.instance.begin()

    def close(self) -> None:
        self.instance.end()
        self.store.visits._line.client.close()
        self.client.close()

    # The scheduler

    def settle(self) -> None:
        """Let the scheduler do all that it can without workers, people and time."""
        for _ in range(MOST_ROUNDS):
            if self._entries("inbox"):
                self.services["advance"]()
            elif self._entries("effects"):
                self.services["effects"]()
            else:
                self.services["admission"]()
                if not self._entries("inbox") and not self._entries("effects"):
                    return
            self.services["ownership"]()
        raise AssertionError(f"the scheduler does not come to rest; parked: {self._parked()}")

    def plan(self) -> None:
        """Apply what is in the inboxes, and deliver no effects."""
        for _ in range(MOST_ROUNDS):
            if not self._entries("inbox"):
                return
            self.services["advance"]()
        raise AssertionError(f"the scheduler does not come to rest; parked: {self._parked()}")

    def _entries(self, stream: str) -> int:
        return sum(self.redis.xlen(key) for key in self._keys(stream))

    def _keys(self, name: str) -> Iterator[str]:
        for partition in range(PARTITIONS):
            yield getattr(self.store.keys.of_partition(partition), name)

    def _parked(self) -> list[Any]:
        return [self.redis.hgetall(key) for key in self._keys("parked")]

    # Workers

    def assigned(self, *nodes: str) -> list[Assigned]:
        """The visits of these nodes (none named: of all) that are a worker's business, by run and number."""
        found = []
        for name in ("outbox", "leases"):
            for key in self._keys(name):
                for member in self.redis.zrange(key, 0, -1):
                    run, seq, attempt = member.rsplit("/", 2)
                    keys = self.store.keys.of_run(run)
                    visit = json.loads(self.redis.hget(keys.frontier, seq) or "null")
                    if visit is None or visit["attempt"] != int(attempt) or (nodes and visit["node"] not in nodes):
                        continue
                    spec = json.loads(self.redis.get(keys.spec))
                    role = visit.get("role", "node")
                    call = VisitCall(run, visit["node"], int(seq), int(attempt), spec["agent"], spec["bundle"], role)
                    found.append(Assigned(run, int(seq), visit, call))
        return sorted(found, key=lambda each: (each.run, each.seq))

    def work(self, *nodes: str, most: int | None = None) -> int:
        """Claim visits of these nodes and deliver what the script says, for `most` of them. How many are done with."""
        return sum(self._does(assigned) for assigned in self.assigned(*nodes)[:most])

    def claim(self, *nodes: str, most: int | None = None) -> None:
        """Claim visits, and deliver nothing."""
        for assigned in self.assigned(*nodes)[:most]:
            assert self._claimed(assigned) is not None

    def _claimed(self, assigned: Assigned) -> Claim | None:
        claim = self.store.visits.claim(assigned.call, worker=WORKER, token=TOKEN, lease_ms=LEASE_MS, wanted=None)
        return claim if isinstance(claim, Claim) else None

    def reply(self, assigned: Assigned) -> Reply:
        """What the worker of a visit does. Of a turn that is tried again, what the script has for the next turn."""
        part = assigned.visit.get("part") or {"turn": 0}
        number = part["turn"] + assigned.call.attempt - 1
        for source in ("again", "work") if self.retried else ("work",):
            for name in assigned.names:
                if replies := self.script.get(source, {}).get(name):
                    return replies[min(number, len(replies) - 1)]  # type: ignore[no-any-return]
        return _usual_reply(assigned)

    def _does(self, assigned: Assigned) -> bool:
        claim = self._claimed(assigned)
        if claim is None:
            return False
        reply = dict(self.reply(assigned))
        if reply.pop("hang", False):
            return False
        if reply.pop("lost", False):
            self._lose(assigned)
            return True
        if reply.pop("back", False):
            return self.store.visits.hand_back(assigned.call, token=TOKEN, reason="stopping")
        state = {key: json.loads(text) for key, text in claim.state.items()}
        delta = {key: _filled(value, state) for key, value in reply.pop("delta", {}).items()}
        values = {key: json.dumps(value) for key, value in delta.items()}
        if (sends := reply.pop("sends", None)) is not None:
            updates = [{key: json.dumps(value) for key, value in update.items()} for _, update in sends]
            values[OVERLAYS] = OVERLAY_END.join(map(overlay_text, updates))
            reply["sends"] = tuple(to for to, _ in sends)
        if said := reply.pop("said", None):
            values[SAID] = "\n".join(map(json.dumps, said))
        if reply.pop("later", False):
            reply |= {"ok": False, "error": "limit 'm'", "error_kind": "limit"}
            reply["later_ms"] = self.store.now_ms() + 60_000
        if isinstance(reply.get("next"), list):
            reply["next"] = tuple(reply["next"])
        reply["calls"] = tuple(ToolCall(*call) for call in reply.get("calls", ()))
        header = ResultHeader(**{"ok": True, "worker": WORKER, **reply}, keys=tuple(delta))
        return self.store.visits.deliver(assigned.call, header, values, worker=WORKER, token=TOKEN)

    def _lose(self, assigned: Assigned) -> None:
        """The worker of a claimed visit dies, and its lease lapses."""
        leases = self.store.keys.of_partition(self.store.keys.partition_of(assigned.run)).leases
        member = f"{assigned.run}/{assigned.seq}/{assigned.call.attempt}"
        deadline = time.monotonic() + 60
        while self.redis.zscore(leases, member) is not None:
            assert time.monotonic() < deadline, f"the lease of {member} is not taken back"
            self.redis.zadd(leases, {member: 1}, xx=True)
            self.services["reaper"]()
            threading.Event().wait(0.02)

    # People and time

    def gates(self) -> list[Any]:
        return sorted(self.client.gates(), key=lambda gate: (gate.run, gate.seq))

    def answer(self, node: str, text: str) -> None:
        [gate] = [gate for gate in self.gates() if gate.node == node]
        self.store.runs.answer(gate.run, gate.seq, text)

    def _answers(self) -> bool:
        for gate in self.gates():
            if gate.node not in self.script.get("unanswered", ()):
                answers = self.script.get("answers", {})
                text = answers.get(gate.kind, answers.get(gate.node, "yes"))
                self.store.runs.answer(gate.run, gate.seq, text)
                return True
        return False

    def time_passes(self) -> bool:
        """Wait until the next timer is due, with those that follow it soon: all that is stored becomes older by that,
        and is read anew."""
        timers = [pair for key in self._keys("timers") for pair in self.redis.zrange(key, 0, -1, withscores=True)]
        if not timers:
            return False
        _, due_ms = min(timers, key=lambda timer: (timer[1], timer[0]))
        self.instance.end()
        if (left_ms := int(due_ms) + SOON_MS - self.store.now_ms()) > 0:
            write(self.store, aged(dump(self), left_ms))
        self._start_scheduler()
        self.services["timers"]()
        return True

    # To the end

    def finish(self, root: str) -> None:
        """Go on until nothing is left that workers, people or time can do."""
        for _ in range(MOST_ROUNDS):
            self.settle()
            if self.work() or self._entries("inbox") or self._answers() or self._lets_go_on():
                continue
            if not (self.time_passes() or self._retries_again(root)):
                return
        raise AssertionError("the run does not come to an end")

    def _lets_go_on(self) -> bool:
        for info in sorted(self.client.runs(1_000, {"paused"}, children=True), key=lambda info: info.id):
            if any(hold.owner != "parent" for hold in info.holds):
                self.client.run(info.id).resume()
                return True
        if self.client.held():
            return self.client.resume_all()
        for batch in self.client.batches():
            if batch.question or batch.state == "paused":
                self.client.open_batch(batch.id).resume()
                return True
        return False

    def _retries_again(self, root: str) -> bool:
        if self.client.run(root).status != "failed" or not self._left:
            return False
        self._left -= 1
        self.retry(root)
        return True

    def retry(self, run: str) -> None:
        """A person retries a failed run: workers reply as they do from then on."""
        self.retried = True
        self.client.run(run).retry()


def _usual_reply(assigned: Assigned) -> Reply:
    node = assigned.call.node
    item = assigned.visit.get("item") or {}
    match assigned.call.role:
        case "node" if item:
            return {"delta": {"output": f"{node} of item {item['index']}"}}
        case "turn" | "node":
            return {"delta": {"output": f"output of {node}"}}
        case "tool" | "summary":
            return {"delta": {RESULT: f"result of {assigned.names[1]}"}}
    raise AssertionError(f"the script does not say what {assigned.names[1]} replies")


def _filled(value: Any, state: Mapping[str, Any]) -> Any:
    if isinstance(value, dict) and value.keys() == {"+"}:
        return state.get(value["+"], 0) + 1
    return state.get(value[1:]) if isinstance(value, str) and value.startswith("$") else value


# What is stored


def dump(deployment: Deployment) -> dict[str, Any]:
    """All keys of a deployment but those of its processes."""
    client, prefix = deployment.store._bytes, f"{deployment.store.keys.prefix}:".encode()
    found: dict[str, Any] = {}
    for key in sorted(client.scan_iter(prefix + b"*")):
        name = _text(key.removeprefix(prefix))
        if not name.startswith(OF_THIS_DEPLOYMENT) and not name.endswith("}:owner"):
            kind = _text(client.type(key))
            left_ms = client.pttl(key)
            found[name] = [kind, _value(client, key, kind), *([left_ms] if left_ms > 0 else [])]
    return found


def _value(client: Any, key: bytes, kind: str) -> Any:
    match kind:
        case "string":
            return _text(client.get(key))
        case "hash":
            return {_text(name): _text(value) for name, value in client.hgetall(key).items()}
        case "list":
            return [_text(value) for value in client.lrange(key, 0, -1)]
        case "set":
            return sorted(map(_text, client.smembers(key)))
        case "zset":
            return [[_text(member), score] for member, score in client.zrange(key, 0, -1, withscores=True)]
        case "stream":
            entries = [[_text(id_), _texts(fields)] for id_, fields in client.xrange(key)]
            return {"last": _text(client.xinfo_stream(key)["last-generated-id"]), "entries": entries}
    raise AssertionError(f"{key!r} is a {kind}")


def load(settings: Settings, keys: Keys, at_ms: int) -> None:
    """Write what `dump` read at `at_ms` into Redis, under the prefix of these settings, as if it had been read now."""
    with Client(settings) as client:
        write(client.store, aged(keys, at_ms - client.store.now_ms()))


def write(store: Store, keys: Keys) -> None:
    redis = store._bytes
    for name, (kind, value, *left_ms) in keys.items():
        key = f"{store.keys.prefix}:{name}".encode()
        redis.delete(key)
        _write(redis, key, kind, value)
        if left_ms:
            redis.pexpire(key, *left_ms)


_MOMENT: Final = re.compile(r"(?<!\d)1\d{12}(?!\d)")
"""Milliseconds since the epoch: now, and for some centuries."""


def aged(stored: Any, by_ms: int) -> Any:
    """The same with all times earlier by that: in texts, and as numbers of sorted sets."""
    if isinstance(stored, str):
        return _MOMENT.sub(lambda moment: str(int(moment[0]) - by_ms), stored)
    if isinstance(stored, float):
        return stored - by_ms if stored >= 10**12 else stored
    if isinstance(stored, dict):
        return {key: aged(value, by_ms) for key, value in stored.items()}
    return [aged(value, by_ms) for value in stored] if isinstance(stored, list) else stored


def _write(redis: Any, key: bytes, kind: str, value: Any) -> None:
    match kind:
        case "string":
            redis.set(key, _bytes(value))
        case "hash":
            redis.hset(key, mapping={_bytes(name): _bytes(text) for name, text in value.items()})
        case "list":
            redis.rpush(key, *map(_bytes, value))
        case "set":
            redis.sadd(key, *map(_bytes, value))
        case "zset":
            redis.zadd(key, {_bytes(member): score for member, score in value})
        case "stream":
            for id_, fields in value["entries"]:
                redis.xadd(key, {_bytes(name): _bytes(text) for name, text in fields.items()}, id=id_)
            if [id_ for id_, _ in value["entries"]][-1:] != [value["last"]]:
                redis.xadd(key, {"x": ""}, id=value["last"])
                redis.xdel(key, value["last"])


def _text(raw: bytes) -> str:
    return raw.decode(errors="surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


def _texts(fields: Mapping[bytes, bytes]) -> dict[str, str]:
    return {_text(name): _text(value) for name, value in fields.items()}


# How runs have ended

_OF_THE_RUN: Final = ("status", "seq", "step", "steps", "error", "failed_at", "stopped_by", "failed_visits", "retries",
                      "tokens_in", "tokens_out", "model_calls", "cost_usd", "unpriced_calls", "arrived", "tops",
                      "batch")  # fmt: skip


_LATER: Final = ("generation", "failure", "closing", "sent_by")
"""Fields of visits and steps that earlier releases do not store."""


def outcome(deployment: Deployment) -> dict[str, Any]:
    """What is stored of all runs in the end, by id, without times and counts of commits."""
    runs: dict[str, Any] = {}
    for name, (_, value, *_) in dump(deployment).items():
        match name.split(":")[1:]:
            case ["run", run]:
                kept = {key: text for key, text in value.items() if key in _OF_THE_RUN or key.startswith("n:")}
                runs.setdefault(run, {})["run"] = kept
            case ["run", run, "state" | "output" | "children" as part]:
                runs.setdefault(run, {})[part] = value
            case ["run", run, "frontier"]:
                runs.setdefault(run, {})["frontier"] = {seq: _timeless(json.loads(value[seq])) for seq in sorted(value)}
            case ["run", run, "journal"]:
                heads = (entry.split("\n") for entry in value)
                runs.setdefault(run, {})["journal"] = [[_timeless(json.loads(head)), *rest] for head, *rest in heads]
            case ["run", run, "events"]:
                events = [pair for _, fields in value["entries"] for pair in json.loads(fields["e"])]
                runs.setdefault(run, {})["events"] = [_timeless(pair) for pair in events]
            case ["run", run, "items"]:
                runs.setdefault(run, {})["items"] = value
    counts: dict[str, int] = defaultdict(int)
    for each in runs.values():
        counts[each["run"]["status"]] += 1
    batches = {batch.id: _rows_of(batch) for batch in deployment.client.batches()}
    return {"runs": runs, "statuses": dict(counts), "batches": batches}


def _rows_of(batch: Any) -> dict[str, Any]:
    names = ("state", "total", "waiting", "active", "completed", "failed", "cancelled", "failed_visits")
    return {name: getattr(batch, name) for name in names}


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _timeless(each) for key, each in value.items() if not key.endswith("_ms") and key not in _LATER}
    return [_timeless(each) for each in value] if isinstance(value, list) else value

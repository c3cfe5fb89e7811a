"""Both stores behind one face, for tests of their contract: the store in Redis and the one in memory."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any, Protocol

from sleipnir.graph.model import Graph
from sleipnir.memory.store import MemoryStore, now_ms
from sleipnir.messages import ResultHeader, VisitCall
from sleipnir.runs.claims import Claim, ClaimRefused
from sleipnir.runs.run import RunSpec
from sleipnir.runs.transitions import StartChild
from sleipnir.runs.views import GateInfo, RunInfo
from sleipnir.store.store import Store
from sleipnir_inprocess.runner import Runner
from sleipnir_scheduler.child_run import child_run
from sleipnir_scheduler.services.deliveries import Deliveries
from tests.model_store import graph_of
from tests.store.test_advance import advance_of

MOST_STATE = 1_000_000


class Keeper(Protocol):
    """A store with the scheduler that works on it. `graphs` are by bundle."""

    graphs: dict[str, Graph]

    def create(self, run: str, spec: RunSpec, state: Mapping[str, Any]) -> bool: ...

    def go_on(self) -> list[VisitCall]:
        """Plan and commit all events, and deliver all effects. Returns the visits that were published, in order."""
        ...

    def claim(self, call: VisitCall, wanted: Collection[str] | None = None) -> Claim | ClaimRefused: ...

    def claim_again(self, call: VisitCall) -> Claim | ClaimRefused:
        """A claim by another execution."""
        ...

    def deliver(self, call: VisitCall, header: ResultHeader, values: Mapping[str, str]) -> bool: ...

    def hand_back(self, call: VisitCall) -> bool: ...

    def answer(self, run: str, seq: int, text: str, attempt: int = 1) -> None: ...

    def signal(self, name: str, id_: str, data: Any = None) -> int:
        """Send a signal. Returns how many waiting visits it has reached."""
        ...

    def cancel(self, run: str) -> None: ...

    def pause(self, run: str, timeout_ms: int | None = None) -> None: ...

    def resume(self, run: str) -> None: ...

    def retry(self, run: str) -> None: ...

    def skip(self, run: str, seq: int, value: Any) -> None: ...

    def let_timers_fire(self) -> int:
        """Make all timers due. Returns how many there were."""
        ...

    def gates(self, run: str) -> list[GateInfo]: ...

    def gates_below(self, run: str) -> list[GateInfo]: ...

    def info(self, run: str) -> RunInfo: ...

    def output(self, run: str) -> str | None: ...

    def state(self, run: str) -> dict[str, Any]: ...

    def steps(self, run: str) -> list[tuple[str, str | None, bool, dict[str, Any]]]:
        """Kind, node, success and writes of the journal's steps."""
        ...

    def events(self, run: str) -> list[str]:
        """The types of the events for watchers."""
        ...

    def left(self, run: str) -> int:
        """How many values of single visits and loops are stored."""
        ...


class RedisKeeper:
    def __init__(self, store: Store) -> None:
        self.graphs: dict[str, Graph] = {}
        self._store = store
        self._published: list[VisitCall] = []
        self._advance = advance_of(store, "name: none\nstart: e\nnodes: {e: {type: end}}\n")
        found: Any = SimpleNamespace(get=lambda digest, agent, overrides=None: self.graphs[digest])
        posted: Any = SimpleNamespace(publish=self._publish)
        self._advance._graphs, self._advance._dispatcher = found, posted
        self._deliveries = Deliveries(store.effects, found, max_state_bytes=MOST_STATE)

    def _publish(self, calls: list[tuple[VisitCall, str]]) -> Any:
        self._published += [call for call, _ in calls]
        return SimpleNamespace(ahead=0)

    def create(self, run: str, spec: RunSpec, state: Mapping[str, Any]) -> bool:
        return self._store.runs.create(run, spec, state)

    def go_on(self) -> list[VisitCall]:
        self._published = []
        while True:
            while self._advance.run_once() > 0:
                pass
            if not self._deliveries.run_once(range(self._store.keys.partitions)):
                return self._published

    def claim(self, call: VisitCall, wanted: Collection[str] | None = None) -> Claim | ClaimRefused:
        return self._store.visits.claim(call, worker="w", token="first", lease_ms=60_000, wanted=wanted)

    def claim_again(self, call: VisitCall) -> Claim | ClaimRefused:
        return self._store.visits.claim(call, worker="w", token="other", lease_ms=60_000, wanted=None)

    def deliver(self, call: VisitCall, header: ResultHeader, values: Mapping[str, str]) -> bool:
        return self._store.visits.deliver(call, header, values, worker="w", token="first")

    def hand_back(self, call: VisitCall) -> bool:
        return self._store.visits.hand_back(call, token="first", reason="process_lost")

    def answer(self, run: str, seq: int, text: str, attempt: int = 1) -> None:
        self._store.runs.answer(run, seq, text, attempt)

    def signal(self, name: str, id_: str, data: Any = None) -> int:
        return self._store.signals.send(name, id_, json.dumps(data)).reached

    def cancel(self, run: str) -> None:
        self._store.runs.cancel(run)

    def pause(self, run: str, timeout_ms: int | None = None) -> None:
        self._store.runs.pause(run, "me", timeout_ms=timeout_ms)

    def resume(self, run: str) -> None:
        self._store.runs.resume(run)

    def retry(self, run: str) -> None:
        self._store.runs.retry(run)

    def skip(self, run: str, seq: int, value: Any) -> None:
        self._store.runs.skip(run, seq, json.dumps(value), by="me")

    def let_timers_fire(self) -> int:
        count = 0
        for number in range(self._store.keys.partitions):
            timers = self._store.keys.of_partition(number).timers
            names = self._store._client.zrange(timers, 0, -1)
            if names:
                self._store._client.zadd(timers, dict.fromkeys(names, 1))
                count += self._store.partitions.fire_timers(number, 100)
        return count

    def gates(self, run: str) -> list[GateInfo]:
        return self._store.runs.gates(run)

    def gates_below(self, run: str) -> list[GateInfo]:
        return self._store.runs.gates_below(run)

    def info(self, run: str) -> RunInfo:
        return self._store.runs.info(run)

    def output(self, run: str) -> str | None:
        return self._store.runs.output(run)

    def state(self, run: str) -> dict[str, Any]:
        return self._store.runs.state(run)

    def steps(self, run: str) -> list[tuple[str, str | None, bool, dict[str, Any]]]:
        lines = self._store._client.lrange(self._store.keys.of_run(run).journal, 0, -1)
        return [_step(*text.split("\n")) for text in lines]

    def events(self, run: str) -> list[str]:
        return [event.type for event in self._store.runs.events(run, "0")]

    def left(self, run: str) -> int:
        keys = self._store.keys.of_run(run)
        return int(self._store._client.hlen(keys.items)) + int(self._store._client.hlen(keys.windows))


def _step(header: str, *pairs: str) -> tuple[str, str | None, bool, dict[str, Any]]:
    step = json.loads(header)
    written = {json.loads(key): json.loads(text) for key, text in zip(pairs[::2], pairs[1::2], strict=True)}
    return step["kind"], step.get("node"), step.get("ok", True), written


class MemoryKeeper:
    def __init__(self) -> None:
        self.graphs: dict[str, Graph] = {}
        self._ahead_ms = 0
        self._store = MemoryStore(lambda: now_ms() + self._ahead_ms)
        execute: Any = None
        self._runner = Runner(self._store, "", lambda spec: self.graphs[spec.bundle], execute, begin=self._begin)

    def _begin(self, parent: str, above: RunSpec, effect: StartChild) -> tuple[RunSpec, dict[str, Any]]:
        return child_run(
            parent, above, effect, lambda digest, agent, _: self.graphs[digest], max_state_bytes=MOST_STATE
        )

    def create(self, run: str, spec: RunSpec, state: Mapping[str, Any]) -> bool:
        return self._store.create(run, spec, {key: json.dumps(value) for key, value in state.items()})

    def go_on(self) -> list[VisitCall]:
        published: list[VisitCall] = []
        while self._store.inbox:
            published += self._runner.advance()
        return published

    def claim(self, call: VisitCall, wanted: Collection[str] | None = None) -> Claim | ClaimRefused:
        return self._store.claim(call, wanted)

    claim_again = claim

    def deliver(self, call: VisitCall, header: ResultHeader, values: Mapping[str, str]) -> bool:
        return self._store.deliver(call, header, values)

    def hand_back(self, call: VisitCall) -> bool:
        return self._store.hand_back(call)

    def answer(self, run: str, seq: int, text: str, attempt: int = 1) -> None:
        self._store.answer(run, seq, text, attempt)

    def signal(self, name: str, id_: str, data: Any = None) -> int:
        return self._store.signal(name, id_, json.dumps(data))

    def cancel(self, run: str) -> None:
        self._store.cancel(run)

    def pause(self, run: str, timeout_ms: int | None = None) -> None:
        self._store.pause(run, "me", timeout_ms=timeout_ms)

    def resume(self, run: str) -> None:
        self._store.resume(run)

    def retry(self, run: str) -> None:
        self._store.retry(run)

    def skip(self, run: str, seq: int, value: Any) -> None:
        self._store.skip(run, seq, value, by="me")

    def let_timers_fire(self) -> int:
        due = [due_ms for run in self._store.runs.values() for due_ms in run.timers.values()]
        self._ahead_ms += max(0, max(due, default=0) - self._store.clock())
        self._store.fire_due()
        return len(due)

    def gates(self, run: str) -> list[GateInfo]:
        return self._store.gates(run)

    def gates_below(self, run: str) -> list[GateInfo]:
        return self._store.gates_below(run)

    def info(self, run: str) -> RunInfo:
        return self._store.info(run)

    def output(self, run: str) -> str | None:
        return self._store.run(run).output

    def state(self, run: str) -> dict[str, Any]:
        return {key: json.loads(text) for key, text in self._store.run(run).values.state.items()}

    def steps(self, run: str) -> list[tuple[str, str | None, bool, dict[str, Any]]]:
        return [
            (step.kind, step.node, step.ok, {key: json.loads(text) for key, text in texts.items()})
            for step, texts in self._store.run(run).values.journal
        ]

    def events(self, run: str) -> list[str]:
        return [event.type for event in self._store.run(run).events]

    def left(self, run: str) -> int:
        values = self._store.run(run).values
        return len(values.items) + len(values.windows)


def graphs_of(**texts: str) -> dict[str, Graph]:
    return {name: graph_of(text) for name, text in texts.items()}

"""Plant what no process can read: inbox entries, effects, messages, records and bundles of the corpus in
tests/fixtures/unreadable, each at a run of its own, and see what becomes of these runs.

A victim is a run that asks a question. Its record is damaged, or something unreadable is sent to it, and the question
is answered. It must end, or say that it is parked and why; and it must end once everything is as it was. Data that
names no run, or belongs to no run, must change nothing for others.
"""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ops.chaos.verdict import Wrong
from sleipnir.client.client import Client
from sleipnir.store.connect import Client as RedisClient
from sleipnir.store.connect import connect
from sleipnir.store.keys import Keys
from tests.processes import wait_until, write_agent
from tests.unreadable import Unreadable, cases

NAME = "victim"
ASKS = """
name: victim-NUMBER
start: ask
nodes:
  ask: {type: approval, question: go on?, options: [yes], routes: {yes: act}, on_other: act}
  act: {type: function, call: "act.py:act", next: done}
  done: {type: end, output: "acted"}
"""
ACT = "def act(state):\n    return {'acted': NUMBER}\n"
ENDS_S, MENDED_S = 60.0, 120.0  # a look at parked runs comes every 30 s
OF_STREAMS = ("inbox_entry", "effect")
OF_RUNS = ("inbox_entry", "effect", "message", "run_spec", "run_record", "visit", "gate", "bundle")


@dataclass
class Victim:
    """`undo` makes good what was done to it."""

    case: Unreadable
    run: str
    gate: int = 0
    undo: list[Callable[[], object]] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.run} ({self.case})"


class Plants:
    """The data that one drill has planted. `share` is how much of the corpus is planted each time, 0 to 1."""

    def __init__(self, client: Client, folder: Path, queue: str, chance: random.Random, share: float) -> None:
        self._client, self._folder, self._chance, self._share = client, folder, chance, share
        self._keys: Keys = client.store.keys
        self._queue = self._keys.broker_prefix + queue
        self._redis: RedisClient = connect(client.store.url, decode=False)
        self._victims: list[Victim] = []
        self._undo: list[Callable[[], object]] = []
        self._stuck: list[Wrong] = []
        self._agents = 0
        self.reported = 0

    @property
    def count(self) -> int:
        return len(self._victims)

    def plant(self) -> None:
        """Some of each kind, drawn again each time."""
        victims = [Victim(case, "") for kind in OF_RUNS for case in self._some(kind)]
        for victim in victims:
            victim.run = self._client.submit(self._agent()).id
        for victim in victims:
            try:
                gates = wait_until(lambda run=victim.run: self._client.store.runs.gates(run), "it asks", ENDS_S)  # type: ignore[misc]
            except AssertionError as error:
                self._stuck.append(Wrong("stuck", f"{victim}, before it is harmed: {error}"))
                return
            victim.gate = gates[0].seq
            self._harm(victim)
            self._answer(victim)
            self._victims.append(victim)
        for case in self._some("worker"):
            name = f"poison-{case.name}@nowhere"
            self._redis.hset(self._keys.workers, name, case.of(""))
            self._undo.append(lambda name=name: self._redis.hdel(self._keys.workers, name))

    def _some(self, kind: str) -> list[Unreadable]:
        unreadable = cases(kind)
        return self._chance.sample(unreadable, max(1, round(self._share * len(unreadable))))

    def _agent(self) -> Path:
        self._agents += 1
        number = str(self._agents)
        folder = self._folder / f"{NAME}-{number}"
        return write_agent(folder, ASKS.replace("NUMBER", number), act_py=ACT.replace("NUMBER", number))

    def _harm(self, victim: Victim) -> None:
        planted: Any = victim.case.of(victim.run)
        partition = self._keys.of_partition(self._keys.partition_of(victim.run))
        run = self._keys.of_run(victim.run)
        match victim.case.kind:
            case "inbox_entry" | "effect" as kind:
                stream = partition.inbox if kind == "inbox_entry" else partition.effects
                entry = self._redis.xadd(stream, dict(planted))
                victim.undo.append(lambda: self._redis.xdel(stream, entry))
            case "message":
                self._redis.lpush(self._queue, planted)
            case "run_spec":
                self._set(victim, run.spec, planted)
            case "run_record":
                for name, text in planted.items():
                    self._hset(victim, run.run, name, text)
            case "visit":
                [seq, *_] = self._redis.hkeys(run.frontier)
                self._hset(victim, run.frontier, seq, planted)
            case "gate":
                [seq, *_] = self._redis.hkeys(run.gates)
                self._hset(victim, run.gates, seq, planted)
            case "bundle":
                digest = json.loads(self._redis.get(run.spec))["bundle"]
                self._set(victim, self._keys.bundle(digest), planted)

    def _set(self, victim: Victim, key: str, value: bytes) -> None:
        before = self._redis.get(key)
        victim.undo.append(lambda: self._redis.set(key, before, xx=True, keepttl=True))
        self._redis.set(key, value)

    def _hset(self, victim: Victim, key: str, name: Any, value: bytes) -> None:
        before, planted = self._redis.hget(key, name), self._redis.get_encoder().encode(value)

        def undo() -> None:
            if self._redis.hget(key, name) != planted:
                return  # the run went on by what its scheduler remembered, and wrote its own
            if before is None:
                self._redis.hdel(key, name)
            else:
                self._redis.hset(key, name, before)

        victim.undo.append(undo)
        self._redis.hset(key, name, value)

    def _answer(self, victim: Victim) -> None:
        """Answers the gate whether or not it can be read; a refused answer is given again after the repair."""
        with contextlib.suppress(Exception):
            self._client.store.runs.answer(victim.run, victim.gate, "yes")

    # Afterwards

    def wrongs(self) -> Iterator[Wrong]:
        """Look at the victims, then make good all that was done to them, and look whether they end."""
        yield from self._stuck
        yield from self._is_listed()
        for victim in self._victims:
            try:
                wait_until(lambda victim=victim: self._is_reported(victim), "", ENDS_S)  # type: ignore[misc]
                self.reported += 1
            except AssertionError:
                yield Wrong("unreported", f"{victim}: has not ended and is not parked: {self._state(victim)}")
        for victim in self._victims:
            for undo in victim.undo:
                undo()
        for undo in self._undo:
            undo()
        for victim in self._victims:
            try:
                wait_until(lambda victim=victim: self._is_over(victim), "", MENDED_S)  # type: ignore[misc]
            except AssertionError:
                yield Wrong("stuck", f"{victim}: does not end after the repair: {self._state(victim)}")

    def _is_reported(self, victim: Victim) -> bool:
        """Over, parked, shown as unreadable, or waiting for the answer, which is refused."""
        if self._is_over(victim) or victim.run in self._parked(victim.run):
            return True
        with contextlib.suppress(Exception):
            if self._client.run(victim.run).info().unreadable:
                return True
        return self._refuses(victim)

    def _refuses(self, victim: Victim) -> bool:
        try:
            info = self._client.run(victim.run).info()
        except Exception:
            return False
        try:
            self._client.store.runs.answer(victim.run, victim.gate, "yes")
        except Exception:
            return info.status == "waiting" and all(visit.reason is not None for visit in info.visits)
        return False

    def _is_over(self, victim: Victim) -> bool:
        with contextlib.suppress(Exception):  # for every kind of unreadable data
            if self._client.run(victim.run).info().is_final:
                return True
            self._answer(victim)
        return False

    def _is_listed(self) -> Iterator[Wrong]:
        """Lists of runs, questions and workers must work even if some entries are unreadable."""
        for what, look in {
            "ps": lambda: self._client.runs(limit=100_000),
            "gates": self._client.gates,
            "doctor": self._client.health,
        }.items():
            try:
                look()
            except Exception as error:
                yield Wrong("unreported", f"{what} fails as a whole: {type(error).__name__}: {error}")

    def _parked(self, run: str) -> Mapping[str, str]:
        partition = self._keys.of_partition(self._keys.partition_of(run))
        parked = self._redis.hgetall(f"{partition.tag}:parked")
        return {name.decode(errors="replace"): text.decode(errors="replace") for name, text in parked.items()}

    def _state(self, victim: Victim) -> str:
        try:
            info = self._client.run(victim.run).info()
            return f"{info.status}, {[visit.reason for visit in info.visits]}"
        except Exception as error:
            return repr(error)

    def close(self) -> None:
        self._redis.close()

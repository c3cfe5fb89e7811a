"""The people of a campaign: they submit, answer, pause, resume, cancel and retry, and notice when nothing moves."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from sleipnir.client import Client
from sleipnir.errors import SleipnirError
from sleipnir.runs import FAIL, RUN_AGAIN
from sleipnir.views import GateInfo, RunInfo

STALL_S = 120.0
AT_ONCE = 60  # runs under way: a queue that is long would hide how soon a visit is started again
EFFECT_ANSWERS = (RUN_AGAIN, RUN_AGAIN, FAIL, '{"trace": "settled "}')


class Robot:
    """`run_ids` are the runs that were accepted, `run_agains` the answers that allow another effect."""

    def __init__(self, client: Client, agents: Sequence[Path], runs: int, chance: random.Random) -> None:
        self._client, self._agents, self._runs, self._chance = client, agents, runs, chance
        self.run_ids: list[str] = []
        self.run_agains: Counter[tuple[str, int]] = Counter()
        self.ended: dict[str, tuple[str, int]] = {}
        self.stalled = False
        self.did: Counter[str] = Counter()
        self._live: set[str] = set()
        self._known: set[str] = set()
        self._paused: dict[str, float] = {}
        self._answers: dict[tuple[str, int, int], str] = {}
        self._retried: set[str] = set()

    def work(self) -> None:
        """Until every run is over, or nothing has moved for STALL_S."""
        pause, moved = threading.Event(), time.monotonic()
        while self._live or len(self.run_ids) < self._runs:
            pause.wait(0.2)
            try:
                if self._round():
                    moved = time.monotonic()
            except SleipnirError:
                pass  # Redis is away
            print(f"\r  {len(self.ended)} of {self._runs} over ", end="", file=sys.stderr, flush=True)
            if time.monotonic() - moved > STALL_S:
                self.stalled = True
                break
        print(file=sys.stderr)

    def left(self) -> list[str]:
        return sorted(self._live)

    def _round(self) -> bool:
        """Whether anything moved."""
        answered = self._answer()
        with self._client.store.errors():
            infos = self._client.store.runs.infos(sorted(self._live)) if self._live else []
        over = [info for info in infos if info.is_final and not self._retry(info)]
        for info in over:
            self._live.discard(info.id)
            self._paused.pop(info.id, None)
            self.ended[info.id] = (info.status, info.step)
        self._meddle()
        while len(self._live) < AT_ONCE and len(self.run_ids) < self._runs:
            self._adopt(self._client.submit(self._agents[len(self.run_ids) % len(self._agents)], "go").id)
        for info in self._client.runs(limit=2 * AT_ONCE):
            self._adopt(info.id)  # accepted, but the reply was lost
        return bool(answered or over)

    def _adopt(self, run_id: str) -> None:
        if run_id not in self._known:
            self._known.add(run_id)
            self.run_ids.append(run_id)
            self._live.add(run_id)

    def _answer(self) -> int:
        gates = [gate for gate in self._client.gates() if gate.run not in self._paused]
        return sum(self._tried("answer", self._answering(gate)) for gate in gates)

    def _answering(self, gate: GateInfo) -> Callable[[], None]:
        """A question gets one answer, however often it has to be said."""
        place = (gate.run, gate.seq, gate.opened_ms)
        if place not in self._answers:
            choice = EFFECT_ANSWERS if gate.kind == "effect" else ("yes", "no", "free text")
            self._answers[place] = self._chance.choice(choice)
            if gate.kind == "effect" and self._answers[place] == RUN_AGAIN:
                self.run_agains[gate.run, gate.seq] += 1
        return lambda: self._client.run(gate.run).answer(self._answers[place], gate)

    def _retry(self, info: RunInfo) -> bool:
        """One in five failed runs is retried, once."""
        if info.status != "failed" or info.id in self._retried or self._chance.random() > 0.2:
            return False
        self._retried.add(info.id)
        return bool(self._tried("retry", self._client.run(info.id).retry))

    def _meddle(self) -> None:
        """Pause a run, resume what was paused long enough, now and then cancel one."""
        now = time.monotonic()
        for run_id in [run_id for run_id, until in self._paused.items() if until < now]:
            if self._tried("resume", self._client.run(run_id).resume):
                del self._paused[run_id]
        if self._live and self._chance.random() < 0.1:
            run_id = self._chance.choice(sorted(self._live))
            if run_id not in self._paused and self._tried("pause", lambda: self._client.run(run_id).pause("robot")):
                self._paused[run_id] = now + self._chance.uniform(0.5, 5)
        if self._live and self._chance.random() < 0.03:
            self._tried("cancel", self._client.run(self._chance.choice(sorted(self._live))).cancel)

    def _tried(self, what: str, call: Callable[[], None]) -> int:
        try:
            call()
        except SleipnirError:
            return 0  # Redis is away, the run is over, or it was done although its reply was lost
        self.did[what] += 1
        return 1

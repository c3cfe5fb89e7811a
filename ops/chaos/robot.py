"""The people of a campaign: they submit, answer, pause, resume, cancel and retry, and notice when nothing moves.

Runs that must end in one way (graphs.py) get the fixed answers of their questions, and those that fail are retried a
number of times. Other runs (wild.py) get random answers. Runs of both sorts are cancelled.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from ops.chaos import graphs
from sleipnir.client.client import Client
from sleipnir.errors import SleipnirError
from sleipnir.runs.run import FAIL, RUN_AGAIN
from sleipnir.runs.views import GateInfo, RunInfo

STALL_S = 120.0
AT_ONCE = 60  # runs under way: a queue that is long would hide how soon a visit is started again
EFFECT_ANSWERS = (RUN_AGAIN, RUN_AGAIN, FAIL, '{"trace": "settled "}')


class Robot:
    """`run_ids` are the runs that were accepted, `run_agains` the answers that allow another effect.

    `agents` has one folder per run. `known` are runs of an earlier robot. One that is `gentle` submits, answers and
    retries, and does nothing else.
    """

    at_once = AT_ONCE

    def __init__(
        self,
        client: Client,
        agents: Sequence[Path],
        chance: random.Random,
        *,
        known: Iterable[str] = (),
        gentle: bool = False,
    ) -> None:
        self._client, self._agents, self._chance, self._gentle = client, agents, chance, gentle
        self.run_ids: list[str] = []
        self.run_agains: Counter[tuple[str, int]] = Counter()
        self.ended: dict[str, tuple[str, int]] = {}
        self.stalled = False
        self.did: Counter[str] = Counter()
        self._live: set[str] = set()
        self._known = set(known)
        self._agent_of: dict[str, str] = {}
        self._paused: dict[str, float] = {}
        self._answers: dict[tuple[str, int, int], str] = {}
        self._retries: dict[str, int] = {}
        self._retried_ms: dict[str, int | None] = {}

    def work(self) -> None:
        """Until every run is over, or nothing has moved for STALL_S."""
        pause, moved = threading.Event(), time.monotonic()
        while self._has_work():
            pause.wait(0.2)
            try:
                if self._round():
                    moved = time.monotonic()
            except SleipnirError:
                pass  # Redis is away
            print(f"\r  {len(self.ended)} of {len(self._agents)} over ", end="", file=sys.stderr, flush=True)
            if time.monotonic() - moved > STALL_S:
                self.stalled = True
                break
        print(file=sys.stderr)

    def _has_work(self) -> bool:
        return bool(self._live) or len(self.run_ids) < len(self._agents)

    def left(self) -> list[str]:
        return sorted(self._live)

    def _round(self) -> bool:
        """Whether anything moved."""
        answered = self._answer()
        with self._client.store.errors():
            infos = self._client.store.runs.infos(sorted(self._live)) if self._live else []
        over = [info for info in infos if info.is_final and not self._goes_on(info)]
        for info in over:
            self._live.discard(info.id)
            self._paused.pop(info.id, None)
            self.ended[info.id] = (info.status, info.step)
        if not self._gentle:
            self._meddle()
        while len(self._live) < self.at_once and len(self.run_ids) < len(self._agents):
            agent = self._agents[len(self.run_ids)]
            self._adopt(self._client.submit(agent, "go").id, agent.name)
        for info in self._client.runs(limit=2 * self.at_once):
            self._adopt(info.id, info.agent)  # accepted, but the reply was lost
        return bool(answered or over)

    def _adopt(self, run_id: str, agent: str) -> None:
        if run_id not in self._known:
            self._known.add(run_id)
            self.run_ids.append(run_id)
            self._agent_of[run_id] = agent
            self._live.add(run_id)

    def _answer(self) -> int:
        gates = [gate for gate in self._client.gates() if gate.run in self._live and gate.run not in self._paused]
        return sum(self._tried("answer", self._answering(gate)) for gate in gates)

    def _answering(self, gate: GateInfo) -> Callable[[], None]:
        """A question gets one answer, even if it has to be sent several times."""
        place = (gate.run, gate.seq, gate.opened_ms)
        if place not in self._answers:
            self._answers[place] = self._answer_to(gate)
            if gate.kind == "effect" and self._answers[place] == RUN_AGAIN:
                self.run_agains[gate.run, gate.seq] += 1
        return lambda: self._client.run(gate.run).answer(self._answers[place], gate)

    def _answer_to(self, gate: GateInfo) -> str:
        agent = self._agent_of[gate.run]
        if self._is_settled(gate.run):
            return RUN_AGAIN if gate.kind == "effect" else graphs.answer(agent, gate.node)
        return self._chance.choice(EFFECT_ANSWERS if gate.kind == "effect" else graphs.ANSWERS)

    def _is_settled(self, run_id: str) -> bool:
        """Whether the run must end in one way."""
        return graphs.kind_of(self._agent_of[run_id]) in graphs.KINDS

    def _goes_on(self, info: RunInfo) -> bool:
        """Whether a run is retried that has failed: RETRIES times, or one in five once. It may take a while."""
        if info.status != "failed":
            return False
        if self._retried_ms.get(info.id) == info.ended_ms:
            return True  # the run may not exist yet
        if info.id not in self._retries:
            most = graphs.RETRIES if self._is_settled(info.id) else int(self._chance.random() < 0.2)
            self._retries[info.id] = most
        if not self._retries[info.id]:
            return False
        if self._tried("retry", self._client.run(info.id).retry):
            self._retries[info.id] -= 1
            self._retried_ms[info.id] = info.ended_ms
        return True

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

"""The people of a campaign: they submit, fork, update, answer, pause, resume, cancel and retry, and notice when nothing
moves.

Runs that must end in one way (graphs.py) get the fixed answers of their questions, and those that fail are retried a
number of times. Other runs (wild.py) get random answers. Runs of both sorts are cancelled.
"""

from __future__ import annotations

import queue
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ops.chaos import graphs, models
from sleipnir.client.client import Client
from sleipnir.errors import RunNotFound, SleipnirError
from sleipnir.graph.load import load_file
from sleipnir.runs.run import FAIL, RUN_AGAIN, Fork
from sleipnir.runs.views import GateInfo, RunInfo

STALL_S = 120.0
OFFER_AGAIN_S = 30.0
FORKED = ("loki", "bsp", "dag")
"""The kinds of graphs (graphs.py) whose runs are forked: each fork must end as the run without faults does, that of a
`dag` as the same fork without faults does."""
AT_ONCE = 60  # runs under way: a queue that is long would hide how soon a visit is started again
FORKS_PER_RUN = 1  # at most: a campaign on a slow machine has more rounds
EFFECT_ANSWERS = (RUN_AGAIN, RUN_AGAIN, FAIL, '{"trace": "settled "}')


class Robot:
    """`run_ids` are the runs that were accepted, forks included, `run_agains` the answers that allow another effect.

    `agents` has one folder per run that is not a fork. `known` are runs of an earlier robot. One that is `gentle`
    submits, answers and retries, and does nothing else.
    """

    at_once = AT_ONCE
    forks_runs = True

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
        self._gone_back: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._known = set(known)
        self._agent_of: dict[str, str] = {}
        self._forks: set[str] = set()
        self._paused: dict[str, float] = {}
        self._offered: dict[str, float] = {}
        self._answers: dict[tuple[str, int, int], str] = {}
        self._retries: dict[str, int] = {}
        self._retried_ms: dict[str, int | None] = {}
        self._choices: dict[str, list[tuple[str, dict[str, Any]]]] = {}

    def fork_again(self, run_ids: Iterable[str]) -> dict[str, str]:
        """Make the same forks and updates once more; their ids, by the forks. Without those of runs that are lost."""
        made: dict[str, str] = {}
        for run_id in run_ids:
            info, fork = self._client.run(run_id).info(), self._fork_of(run_id)
            source = self._client.run(info.forked_from or "")
            try:
                if fork is None or fork.update is None:
                    again = source.fork(at=info.forked_at)
                else:
                    again = source.update_state(fork.update, fork.as_node, at=info.forked_at)
            except RunNotFound:
                continue
            made[run_id] = again.id
            self._forks.add(again.id)
            self._adopt(again.id, info.agent)
        return made

    def special_forks(self) -> list[str]:
        """The forks that end in another way than their agent's runs do: those of a `dag`, and those that go on from an
        update."""
        forks = self._forks & self.ended.keys()
        return sorted(run_id for run_id in forks if self._is_dag(run_id) or self._is_updated(run_id))

    def _is_dag(self, run_id: str) -> bool:
        return graphs.kind_of(self._agent_of[run_id]) == "dag"

    def _is_updated(self, run_id: str | None) -> bool:
        while run_id is not None and (fork := self._fork_of(run_id)) is not None:
            if fork.update is not None:
                return True
            run_id = fork.run
        return False

    def _fork_of(self, run_id: str) -> Fork | None:
        """None: it is no fork, or not there."""
        try:
            with self._client.store.errors():
                return self._client.store.runs.spec(run_id).fork
        except RunNotFound:
            return None

    def went_back(self, run_ids: Iterable[str]) -> None:
        """Any thread: these runs may be at an earlier point than the robot has seen, and what it has done there since
        may be lost."""
        for run_id in run_ids:
            self._gone_back.put(run_id)

    def finish(self) -> None:
        """What is left to do for runs that went back after the others were over. Others are left alone."""
        self._gentle = True
        self.work()

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
            print(
                f"\r  {len(self.ended)} of {self._total()} over ",
                end="",
                file=sys.stderr,
                flush=True,
            )
            if time.monotonic() - moved > STALL_S:
                self.stalled = True
                break
        print(file=sys.stderr)

    def _total(self) -> int:
        """The number of runs, as far as it is known."""
        return len(self._agents) + len(self._forks)

    def _has_work(self) -> bool:
        return bool(self._live) or self._submitted < len(self._agents) or not self._gone_back.empty()

    @property
    def _submitted(self) -> int:
        return len(self.run_ids) - len(self._forks)

    def left(self) -> list[str]:
        return sorted(self._live)

    def _round(self) -> bool:
        """Whether anything moved."""
        self._look_again()
        answered = self._answer()
        with self._client.store.errors():
            found = self._client.store.runs.find(sorted(self._live)) if self._live else []
        infos = [info for info in found if info is not None]
        self._live &= {info.id for info in infos}  # one that is not there is lost, which the verdict says
        self._offer_again(infos)
        for info in infos:
            if info.id in self._paused:
                continue
            if info.breakpoints:
                self._tried("pass", self._client.run(info.id).resume)
            elif info.status == "paused":  # the fail-over of a node has lost the resumption
                self._tried("resume", self._client.run(info.id).resume)
        self._send_events(infos)
        over = [info for info in infos if info.is_final and not self._goes_on(info)]
        for info in over:
            self._live.discard(info.id)
            self._paused.pop(info.id, None)
            self.ended[info.id] = (info.status, info.step)
        if not self._gentle:
            self._meddle()
        self._submit()
        for info in self._client.runs(limit=2 * self.at_once):
            if info.forked_from is not None and info.id not in self._known:
                self._forks.add(info.id)
            self._adopt(info.id, info.agent)  # accepted, but the reply was lost
        return bool(answered or over)

    def _offer_again(self, infos: Iterable[RunInfo]) -> None:
        """Submit agents again that a fail-over has lost: their runs are parked until then. This client thinks that they
        are still there."""
        lost = {info.agent for info in infos if info.parked is not None and " is not in Redis" in info.parked.reason}
        began = time.monotonic()
        for agent in {agent.name: agent for agent in self._agents if agent.name in lost}.values():
            if began - self._offered.get(agent.name, -OFFER_AGAIN_S) < OFFER_AGAIN_S:
                continue
            self._offered[agent.name] = began
            with Client(self._client.settings) as another:
                self._adopt(another.submit(agent, "go", **models.overrides(agent)).id, agent.name)
            self.did["offer again"] += 1

    def _look_again(self) -> None:
        while not self._gone_back.empty():
            run_id = self._gone_back.get()
            if run_id in self._agent_of:
                self._live.add(run_id)
                self.ended.pop(run_id, None)
                self._retried_ms.pop(run_id, None)

    def _send_events(self, infos: Iterable[RunInfo]) -> None:
        """Send some of the events for which visits wait, each twice."""
        waiting = [(info, visit) for info in infos for visit in info.visits if visit.reason.code == "event"]
        for info, visit in waiting:
            if self._chance.random() < 0.3:
                name, place = visit.reason.event or "", f"{info.id}/{visit.seq}/{visit.attempt}"
                data, id_ = graphs.answer(self._agent_of[info.id], visit.node), f"{place}/{self.did['signal']}"
                for _ in range(2):
                    self._tried("signal", partial(self._client.signal, name, data, id=id_))

    def _submit(self) -> None:
        while len(self._live) < self.at_once and self._submitted < len(self._agents):
            agent = self._agents[self._submitted]
            options = {**models.overrides(agent), **self._breakpoints(agent)}
            self._adopt(self._client.submit(agent, "go", **options).id, agent.name)

    def _breakpoints(self, agent: Path) -> dict[str, Any]:
        """One run in three stops at a few nodes of its graph."""
        if self._gentle or self._chance.random() > 0.3:
            return {}
        graph = load_file(agent / "graph.yaml").graph
        assert graph is not None
        nodes = sorted(graph.nodes)
        at = self._chance.choice(("interrupt_before", "interrupt_after"))
        return {at: self._chance.sample(nodes, min(len(nodes), self._chance.randint(1, 3)))}

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
        """Pause a run, resume what was paused long enough, fork one, now and then cancel one."""
        now = time.monotonic()
        if self.forks_runs and self.run_ids and len(self._forks) < FORKS_PER_RUN * len(self._agents):
            if self._chance.random() < 0.3:
                self._fork(self._chance.choice(self.run_ids))
            if self._chance.random() < 0.1:
                self._update(self._chance.choice(self.run_ids))
        for run_id in [run_id for run_id, until in self._paused.items() if until < now]:
            if self._tried("resume", self._client.run(run_id).resume):
                del self._paused[run_id]
        if self._live and self._chance.random() < 0.1:
            run_id = self._chance.choice(sorted(self._live))
            if run_id not in self._paused and self._pause(run_id):
                self._paused[run_id] = now + self._chance.uniform(0.5, 5)
        if self._live and self._chance.random() < 0.03:
            self._tried("cancel", self._client.run(self._chance.choice(sorted(self._live))).cancel)

    def _pause(self, run_id: str) -> int:
        """What runs may end, or is stopped at once or after a moment."""
        timeout = self._chance.choice([None, None, 0, 0.5])
        what = "pause" if timeout is None else "pause with a deadline"
        return self._tried(what, lambda: self._client.run(run_id).pause("robot", timeout=timeout))

    def _fork(self, run_id: str) -> None:
        """From the last checkpoint that leads anywhere, or from any one; some runs are rewound. The run may be over, or
        itself a fork."""
        if graphs.kind_of(self._agent_of[run_id]) not in FORKED:
            return
        run, is_last = self._client.run(run_id), self._chance.random() < 0.5

        def fork() -> None:
            steps = [None] if is_last else [step.step for step in run.history() if step.checkpoint]
            rewinds = not is_last and self._chance.random() < 0.2
            made = (run.rewind if rewinds else run.fork)(at=self._chance.choice(steps))
            self.did["rewind"] += rewinds
            self._forks.add(made.id)
            self._adopt(made.id, self._agent_of[run_id])

        self._tried("fork", fork)

    def _update(self, run_id: str) -> None:
        """Let a run go on as if one of its nodes had written some values, rather one whose edges a function chooses."""
        agent = self._agent_of[run_id]
        if graphs.kind_of(agent) not in FORKED or not (nodes := self._updatable(agent)):
            return
        name, values = self._chance.choice(nodes)

        def update() -> None:
            run = self._client.run(run_id)
            at = self._chance.choice([step.step for step in run.history() if step.checkpoint])
            made = run.update_state({"total": 1000, **values}, name, at=at)
            self._forks.add(made.id)
            self._adopt(made.id, agent)

        self._tried("update", update)

    def _updatable(self, agent: str) -> list[tuple[str, dict[str, Any]]]:
        """Nodes as which the state can be updated, with the values that their edges read."""
        if agent not in self._choices:
            graph = load_file(next(folder for folder in self._agents if folder.name == agent) / "graph.yaml").graph
            assert graph is not None
            calls, plain = list[tuple[str, dict[str, Any]]](), list[tuple[str, dict[str, Any]]]()
            for name, node in graph.nodes.items():
                if node.branch is not None and node.branch.call:
                    label = min(node.branch.to or {})
                    calls.append((name, {f"go_{name}": [label] if node.branch.many else label}))
                elif node.kind in ("script", "function") and node.next and node.branch is None:
                    plain.append((name, {}))
            self._choices[agent] = calls or plain
        return self._choices[agent]

    def _tried(self, what: str, call: Callable[[], object]) -> int:
        try:
            call()
        except SleipnirError:
            return 0  # Redis is away, the run is over, or it was done although its reply was lost
        self.did[what] += 1
        return 1

"""Shipped agents, run to their ends on real processes, with a model that says what a test tells it to say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sleipnir.runs.views import GateInfo, RunInfo
from sleipnir.settings import Settings
from sleipnir.testing import ModelServer, Reply, Request, Rule, Script
from sleipnir.testing.script import Chooser
from sleipnir_inprocess.agent_run import AgentRun
from tests.processes import RedisServer, Stack, wait_until

AGENTS = Path(__file__).parents[1] / "agents"


@dataclass(frozen=True)
class Ended:
    """What there is to see of a run once it is over. `questions` are those that it asked people, in their order;
    `requests` those that it asked the model."""

    info: RunInfo
    output: str
    state: Mapping[str, Any]
    questions: Sequence[str]
    requests: Sequence[Request]
    visited: Sequence[str]


class Lab:
    """A stack with a scripted model. Runs go one after the other: the script is that of the run under way."""

    def __init__(self, redis: RedisServer, home: Path) -> None:
        self._choose: Chooser = Script().chooser()
        self.model = ModelServer(lambda request: self._choose(request))
        self.stack = Stack(redis, home, key_prefix="shipped", model="openai:gpt-test", lease_s=5.0)

    def __enter__(self) -> Lab:
        self.model.__enter__()
        self.stack.start_scheduler()
        queues = "scripts,functions,llm"
        self.stack.start_worker(queues=queues, concurrency=4, env=self.model.env(), ready=False)
        self.stack.wait_for_worker("worker", 90)  # on a busy machine the imports take their time
        self.client = self.stack.client()
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self.stack.stop()
        self.model.__exit__(None, None, None)

    def run(
        self,
        agent: str,
        prompt: str = "",
        *,
        says: Sequence[Reply | str] = (),
        rules: Sequence[Rule] = (),
        answers: Sequence[tuple[str, str]] = (),
        here: Path,
        **variables: str,
    ) -> Ended:
        """Run a shipped agent in the directory `here`. The model answers by the `rules`, and `says` the rest in order;
        `answers` are pairs of a node and what a person answers there."""
        chooser = Script(rules, says).chooser()
        asked: list[Request] = []

        def reply(request: Request) -> Reply | str:
            asked.append(request)
            return chooser(request)

        self._choose = reply
        run = self.client.submit(AGENTS / agent, prompt, variables=variables, caller_dir=here)
        questions: list[str] = []
        answered: set[int] = set()

        def open_gates() -> list[GateInfo]:
            return [gate for gate in run.gates() if gate.seq not in answered]  # an answer takes a moment to count

        for node, text in answers:
            wait_until(lambda: open_gates() or run.info().is_final, f"{agent} asks at {node!r}")
            gates = open_gates()
            assert [gate.node for gate in gates] == [node], (
                f"{run.info().error}, {run.output}, {[r.prompt for r in asked]}"
            )
            questions.append(gates[0].question)
            answered.add(gates[0].seq)
            run.answer(text, gates[0])
        info = run.wait(60)
        visited = [step.node for step in run.history() if step.node]
        return Ended(info, run.output or "", run.state(), questions, asked, visited)


class InProcessLab:
    """The same for runs that this process executes."""

    def __init__(self, home: Path) -> None:
        self._choose: Chooser = Script().chooser()
        self.model = ModelServer(lambda request: self._choose(request))
        self._settings = Settings.from_env(home=home, model="openai:gpt-test")

    def __enter__(self) -> InProcessLab:
        self.model.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.model.__exit__(None, None, None)

    def run(
        self,
        agent: str,
        prompt: str = "",
        *,
        says: Sequence[Reply | str] = (),
        rules: Sequence[Rule] = (),
        answers: Sequence[tuple[str, str]] = (),
        here: Path,
        **variables: str,
    ) -> Ended:
        """As Lab.run."""
        chooser = Script(rules, says).chooser()
        asked: list[Request] = []

        def reply(request: Request) -> Reply | str:
            asked.append(request)
            return chooser(request)

        self._choose = reply
        options: dict[str, Any] = {"variables": variables, "caller_dir": here}
        run = AgentRun(AGENTS / agent, prompt, settings=self._settings, env=self.model.env(), **options)
        questions: list[str] = []
        left = list(answers)
        for _ in run.steps(inline=False):
            for gate in run.gates():
                assert left, f"{agent} asks at {gate.node!r}: {gate.question}"
                node, text = left.pop(0)
                assert gate.node == node, (gate.node, run.error, [request.prompt for request in asked])
                questions.append(gate.question)
                run.answer(text, gate)
        assert not left, f"{agent} did not ask at {left}"
        visited = [step.node for step, _ in run.record.values.journal if step.node]
        return Ended(run.info(), run.output or "", run.state(), questions, asked, visited)

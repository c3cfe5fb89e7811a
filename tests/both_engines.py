"""One agent on both engines: in this process, and on a scheduler and workers. A module that tests on both has

    @pytest.fixture(scope="module")
    def fleet(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
        with Fleet(redis_server, tmp_path_factory.mktemp("fleet")) as fleet:
            yield fleet

    @pytest.fixture(params=ENGINES)
    def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
        yield from engine_of(request)

and its tests call `engine.run(agent, ...)`. Models are scripted: `engine.replies(...)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import pytest

from sleipnir.client.client import Client
from sleipnir.graph.error_records import ERRORS_KEY
from sleipnir.runs.execution_trace import Trace
from sleipnir.runs.views import GateInfo, RunEvent, RunInfo, fatal_errors
from sleipnir.settings import Settings
from sleipnir.testing import ModelServer, Reply, Request
from sleipnir_inprocess.agent_run import AgentRun
from sleipnir_inprocess.clocks import SkippingClock
from tests.processes import RedisServer, Stack
from tests.waiting import wait_until

ENGINES: Final = ("in-process", "fleet")

Answers = Mapping[str, Any]
"""By node, or by the key of the question."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended. `asked` are the questions that it asked, in order."""

    status: str
    output: str | None
    error: str | None
    state: dict[str, Any]
    trace: Trace
    events: list[RunEvent]
    asked: list[GateInfo]
    errors: list[dict[str, Any]]
    """The failures that it has recorded, the fatal one last."""

    @property
    def nodes(self) -> list[str]:
        """The nodes of the visits, in the order in which they were opened; those of runs below have their paths."""
        return [step.path for step in self.trace.steps]

    def data(self, type_: str) -> list[Mapping[str, Any]]:
        """The data of the events of a type."""
        return [event.data for event in self.events if event.type == type_]

    def notes(self, node: str) -> list[str]:
        """What is noted about the end of a node's visit."""
        return [note for data in self.data("visit_closed") if data["node"] == node for note in data.get("notes", ())]


class Engine:
    """What executes runs."""

    name: str

    def __init__(self) -> None:
        self._replies: Callable[[Request], Reply | str] | None = None
        self._first = 0
        self.model = ModelServer(self._reply)

    def __enter__(self) -> Any:
        self.model.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.model.stop()

    def _reply(self, request: Request) -> Reply | str:
        assert self._replies is not None, f"no test has a reply to {request.prompt!r}"
        return self._replies(request)

    def replies(self, replies: Iterable[Reply | str] | Callable[[Request], Reply | str]) -> None:
        """What the model answers from now on; `requests` are the ones from now on."""
        if callable(replies):
            self._replies = replies
        else:
            left = iter(replies)
            self._replies = lambda request: next(left)
        self._first = len(self.model.requests)

    @property
    def requests(self) -> list[Request]:
        return self.model.requests[self._first :]

    def run(self, agent: Path, prompt: str = "", *, answers: Answers | None = None, **options: Any) -> Outcome:
        """Run an agent to its end, or until it asks what `answers` does not have. `options` are those of submit."""
        raise NotImplementedError


class InProcess(Engine):
    """In this process. Waiting takes no time."""

    name = "in-process"

    def run(self, agent: Path, prompt: str = "", *, answers: Answers | None = None, **options: Any) -> Outcome:
        run = AgentRun(
            agent,
            prompt,
            settings=Settings(agents_dir=agent.parent),
            env=self.model.env(),
            clock=SkippingClock(),
            **options,
        )
        asked: list[GateInfo] = []
        for _ in run.steps(expire=True):
            _answer(run, answers or {}, asked)
        return _outcome(run, asked)


class Fleet(Engine):
    """A scheduler, a worker of scripts and functions, and one of models."""

    name = "fleet"

    def __init__(
        self, redis_server: RedisServer, home: Path, *, env: Mapping[str, str] | None = None, **settings: Any
    ) -> None:
        """`env` are variables of the workers."""
        super().__init__()
        self._env = env or {}
        self.stack = Stack(redis_server, home, key_prefix=f"both-{home.parent.name}-{home.name}", **settings)
        self._client: Client | None = None

    def __enter__(self) -> Fleet:
        super().__enter__()
        self.stack.start_scheduler()
        self.start_workers()
        self._client = self.stack.client()
        return self

    def start_workers(self) -> None:
        self.stack.start_worker("models", "llm", concurrency=4, env={**self._env, **self.model.env()}, ready=False)
        self.stack.start_worker("work", concurrency=4, env=self._env, ready=False)
        for name in ("models", "work"):
            self.stack.wait_for_worker(name)

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self.stack.stop()
        super().__exit__()

    @property
    def client(self) -> Client:
        assert self._client is not None
        return self._client

    def run(self, agent: Path, prompt: str = "", *, answers: Answers | None = None, **options: Any) -> Outcome:
        with Client(self.stack.settings.replaced(agents_dir=agent.parent)) as client:
            run = client.submit(agent, prompt, **options)
            asked: list[GateInfo] = []

            def is_over() -> bool:
                left = _answer(run, answers or {}, asked)
                info = run.info()
                return info.is_final or bool(left and info.status == "waiting")

            wait_until(is_over, f"run {run.id} ends", 90)
            return _outcome(run, asked)


class _Handle(Protocol):
    """What the handles on runs of both engines have."""

    @property
    def status(self) -> str: ...
    @property
    def output(self) -> str | None: ...
    @property
    def error(self) -> str | None: ...
    def state(self) -> dict[str, Any]: ...
    def trace(self) -> Trace: ...
    def events(self, after: str = ..., follow: bool = ...) -> Iterator[RunEvent]: ...
    def gates(self) -> list[GateInfo]: ...
    def answer(self, value: Any, gate: GateInfo) -> None: ...
    def info(self) -> RunInfo: ...


def _answer(run: Any, answers: Answers, asked: list[GateInfo]) -> list[GateInfo]:
    """Answer what is asked for the first time, and return the questions without an answer."""
    left = []
    for gate in run.gates():
        known = (gate.run, gate.seq, gate.attempt, gate.key)
        if known not in [(each.run, each.seq, each.attempt, each.key) for each in asked]:
            asked.append(gate)
            for name in (gate.key, gate.node):
                if name in answers:
                    run.answer(answers[name], gate)
                    break
            else:
                left.append(gate)
        elif gate.key not in answers and gate.node not in answers:
            left.append(gate)
    return left


def _outcome(run: _Handle, asked: list[GateInfo]) -> Outcome:
    events = list(run.events("0", follow=False))
    state = run.state()
    errors = [*state.get(ERRORS_KEY, ()), *fatal_errors(run.info())]
    return Outcome(run.status, run.output, run.error, state, run.trace(), events, asked, errors)


def engine_of(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """The engine that a parameter of ENGINES names."""
    if request.param == "fleet":
        yield request.getfixturevalue("fleet")
    else:
        with InProcess() as engine:
            yield engine

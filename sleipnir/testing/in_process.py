"""Run an agent or a graph in the process of a test: without Redis, workers or a second process, in milliseconds.

    result = run("agents/letters", "Our bell is cracked", answers=["yes"], model=Script(default="urgent"))
    assert result.output == "answered"

    result = run(graph, {"topic": "bells"})
    assert result.output["report"] == "bells are cast in bronze"

What executes the run is imported with the first call, so that importing sleipnir.testing stays cheap.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from sleipnir.commands import START
from sleipnir.errors import UsageError
from sleipnir.memory.shared_values import MemoryValues
from sleipnir.messages import Role, RunStatus, Usage
from sleipnir.runs.interrupts import typed_answer
from sleipnir.testing.reply import Reply
from sleipnir.testing.script import Chooser, Script
from sleipnir.testing.server import ModelServer

if TYPE_CHECKING:
    from sleipnir.python_graph.compiled import CompiledGraph
    from sleipnir.runs.execution_trace import Trace
    from sleipnir.runs.views import GateInfo
    from sleipnir.settings import Settings
    from sleipnir_inprocess.agent_run import AgentRun
    from sleipnir_inprocess.graph_run import GraphRun

Answers: TypeAlias = Sequence[Any] | Mapping[str, Any]
"""Answers in the order of the questions; or by node one or a list, of which the last answers all later questions. They
are texts; to an `interrupt()` of a graph any JSON value."""

Model: TypeAlias = ModelServer | Script | Iterable[Reply | str] | Chooser
"""A server, or the replies of one that runs meanwhile (ModelServer.__init__)."""


@dataclass(frozen=True)
class EndedVisit:
    """A visit that ended, in the order of the journal. `node` is its node, `role` what it did for that (a loop of a
    model has visits with the roles `turn` and `tool`), `item` the number of its item in a map."""

    node: str
    ok: bool
    error: str | None
    role: Role
    item: int | None
    attempt: int
    took_ms: int
    texts: Mapping[str, str] = field(repr=False)
    state_texts: Mapping[str, str] = field(repr=False)

    @property
    def delta(self) -> dict[str, Any]:
        """What it wrote, by state key."""
        return _parsed(self.texts)

    @property
    def state(self) -> dict[str, Any]:
        """The state after it. What parallel visits write counts when the last of them has ended."""
        return _parsed(self.state_texts)


@dataclass(frozen=True)
class AskedQuestion:
    """A question of the run, or of one that it started. `answer` None: the test gave none."""

    node: str
    question: str
    options: tuple[str, ...]
    default: str | None
    answer: Any


@dataclass(frozen=True)
class RunResult:
    """How a run went. `status` is `completed`, `failed`, `cancelled`, `waiting` for an answer that the test did not
    give, or `paused` at a breakpoint; `output` and `error` are as in sleipnir.Run, but the output of a graph is what
    `graph.invoke` returns. `state` is the state at the end, in its JSON form."""

    status: RunStatus
    output: Any
    error: str | None
    state: dict[str, Any]
    visits: tuple[EndedVisit, ...] = field(repr=False)
    questions: tuple[AskedQuestion, ...]
    usage: Usage
    trace_of: Callable[[], Trace] = field(repr=False, compare=False)

    @property
    def trace(self) -> Trace:
        """What each visit did, and what opened it, as sleipnir.Run.trace."""
        return self.trace_of()

    @property
    def nodes(self) -> list[str]:
        """The nodes of the visits, in order."""
        return [visit.node for visit in self.visits]

    def visit(self, node: str) -> EndedVisit:
        """The last visit of a node. Raises LookupError if it has none."""
        for visit in reversed(self.visits):
            if visit.node == node:
                return visit
        raise LookupError(f"no visit of node {node!r} has ended; there are visits of {', '.join(self.nodes) or 'none'}")


def run(
    agent: str | Path | CompiledGraph,
    prompt: Any = "",
    *,
    answers: Answers = (),
    resumes: int = 0,
    state: Mapping[str, Any] | None = None,
    model: Model | None = None,
    client: str = "openai",
    variables: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    strict: bool | None = None,
    user: str | None = None,
    values: MemoryValues | None = None,
    settings: Settings | None = None,
    config: Mapping[str, Any] | None = None,
    context: Any = None,
) -> RunResult:
    """Run `agent`, a name, the path of a folder or a compiled graph, in this process, until it is over or waits for a
    person. For a graph `prompt` is the input of `graph.invoke`; it takes `config` and `context`, and neither `state`,
    `variables`, `strict`, `user` nor `values`.

    `answers` are given to its questions; an unanswered one expires if it has a `timeout`. The run goes past its first
    `resumes` breakpoints. Waiting takes no time: delays, pauses before retries and timeouts of questions pass at once.
    `model` answers the calls of models of `client`; without it, models are called as configured. `variables`, `cwd`,
    `strict` and `user` are as in sleipnir.RunOptions; `values` has the shared values of agents and users (None: none
    yet), `env` are environment variables for its nodes. `settings` None: those of the environment.

    Raises as Client.submit, or `graph.invoke`, does before anything runs, also UsageError for an answer to a node that
    the agent lacks, and TypeError for an option of the other kind. A failed run raises nothing: see `status`.
    """
    from sleipnir_inprocess.agent_run import AgentRun
    from sleipnir_inprocess.clocks import SkippingClock
    from sleipnir_inprocess.execution import NodeEnvironment
    from sleipnir_inprocess.graph_run import GraphRun

    running: AgentRun | GraphRun
    with _served(model, client) as more:
        env = {**more, **(env or {})}
        if isinstance(agent, str | Path):
            _refuse("an agent", config=config, context=context)
            running = AgentRun(
                agent,
                prompt,
                state=state,
                settings=settings,
                env=env,
                clock=SkippingClock(),
                variables=variables,
                cwd=cwd,
                strict=strict,
                user=user,
                values=MemoryValues() if values is None else values,
            )
        else:
            _refuse("a graph", state=state, variables=variables, strict=strict, user=user, values=values)
            environment = NodeEnvironment(cwd, env, settings)
            running = GraphRun(agent, prompt, config, context, SkippingClock(), environment)
        return _Test(running, _Answers(answers, running), resumes).finish()


def _refuse(kind: str, **options: Any) -> None:
    """Raises TypeError for an option that is given."""
    for name, value in options.items():
        if value is not None:
            raise TypeError(f"{name}= does not apply to a run of {kind}")


class _Answers:
    """The answers that are left."""

    def __init__(self, answers: Answers, running: AgentRun | GraphRun) -> None:
        if isinstance(answers, str):
            raise TypeError("answers is a list of texts, or a mapping of nodes to texts, not a text")
        self._by_node: dict[str, list[Any]] | None = None
        if isinstance(answers, Mapping):
            self._by_node = {
                node: [*each] if isinstance(each, list | tuple) else [each] for node, each in answers.items()
            }
            _refuse_unknown(self._by_node, running)
        self._in_order = [] if isinstance(answers, Mapping) else [*answers]

    def next_for(self, gate: GateInfo) -> Any:
        if self._by_node is None:
            return self._in_order.pop(0) if self._in_order else None
        texts = self._by_node.get(gate.node, [])
        return texts.pop(0) if len(texts) > 1 else next(iter(texts), None)


def _refuse_unknown(nodes: Iterable[str], running: AgentRun | GraphRun) -> None:
    known = running.nodes()
    for node in nodes:
        if node not in known:
            raise UsageError(f"answers[{node!r}]: there is no such node; there are {', '.join(sorted(known))}")


class _Test:
    """A run while it is tested."""

    def __init__(self, running: AgentRun | GraphRun, answers: _Answers, resumes: int) -> None:
        self._run, self._answers, self._resumes = running, answers, resumes
        self._asked: dict[tuple[str, int, int], AskedQuestion] = {}
        self._snapshots: list[Mapping[str, str]] = []
        """The state after each step of the journal."""

    def finish(self) -> RunResult:
        """Run to the end."""
        self._note_state()
        goes_on = True
        while goes_on:
            for _ in self._run.steps(expire=True):
                self._note_state()
                self._answer()
            goes_on = self._resumes > 0 and self._run.resume()
            self._resumes -= 1
        self._note_state()  # a graph's recursion limit ends it with a commit that was not yielded
        run = self._run
        return RunResult(
            run.status,
            run.output,
            run.error,
            run.state(),
            tuple(self._visits()),
            tuple(self._asked.values()),
            run.info().usage,
            run.trace,
        )

    def _note_state(self) -> None:
        values = self._run.record.values
        if len(self._snapshots) < len(values.journal):
            state = dict(values.state)
            self._snapshots += [state] * (len(values.journal) - len(self._snapshots))

    def _answer(self) -> None:
        for gate in self._run.gates():
            name = (gate.run, gate.seq, gate.attempt)
            if name not in self._asked:
                answer = self._answers.next_for(gate)
                self._asked[name] = AskedQuestion(gate.node, gate.question, gate.options, gate.default, answer)
                if answer is not None:
                    value = typed_answer(gate, answer) if isinstance(answer, str) else answer
                    self._run.answer(value, gate)

    def _visits(self) -> Iterator[EndedVisit]:
        for (step, texts), after in zip(self._run.record.values.journal, self._snapshots, strict=True):
            if step.seq is None or step.node in (None, START):  # START is no node of the program
                continue
            item = None if step.item is None else step.item[1]
            about = (step.node, step.ok, step.error, step.role, item, step.attempt, step.took_ms)
            yield EndedVisit(*about, texts, after)


@contextlib.contextmanager
def _served(model: Model | None, client: str) -> Iterator[dict[str, str]]:
    """The environment variables that direct calls of models to the test's."""
    if model is None:
        yield {}
    elif isinstance(model, ModelServer):
        yield model.env(client)
    else:
        with ModelServer(model) as server:
            yield server.env(client)


def _parsed(texts: Mapping[str, str]) -> dict[str, Any]:
    return {key: json.loads(text) for key, text in texts.items()}

"""A run of a compiled graph in this process, with the methods of AgentRun that a test uses."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from sleipnir.commands import START
from sleipnir.memory.store import MemoryRun
from sleipnir.messages import RunStatus
from sleipnir.python_graph.compiled import CompiledGraph
from sleipnir.python_graph.errors import GraphRecursionError
from sleipnir.runs.execution_trace import Trace, trace_of
from sleipnir.runs.views import GateInfo, RunInfo
from sleipnir_inprocess.clocks import RunClock
from sleipnir_inprocess.execution import NodeEnvironment
from sleipnir_inprocess.questions import asked_for
from sleipnir_inprocess.run import Run, output_of, sent_text
from sleipnir_inprocess.streams import Form
from sleipnir_inprocess.traces import MemoryTraces


class GraphRun:
    """A handle on one run. `steps` executes it; meanwhile questions may be answered."""

    def __init__(
        self,
        graph: CompiledGraph,
        input: Any,
        config: Mapping[str, Any] | None,
        context: Any,
        clock: RunClock,
        environment: NodeEnvironment,
    ) -> None:
        """Prepare the run; nothing is executed. Raises as `graph.invoke` for an input that is none."""
        self._graph = graph
        self._run = Run(
            graph,
            input,
            config,
            context,
            Form(()),
            output_of(graph),
            clock=clock,
            environment=environment,
        )
        self._stopped: GraphRecursionError | None = None

    def steps(self, *, expire: bool = False) -> Iterator[None]:
        """Execute the run until it is over, or only waits for answers; yields after each commit. `expire` is that of
        Runner."""
        try:
            yield from self._run.steps(expire=expire)
        except GraphRecursionError as error:
            self._stopped = error

    @property
    def record(self) -> MemoryRun:
        return self._run.record

    @property
    def status(self) -> RunStatus:
        return "failed" if self._stopped is not None else self.record.status

    @property
    def output(self) -> Any:
        """What `graph.invoke` returns; None unless the run completed."""
        return self._run.output.of(self._run.state()) if self.status == "completed" else None

    @property
    def error(self) -> str | None:
        return str(self._stopped) if self._stopped is not None else self.record.error

    def info(self) -> RunInfo:
        """Status and usage; live visits are left out."""
        return self._run.store.info(self._run.run_id)

    def trace(self) -> Trace:
        """What its visits did, and what opened each of them."""
        run = self._run
        return trace_of(MemoryTraces(run.store, lambda spec: self._graph.model), run.run_id)

    def state(self) -> dict[str, Any]:
        """The committed state, in its JSON form."""
        return {key: json.loads(text) for key, text in self.record.values.state.items()}

    def nodes(self) -> set[str]:
        """The names of the graph's nodes."""
        return set(self._graph.model.nodes) - {START}

    def gates(self) -> list[GateInfo]:
        """The open questions, in the order in which they were asked."""
        gates, run = self._run.store.gates_below(self._run.run_id), self._run
        return [
            replace(gate, schema=asked_for(run.store, run.run_id, self.record.gates[gate.seq]).schema) for gate in gates
        ]

    def resume(self) -> bool:
        """Let the run go past its breakpoint: the next step does so. False: it is at none."""
        return self._run.store.pass_breakpoints()

    def answer(self, answer: Any, gate: GateInfo) -> None:
        """Answer an open question; an `interrupt()` with any JSON value. Raises GateError and InvalidAnswerError."""
        run, asked = self._run, self.record.gates.get(gate.seq)
        text = "" if asked is None else sent_text(asked_for(run.store, run.run_id, asked), answer)
        run.store.answer(gate.run, gate.seq, text, gate.attempt)

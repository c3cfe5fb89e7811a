"""Execute a claimed visit of an agent in this process, with the executors of the workers.

Its folder is the agent's own, not a copy. Its commands work in the run's `cwd`, else in the caller's directory, as on a
worker on the caller's machine.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from sleipnir.client.agent_preparation import PreparedAgent
from sleipnir.errors import MachineFailed
from sleipnir.graph import node_overrides
from sleipnir.graph.model import Graph, LlmNode
from sleipnir.graph.node_overrides import NodeOverrides
from sleipnir.messages import VisitCall, VisitResult
from sleipnir.runs.child_events import ReadVisits
from sleipnir.runs.claims import Claim
from sleipnir.runs.node_streams import NodeStreams
from sleipnir_inprocess import executors  # noqa: F401
from sleipnir_inprocess.runner import Executed
from sleipnir_workers.execution.execution import EMITTING, DirectoryMissing, Emissions, Execution, TextSink
from sleipnir_workers.execution.lazy_state import StoredState
from sleipnir_workers.machine.host import Host, executing_for
from sleipnir_workers.results.encoding import encoded
from sleipnir_workers.visits import callbacks, guard, node_streams
from sleipnir_workers.visits.caching import VisitCache, executed

OpenText = Callable[[Execution], AbstractContextManager[TextSink | None]]
"""Opens what takes the text of the model of a visit."""

OpenEmissions = Callable[[Execution], Emissions | None]
"""What takes what the node of a visit emits. None: it is dropped."""


def _emits(execution: Execution) -> bool:
    """Whether its node, or its callbacks, may emit."""
    if isinstance(execution.node, EMITTING) and execution.role == "node":
        return True
    return callbacks.has_callbacks(execution.graph, execution.node, execution.role)


def graph_with(graph: Graph, nodes: NodeOverrides) -> Graph:
    """The graph of a run with these overrides of nodes."""
    return node_overrides.overridden(graph, nodes) if nodes else graph


@dataclass(frozen=True)
class AgentExecutor:
    """Executes the visits of a run, and of the runs that it starts, of these agents by name."""

    agents: Mapping[str, PreparedAgent]
    host: Host
    board: Callable[[], NodeStreams]
    """The node streams of the runs."""
    open_text: OpenText | None = None
    open_emissions: OpenEmissions | None = None
    caching: VisitCache | None = None
    """None: nothing is cached."""
    child_visits: ReadVisits | None = None

    def __call__(self, call: VisitCall, claim: Claim, lost: threading.Event) -> Executed:
        """The result of a visit, and the JSON texts that it writes. None: it was lost. Raises ProcessLost."""
        execution = replace(self._execution(call, claim, lost), child_visits=self.child_visits)
        if self.open_emissions is not None and _emits(execution):
            execution = replace(execution, emissions=self.open_emissions(execution))
        with executing_for(self.host), self._text_sink(execution) as sink:
            try:
                in_main = threading.current_thread() is threading.main_thread()  # Ctrl-C reaches no other
                streamed = replace(execution, text_sink=sink)

                def run(execution: Execution) -> VisitResult | None:
                    with node_streams.connected(execution, claim.spec, self.board) as joined:
                        result = guard.execute(joined, interruptible=in_main)
                        node_streams.close(joined, result)
                    return result

                cached = executed if self.caching is None else self.caching.result
                result = callbacks.around(streamed, cached, run)
            except (MachineFailed, DirectoryMissing) as error:  # there is no other machine that could take it
                result = guard.failed(execution, str(error), "machine")
        return None if result is None else encoded(result, call.node, self.host.settings.max_output_bytes)

    def _execution(self, call: VisitCall, claim: Claim, lost: threading.Event) -> Execution:
        spec, agent = claim.spec, self.agents[call.agent]
        graph = graph_with(agent.graph, spec.of_nodes)
        caller = Path(spec.caller_dir) if spec.caller_dir else None
        return Execution(
            run=call.run,
            node=graph.nodes[call.node],
            seq=call.seq,
            attempt=call.attempt,
            agent=call.agent,
            graph=graph,
            folder=agent.folder.path,
            state=StoredState(claim.state),
            variables=spec.variables,
            cwd=Path(spec.cwd) if spec.cwd else caller,
            caller_dir=caller,
            lost=lost,
            role=call.role,
            item=claim.item,
            part=claim.part,
            talk=claim.talk,
            depth=spec.depth,
            knowledge=spec.base_of(call.node),
            config=spec.config,
            context=spec.context,
            step=claim.step,
            limited_from=claim.limited_from,
            failures=claim.failures,
            input_changed=claim.input_changed,
        )

    def _text_sink(self, execution: Execution) -> AbstractContextManager[TextSink | None]:
        is_streamed = isinstance(execution.node, LlmNode) and execution.role in ("node", "turn")
        return self.open_text(execution) if self.open_text is not None and is_streamed else nullcontext()

"""A compiled graph: run it here (`invoke`, `stream`) or on the fleet (`submit`), write it as a graph.yaml."""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import yaml

from sleipnir.graph.model import Graph, Node
from sleipnir.python_graph.agent_modules import refuse_while_loading
from sleipnir.python_graph.document import GraphDocument, NameOfGraph, translate
from sleipnir.python_graph.drawing import Form, GraphDrawing, drawn
from sleipnir.python_graph.objects import GraphObjects
from sleipnir.python_graph.parts import GraphParts
from sleipnir.python_graph.references import References
from sleipnir.python_graph.runtime import merged_config
from sleipnir.python_graph.schema import managed_keys_of
from sleipnir.python_graph.snapshots import StateSnapshot, UpdateMode
from sleipnir.python_graph.sub_graphs import SubGraphs, joined
from sleipnir.runs.memory_cache import MemoryCache

if TYPE_CHECKING:
    from sleipnir.graph.node_overrides import FindGraph, NodeOverrides
    from sleipnir.graph.structure import Structure

DEFAULT_NAME = "LangGraph"

_numbers = itertools.count(1)
"""Of the graphs that this process compiles."""


class CompiledGraph:
    """A checked graph. `model` is the definition that its graph.yaml would have; `objects` are its functions and
    classes. `remembers`: a run goes on with the state of its thread. A run that waits for an answer is kept in any
    case: `invoke(Command(resume=answer), config)` goes on."""

    def __init__(
        self, parts: GraphParts, *, name: str | None, engine: str, max_steps: int | None, remembers: bool
    ) -> None:
        self.number = next(_numbers)
        self.given_name, self.name = name, name or DEFAULT_NAME
        self.parts, self.references, self.remembers = parts, References(), remembers
        self._engine, self._max_steps = engine, max_steps
        document = self.translated(self.references)
        self.model: Graph = document.graph
        self._document, self.warnings = document.data, document.warnings
        managed = {name: key for each in parts.classes for name, key in managed_keys_of(each).items()}
        self.objects = GraphObjects(parts.keys, self.references.find, managed)
        self.config: dict[str, Any] = {}
        self.threads: dict[str, Any] = {}
        """The threads in this process (sleipnir_inprocess.threads.Thread)."""
        self.run_numbers = itertools.count(1)
        self.cache: MemoryCache | None = None
        """The results of its nodes in this process. None: no policies for caches are in force."""

    def translated(self, references: References, name_of_graph: NameOfGraph | None = None) -> GraphDocument:
        """The graph with other references. Raises GraphBuildError."""
        return translate(
            self.parts,
            references,
            name=self.name,
            engine=self._engine,
            max_steps=self._max_steps,
            name_of_graph=name_of_graph,
        )

    def travelling(self, references: References) -> GraphDocument:
        """The graph for workers: with the documents of the graphs that are its nodes, at any depth. Raises
        GraphBuildError."""
        graphs = SubGraphs(references)
        return joined(self.translated(references, graphs), graphs.documents)

    # Run it here

    def invoke(self, input: Any, config: Mapping[str, Any] | None = None, **options: Any) -> Any:
        """Run the graph in this process, and return its state: `options` are those of `stream`. Raises what a node
        raises, GraphRecursionError, InvalidUpdateError and EmptyInputError."""
        from sleipnir_inprocess import calls

        return calls.invoke(self, input, config, **options)

    def stream(self, input: Any, config: Mapping[str, Any] | None = None, **options: Any) -> Iterator[Any]:
        """The same, step by step. `stream_mode` is `updates`, `values`, `custom`, or a list of them."""
        from sleipnir_inprocess import calls

        yield from calls.stream(self, input, config, **options)

    async def ainvoke(self, input: Any, config: Mapping[str, Any] | None = None, **options: Any) -> Any:
        """`invoke`, without blocking the event loop."""
        return await asyncio.to_thread(self.invoke, input, config, **options)

    async def astream(self, input: Any, config: Mapping[str, Any] | None = None, **options: Any) -> AsyncIterator[Any]:
        """`stream`, without blocking the event loop."""
        chunks, end = self.stream(input, config, **options), object()
        while (chunk := await asyncio.to_thread(next, chunks, end)) is not end:
            yield chunk

    def batch(self, inputs: Sequence[Any], config: Any = None, **options: Any) -> list[Any]:
        """`invoke` for each input, in order. `config` is one for all, or a list."""
        configs = config if isinstance(config, list) else [config] * len(inputs)
        return [self.invoke(given, own, **options) for given, own in zip(inputs, configs, strict=True)]

    async def abatch(self, inputs: Sequence[Any], config: Any = None, **options: Any) -> list[Any]:
        """`ainvoke` for each input, at once."""
        configs = config if isinstance(config, list) else [config] * len(inputs)
        runs = (self.ainvoke(given, own, **options) for given, own in zip(inputs, configs, strict=True))
        return list(await asyncio.gather(*runs))

    def with_config(self, config: Mapping[str, Any] | None = None, **more: Any) -> Self:
        """The same graph, with a configuration below that of each call. Both have the same threads."""
        bound = copy.copy(self)
        bound.config = merged_config(self.config, config or {}, more)
        return bound

    def structure(self) -> Structure:
        """Its nodes, every possible edge, and what a run may have otherwise; with the graphs that are nodes."""
        from sleipnir.graph.structure import structure_of

        return structure_of(self.model, self.find_graph)

    @property
    def find_graph(self) -> FindGraph:
        """Finds the graph that a node of this graph, or of one below it, runs."""
        compiled: dict[int, CompiledGraph] = {id(self.model): self}

        def find(node: Node, model: Graph) -> Graph | None:
            spec = compiled[id(model)].parts.nodes.get(node.id)
            if spec is None or not isinstance(spec.action, CompiledGraph):
                return None
            compiled[id(spec.action.model)] = spec.action
            return spec.action.model

        return find

    def overriding(self, nodes: NodeOverrides) -> Self:
        """The same graph with these stored overrides of nodes. Both have the same threads."""
        from sleipnir.graph import node_overrides

        bound = copy.copy(self)
        bound.model = node_overrides.overridden(self.model, nodes)
        return bound

    # The past of a thread

    def get_state(self, config: Mapping[str, Any], *, subgraphs: bool = False) -> StateSnapshot:
        """The newest checkpoint of the thread of `config`, or its `checkpoint_id`. With `subgraphs`, tasks that wait
        have the states of the graphs that they call. Raises ValueError for a checkpoint that does not exist."""
        from sleipnir_inprocess import calls

        return calls.get_state(self, config, subgraphs=subgraphs)

    def get_state_history(
        self,
        config: Mapping[str, Any],
        *,
        filter: Mapping[str, Any] | None = None,
        before: Mapping[str, Any] | None = None,
        limit: int | None = None,
    ) -> Iterator[StateSnapshot]:
        """The checkpoints of a thread, newest first: those whose metadata has the values of `filter`, older than that
        of the configuration `before`, at most `limit`."""
        from sleipnir_inprocess import calls

        return calls.get_state_history(self, config, filter=filter, before=before, limit=limit)

    def update_state(
        self, config: Mapping[str, Any], values: Any, as_node: str | None = None, *, mode: UpdateMode = "reduce"
    ) -> dict[str, Any]:
        """Write values as `as_node` would (None: the node that wrote last), through reducers or (`set`) in the place of
        what was there. What follows that node comes next; `invoke(None, config)` goes on there. After an earlier
        checkpoint of `config` it begins another line of the thread. Returns the configuration of the new checkpoint.
        Raises InvalidUpdateError, and what the routers of the node raise."""
        from sleipnir_inprocess import calls

        return calls.update_state(self, config, values, as_node, mode=mode)

    async def aupdate_state(
        self, config: Mapping[str, Any], values: Any, as_node: str | None = None, *, mode: UpdateMode = "reduce"
    ) -> dict[str, Any]:
        """`update_state`, without blocking the event loop."""
        return await asyncio.to_thread(self.update_state, config, values, as_node, mode=mode)

    async def aget_state(self, config: Mapping[str, Any], *, subgraphs: bool = False) -> StateSnapshot:
        """`get_state`, without blocking the event loop."""
        return await asyncio.to_thread(self.get_state, config, subgraphs=subgraphs)

    async def aget_state_history(
        self,
        config: Mapping[str, Any],
        *,
        filter: Mapping[str, Any] | None = None,
        before: Mapping[str, Any] | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[StateSnapshot]:
        """`get_state_history`, without blocking the event loop."""
        snapshots, end = self.get_state_history(config, filter=filter, before=before, limit=limit), object()
        while (snapshot := await asyncio.to_thread(next, snapshots, end)) is not end:
            yield snapshot  # type: ignore[misc]

    def delete_thread(self, thread_id: str) -> None:
        """Forget a thread with all its checkpoints, which are kept as long as the graph."""
        self.threads.pop(str(thread_id), None)

    def clear_cache(self, nodes: Sequence[str] | None = None) -> None:
        """Forget the results of these nodes, or of all, that are cached in this process. `Client.clear_cache` does for
        the fleet. Raises ValueError for a graph without a cache."""
        if self.cache is None:
            raise ValueError("No cache is set for this graph: give one to compile(cache=...)")
        for node in self.model.nodes if nodes is None else nodes:
            self.cache.clear(self.name, node)

    async def aclear_cache(self, nodes: Sequence[str] | None = None) -> None:
        """`clear_cache`, for programs that await it."""
        self.clear_cache(nodes)

    # Run it on the fleet

    def submit(self, input: Any, *, client: Any = None, **options: Any) -> Any:
        """Submit a run to the deployment of SLEIPNIR_REDIS_URL, or of `client`. Returns its Run: `run.result()` waits
        for the final state. `options`, among them `config` and `context`, and errors are those of Client.submit."""
        refuse_while_loading()
        if client is None:
            import sleipnir

            client = sleipnir.Client()
        return client.submit(self, input, **options)

    # Look at it

    def draw(self, form: Form = "mermaid") -> str:
        """A drawing of the graph: Mermaid, DOT for Graphviz, SVG or text."""
        return drawn(self.model, form)

    def _repr_html_(self) -> str:
        """The drawing, in a notebook."""
        from sleipnir.graph.draw.embedded import embedded

        return embedded(self.model)

    def get_graph(self, config: Mapping[str, Any] | None = None, *, xray: bool | int = False) -> GraphDrawing:
        """The graph for `draw_mermaid()`. A graph that is a node is one node of it, with any `xray`."""
        return GraphDrawing(self.model)

    def to_yaml(self) -> str:
        """The graph as the text of a graph.yaml."""
        return yaml.safe_dump(self._document, sort_keys=False, allow_unicode=True)

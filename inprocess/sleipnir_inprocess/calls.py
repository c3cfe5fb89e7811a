"""The calls of a compiled graph: `invoke` and `stream` with their options, and what they return (spec/langgraph-api.md
5); `get_state`, `get_state_history` and `update_state` under one roof with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from sleipnir.python_graph.compiled import CompiledGraph
from sleipnir.python_graph.objects import instance
from sleipnir.python_graph.runtime import GraphOutput
from sleipnir.python_graph.schema import is_typed_dict
from sleipnir.python_graph.snapshots import UpdateMode, config_of
from sleipnir_inprocess.run import Run, output_of, refuse_dag
from sleipnir_inprocess.snapshots import addressed, get_state, get_state_history, new_snapshots
from sleipnir_inprocess.streams import INTERRUPT, Form, Output
from sleipnir_inprocess.updates import StateUpdate

__all__ = ["get_state", "get_state_history", "invoke", "stream", "update_state"]

_IGNORED: Final = ("durability", "debug", "print_mode")
"""Options of LangGraph that say nothing here (spec/langgraph-api.md 13)."""


def invoke(
    graph: CompiledGraph,
    input: Any,
    config: Mapping[str, Any] | None = None,
    *,
    context: Any = None,
    stream_mode: str | Sequence[str] = "values",
    output_keys: str | Sequence[str] | None = None,
    version: str = "v1",
    interrupt_before: Sequence[str] | None = None,
    interrupt_after: Sequence[str] | None = None,
    **options: Any,
) -> Any:
    """The last state, without the keys that are not in the output; with another mode than `values` the list of chunks.
    With `version="v2"` a GraphOutput."""
    if stream_mode != "values":
        more = {"context": context, "stream_mode": stream_mode, "output_keys": output_keys, "version": version}
        more |= {"interrupt_before": interrupt_before, "interrupt_after": interrupt_after}
        return list(stream(graph, input, config, **more, **options))
    _check(options)
    names = graph.parts.output_schema
    flagged = interrupt_before, interrupt_after
    run = Run(graph, input, config, context, Form(()), output_of(graph, output_keys), breakpoints=flagged)
    run.check_thread()
    run.drive()
    value, interrupts = run.output.of(run.state()), run.interrupts
    if version == "v2":
        return GraphOutput(value if is_typed_dict(names) or value is None else instance(names, value), interrupts)
    if interrupts and (value is None or isinstance(value, dict)):
        return {**(value or {}), INTERRUPT: list(interrupts)}
    return value


def stream(
    graph: CompiledGraph,
    input: Any,
    config: Mapping[str, Any] | None = None,
    *,
    context: Any = None,
    stream_mode: str | Sequence[str] | None = None,
    output_keys: str | Sequence[str] | None = None,
    subgraphs: bool = False,
    version: str = "v1",
    interrupt_before: Sequence[str] | None = None,
    interrupt_after: Sequence[str] | None = None,
    **options: Any,
) -> Iterator[Any]:
    """Chunks as the run goes on; their form depends on the options (streams.Form)."""
    _check(options)
    form, flagged = Form.of(stream_mode, subgraphs=subgraphs, version=version), (interrupt_before, interrupt_after)
    run = Run(graph, input, config, context, form, Output(output_keys), breakpoints=flagged)
    run.check_thread()
    if not {"checkpoints", "debug"}.isdisjoint(form.modes):
        refuse_dag(graph)
        run.snapshots = partial(new_snapshots, graph, run)
    return map(form.written, run.chunks())


def update_state(
    graph: CompiledGraph,
    config: Mapping[str, Any] | None,
    values: Any,
    as_node: str | None = None,
    *,
    mode: UpdateMode = "reduce",
) -> dict[str, Any]:
    """Write values after the newest checkpoint of a thread, or the one that the configuration names. Returns the
    configuration of the new one. Raises InvalidUpdateError, ValueError, and what routers raise."""
    _, thread_id = addressed(graph, config)
    run = Run(graph, StateUpdate(values, as_node, mode), config, None, Form(()), output_of(graph))
    return config_of(thread_id, run.edit())


def _check(options: Mapping[str, Any]) -> None:
    for name, value in options.items():
        if name not in _IGNORED and value is not None:
            raise TypeError(f"{name}= is not supported yet")

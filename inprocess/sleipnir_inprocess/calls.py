"""`invoke` and `stream` of a compiled graph: their options, and what they return (spec/langgraph-api.md 5)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from sleipnir.python_graph.compiled import CompiledGraph
from sleipnir.python_graph.objects import instance
from sleipnir.python_graph.runtime import GraphOutput
from sleipnir.python_graph.schema import is_typed_dict
from sleipnir_inprocess.run import Run, output_of
from sleipnir_inprocess.streams import INTERRUPT, Form, Output

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
    **options: Any,
) -> Any:
    """The last state, without the keys that are not in the output; with another mode than `values` the list of chunks.
    With `version="v2"` a GraphOutput."""
    if stream_mode != "values":
        more = {"context": context, "stream_mode": stream_mode, "output_keys": output_keys, "version": version}
        return list(stream(graph, input, config, **more, **options))
    _check(options)
    names = graph.parts.output_schema
    run = Run(graph, input, config, context, Form(()), output_of(graph, output_keys))
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
    **options: Any,
) -> Iterator[Any]:
    """Chunks as the run goes on; their form depends on the options (streams.Form)."""
    _check(options)
    form = Form.of(stream_mode, subgraphs=subgraphs, version=version)
    run = Run(graph, input, config, context, form, Output(output_keys))
    return map(form.written, run.chunks())


def _check(options: Mapping[str, Any]) -> None:
    for name, value in options.items():
        if name not in _IGNORED and value is not None:
            raise TypeError(f"{name}= is not supported yet")

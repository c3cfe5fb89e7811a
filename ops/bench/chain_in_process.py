"""How fast a chain of ten no-op nodes runs in this process, with InMemorySaver, each run in a thread of its own.

`python chain_in_process.py sleipnir 500` prints `{"per_s": nodes per second}`. `langgraph` runs the same program with
LangGraph, by the interpreter of the peers' environment; so this file imports nothing else.
"""

from __future__ import annotations

import gc
import importlib
import json
import sys
import time
from typing import Any, TypedDict

NODES = 10
WARM_UP_RUNS = 30
NAMES = {
    "sleipnir": {"sleipnir": ("START", "END", "StateGraph", "InMemorySaver")},
    "langgraph": {
        "langgraph.graph": ("START", "END", "StateGraph"),
        "langgraph.checkpoint.memory": ("InMemorySaver",),
    },
}


class State(TypedDict, total=False):
    text: str


def compiled(library: str) -> Any:
    """The chain, built with the names of a library."""
    modules = NAMES[library]
    names = {name: getattr(importlib.import_module(module), name) for module in modules for name in modules[module]}
    builder = names["StateGraph"](State)
    nodes = [f"n{i}" for i in range(NODES)]
    for node in nodes:
        builder.add_node(node, lambda state: {})
    for source, target in zip([names["START"], *nodes], [*nodes, names["END"]], strict=True):
        builder.add_edge(source, target)
    return builder.compile(checkpointer=names["InMemorySaver"]())


def main() -> None:
    library, runs = sys.argv[1], int(sys.argv[2])
    graph = compiled(library)
    for number in range(WARM_UP_RUNS):
        graph.invoke({"text": ""}, {"configurable": {"thread_id": f"warm-{number}"}})
    gc.collect()
    started = time.perf_counter()
    for number in range(runs):
        graph.invoke({"text": ""}, {"configurable": {"thread_id": str(number)}})
    print(json.dumps({"per_s": runs * NODES / (time.perf_counter() - started)}))


if __name__ == "__main__":
    main()

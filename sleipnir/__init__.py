"""Sleipnir runs graph agents, in YAML or in Python, as durable, distributed workflows.

`from sleipnir import Client` is the API for a deployment, `from sleipnir import StateGraph` the one for graphs in
Python. Names are imported on first use: `sleipnir --help` pays for none.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from sleipnir.client.async_client import AsyncBatch, AsyncClient, AsyncRun
    from sleipnir.client.client import Client, Run
    from sleipnir.client.options import RunOptions
    from sleipnir.commands import END, START, Command, Overwrite, Send
    from sleipnir.python_graph.errors import (
        EmptyInputError,
        GraphBubbleUp,
        GraphInterrupt,
        GraphRecursionError,
        InvalidUpdateError,
        is_invalid_resume,
    )
    from sleipnir.python_graph.interrupts import Interrupt, interrupt
    from sleipnir.python_graph.messages import (
        REMOVE_ALL_MESSAGES,
        AIMessage,
        AnyMessage,
        HumanMessage,
        MessagesState,
        RemoveMessage,
        SystemMessage,
        ToolMessage,
        add_messages,
    )
    from sleipnir.python_graph.policies import CachePolicy, InMemoryCache, InMemorySaver, MemorySaver, RetryPolicy
    from sleipnir.python_graph.runtime import (
        GraphOutput,
        RunnableConfig,
        Runtime,
        StreamWriter,
        get_config,
        get_runtime,
        get_stream_writer,
    )
    from sleipnir.python_graph.schema import IsLastStep, RemainingSteps
    from sleipnir.python_graph.state_graph import StateGraph
    from sleipnir.settings import Settings

_MODULES: Final = {
    "sleipnir.client.async_client": ("AsyncBatch", "AsyncClient", "AsyncRun"),
    "sleipnir.client.client": ("Client", "Run"),
    "sleipnir.client.options": ("RunOptions",),
    "sleipnir.commands": ("END", "START", "Command", "Overwrite", "Send"),
    "sleipnir.python_graph.errors": (
        "EmptyInputError", "GraphBubbleUp", "GraphInterrupt", "GraphRecursionError", "InvalidUpdateError",
        "is_invalid_resume",
    ),
    "sleipnir.python_graph.interrupts": ("Interrupt", "interrupt"),
    "sleipnir.python_graph.messages": (
        "REMOVE_ALL_MESSAGES", "AIMessage", "AnyMessage", "HumanMessage", "MessagesState", "RemoveMessage",
        "SystemMessage", "ToolMessage", "add_messages",
    ),
    "sleipnir.python_graph.policies": (
        "CachePolicy", "InMemoryCache", "InMemorySaver", "MemorySaver", "RetryPolicy",
    ),
    "sleipnir.python_graph.runtime": (
        "GraphOutput", "RunnableConfig", "Runtime", "StreamWriter", "get_config", "get_runtime", "get_stream_writer",
    ),
    "sleipnir.python_graph.schema": ("IsLastStep", "RemainingSteps"),
    "sleipnir.python_graph.state_graph": ("StateGraph",),
    "sleipnir.settings": ("Settings",),
}  # fmt: skip
_MODULE_OF: Final = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "END", "REMOVE_ALL_MESSAGES", "START", "AIMessage", "AnyMessage", "AsyncBatch", "AsyncClient", "AsyncRun",
    "CachePolicy", "Client", "Command", "EmptyInputError", "GraphBubbleUp", "GraphInterrupt", "GraphOutput",
    "GraphRecursionError", "HumanMessage",
    "InMemoryCache", "InMemorySaver", "Interrupt", "InvalidUpdateError", "IsLastStep", "MemorySaver", "MessagesState",
    "Overwrite", "RemainingSteps", "RemoveMessage", "RetryPolicy", "Run", "RunOptions", "RunnableConfig", "Runtime",
    "Send", "Settings",
    "StateGraph", "StreamWriter", "SystemMessage", "ToolMessage", "__version__", "add_messages", "get_config",
    "get_runtime", "get_stream_writer", "interrupt", "is_invalid_resume",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("sleipnir")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'sleipnir' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)

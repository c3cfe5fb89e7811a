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
    from sleipnir.commands import END, START, Command, NodeInfo, Overwrite, Send
    from sleipnir.errors import RecoverableError
    from sleipnir.python_graph.call_context import get_call_context
    from sleipnir.python_graph.emitters import emit, emit_progress, emit_text, get_stream_writer
    from sleipnir.python_graph.errors import (
        EmptyInputError,
        GraphBubbleUp,
        GraphInterrupt,
        GraphRecursionError,
        InvalidUpdateError,
        is_invalid_resume,
    )
    from sleipnir.python_graph.interrupts import (
        Interrupt,
        clear_resume_value,
        has_resume_value,
        interrupt,
        resume_value,
    )
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
    from sleipnir.python_graph.middleware import NodeMiddleware
    from sleipnir.python_graph.node_streams import RESET, NodeStream, StreamError, StreamNotBegun, open_stream
    from sleipnir.python_graph.policies import CachePolicy, InMemoryCache, InMemorySaver, MemorySaver, RetryPolicy
    from sleipnir.python_graph.runtime import (
        GraphOutput,
        RunnableConfig,
        Runtime,
        StreamWriter,
        get_config,
        get_runtime,
    )
    from sleipnir.python_graph.schema import IsLastStep, RemainingSteps
    from sleipnir.python_graph.snapshots import PregelTask, StateSnapshot
    from sleipnir.python_graph.state_graph import StateGraph
    from sleipnir.python_graph.tools import ExternalTool, ToolRetryPolicy, tools_condition
    from sleipnir.python_graph.waits import wait
    from sleipnir.settings import Settings

_MODULES: Final = {
    "sleipnir.client.async_client": ("AsyncBatch", "AsyncClient", "AsyncRun"),
    "sleipnir.client.client": ("Client", "Run"),
    "sleipnir.client.options": ("RunOptions",),
    "sleipnir.commands": ("END", "START", "Command", "NodeInfo", "Overwrite", "Send"),
    "sleipnir.errors": ("RecoverableError",),
    "sleipnir.python_graph.call_context": ("get_call_context",),
    "sleipnir.python_graph.emitters": ("emit", "emit_progress", "emit_text", "get_stream_writer"),
    "sleipnir.python_graph.errors": (
        "EmptyInputError", "GraphBubbleUp", "GraphInterrupt", "GraphRecursionError", "InvalidUpdateError",
        "is_invalid_resume",
    ),
    "sleipnir.python_graph.interrupts": (
        "Interrupt", "clear_resume_value", "has_resume_value", "interrupt", "resume_value",
    ),
    "sleipnir.python_graph.messages": (
        "REMOVE_ALL_MESSAGES", "AIMessage", "AnyMessage", "HumanMessage", "MessagesState", "RemoveMessage",
        "SystemMessage", "ToolMessage", "add_messages",
    ),
    "sleipnir.python_graph.middleware": ("NodeMiddleware",),
    "sleipnir.python_graph.node_streams": ("RESET", "NodeStream", "StreamError", "StreamNotBegun", "open_stream"),
    "sleipnir.python_graph.policies": (
        "CachePolicy", "InMemoryCache", "InMemorySaver", "MemorySaver", "RetryPolicy",
    ),
    "sleipnir.python_graph.runtime": (
        "GraphOutput", "RunnableConfig", "Runtime", "StreamWriter", "get_config", "get_runtime",
    ),
    "sleipnir.python_graph.schema": ("IsLastStep", "RemainingSteps"),
    "sleipnir.python_graph.snapshots": ("PregelTask", "StateSnapshot"),
    "sleipnir.python_graph.state_graph": ("StateGraph",),
    "sleipnir.python_graph.tools": ("ExternalTool", "ToolRetryPolicy", "tools_condition"),
    "sleipnir.python_graph.waits": ("wait",),
    "sleipnir.settings": ("Settings",),
}  # fmt: skip
_MODULE_OF: Final = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "END", "REMOVE_ALL_MESSAGES", "RESET", "START", "AIMessage", "AnyMessage", "AsyncBatch", "AsyncClient",
    "AsyncRun", "CachePolicy", "Client", "Command", "EmptyInputError", "ExternalTool", "GraphBubbleUp",
    "GraphInterrupt", "GraphOutput", "GraphRecursionError", "HumanMessage", "InMemoryCache", "InMemorySaver",
    "Interrupt", "InvalidUpdateError", "IsLastStep", "MemorySaver", "MessagesState", "NodeInfo",
    "NodeMiddleware", "NodeStream",
    "Overwrite", "PregelTask", "RecoverableError", "RemainingSteps", "RemoveMessage", "RetryPolicy", "Run",
    "RunOptions", "RunnableConfig", "Runtime", "Send", "Settings", "StateGraph", "StateSnapshot", "StreamError",
    "StreamNotBegun", "StreamWriter", "SystemMessage", "ToolMessage", "ToolRetryPolicy", "__version__",
    "add_messages", "clear_resume_value", "emit", "emit_progress", "emit_text", "get_call_context", "get_config",
    "get_runtime", "get_stream_writer", "has_resume_value", "interrupt", "is_invalid_resume", "open_stream",
    "resume_value",
    "tools_condition", "wait",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("sleipnir")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'sleipnir' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)

"""Registers the executors of all types of nodes, which imports what calls models and tools."""

from sleipnir_workers.llm import node, summary, turn  # noqa: F401
from sleipnir_workers.nodes import agent, condition, function, rag, reduction, script, whole_run  # noqa: F401
from sleipnir_workers.tools import node as tool  # noqa: F401

"""Rules about settings that only a config.yaml has (spec/graph-agents.md 3.1). Loki reports these problems only at run
time."""

from __future__ import annotations

from collections.abc import Sequence

from sleipnir.graph.check_case import Case, Rule
from sleipnir.graph.tools import INSTRUCTIONS


def every_own_tool_can_be_read(case: Case) -> None:
    """The model is offered all of the tools, so an unreadable tools file stops the first turn."""
    if case.graph.loop is not None and case.custom_tools.complaint is not None:
        case.findings.graph_error((), case.custom_tools.complaint)


def every_dynamic_instruction_has_its_function(case: Case) -> None:
    loop, tools = case.graph.loop, case.custom_tools
    if loop is None or not loop.dynamic_instructions or case.folder is None:
        return
    if tools.complaint is None and not tools.has_instructions:
        message = f"'dynamic_instructions' is true, but the agent has no function '{INSTRUCTIONS}'"
        hint = f"Define `{INSTRUCTIONS}` in the agent's tools.sh or tools.py; its result is the system prompt."
        case.findings.graph_error(("dynamic_instructions",), message, hint)


RULES: Sequence[Rule] = (
    every_own_tool_can_be_read,
    every_dynamic_instruction_has_its_function,
)

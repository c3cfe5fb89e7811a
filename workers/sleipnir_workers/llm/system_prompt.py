"""The system prompt of a config.yaml agent (spec/graph-agents.md 3.2, 3.4): its instructions and Sleipnir's additions.

Rules. The blocks have the order of the specification, with a blank line between them. Sleipnir's texts (`injected/`)
are about tools; a text is left out if the agent lacks its tools, because the model would call them. Special variables
describe the machine that builds the prompt, except `__cwd__`: `--cwd`, else the directory where the run was started.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from sleipnir.agents.placeholders import TOOLS, interpolated, special_variables
from sleipnir.errors import NodeFailed, ToolFileError
from sleipnir.graph.model import LlmNode, LoopAgent
from sleipnir.graph.template import as_text
from sleipnir.graph.tools import INSTRUCTIONS
from sleipnir.tools.folder import tools_of
from sleipnir_workers import mcp
from sleipnir_workers.execution.execution import Execution
from sleipnir_workers.machine.host import Host

_INJECTED = Path(__file__).with_name("injected")


def system_prompt(node: LlmNode, loop: LoopAgent, execution: Execution, host: Host) -> str:
    """The system prompt. `loop` is that of the visit's graph. Raises NodeFailed (`tools`)."""
    text = "\n\n".join(block for block in [_instructions(loop, execution, host), *_injected(node, loop)] if block)
    cwd = (
        execution.cwd or execution.caller_dir or execution.folder
    )  # the working directory of its tools, if they run on the caller's machine
    return interpolated(text, execution.variables, special_variables(host.env, cwd, datetime.now().astimezone()))


def _instructions(loop: LoopAgent, execution: Execution, host: Host) -> str:
    if loop.dynamic_instructions:
        return as_text(execution.state[INSTRUCTIONS]).strip()
    instructions, placeholder = loop.instructions.strip(), f"{{{{{TOOLS}}}}}"
    return instructions.replace(placeholder, _listing(execution, host)) if placeholder in instructions else instructions


def _listing(execution: Execution, host: Host) -> str:
    """The value of `{{__tools__}}`: a numbered line for each tool of a file and each function of an MCP server."""
    try:
        tools = tools_of(execution.folder, host.functions_dir, execution.graph)
    except ToolFileError as error:
        raise NodeFailed(f"the tools of agent '{execution.agent}' cannot be read: {error}", "tools") from error
    functions = [each["function"] for each in mcp.declarations(execution.graph.mcp_servers)]
    listed = [(each.name, each.description) for each in tools.declarations]
    listed += [(each["name"], each["description"]) for each in functions]
    return "\n".join(
        f"{number}. {name}: {about.partition(chr(10))[0]}" for number, (name, about) in enumerate(listed, 1)
    )


def _injected(node: LlmNode, loop: LoopAgent) -> Iterator[str]:
    names = tuple(node.tools or ())
    for file, prefixes, enabled in (
        ("todo.md", "todo__", loop.auto_continue and loop.inject_todo_instructions),
        ("spawn.md", "agent__spawn", loop.can_spawn_agents and loop.inject_spawn_instructions),
        ("teammates.md", "agent__send_message", True),
        ("user.md", "user__", True),
    ):
        if enabled and any(name.startswith(prefixes) for name in names):
            yield _text(file)


@functools.cache
def _text(file: str) -> str:
    return (_INJECTED / file).read_text(encoding="utf-8").strip()

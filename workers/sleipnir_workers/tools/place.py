"""Where the tool calls of an agent run: its folder, its variables, and its worker's machine."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sleipnir.python_graph import call_context
from sleipnir_workers.execution.execution import Execution
from sleipnir_workers.machine.agent_environment import agent_variables
from sleipnir_workers.machine.host import Host


@dataclass(frozen=True)
class Place:
    """`folder` is the agent's, or its bundle's; `cwd` the working directory; `variables` are LLM_AGENT_VAR_* with their
    values, and those that name the visit. When `lost` is set, running commands are killed."""

    agent: str
    folder: Path
    cwd: Path
    host: Host
    variables: Mapping[str, str] = field(default_factory=dict)
    lost: threading.Event = field(default_factory=threading.Event)

    @classmethod
    def of_visit(cls, execution: Execution, host: Host) -> Place:
        """The place of a visit's calls, the same as of scripts. Raises NodeFailed (`config`)."""
        names = {
            "GRAPH_RUN_ID": execution.run,
            "GRAPH_NODE_ID": execution.node.id,
            "GRAPH_VISIT": f"{execution.run}/{execution.seq}",
        }
        if execution.caller_dir is not None:
            names["GRAPH_CALLER_DIR"] = str(execution.caller_dir)
        if execution.callbacks is not None and execution.callbacks.info.context:
            names[call_context.VARIABLE] = json.dumps(execution.callbacks.info.context)
        if execution.scratch is not None:
            names["GRAPH_SCRATCH_DIR"] = str(execution.scratch)
        variables = {**agent_variables(execution.graph, execution.variables, host), **names}
        return cls(execution.agent, execution.folder, execution.directory, host, variables, execution.lost)

"""An agent that is written as a config.yaml."""

from __future__ import annotations

from dataclasses import dataclass, field

from sleipnir.graph.model.limits import Concurrency
from sleipnir.graph.model.state import Variable
from sleipnir.graph.model.values import Flag, Number, Seconds, Whole
from sleipnir.graph.model.work_nodes import SkillKeys


@dataclass(frozen=True, kw_only=True)
class LoopAgent:
    """The settings of a config.yaml that a graph.yaml does not have (spec 3.1). Such an agent is a graph whose node
    `agent` is an llm node with all of the agent's tools and, in practice, no limit of turns.

    `instructions` are unrendered: variables are inserted when the model is called. `escalation_timeout` is in seconds,
    `summarization_threshold` in bytes, `compression_threshold` in tokens (None: the default of the deployment),
    `max_tool_result_chars` in bytes (None: the application's, 0: no limit of this kind).
    `spawnable_agents` are the agents that its model may start; None: any, [] none.
    """

    instructions: str = ""
    dynamic_instructions: Flag = False
    agent_session: str | None = None
    auto_continue: Flag = False
    max_auto_continues: Whole = 10
    inject_todo_instructions: Flag = True
    continuation_prompt: str | None = None
    can_spawn_agents: Flag = False
    spawnable_agents: list[str] | None = None
    max_concurrent_agents: Whole = 4
    max_agent_depth: Whole = 3
    inject_spawn_instructions: Flag = True
    summarization_model: str | None = None
    summarization_threshold: Whole = 4000
    escalation_timeout: Seconds = 300
    compression_threshold: Whole | None = None
    max_tool_result_chars: Whole | None = None
    documents: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class ConfigAgent(SkillKeys, LoopAgent):
    """The keys of a config.yaml (spec 3.1): those of its loop, and those shared with graphs."""

    name: str
    model: str | None = None
    temperature: Number | None = None
    top_p: Number | None = None
    reasoning_effort: str | None = None
    description: str = ""
    version: str = ""
    mcp_servers: list[str] = field(default_factory=list)
    global_tools: list[str] = field(default_factory=list)
    variables: list[Variable] = field(default_factory=list)
    conversation_starters: list[str] = field(default_factory=list)
    concurrency: Concurrency | None = None

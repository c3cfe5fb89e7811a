"""Rules about a graph as a whole, one function per rule, named by what it guarantees.

Rules 1 to 9 are Loki's, with its messages word for word and in its order (spec/graph-agents.md 2.12); the rest are
Sleipnir's. Each subject has a module: check_agents.py, check_answers.py, check_breakpoints.py, check_cache.py,
check_callbacks.py, check_code.py, check_config.py, check_failures.py, check_knowledge.py, check_messages.py,
check_models.py, check_parallel.py, check_python_graph.py, check_size.py, check_skills.py, check_state.py,
check_remotes.py, check_streams.py, check_templates.py. Every rule checks the whole graph and reports all its findings;
none raises. If the caller names the agent's folder, the rules also read the folder and check that documents exist; they
read nothing else. The readable part of a graph with errors is checked too (salvage.py), so that all errors are reported
in one pass.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from sleipnir.errors import Problem
from sleipnir.graph import (
    check_agents,
    check_answers,
    check_breakpoints,
    check_cache,
    check_callbacks,
    check_code,
    check_config,
    check_failures,
    check_knowledge,
    check_messages,
    check_models,
    check_parallel,
    check_python_graph,
    check_remotes,
    check_size,
    check_skills,
    check_state,
    check_streams,
    check_templates,
    check_waits,
    codes,
    ignoring,
    python_file,
)
from sleipnir.graph.check_case import Case, Complaint, FindAgent, KnownClients, ReadTools, Rule, edge_path
from sleipnir.graph.code_files import listing
from sleipnir.graph.findings import Findings, KeyPath, Positions, below, in_file_order, suggestion
from sleipnir.graph.length_rule import LengthRuleError, parse_length_rule
from sleipnir.graph.load import CONFIG_FILE, GRAPH_FILE, PYTHON_FILE, load_file, read_agent
from sleipnir.graph.loaded import LoadedGraph
from sleipnir.graph.model import (
    CONTINUE,
    END,
    FAIL,
    LOKI,
    SLEIPNIR,
    STATE_GRAPH,
    AgentNode,
    ApprovalNode,
    Edge,
    EndNode,
    FunctionNode,
    Graph,
    InputNode,
    JoinNode,
    LlmNode,
    MapNode,
    RagNode,
    Retry,
    RouterNode,
    ScriptNode,
    ToolsNode,
    edges_of,
    graph_below,
)
from sleipnir.graph.salvage import Salvaged
from sleipnir.graph.source import YamlDocument
from sleipnir.graph.tools import MCP, custom_tools, known_tools, stem

TAKEN_BY_FILES = ("rag", "config", "graph")

FAILURES = (
    "any", "transient", "timeout", "exit", "signal", "output", "output_size", "exception", "spawn", "not_found",
    "extension", "outside", "too_large", "model", "model_call", "rate_limit", "structured", "template", "tools",
    "bundle", "no_executor", "state", "failed", "recoverable", "child",
)  # fmt: skip
"""The values of `retry.on` besides exceptions: classes of failures, and the kinds that executors report."""

_EXCEPTION = re.compile(r"(?:[A-Za-z_][\w.]*:)?[A-Z]\w*|[A-Za-z_][\w./-]*:[A-Za-z_<][\w.<>]*(?:#\d+)?")


def check(
    graph: Graph,
    positions: Positions,
    file: str,
    folder: Path | None = None,
    agents: FindAgent | None = None,
    tools: Iterable[str] = (),
    read_tools: ReadTools = custom_tools,
    global_tools: Complaint | None = None,
    mcp_servers: Complaint | None = None,
    clients: KnownClients | None = None,
    skills: Complaint | None = None,
    *,
    document: YamlDocument | None = None,
    salvaged: Salvaged | None = None,
) -> list[Problem]:
    """Every problem of the graph as a whole, in the order of the rules.

    Without `folder`, scripts, functions and tools in it are not checked; without `agents`, the existence of agents is
    not. `tools` are names that an llm node may use besides those the graph declares.
    `read_tools` reads the folder's tools file; by default it is only searched for names.
    Without `global_tools`, `mcp_servers` or `skills`, these are not checked.
    `clients` are the model clients of this deployment besides the known ones. `document` is the source of the graph:
    with it, findings inside a text have an exact position. `salvaged` names the stand-ins in the graph.
    """
    findings = Findings(file, positions)
    case = Case(
        graph, findings, folder, agents, tuple(tools), read_tools, global_tools, mcp_servers, clients, skills, document
    )
    if salvaged is not None:
        findings.broken = salvaged.broken
    _apply_rules(case, salvaged)
    for name in graph.graphs:
        part = Findings(file, below(positions, ("graphs", name)))
        _apply_rules(replace(case, graph=graph_below(graph, name), findings=part, document=None, parsed={}), None)
        findings.add(part.problems, ("graphs", name))
    return findings.problems


def _apply_rules(case: Case, salvaged: Salvaged | None) -> None:
    for rule in RULES:
        if salvaged is None or salvaged.edges_known or rule not in _NEED_ALL_EDGES:
            case.findings.code = codes.CODE_OF_RULE.get(rule.__name__, codes.GENERAL)
            rule(case)


def check_loaded(
    loaded: LoadedGraph,
    file: Path,
    folder: Path,
    agents: FindAgent | None = None,
    tools: Iterable[str] = (),
    read_tools: ReadTools = custom_tools,
    global_tools: Complaint | None = None,
    mcp_servers: Complaint | None = None,
    clients: KnownClients | None = None,
    skills: Complaint | None = None,
    *,
    graph: Graph | None = None,
) -> list[Problem]:
    """Every problem of a definition, including those of reading it, in file order; problems in other files come last.
    Problems that comments ignore are left out. `graph` (with overrides) is checked instead of the loaded one."""
    problems = list(loaded.problems)
    if graph is None:
        graph = loaded.salvaged.graph if loaded.salvaged is not None else loaded.graph
    if graph is not None:
        problems += check(
            graph,
            loaded.positions,
            str(file),
            folder,
            agents,
            tools,
            read_tools,
            global_tools,
            mcp_servers,
            clients,
            skills,
            document=loaded.document,
            salvaged=loaded.salvaged,
        )
        if loaded.text is not None:
            problems = python_file.placed(problems, loaded, str(file))
    elif loaded.document is not None:
        problems += check_code.syntax_of(folder, str(file))
    own = in_file_order(problem for problem in problems if problem.file == str(file))
    others = [problem for problem in problems if problem.file != str(file)]
    return ignoring.without_ignored([*own, *others], loaded, str(file))


def validate(
    path: Path,
    agents: FindAgent | None = None,
    tools: Iterable[str] = (),
    read_tools: ReadTools = custom_tools,
    global_tools: Complaint | None = None,
    mcp_servers: Complaint | None = None,
    config_file: Path | None = None,
    clients: KnownClients | None = None,
    skills: Complaint | None = None,
) -> list[Problem]:
    """Every problem of a graph file or agent folder, as from `check_loaded`. `config_file` replaces the folder's
    config.yaml."""
    loaded = load_file(path, config_file)
    folder, file = path.parent, path
    if path.is_dir():
        if loaded.document is None:
            return list(loaded.problems)
        folder, file = path, read_agent(path, config_file=config_file).file
    return check_loaded(loaded, file, folder, agents, tools, read_tools, global_tools, mcp_servers, clients, skills)


def format_headline(problems: Iterable[Problem]) -> str:
    """The errors in the form in which Loki refuses a run, without warnings."""
    errors = [problem for problem in problems if problem.level == "error"]
    lines = [f"\n  [{error.node}] {error.message}" if error.node else f"\n  {error.message}" for error in errors]
    return f"Graph validation failed with {len(errors)} error(s):{''.join(lines)}"


def every_edge_leads_to_a_node(case: Case) -> None:
    for edge in (edge for node in case.graph.nodes.values() for edge in edges_of(node)):
        if not _has_target(case, edge):
            message = f"References non-existent node '{edge.target}' in {_edge_label(case, edge)}"
            case.findings.error(edge_path(case, edge), message, _target_hint(case, edge))


def declared_edges_form_no_cycle(case: Case) -> None:
    """Reports the first cycle only: the others are often variations of it. In Loki's format, Loki's own edges form no
    cycle; in sleipnir/1 a cycle needs a way out."""
    if not case.is_loki and case.graph.limits.max_steps is not None:
        return
    first = _first_cycle(_loki_edges(case) if case.is_loki else _edges_without_choice(case))
    if first is None:
        return
    cycle, closing = first
    hint = (
        "Declared edges cannot form a loop; a script can go back by printing `_next`. In the Sleipnir graph language "
        "they can, with `limits.max_steps`."
    )
    if not case.is_loki:
        hint = "Give one of these nodes a way out (`branch`, or `ends` for its `_next`), or set `limits.max_steps`."
    case.findings.graph_error(edge_path(case, closing), f"Cycle detected: {' -> '.join(cycle)}", hint)


def every_node_can_be_reached(case: Case) -> None:
    """A node whose name occurs in the agent's code is not reported: a script may route to it by `_next`. Nor is any
    node if the code of a router without `to` is not in the folder."""
    message = "Node is unreachable from the start node via declared edges (script `_next` routing is not analyzed)"
    for node_id in case.graph.nodes:
        if node_id not in case.reachable and not case.code_mentions(node_id) and not case.may_go_anywhere:
            case.findings.warning(("nodes", node_id), message)


def some_node_ends_the_graph(case: Case) -> None:
    """In sleipnir/1 a branch may end at any node without a `next`."""
    if not case.is_loki:
        return
    ends = {node.id for node, _ in case.nodes(EndNode)}
    if not ends:
        hint = "Add a node of type end."
        case.findings.graph_error(("nodes",), "Graph has no end nodes; execution would never terminate", hint)
    elif not ends & case.reachable:
        message = "No end node is reachable from the start node via declared edges "
        message += "(a script's `_next` may still route to one)"
        case.findings.graph_warning(("start",), message)


def every_agent_exists(case: Case) -> None:
    """The rule holds only if the caller can find agents."""
    if case.find_agent is None:
        return
    for node, path in case.nodes(AgentNode):
        if node.agent in case.graph.agents:
            continue
        folder = case.find_agent(node.agent)
        if folder is None or not folder.is_dir():
            hint = suggestion(node.agent, _neighbours(case.folder), "agents beside this one")
            case.findings.error((*path, "agent"), f"Agent '{node.agent}' not found (directory missing)", hint)
        elif not any((folder / name).is_file() for name in (CONFIG_FILE, GRAPH_FILE, PYTHON_FILE)):
            message = f"Agent '{node.agent}' has neither a config.yaml nor a graph.yaml"
            case.findings.error((*path, "agent"), message, f"Its folder is '{folder}'.")


def every_option_has_a_route(case: Case) -> None:
    """An option without a route would lead to `on_other`, which is for other answers."""
    for node, path in case.nodes(ApprovalNode):
        if (*path, "routes") in case.findings.broken:
            continue
        for index, option in enumerate(node.options):
            if option not in node.routes:
                hint = "Add it to `routes`; `on_other` is for answers that are not options."
                case.findings.error((*path, "options", index), f"Approval option '{option}' has no route defined", hint)


def every_route_has_an_option(case: Case) -> None:
    for node, path in case.nodes(ApprovalNode):
        if (*path, "options") in case.findings.broken:
            continue
        for option in node.routes:
            if option not in node.options:
                hint = suggestion(option, [name for name in node.options if name not in node.routes], "open options")
                case.findings.warning((*path, "routes", option), f"Route '{option}' has no corresponding option", hint)


def every_rag_node_has_documents(case: Case) -> None:
    for node, path in case.nodes(RagNode):
        if not node.documents:
            message = "RAG node has no 'documents'; at least one knowledge source is required"
            case.findings.error((*path, "documents"), message)


def every_rag_result_is_kept(case: Case) -> None:
    for node, path in case.nodes(RagNode):
        if not node.state_updates:
            message = "RAG node has no 'state_updates'; its retrieval result will not be written to state"
            case.findings.warning(path, message, 'Add `state_updates: {context: "{{output.context}}"}`.')


def every_tool_is_known(case: Case) -> None:
    nodes: list[tuple[LlmNode | ToolsNode, KeyPath]] = [*case.nodes(LlmNode), *case.nodes(ToolsNode)]
    for node, path in nodes:
        executing = case.graph.nodes.get(node.tools_node or "") if isinstance(node, LlmNode) else None
        declared = executing.declared_names if isinstance(executing, ToolsNode) else ()
        for index, tool in enumerate(node.tools or ()):
            if not isinstance(tool, str) or tool in declared:
                continue
            if tool.startswith(MCP):
                _check_server(case, tool, (*path, "tools", index))
            elif case.folder is not None:
                _check_tool(case, tool, (*path, "tools", index), node.kind)


def every_global_tool_can_be_used(case: Case) -> None:
    hint = "Global tools are read from `functions/tools` in the configuration directory of the workers."
    _warn_of_each(case, "global_tools", case.graph.global_tools, case.global_tools, hint)


def every_mcp_server_is_configured(case: Case) -> None:
    hint = "MCP servers are read from `functions/mcp.json` in the configuration directory of the workers."
    _warn_of_each(case, "mcp_servers", case.graph.mcp_servers, case.mcp_servers, hint)


def _warn_of_each(
    case: Case, key: str, names: Sequence[str], complain: Callable[[str], str | None] | None, hint: str
) -> None:
    """Only warnings: the workers have their own configuration directory."""
    if complain is None:
        return
    for index, name in enumerate(names):
        if (complaint := complain(name)) is not None:
            case.findings.graph_warning((key, index), complaint, hint)


def every_node_has_a_next(case: Case) -> None:
    """For version 1.0, where Loki fails only at run time. A script may route by `_next`; a `branch`, or a join that
    waits for the node, replaces `next`."""
    if not case.is_loki:
        return
    bodies = {body for node, _ in case.nodes(MapNode) for body in node.body}
    for kind in (AgentNode, InputNode, LlmNode, RagNode, MapNode, RouterNode, JoinNode):
        for node, path in case.nodes(kind):
            leads = node.targets or node.branch or node.id in case.graph.joins
            if not leads and (node.id in case.entered or node.id not in bodies):
                message = f"{node.kind} node has no `next`; a run that gets here fails"
                case.findings.warning(path, message, "Name the next node.")


def no_knowledge_base_overwrites_a_file(case: Case) -> None:
    """The knowledge base of a rag node is `<node-id>.yaml` in the agent's folder. That of a config.yaml agent's
    documents is rag.yaml."""
    for node, path in case.nodes(RagNode):
        if node.id in TAKEN_BY_FILES and case.graph.loop is None:
            message = f"a rag node cannot be called '{node.id}': its knowledge base would be the file {node.id}.yaml"
            case.findings.error(path, message, "Give the node another name.")


def every_validation_can_be_read(case: Case) -> None:
    """A warning: Loki fails only at run time."""
    for node, path in case.nodes(InputNode):
        try:
            parse_length_rule(node.validation or "len(input) >= 0")
        except LengthRuleError as error:
            hint = "Write for example `len(input) > 0`; the operators are > >= < <= ==."
            case.findings.warning((*path, "validation"), str(error), hint)


def every_retry_names_failures_that_exist(case: Case) -> None:
    """A warning: custom executors may report other kinds."""
    places: list[tuple[Iterable[Retry], KeyPath]] = [(case.graph.retry or (), ("retry",))]
    for node_id, node in case.graph.nodes.items():
        if isinstance(node, ScriptNode | FunctionNode | LlmNode):
            places.append((node.retry or (), ("nodes", node_id, "retry")))
    for policies, path in places:
        for name in (name for policy in policies for name in policy.on):
            if name not in FAILURES and not _EXCEPTION.fullmatch(name):
                case.findings.warning(path, f"'{name}' is not a known failure", suggestion(name, FAILURES, "failures"))


def every_recoverable_failure_exists(case: Case) -> None:
    """A warning for the same reason; what is recovered from must be a failure of its own, not any."""
    names = case.graph.errors.recoverable if case.graph.errors is not None else ()
    for index, name in enumerate(names):
        path: KeyPath = ("errors", "recoverable", index)
        if name in ("any", "transient"):
            case.findings.error(path, f"'{name}' would hide failures that nobody expects", "Name kinds and exceptions.")
        elif name not in FAILURES and not _EXCEPTION.fullmatch(name):
            case.findings.warning(path, f"'{name}' is not a known failure", suggestion(name, FAILURES, "failures"))


def every_timeout_of_a_question_has_a_target(case: Case) -> None:
    """Warnings: otherwise the problem appears only when a question times out."""
    for node_id, node in case.graph.nodes.items():
        if not isinstance(node, ApprovalNode | InputNode):
            continue
        path: KeyPath = ("nodes", node_id)
        if node.timeout is None and node.on_timeout is not None:
            case.findings.warning(
                (*path, "on_timeout"), "'on_timeout' has no effect without a timeout", "Add `timeout: 3600`."
            )
        has_default = isinstance(node, InputNode) and node.default is not None
        if node.timeout is not None and node.on_timeout is None and not has_default:
            hint = "Name the node that runs then: `on_timeout: <node>`."
            case.findings.warning((*path, "timeout"), "a run without an answer in time fails", hint)


def every_output_schema_is_a_schema(case: Case) -> None:
    schemas = [(node.output_schema, path) for node, path in case.nodes(LlmNode)]
    schemas += [(node.output_schema, path) for node, path in case.nodes(AgentNode)]
    for schema, path in schemas:
        if schema is not None:
            check_state.check_schema(case, schema, (*path, "output_schema"), "output_schema")


RULES: Sequence[Rule] = (
    every_edge_leads_to_a_node,
    declared_edges_form_no_cycle,
    every_node_can_be_reached,
    some_node_ends_the_graph,
    check_code.every_script_exists,
    every_agent_exists,
    every_option_has_a_route,
    every_route_has_an_option,
    every_rag_node_has_documents,
    every_rag_result_is_kept,
    every_tool_is_known,
    every_global_tool_can_be_used,
    every_mcp_server_is_configured,
    *check_models.RULES,
    *check_skills.RULES,
    *check_config.RULES,
    *check_knowledge.RULES,
    every_node_has_a_next,
    no_knowledge_base_overwrites_a_file,
    every_validation_can_be_read,
    every_retry_names_failures_that_exist,
    every_recoverable_failure_exists,
    every_timeout_of_a_question_has_a_target,
    every_output_schema_is_a_schema,
    *check_answers.RULES,
    *check_waits.RULES,
    *check_streams.RULES,
    *check_code.RULES,
    *check_agents.RULES,
    *check_remotes.RULES,
    *check_breakpoints.RULES,
    *check_cache.RULES,
    *check_callbacks.RULES,
    *check_messages.RULES,
    *check_failures.RULES,
    *check_parallel.RULES,
    *check_python_graph.RULES,
    *check_state.RULES,
    *check_templates.RULES,
    *check_size.RULES,
)

_NEED_ALL_EDGES = frozenset(
    {
        declared_edges_form_no_cycle,
        every_node_can_be_reached,
        some_node_ends_the_graph,
        every_node_has_a_next,
        *check_parallel.NEED_ALL_EDGES,
    }
)
"""Rules whose findings are only valid if all edges could be read."""


def _has_target(case: Case, edge: Edge) -> bool:
    if edge.kind == "body":
        return edge.target in case.graph.nodes
    if edge.kind in ("branch", "default", "routers"):
        return case.graph.target_of(case.graph.nodes[edge.source], edge.target) is not None
    return case.graph.is_node_or_end(edge.target)


def _target_hint(case: Case, edge: Edge) -> str | None:
    if edge.target == END and case.is_loki:
        return f"In version {LOKI} a run ends at a node: `{END}: {{type: end}}`. In {SLEIPNIR} this ends the branch."
    rules = [FAIL, CONTINUE] if edge.kind == "on_error" else []
    return suggestion(edge.target, [*rules, *case.graph.nodes], "targets" if rules else "nodes")


def _edge_label(case: Case, edge: Edge) -> str:
    path = edge_path(case, edge)
    key = next(part for part in reversed(path) if part in _EDGE_KEYS)
    return f"{case.graph.nodes[edge.source].kind} '{key}'" if edge.kind in _OF_ONE_TYPE else f"'{key}'"


_EDGE_KEYS = (
    "tools_node",
    "tools",
    "next",
    "routes",
    "on_other",
    "fallback",
    "branch",
    "routers",
    "node",
    "on_timeout",
    "default",
    "else",
    "ends",
    "on_error",
)
_OF_ONE_TYPE = ("routes", "on_other", "fallback", "body", "on_timeout")


def _loki_edges(case: Case) -> dict[str, list[Edge]]:
    """The edges without the kinds that Sleipnir adds."""
    return {node: [edge for edge in edges if edge.kind not in _ADDED] for node, edges in case.edges.items()}


_ADDED = ("branch", "default", "routers", "ends", "on_error", "wait_for")


def _edges_without_choice(case: Case) -> dict[str, list[Edge]]:
    """The edges of nodes that make no choice, without joins that never fire."""
    by_node: dict[str, list[Edge]] = {}
    for node_id, edges in case.edges.items():
        node = case.graph.nodes[node_id]
        is_limited = isinstance(node, FunctionNode) and node.protocol == STATE_GRAPH  # by recursion_limit
        has_choice = node.branch or is_limited or any(edge.kind in _CHOSEN for edge in edges)
        certain = [edge for edge in edges if edge.kind != "wait_for" or edge.target in case.entered]
        by_node[node_id] = [] if has_choice else certain
    return by_node


_CHOSEN = ("ends", "routes", "on_other", "fallback", "on_timeout", "on_error", "tools_node")


def _first_cycle(edges: dict[str, list[Edge]]) -> tuple[list[str], Edge] | None:
    """The first cycle of a depth-first search in file order, and the edge that closes it.

    Not recursive: a chain of nodes may be longer than Python's stack.
    """
    finished: set[str] = set()
    for root in edges:
        trail = {root: iter(edges[root])}  # in walk order
        while trail:
            node = next(reversed(trail))
            edge = next(trail[node], None)
            if edge is None:
                finished.add(node)
                del trail[node]
            elif edge.target in trail:
                walked = list(trail)
                return [*walked[walked.index(edge.target) :], edge.target], edge
            elif edge.target in edges and edge.target not in finished:
                trail[edge.target] = iter(edges[edge.target])
    return None


def _neighbours(folder: Path | None) -> list[str]:
    entries = [] if folder is None else listing(folder.absolute().parent)
    return [entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(".")]


def _check_server(case: Case, tool: str, path: KeyPath) -> None:
    server, servers = tool.removeprefix(MCP), case.graph.mcp_servers
    if server in servers:
        return
    hint = suggestion(server, servers, "declared MCP servers") or "Declare the server under mcp_servers."
    case.findings.error(path, f"llm node references unknown MCP server '{tool}'", hint)


def _check_tool(case: Case, tool: str, path: KeyPath, kind: str) -> None:
    known = [*known_tools(case.graph, case.custom_tools), *(stem(name) for name in case.more_tools)]
    if stem(tool) in known:
        return
    hint = case.custom_tools.complaint or suggestion(stem(tool), known, "tools of this graph")
    case.findings.error(path, f"{kind} node references unknown tool '{tool}'", hint)

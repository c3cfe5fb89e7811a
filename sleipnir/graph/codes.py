"""The codes of findings: a stable name for each kind of mistake, used to look it up and to ignore it.

Rules. The first digit is the subject (SUBJECTS). A code never changes its meaning; a retired code is not reused. Each
rule of check.py has one code (CODE_OF_RULE); readers of files name the code where they report.
`ops/generate` makes docs/validation.md from CODES.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

SUBJECTS: Final[Mapping[str, str]] = {
    "1": "The file",
    "2": "Keys and values",
    "3": "Nodes and edges",
    "4": "Templates and what they read",
    "5": "Scripts and Python",
    "6": "Models, tools and agents",
    "7": "Documents",
    "8": "Declared state and schemas",
    "9": "Sizes",
}

GENERAL: Final = "SLP200"
"""The code of a finding without a specific one."""

CODE: Final = re.compile(r"SLP[0-9]{3}")


@dataclass(frozen=True, slots=True)
class Code:
    """One kind of finding: its title, why it matters, and what to do about it."""

    title: str
    explanation: str

    def text(self, name: str) -> str:
        """The output of `validate --explain`."""
        return f"{name}: {self.title}\n\n{self.explanation}"


def explain(name: str) -> str | None:
    """The explanation of a code, in any case; None for one that does not exist."""
    code = CODES.get(name.strip().upper())
    return None if code is None else code.text(name.strip().upper())


def as_markdown() -> str:
    """The tables of docs/validation.md."""
    parts = []
    for digit, subject in SUBJECTS.items():
        rows = [f"| `{name}` | {code.title} | {code.explanation} |" for name, code in CODES.items() if name[3] == digit]
        parts.append(
            "\n".join([f"### {digit}xx: {subject}", "", "| code | finding | what to do |", "|---|---|---|", *rows])
        )
    return "\n\n".join(parts) + "\n"


CODES: Final[Mapping[str, Code]] = {
    # --- the file
    "SLP101": Code(
        "The file is not readable YAML",
        "Nothing after this place can be read, so other findings about the graph may be missing until it is repaired. "
        "Frequent causes: a tab as indentation, a quote that is not closed, text with `: ` that is not quoted.",
    ),
    "SLP102": Code("A key is set twice", "One of the two values would be lost. Keep one of them."),
    "SLP103": Code("A key is not text", "Keys are text. Put numbers, `true` and `null` in quotes when they are keys."),
    "SLP104": Code("A merge key is not applied", "`<<` has no effect. Write the keys out, or alias a whole value."),
    "SLP105": Code("A YAML tag is not supported", "Remove the tag: the type of a value follows from its spelling."),
    "SLP106": Code(
        "A comment cannot ignore this",
        "`# sleipnir: ignore` takes codes of warnings. An error stops every run, so it must be repaired.",
    ),
    "SLP107": Code(
        "The agent's file cannot be read",
        "The file does not exist, is not UTF-8, or the folder has both a graph.yaml and a config.yaml or a graph.py.",
    ),
    "SLP108": Code(
        "A graph.py defines no graph",
        "It is executed when the agent is read, and ends with `graph = builder.compile()`. The message has what it "
        "raised instead, with the last line of the agent's own code.",
    ),
    # --- keys and values
    "SLP200": Code("The definition is not valid", "The message shows the value and what is expected instead."),
    "SLP201": Code(
        "A value is of the wrong kind",
        'Nothing is converted: `"5"` is not a number. Text that begins with a brace needs quotes: `"{{name}}"`.',
    ),
    "SLP202": Code("A required key is missing", "Add the key; the hint lists all required keys."),
    "SLP203": Code(
        "An unknown key",
        "The key has no effect, so its intended setting is missing. The nearest known key is in the hint.",
    ),
    "SLP204": Code(
        "A key has no effect on this type of node", "Remove it, or use a node of a type that the hint names."
    ),
    "SLP205": Code("A key of another release of Loki", "The key is accepted and ignored; the hint says why."),
    "SLP206": Code("A scalar that is not text", "Text is expected. Put the value in quotes."),
    "SLP207": Code(
        "An unknown version of the language", "`version` selects the rules for the file. Use a supported one."
    ),
    "SLP208": Code("An unknown type of node", "Use one of the types in the hint."),
    "SLP209": Code("The graph has no name or no nodes", "A graph needs `name`, `start` and at least one node."),
    "SLP210": Code("The start node does not exist", "`start` names the one node where every run begins."),
    "SLP211": Code("A node's id differs from its key", "The key under `nodes` is the id. Remove `id`."),
    "SLP212": Code(
        "A `branch` that cannot be read",
        "Choose by exactly one of `by` (a template), `call` (a function) and `cases` (conditions, `else` last).",
    ),
    "SLP213": Code("A `wait_for` that cannot be read", "Write `[a, b]`, or `{from: [a, b], min: 1}`."),
    "SLP214": Code("A setting is given twice", "Keep one of the two."),
    "SLP215": Code(
        "`call` does not name a function, or `state_class` no class", "Write `file.py:name`, or `package.module:name`."
    ),
    "SLP216": Code(
        "A key that needs `protocol: state_graph`",
        "`reads`, `state_class` and `routers` belong to nodes of a graph written in Python. Add the "
        "protocol to the node, or remove the key.",
    ),
    "SLP217": Code(
        "`protocol: state_graph` without `state_classes`",
        "Nodes of this protocol write only keys that the classes declare. Name the classes at the top of the file.",
    ),
    "SLP218": Code("A key that needs version sleipnir/1", "Write `version: sleipnir/1`, or remove the key."),
    "SLP219": Code(
        "A `cache` that cannot be",
        "Results of scripts, functions, models without tools and searches can be cached, but not those of agents and "
        "graphs, nor of work that must happen once. `key` lists state keys, or is a template or a CEL expression.",
    ),
    "SLP220": Code(
        "`callbacks` that cannot run",
        "They run on a worker around scripts, functions, models, searches and agents, around calls of models and "
        "tools, and, those of the whole graph, around runs. Graphs of nodes are runs of their own.",
    ),
    "SLP240": Code(
        "A key that contradicts another one",
        "An llm node has a `prompt`, or it sends the messages of the state. One setting is given in one place.",
    ),
    "SLP241": Code("A tool without an executor", "A tool of a tools node is external, or a Python function."),
    # --- nodes and edges
    "SLP301": Code(
        "An edge to a node that does not exist", "Every target must be a node of this graph. Check the spelling."
    ),
    "SLP302": Code(
        "The edges form a loop",
        "In version 1.0 declared edges must not form a loop: a script goes back by `_next`. In sleipnir/1 it needs a "
        "way out.",
    ),
    "SLP303": Code(
        "A node cannot be reached",
        "No edge leads to it, and no file of the agent's code contains its name, so it can never run.",
    ),
    "SLP304": Code("No end can be reached", "Add a node of type `end` and an edge to it."),
    "SLP305": Code("A node has no `next`", "A run that gets here fails. Name the next node."),
    "SLP306": Code("An option without a route", "Add the option to `routes`."),
    "SLP307": Code("A route without an option", "It cannot be chosen. Add it to `options`, or remove the route."),
    "SLP308": Code(
        "An incomplete timeout of a question",
        "`timeout` and `on_timeout` belong together: without `on_timeout` or `default` the run fails at the timeout.",
    ),
    "SLP310": Code("A person is asked in a parallel branch", "Ask after the node where the branches meet."),
    "SLP311": Code(
        "A parallel script does not declare what it writes",
        "List its keys under `state_updates`, so that they can be compared with those of its siblings.",
    ),
    "SLP312": Code("Parallel branches write one key", "Give the key a reducer, or rename one of the two."),
    "SLP313": Code("A branch reads what its sibling writes", "It sees the earlier value. Run one after the other."),
    "SLP314": Code("A join can never fire", "Each node in `wait_for` must exist and be reached in the same run."),
    "SLP315": Code("A join without `wait_for`", "List the nodes that it waits for."),
    "SLP316": Code("A router without an edge", "Add a `next` or a `branch`."),
    "SLP317": Code("`branch` or `ends` has no effect", "The node does not choose a label. Remove the key."),
    "SLP318": Code("A condition cannot be read", "Conditions are CEL over `state`, such as `state.score > 0.5`."),
    "SLP319": Code("A choice that is always the same", 'Write `by: "{{key}}"`, with a key of the state.'),
    "SLP320": Code("A label that is never produced, or that has no target", "Compare `to` with the possible labels."),
    "SLP321": Code(
        "A node cannot run per item of a map", "The hint lists the types that can, and what they may write."
    ),
    "SLP322": Code("A map uses one key for two things", "Use different keys for the item and for the results."),
    "SLP323": Code("A limit of 0 lets nothing run", "Write a number from 1, or remove the limit."),
    "SLP324": Code("A retry for an unknown failure", "`on` takes the names in the hint, and names of exceptions."),
    "SLP325": Code(
        "An `on_error` that has no effect, or no target",
        "Write `fail`, `continue`, or the name of a node that does not wait for others.",
    ),
    "SLP326": Code(
        "A node is named like a keyword of `on_error`", "`fail` and `continue` are keywords. Rename the node."
    ),
    "SLP327": Code(
        "An edge into a join that does not wait for it",
        "The node would start by this edge, and again when its join is complete. Add the source to `wait_for`, or "
        "use another target.",
    ),
    "SLP328": Code("A `defer` that cannot be", "It needs version sleipnir/1 and the engine bsp."),
    "SLP329": Code(
        "A breakpoint that never stops a run",
        "`interrupt_before` and `interrupt_after` name nodes of the graph. Items of a map are part of the map's visit: "
        "set the breakpoint at the map.",
    ),
    "SLP340": Code(
        "A wait without one time or event",
        "A wait node has exactly one of `for`, `until` and `event`; `timeout`, `on_timeout`, `filter`, `look_back` and "
        "`consume` belong to `event`.",
    ),
    "SLP341": Code(
        "A wait for an event that cannot be",
        "The name of an event has at most 200 letters, digits and `_ . : / @ -`. Its filter is CEL over `event` and "
        "`state`, without loops.",
    ),
    "SLP342": Code(
        "A question that these people cannot answer",
        "An assignee is the name of a user, and named once. `quorum` is how many different people must give the same "
        "answer: without a `role` no more than there are `assignees`.",
    ),
    "SLP350": Code(
        "A tools node that cannot get calls",
        "`tools_node` of an llm node without a prompt names a node of type tools; both need `messages` in the state.",
    ),
    "SLP360": Code(
        "A node stream without its one writer and its one reader",
        "`stream_output` of one llm or agent node and `stream_input` of one script or function node have the same "
        "name, of letters, digits, `_` and `-`. Bodies of maps have no streams.",
    ),
    "SLP361": Code(
        "A node stream whose reader would wait for ever",
        "Writer and reader run at the same time, or the writer first. In a `dag` neither is in a loop.",
    ),
    "SLP362": Code(
        "A node stream that may find no free slot",
        "Writer and reader each need a slot at the same time. Set `max_concurrency` to 2 or more.",
    ),
    # --- templates
    "SLP401": Code(
        "Braces that are not a placeholder",
        "A placeholder is `{{name}}`, `{{a.b}}` or `{{list[0]}}`: no spaces, filters or expressions. Anything else "
        "stays in the text unchanged.",
    ),
    "SLP402": Code("Single braces around a key of the state", "Write `{{name}}` with two braces; `{name}` stays text."),
    "SLP403": Code(
        "A name that nothing writes",
        "No node writes the key, `initial_state` and `state` do not have it, and no file of the agent's code contains "
        "its name. Declare a key that `--state` or a batch column sets under `initial_state`, or as `required` under "
        "`state`.",
    ),
    "SLP404": Code(
        "A node's name in place of a key of the state",
        "Templates read the state, not nodes. Store the result in the node's `state_updates`, and name that key.",
    ),
    "SLP405": Code(
        "`{{output}}`, `{{choice}}` or `{{input}}` outside the node's own `state_updates`",
        "The result of a node has this name in its own `state_updates` only. Write it to a key there.",
    ),
    "SLP406": Code(
        "A key that `state:` does not declare",
        "A node writes a key that resembles a declared one and that nothing reads. Correct it, or declare it too.",
    ),
    "SLP407": Code("A `validation` that cannot be read", "Write for example `len(input) > 0`."),
    "SLP408": Code("`concurrency.key` holds no placeholder", "Write `{{name}}`, without spaces."),
    "SLP420": Code(
        "A placeholder of a scope",
        "`placeholders: trpc` reads keys of the state, also those with the scopes `user:`, `app:`, `temp:` and "
        "`invocation:`. There are no values of the scope `runtime`, and no artifacts.",
    ),
    "SLP421": Code(
        "A history of turns without messages",
        "`history` and `session.max_history` say which messages of earlier turns a turn begins with. Declare "
        "`messages: messages` under `state`, or remove the key.",
    ),
    "SLP422": Code(
        "A summary of messages that cannot be sent",
        "`session.summary` is sent in the place of older messages: it needs `history: full`, an llm node without "
        "`prompt`, and in its `template` the placeholder `{{summary}}` and no other. The state key `_summary` is its "
        "own.",
    ),
    # --- code
    "SLP501": Code("A file of the agent's code does not exist", "Paths begin at the agent's folder."),
    "SLP502": Code("A path leaves the agent's folder", "Workers get only the folder. Keep the file in it."),
    "SLP503": Code(
        "Python cannot read a file",
        "The finding has the line of the syntax error in that file. A file that no node names is a warning.",
    ),
    "SLP504": Code(
        "A function does not exist", "The file does not define the name that `call`, a reducer or a type gives."
    ),
    "SLP505": Code(
        "A function has the wrong parameters",
        "A function of a node or a branch is called with the state, `def name(state):`; a reducer with the current and "
        "the new value, `def name(current, incoming):`. Neither may be async.",
    ),
    "SLP506": Code("A script without a runtime", "The extension selects the runtime: `.sh`, `.py` or `.ts`."),
    "SLP507": Code(
        "A worker cannot find a function or a class of a graph in Python",
        "Workers import its file and look for its name, so it is defined at the top level of a file. Lambdas, "
        "functions inside functions, functions of a notebook, and compiled graphs as nodes work in process only.",
    ),
    # --- models, tools, agents
    "SLP601": Code("A model without its client", "Write `client:model`, for example `openai:gpt-4o-mini`."),
    "SLP602": Code(
        "A model of an unknown client",
        "The client is not built in, not listed in config.yaml, and has no `NAME_API_BASE` in the environment.",
    ),
    "SLP603": Code(
        "An unknown tool", "A model may use the agent's own tools, `global_tools` and those of MCP servers."
    ),
    "SLP604": Code("A global tool that is not on this machine", "The workers may have it."),
    "SLP605": Code("An MCP server that is not configured here", "The workers may have it."),
    "SLP606": Code(
        "An agent that does not exist", "Agents are looked up next to this one and in the agents directories."
    ),
    "SLP607": Code("The agent's tools cannot be read", "The model is offered all of them, so no turn could begin."),
    "SLP608": Code("`dynamic_instructions` without their function", "Define `_instructions` in the tools file."),
    "SLP609": Code("A skill that cannot be used", "A skill has its folder's name, and the graph must list it too."),
    "SLP610": Code("A skill that is not installed here", "The workers may have it."),
    "SLP620": Code(
        "An agent node that gives nothing, or gives it twice",
        "It has a `prompt`, an `input` in one of its forms, or values under `map_in`.",
    ),
    "SLP621": Code(
        "A mapping of an agent node that has no effect, or reads what is not there",
        "`map_in` gives first values of the child's state; `map_out` is all that the node writes, and reads `child`.",
    ),
    "SLP622": Code(
        "A remote agent that cannot be called",
        "`a2a` is the URL of its endpoint or its card, `token` the name of a variable of the workers, and its own name "
        "is that of nothing else.",
    ),
    "SLP650": Code(
        "A tool that a tools node cannot call",
        "Each tool is listed once; groups and permissions name tools of the list, and a tool is in one group.",
    ),
    # --- documents
    "SLP701": Code("A rag node without documents", "List at least one file, folder, pattern or URL."),
    "SLP702": Code("A rag result that is not stored", "Write it to a key in `state_updates`."),
    "SLP703": Code("A knowledge base would overwrite a file", "Give the rag node another name."),
    "SLP704": Code("A document's path is not valid", "Write an absolute path, or one below the agent's folder."),
    "SLP705": Code("A document does not exist", "The knowledge base is built without it."),
    "SLP706": Code("A size that is not valid", "`chunk_overlap` is less than `chunk_size`; numbers begin at 1."),
    "SLP707": Code("A pattern that matches no source", "Write a glob of paths or URLs."),
    "SLP708": Code("A knowledge base that is not used", "Name its documents in config.yaml, or remove rag.yaml."),
    # --- state
    "SLP801": Code("An unknown type of a state key", "Use a type of the hint, or a model of your own, `file.py:Name`."),
    "SLP802": Code("An unknown reducer", "Use a reducer of the hint, or a function of your own, `file.py:name`."),
    "SLP803": Code("A key has two reducers", "Keep the one under `state:`."),
    "SLP804": Code("A reducer does not fit the type", "The hint lists the types that it folds."),
    "SLP805": Code(
        "A schema that cannot be applied", "The position is inside the JSON Schema; the message gives the reason."
    ),
    "SLP806": Code("A first value of the wrong type", "The value must have the declared type."),
    "SLP807": Code("A required key that has a value", "A `required` key is set at submission. Remove one of the two."),
    "SLP808": Code("`reads` names an unknown key", "A node reads keys that `state:` declares. Check the spelling."),
    "SLP809": Code("A node runs a graph that is not there", "`graphs:` of the same document has the graphs of nodes."),
    "SLP810": Code("A graph runs itself", "Its runs would start others without end. Use a loop of edges in one graph."),
    "SLP811": Code("A search in a graph that is a node", "Put the search into the graph above."),
    "SLP820": Code(
        "A built-in key of another type",
        "A state with `messages` has built-in keys, which the nodes of the language write. Give your key another name.",
    ),
    "SLP821": Code(
        "An operation on messages that cannot be", "A step is a message, or an operation that the hint names."
    ),
    # --- sizes
    "SLP901": Code("Too many nodes or keys", "The bound protects other runs. The hint names an alternative."),
}


CODE_OF_RULE: Final[Mapping[str, str]] = {
    "every_edge_leads_to_a_node": "SLP301",
    "declared_edges_form_no_cycle": "SLP302",
    "every_node_can_be_reached": "SLP303",
    "some_node_ends_the_graph": "SLP304",
    "every_script_exists": "SLP501",
    "every_agent_exists": "SLP606",
    "every_option_has_a_route": "SLP306",
    "every_route_has_an_option": "SLP307",
    "every_rag_node_has_documents": "SLP701",
    "every_rag_result_is_kept": "SLP702",
    "every_tool_is_known": "SLP603",
    "every_global_tool_can_be_used": "SLP604",
    "every_mcp_server_is_configured": "SLP605",
    "every_model_is_named_with_its_client": "SLP601",
    "every_client_is_known": "SLP602",
    "every_own_tool_can_be_read": "SLP607",
    "every_dynamic_instruction_has_its_function": "SLP608",
    "every_document_path_is_valid": "SLP704",
    "every_document_exists": "SLP705",
    "every_size_is_valid": "SLP706",
    "every_source_pattern_can_match": "SLP707",
    "every_knowledge_base_is_used": "SLP708",
    "every_node_has_a_next": "SLP305",
    "no_knowledge_base_overwrites_a_file": "SLP703",
    "every_validation_can_be_read": "SLP407",
    "every_retry_names_failures_that_exist": "SLP324",
    "every_recoverable_failure_exists": "SLP324",
    "every_timeout_of_a_question_has_a_target": "SLP308",
    "every_output_schema_is_a_schema": "SLP805",
    "every_assignee_is_a_person": "SLP342",
    "every_quorum_can_be_reached": "SLP342",
    "every_wait_has_one_end": "SLP340",
    "every_event_can_come": "SLP341",
    "every_filter_can_be_read": "SLP341",
    "every_stream_has_one_writer_and_one_reader": "SLP360",
    "no_item_of_a_map_has_a_stream": "SLP360",
    "every_reader_of_a_stream_can_meet_its_writer": "SLP361",
    "every_stream_finds_two_slots": "SLP362",
    "every_script_has_a_runtime": "SLP506",
    "no_code_is_outside_the_folder": "SLP502",
    "every_python_file_can_be_read": "SLP503",
    "every_function_is_defined": "SLP504",
    "every_function_accepts_its_arguments": "SLP505",
    "every_brace_is_a_placeholder": "SLP401",
    "no_key_stands_in_single_braces": "SLP402",
    "every_name_is_written_somewhere": "SLP403",
    "every_written_key_is_declared": "SLP406",
    "every_concurrency_lets_nodes_run": "SLP323",
    "every_body_of_a_map_can_run_per_item": "SLP321",
    "no_person_is_asked_in_a_parallel_branch": "SLP310",
    "every_parallel_script_declares_what_it_writes": "SLP311",
    "no_key_is_written_by_two_branches": "SLP312",
    "no_branch_reads_what_its_sibling_writes": "SLP313",
    "no_item_is_collected_over_itself": "SLP322",
    "every_join_can_fire": "SLP314",
    "every_join_node_waits": "SLP315",
    "every_router_leads_somewhere": "SLP316",
    "every_edge_into_a_join_is_waited_for": "SLP327",
    "every_deferred_node_can_wait": "SLP328",
    "every_agent_is_given_a_message": "SLP620",
    "every_mapping_has_an_effect": "SLP621",
    "every_mapping_reads_what_a_child_has": "SLP621",
    "every_remote_agent_has_an_address": "SLP622",
    "every_remote_agent_has_a_name_of_its_own": "SLP622",
    "every_mapped_constant_fits_its_key": "SLP806",
    "every_breakpoint_names_a_node": "SLP329",
    "no_breakpoint_is_at_an_item_of_a_map": "SLP329",
    "every_cached_result_can_be_used_again": "SLP219",
    "every_callback_has_something_to_run_around": "SLP220",
    "no_graph_of_a_node_has_callbacks_of_its_runs": "SLP220",
    "every_key_of_a_cache_can_be_read": "SLP219",
    "every_on_error_of_the_graph_leads_to_a_node": "SLP325",
    "every_on_error_has_an_effect": "SLP325",
    "no_node_is_named_like_a_keyword": "SLP326",
    "every_skill_name_is_valid": "SLP609",
    "every_skill_of_a_node_is_one_of_its_graph": "SLP609",
    "every_skill_is_installed": "SLP610",
    "every_branch_has_an_effect": "SLP317",
    "every_condition_can_be_read": "SLP318",
    "every_choice_reads_the_state": "SLP319",
    "every_label_is_produced": "SLP320",
    "some_step_is_allowed": "SLP323",
    "every_type_exists": "SLP801",
    "every_reducer_exists": "SLP802",
    "every_key_has_one_reducer": "SLP803",
    "every_reducer_fits_its_type": "SLP804",
    "every_state_schema_is_a_schema": "SLP805",
    "every_first_value_has_its_type": "SLP806",
    "no_required_key_has_a_first_value": "SLP807",
    "every_key_of_the_protocol_has_an_effect": "SLP216",
    "every_state_graph_has_state_classes": "SLP217",
    "every_key_that_a_node_reads_is_declared": "SLP808",
    "every_graph_of_a_node_exists": "SLP809",
    "no_graph_runs_itself": "SLP810",
    "no_graph_of_a_node_searches": "SLP811",
    "every_built_in_key_keeps_its_type": "SLP820",
    "every_example_is_a_message": "SLP821",
    "every_message_operation_exists": "SLP821",
    "no_item_of_a_map_sends_messages": "SLP321",
    "every_setting_of_a_model_is_given_once": "SLP240",
    "no_placeholder_reads_another_scope": "SLP420",
    "every_history_has_messages": "SLP421",
    "every_summary_can_be_sent": "SLP422",
    "every_tools_node_is_one": "SLP350",
    "every_tools_node_has_messages": "SLP350",
    "every_tool_of_a_tools_node_can_be_called": "SLP650",
    "every_limited_tool_is_one_of_its_node": "SLP650",
    "no_graph_has_too_many_nodes": "SLP901",
    "no_node_reads_too_many_keys": "SLP901",
    "no_state_has_too_many_keys": "SLP901",
}
"""The code of each rule of check.py, by the rule's name."""

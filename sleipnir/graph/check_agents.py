"""Rules about what agent nodes give to their children, and take from them: `input`, `map_in` and `map_out`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sleipnir.graph.check_case import Case, Rule
from sleipnir.graph.child_values import CHILD_NAME, MESSAGES, root_of
from sleipnir.graph.findings import KeyPath, suggestion
from sleipnir.graph.load_edges import REFERENCE
from sleipnir.graph.model import AgentNode, StateField
from sleipnir.graph.state import update_problem
from sleipnir.graph.template import PLACEHOLDER, texts_in

ROLES: Final = ("system", "user", "assistant")

FIELDS_OF_CHILD: Final = (
    "output",
    "state",
    "status",
    "error",
    "error_kind",
    "error_type",
    "error_code",
    "run",
    "agent",
)
"""What `map_out` knows of a child (runs/child_run.py)."""

_MESSAGE = 'Write `prompt: "..."`, `input: {from: KEY}`, or values of its state under `map_in`.'
_FORMS = 'Write `{from: KEY}`, `{template: "..."}` or `{messages: [{role: user, content: "..."}]}`.'
_CALL = "Write templates by key, or a function: `file.py:name` or `package.module:name`."


def every_agent_is_given_a_message(case: Case) -> None:
    for node, path in case.nodes(AgentNode):
        if case.is_loki or (*path, "input") in case.findings.broken:
            continue
        if node.prompt is not None and node.input is not None:
            case.findings.error((*path, "input"), "'prompt' and 'input' set the same value", "Keep one of the two.")
        elif node.user_input_key is not None and not node.takes_user_input:
            message = "'user_input_key' has no effect on an agent node with a prompt or an input"
            case.findings.error((*path, "user_input_key"), message, "Remove one of the two.")
        elif node.takes_user_input and PLACEHOLDER.fullmatch(node.message or "") is None:
            message = f"'user_input_key' must name a state key, got '{node.user_input_key}'"
            case.findings.error((*path, "user_input_key"), message, "Write the key without braces: `question`.")
        elif node.prompt is None and node.input is None and not node.map_in and not node.takes_user_input:
            case.findings.error(path, f"agent '{node.agent}' is given nothing", _MESSAGE)
        elif node.input is not None:
            _check_input(case, node, (*path, "input"))


def _check_input(case: Case, node: AgentNode, path: KeyPath) -> None:
    assert node.input is not None
    forms = (node.input.source, node.input.template, node.input.messages)
    if sum(form is not None for form in forms) != 1:
        case.findings.error(path, "'input' must have exactly one of `from`, `template` and `messages`", _FORMS)
    source = node.input.source
    if source is not None and PLACEHOLDER.fullmatch(f"{{{{{source}}}}}") is None:
        hint = "Write the key without braces: `from: topic`, or a path in its value: `from: plan.steps[0]`."
        case.findings.error((*path, "from"), f"'from' must name a state key, got '{source}'", hint)
    for index, message in enumerate(node.input.messages or ()):
        place: KeyPath = (*path, "messages", index)
        if message.keys() != {"role", "content"}:
            case.findings.error(place, "a message must have a `role` and a `content`, and nothing else", _FORMS)
        elif message["role"] not in ROLES:
            advice = suggestion(message["role"], ROLES, "roles")
            case.findings.error((*place, "role"), f"'{message['role']}' is not a role of a message", advice)
    if node.input.messages == []:
        case.findings.error((*path, "messages"), "'messages' must hold at least one message", _FORMS)


def every_mapping_has_an_effect(case: Case) -> None:
    """What a child cannot be given, and what a node with `map_out` would not write."""
    for node, path in case.nodes(AgentNode):
        for key in ("map_in", "map_out"):
            mapper = getattr(node, key)
            if isinstance(mapper, str) and REFERENCE.fullmatch(mapper) is None:
                case.findings.error((*path, key), f"'{key}' must name a function, got '{mapper}'", _CALL)
        for key in node.map_in if isinstance(node.map_in, dict) else ():
            if key in ("initial_prompt", "_next") or (key == MESSAGES and node.messages is not None):
                hint = "The prompt is `prompt` or `input`." if key == "initial_prompt" else "Remove it."
                case.findings.error((*path, "map_in", key), f"'map_in' cannot set '{key}'", hint)
        for key in ("state_updates", "output_schema"):
            if node.map_out is not None and getattr(node, key) is not None:
                message = f"'{key}' has no effect beside 'map_out', which says all that the node writes"
                case.findings.error((*path, key), message, 'Write `map_out: {answer: "{{child.output}}"}`.')
        if isinstance(node.map_out, dict) and "_next" in node.map_out:
            case.findings.error((*path, "map_out", "_next"), "'map_out' cannot set '_next'", "Use `branch`.")


def every_mapping_reads_what_a_child_has(case: Case) -> None:
    for node, path in case.nodes(AgentNode):
        for place, text in texts_in(node.map_out if isinstance(node.map_out, dict) else {}, (*path, "map_out")):
            for name in PLACEHOLDER.findall(text):
                first, _, rest = name.partition(".")
                if first == CHILD_NAME and rest and root_of(rest) not in FIELDS_OF_CHILD:
                    hint = suggestion(root_of(rest), FIELDS_OF_CHILD, "fields of a child")
                    message = f"'{{{{{name}}}}}' is nothing that a child has"
                    case.findings.error(
                        place, message, f"{hint or ''} Values of its state are `child.state.KEY`.".strip()
                    )


def every_mapped_constant_fits_its_key(case: Case) -> None:
    """Templates are checked when they are rendered; other values never change."""
    for node, path in case.nodes(AgentNode):
        for key, value in node.map_out.items() if isinstance(node.map_out, dict) else ():
            field: StateField | None = case.graph.state.get(key)
            is_constant = not any(PLACEHOLDER.search(text) for _, text in texts_in(value, ()))
            if field is not None and is_constant and (wrong := update_problem(field, value)) is not None:
                case.findings.error((*path, "map_out", key), f"'{key}' {wrong}")


RULES: Sequence[Rule] = (
    every_agent_is_given_a_message,
    every_mapping_has_an_effect,
    every_mapping_reads_what_a_child_has,
    every_mapped_constant_fits_its_key,
)

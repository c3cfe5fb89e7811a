"""The llm node: one prompt to a model in a fresh context, with retries, a timeout and structured output.

A node without a prompt sends messages of the state (message_input.py).

Rules (spec 2.7.1, 2.9). Every failure is a failure of the node, never of the worker. One visit is one conversation
without tools; the summary of older messages is a call before it. The usage includes every call.
"""

from __future__ import annotations

from typing import Any

from sleipnir.errors import NodeFailed
from sleipnir.graph.model import LlmNode
from sleipnir.messages import VisitResult
from sleipnir.models import limits
from sleipnir_workers.execution.execution import Execution
from sleipnir_workers.execution.put_off import PutOff
from sleipnir_workers.execution.registry import executor
from sleipnir_workers.llm import history_summary, message_input
from sleipnir_workers.llm.clients import clients_of
from sleipnir_workers.llm.conversation import first_messages
from sleipnir_workers.llm.dialogue import Dialogue
from sleipnir_workers.llm.turn import NO_FUNCTIONS, offer
from sleipnir_workers.machine.host import Host, this_host
from sleipnir_workers.machine.keyring import keyring_of


@executor("llm")
def run_llm(node: LlmNode, execution: Execution, host: Host | None = None) -> VisitResult:
    """Call the model. `host` None means this process's. Raises only VisitLost."""
    host = host or this_host()
    dialogue = Dialogue(node, execution, host)
    try:
        if node.has_loop:
            raise NodeFailed(
                f"llm node '{node.id}' lists tools, and the scheduler that started it is of a release that cannot run "
                "them; upgrade the schedulers, and run it again",
                "tools",
            )
        sent = None if node.input is None else message_input.chosen(node, execution)
        if sent is None:
            messages = first_messages(node, execution, host)
        else:
            messages = message_input.with_instructions(node, execution, sent)
        tools = _offered(node, execution, host, dialogue)
        if node.max_iterations < 1:
            raise NodeFailed("llm node ended without producing output")
        dialogue.begin(node.timeout)
        if sent is not None and execution.graph.summary is not None:
            sent = history_summary.summarised(execution, sent, dialogue, host)
            messages = message_input.with_instructions(node, execution, sent)
        answer = dialogue.ask(messages, tools=tools)
    except PutOff as later:
        return dialogue.put_off(later)
    except NodeFailed as error:
        return dialogue.failure(error)
    if answer.calls and node.tools_node is not None:
        # A reply without calls is still to come: output_schema and state_updates are about that one.
        spent, notes = dialogue.spent.usage(), tuple(dialogue.notes)
        result = VisitResult(ok=True, next=node.tools_node, usage=spent, notes=notes)
    else:
        result = dialogue.finish(answer.text)
    return message_input.with_reply(node, execution, result, answer, sent)


def _offered(node: LlmNode, execution: Execution, host: Host, dialogue: Dialogue) -> list[dict[str, Any]]:
    """The tools that the model may call; the model is resolved. Raises NodeFailed (`tools`, `model`, `config`)."""
    offered = offer(node, execution, host) if node.tools or node.tools_node is not None else []
    names = ", ".join(each["function"]["name"] for each in offered)
    if dialogue.open(tools=names or "<none>").traits.supports_function_calling or not offered:
        return offered
    dialogue.notes.append(NO_FUNCTIONS)
    return []


def check_configuration(host: Host) -> None:
    """Raise ConfigError if this worker's config.yaml, secrets file or limits.yaml is invalid."""
    clients_of(host)
    keyring_of(host)
    limits.load(host.settings)

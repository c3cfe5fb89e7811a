"""The llm node: one prompt to a model in a fresh context, with retries, a timeout and structured output.

Rules (spec 2.7.1, 2.9). Every failure is a failure of the node, never of the worker. One visit is one conversation
without tools. The usage includes every call.
"""

from __future__ import annotations

from sleipnir.errors import NodeFailed
from sleipnir.graph.model import LlmNode
from sleipnir.messages import VisitResult
from sleipnir.models import limits
from sleipnir_workers.execution.execution import Execution
from sleipnir_workers.execution.registry import executor
from sleipnir_workers.llm.clients import clients_of
from sleipnir_workers.llm.conversation import first_messages
from sleipnir_workers.llm.dialogue import Dialogue
from sleipnir_workers.llm.permit import PutOff
from sleipnir_workers.machine.host import Host, this_host
from sleipnir_workers.machine.keyring import keyring_of


@executor("llm")
def run_llm(node: LlmNode, execution: Execution, host: Host | None = None) -> VisitResult:
    """Call the model. `host` None means this process's. Raises only VisitLost."""
    host = host or this_host()
    dialogue = Dialogue(node, execution, host)
    try:
        if node.tools:
            raise NodeFailed(
                f"llm node '{node.id}' lists tools, and the scheduler that started it is of a release that cannot run "
                "them; upgrade the schedulers, and run it again",
                "tools",
            )
        messages = first_messages(node, execution, host)
        dialogue.open()
        if node.max_iterations < 1:
            raise NodeFailed("llm node ended without producing output")
        dialogue.begin(node.timeout)
        text = dialogue.ask(messages).text
    except PutOff as later:
        return dialogue.put_off(later)
    except NodeFailed as error:
        return dialogue.failure(error)
    return dialogue.finish(text)


def check_configuration(host: Host) -> None:
    """Raise ConfigError if this worker's config.yaml, secrets file or limits.yaml is invalid."""
    clients_of(host)
    keyring_of(host)
    limits.load(host.settings)

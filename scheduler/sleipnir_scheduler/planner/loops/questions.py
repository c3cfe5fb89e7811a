"""Questions that a model asks a person with the `user__*` tools (spec/graph-agents.md 7): gates, and the results of
their answers.

The worker of the turn has checked the arguments already.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from sleipnir.graph.model import Json
from sleipnir.graph.tools import present
from sleipnir.runs.run import Gate
from sleipnir.runs.visits import Visit

_KINDS = {"user__select": "approval", "user__confirm": "confirm", "user__input": "input", "user__checkbox": "checkbox"}
_CHOOSING = ("user__select", "user__checkbox")
_YES, _NO = frozenset({"yes", "y", "true"}), frozenset({"no", "n", "false"})


class UnclearAnswer(Exception):
    """An invalid answer; the text explains that to the person."""


def asked(message: Mapping[str, Json], call: int) -> dict[str, Json]:
    """The question and the options of a call: `message` is the assistant's, as providers speak.

    A model may write there what the tool does not ask for, and halves of surrogate pairs, which could not be stored.
    """
    function = message["tool_calls"][call]["function"]
    arguments = json.loads(function["arguments"])
    options = arguments.get("options") if present(function["name"]) in _CHOOSING else None
    values = json.loads(options) if isinstance(options, str) else options or []
    texts = [storable(option) for option in values if isinstance(option, str)]
    return {"question": storable(arguments["question"]), "options": texts}


def gate_of(visit: Visit, tool: str, arguments: Mapping[str, Json], now_ms: int, remark: str = "") -> Gate:
    """The question. `remark` says why it is asked again."""
    options = ("yes", "no") if tool == "user__confirm" else tuple(arguments["options"])
    question = arguments["question"]
    if tool == "user__checkbox":
        question = f"{question}\nAny of: {', '.join(options)}. Separate several by commas, or answer a JSON array."
        options = ()
    question = f"{remark}\n{question}" if remark else question
    return Gate(visit.seq, visit.node, _KINDS.get(present(tool), "input"), question, options, None, now_ms)


def result_of(tool: str, arguments: Mapping[str, Json], text: str) -> dict[str, Json]:
    """The result that the model reads for an answer. Raises UnclearAnswer."""
    if tool == "user__confirm":
        return {"answer": _yes_or_no(text)}
    if tool == "user__checkbox":
        return {"answers": _chosen(arguments["options"], text)}
    return {"answer": text}


def storable(text: str) -> str:
    """A text that a model wrote into its arguments, without halves of surrogate pairs."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _yes_or_no(text: str) -> str:
    word = text.strip().lower()
    if word in _YES or not word:  # yes is the default
        return "yes"
    if word in _NO:
        return "no"
    raise UnclearAnswer(f"The answer must be yes or no, not '{text[:40]}'.")


def _chosen(options: Sequence[str], text: str) -> list[str]:
    try:
        values = json.loads(text)
    except ValueError:
        values = text.split(",")
    if not isinstance(values, list):
        values = [text]
    chosen = [str(option).strip() for option in values if str(option).strip()]
    for option in chosen:
        if option not in options:
            raise UnclearAnswer(f"'{option[:40]}' is none of the options.")
    return list(dict.fromkeys(chosen))

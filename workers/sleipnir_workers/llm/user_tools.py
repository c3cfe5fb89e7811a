"""The tools by which a model asks a person: what it is told of them, and whether a question can be asked
(spec/graph-agents.md 7).

The question becomes a gate of the run: no worker waits for the answer, and the scheduler knows what it means.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sleipnir.graph.tools import present

_QUESTION = {"type": "string", "description": "The question to the person."}
_OPTIONS = {"type": "array", "items": {"type": "string"}, "description": "The answers to choose from."}
_DESCRIPTIONS: Mapping[str, str] = {
    "user__select": "Ask the person a question with options to choose from; they may also answer in their own words.",
    "user__confirm": "Ask the person a question that is answered with yes or no.",
    "user__input": "Ask the person for a text.",
    "user__checkbox": "Ask the person to choose any number of the options, or none.",
}
_CHOOSING = ("user__select", "user__checkbox")


def declaration(name: str) -> dict[str, Any]:
    """One of the `user__*` tools in the form of OpenAI's `tools`, under the name that the agent calls it by."""
    tool = present(name)
    chooses = tool in _CHOOSING
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": _DESCRIPTIONS[tool],
            "parameters": {
                "type": "object",
                "properties": {"question": _QUESTION, **({"options": _OPTIONS} if chooses else {})},
                "required": ["question", "options"] if chooses else ["question"],
            },
        },
    }


def problem(name: str, arguments: str) -> str | None:
    """Why a question cannot be asked; None if it can. `arguments` is JSON text that a model wrote."""
    try:
        given = json.loads(arguments)
    except (ValueError, RecursionError) as error:
        return f"the arguments are not JSON: {error}"
    if not isinstance(given, dict) or not isinstance(given.get("question"), str) or not given["question"].strip():
        return "'question' is required"
    return _wrong_options(given.get("options")) if present(name) in _CHOOSING else None


def _wrong_options(options: Any) -> str | None:
    if isinstance(options, str):
        try:
            options = json.loads(options)
        except (ValueError, RecursionError):
            options = None
        if not isinstance(options, list):
            return (
                "'options' was a string but did not parse as a JSON array. Pass options as a native JSON array, "
                'e.g. ["yes", "no"].'
            )
    if not isinstance(options, list) or not any(isinstance(option, str) for option in options):
        return "'options' is required and must be an array of strings"
    return None

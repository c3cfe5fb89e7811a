"""The tools with which a model asks a person: declarations and checks of their calls (spec/graph-agents.md 7).

The question becomes a gate of the run: no worker waits for the answer, and the scheduler interprets it.
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
_WITH_OPTIONS = ("user__select", "user__checkbox")


def declaration(name: str) -> dict[str, Any]:
    """One of the `user__*` tools in the form of OpenAI's `tools`, under the agent's name for it."""
    tool = present(name)
    has_options = tool in _WITH_OPTIONS
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": _DESCRIPTIONS[tool],
            "parameters": {
                "type": "object",
                "properties": {"question": _QUESTION, **({"options": _OPTIONS} if has_options else {})},
                "required": ["question", "options"] if has_options else ["question"],
            },
        },
    }


def problem(name: str, arguments: str) -> str | None:
    """The problem of a question; None for a valid question. `arguments` is JSON text from a model."""
    try:
        parameters = json.loads(arguments)
    except (ValueError, RecursionError) as error:
        return f"the arguments are not JSON: {error}"
    if (
        not isinstance(parameters, dict)
        or not isinstance(parameters.get("question"), str)
        or not parameters["question"].strip()
    ):
        return "'question' is required"
    return _options_problem(parameters.get("options")) if present(name) in _WITH_OPTIONS else None


def _options_problem(options: Any) -> str | None:
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

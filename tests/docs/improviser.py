"""A model for pages: it follows the rules of the page at hand, and what they leave open it answers with a value of the
schema that it is asked for, else with a sentence."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sleipnir.testing import Reply, Request, Rule, Script

SENTENCE = "So it is."


class Improviser:
    """What `ModelServer` asks. `follow` changes the rules."""

    def __init__(self) -> None:
        self.follow(())

    def follow(self, rules: Sequence[Rule]) -> None:
        self._rules = Script(rules, default=Reply(status=400, error="no rule")).chooser()

    def __call__(self, request: Request) -> Reply | str:
        reply = self._rules(request)
        if not (isinstance(reply, Reply) and reply.error == "no rule"):
            return reply
        schema = schema_in(f"{request.system or ''}\n{request.prompt}")
        return SENTENCE if schema is None else json.dumps(value_of(schema))


def schema_in(text: str) -> dict[str, Any] | None:
    """The first JSON Schema of an object that the text holds."""
    decoder = json.JSONDecoder()
    for place, character in enumerate(text):
        if character == "{":
            try:
                found, _ = decoder.raw_decode(text, place)
            except ValueError:
                continue
            if isinstance(found, dict) and "properties" in found:
                return found
    return None


def value_of(schema: dict[str, Any]) -> Any:
    """Some value that fits; as few elements as are allowed."""
    if "enum" in schema:
        return schema["enum"][0]
    match schema.get("type"):
        case "object":
            return {name: value_of(part) for name, part in schema.get("properties", {}).items()}
        case "array":
            return [value_of(schema["items"]) for _ in range(schema.get("minItems", 0))]
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return True
        case _:
            return SENTENCE

"""The JSON Schemas of graph.yaml, one per version of the language, shipped in the package for editors.

making.py generates them from the loader's models (`ops/generate`); a test compares them.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Final

FILES: Final = {"1.0": "graph-1.0.schema.json", "sleipnir/1": "graph-sleipnir-1.schema.json"}

VERSIONS: Final = tuple(FILES)


def schema_text(version: str) -> str:
    """The schema of a version, as JSON text."""
    return files(__package__).joinpath(FILES[version]).read_text(encoding="utf-8")


def schema_text_of_all() -> str:
    """One schema for all versions, as JSON text. The `version` of a file selects the schema that applies."""
    names = {version: version.replace("/", "-") for version in VERSIONS}  # a slash would have to be escaped in a $ref
    inner = {
        name: json.loads(schema_text(version).replace('"#/definitions/', f'"#/definitions/{name}/definitions/'))
        for version, name in names.items()
    }
    loki, sleipnir = VERSIONS
    whole = {
        "$schema": next(iter(inner.values()))["$schema"],
        "title": "graph.yaml of Sleipnir",
        "if": {"properties": {"version": {"const": sleipnir}}, "required": ["version"]},
        "then": {"$ref": f"#/definitions/{names[sleipnir]}"},
        "else": {"$ref": f"#/definitions/{names[loki]}"},
        "definitions": inner,
    }
    return json.dumps(whole, indent=1) + "\n"

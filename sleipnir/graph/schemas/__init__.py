"""The JSON Schemas of graph.yaml, one per version of the language, as they ship in the package for editors.

They are made from the loader's models by making.py (`ops/generate`); a test compares them.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Final

FILES: Final = {"1.0": "graph-1.0.schema.json", "sleipnir/1": "graph-sleipnir-1.schema.json"}

VERSIONS: Final = tuple(FILES)


def schema_text(version: str) -> str:
    """The schema of a version, as JSON text."""
    return files(__package__).joinpath(FILES[version]).read_text(encoding="utf-8")

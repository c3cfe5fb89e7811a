"""The corpus of records and messages that cannot be read (fixtures/unreadable/README.md)."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "fixtures" / "unreadable"


@dataclass(frozen=True)
class Unreadable:
    """One case. `text` and `fields` are as in the file; `of` gives the bytes for a run."""

    name: str
    kind: str
    why: str
    text: str | None = None
    fields: Mapping[str, str] = field(default_factory=dict)
    packed: bytes | None = None

    def of(self, run: str) -> Any:
        """What is planted for a run: bytes, or a mapping of names to bytes."""
        if self.packed is not None:
            return self.packed
        if self.text is not None:
            return _bytes(self.text, run)
        return {name: _bytes(text, run) for name, text in self.fields.items()}

    def __str__(self) -> str:
        return f"{self.kind}-{self.name}"


def _bytes(text: str, run: str) -> bytes:
    return text.replace("$RUN", run).encode(errors="surrogateescape")


def cases(kind: str | None = None) -> list[Unreadable]:
    """All cases, or those of a kind."""
    found = []
    for file in sorted(FOLDER.glob("*.json")):
        for case in json.loads(file.read_text(encoding="utf-8")):
            packed = base64.b64decode(case.pop("base64")) if "base64" in case else None
            found.append(Unreadable(**case, packed=packed))
    return [case for case in found if kind in (None, case.kind)]

"""A visit, or a call of a model, that a limit of the deployment delays (docs/limits.md)."""

from __future__ import annotations


class PutOff(Exception):
    """The call may not start before `until_ms`, by Redis' clock. The text names the limit."""

    def __init__(self, until_ms: int, reason: str) -> None:
        super().__init__(reason)
        self.until_ms = until_ms

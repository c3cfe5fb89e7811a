"""Names of threads and sessions: they are unique per agent of a namespace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

DEFAULT_NAMESPACE: Final = "default"


@dataclass(frozen=True)
class ConversationName:
    """A thread or a session. Keys and lists have its text: `agent/name` in the default namespace, as earlier releases
    have written it, else `/namespace/agent/name`; no agent has a slash in its name."""

    agent: str
    name: str
    namespace: str = DEFAULT_NAMESPACE

    def __str__(self) -> str:
        text = f"{self.agent}/{self.name}"
        return text if self.namespace == DEFAULT_NAMESPACE else f"/{self.namespace}/{text}"

    @property
    def arguments(self) -> str:
        """What names it on the command line, where another namespace may be the default."""
        words = f"{self.agent} {self.name}"
        return words if self.namespace == DEFAULT_NAMESPACE else f"{words} --namespace {self.namespace}"

    @classmethod
    def of_text(cls, text: str) -> Self:
        """The name that is written so."""
        if not text.startswith("/"):
            return cls(*text.split("/", 1))
        namespace, agent, name = text[1:].split("/", 2)
        return cls(agent, name, namespace)

"""The conversation of a loop, as a worker gets it with its claim."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class StoredConversation:
    """The conversation of a loop, as JSON text. For a turn: the first messages to the model (`told`, empty in turn 0),
    and per earlier turn the model's reply and the results of its calls; `follow_ups` maps turns to messages after a
    reply without calls, `announced` to messages besides the results of calls. For a call: the reply that asks for it,
    and as `told` the answers to its interrupts. For the output of a child run: that, as `told`. `history` is for turn 0
    of a run in a session: the session's earlier messages, as a JSON list."""

    told: str = ""
    turns: tuple[tuple[str, tuple[str, ...]], ...] = ()
    follow_ups: Mapping[int, str] = field(default_factory=dict)
    announced: Mapping[int, str] = field(default_factory=dict)
    history: str = ""


SILENCE = StoredConversation()

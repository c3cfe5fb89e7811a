"""What the person who starts the server decides about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

WAIT_S: Final = 50.0
"""How long a call waits for its run by default: many clients give up after 60 seconds."""


@dataclass(frozen=True)
class ServerOptions:
    """`agents` (names or folders) are those whose tools are offered, and whose runs clients see; None: all. A call
    waits `wait_s` for its run. `detach`: a cancelled call leaves its run alone. `answers`: there is a tool that answers
    questions, so the client's model can. Each run has the budget `max_cost_usd` and `max_tokens`, and works in
    `cwd`."""

    agents: Sequence[str] | None = None
    wait_s: float = WAIT_S
    detach: bool = False
    answers: bool = True
    max_cost_usd: float | None = None
    max_tokens: int | None = None
    cwd: Path | None = None

"""What the scheduler and the workers agree on about tasks of remote agents.

The executions of such a visit are given one answer (runs/interrupts.py), whose key is what the last one has left.
"""

from __future__ import annotations

from typing import Final

CANCELS: Final = 1
"""The position (`at`) of the answer for an execution that is to cancel the task; 0: of any other."""

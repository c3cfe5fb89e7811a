"""The limits of a run, and of the runs of an agent."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from sleipnir.graph.model.values import Duration, Flag, Seconds, Whole


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The `settings:` block (spec 2.4). `timeout` applies to the whole run; None means unlimited.

    `interrupt_on_timeout` is added: the timeout ends a run even while a node is running.
    """

    max_loop_iterations: Whole = 100
    timeout: Seconds | None = None
    interrupt_on_timeout: Flag = False
    log_state_snapshots: Flag = True
    validate_before_run: Flag = True
    max_concurrency: Whole = 8


@dataclass(frozen=True, kw_only=True)
class ErrorRules:
    """Added, in sleipnir/1 only: the `errors:` block. With `collect` failures that do not fail the run are recorded in
    the state, under `execution_errors`. `recoverable` lists failures after which a visit counts as ended well: kinds
    (`timeout`), exceptions (`ValueError`, `module:Name`) or classes of the agent (`file.py:Name`)."""

    collect: Flag = False
    recoverable: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class SummaryRules:
    """Added, in sleipnir/1 only: `summary` of the `session:` block. If it is `enabled`, a model writes a summary, of
    `max_words` at most, in the place of older messages. `template` is the text of the message that holds it, with the
    placeholder `{{summary}}`; None: the default."""

    enabled: Flag = True
    max_words: Annotated[int, Field(strict=True, ge=1, le=10_000)] = 400
    template: str | None = None


@dataclass(frozen=True, kw_only=True)
class SessionRules:
    """Added, in sleipnir/1 only: the `session:` block, which is about the threads of the agent. `concurrent` says what
    happens to a turn that is submitted while another run of its thread is not over; `max_history` is about how many
    messages of earlier turns a turn begins with; None: all. With a `summary` it is how many are sent without one."""

    concurrent: Literal["refuse", "queue"] = "refuse"
    max_history: Annotated[int, Field(strict=True, ge=1)] | None = None
    summary: SummaryRules | None = None


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Added: the `limits:` block (spec/graph-package.md F49). None: no limit.

    `max_steps` counts super-steps, or visits in a `dag`. `max_concurrency` applies to one run across all machines.
    """

    max_steps: Whole | None = None
    on_max_steps: Literal["error", "stop"] = "error"
    max_concurrency: Whole | None = None
    step_timeout: Duration | None = None
    node_timeout: Duration | None = None


@dataclass(frozen=True, kw_only=True)
class Concurrency:
    """Added: the `concurrency:` block of an agent. At most `limit` of its runs with the same rendered `key` are active
    at once in the whole deployment."""

    key: str = ""
    limit: Annotated[int, Field(strict=True, ge=1, le=2**53 - 1)]

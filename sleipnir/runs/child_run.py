"""Child runs of agent nodes: what such a node says about its child, and what it is told of the child's end."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sleipnir.graph.child_values import EVERY_KEY
from sleipnir.graph.plain import compact_json
from sleipnir.runs.visits import Failure, stable_type

MOST_RETURNED: Final = 16 * 2**20
"""The most bytes of the state that a child returns, if no setting says otherwise (SLEIPNIR_MAX_OUTPUT_BYTES)."""


@dataclass(frozen=True)
class ChildSettings:
    """What an agent node in sleipnir/1 says about its child: the first values of its state that are `given`, the state
    keys whose values it `returns` (None: none, and the node maps nothing), whether it is in no session (`isolated`),
    the name of its `event_scope`, and its `options` (graph/model ChildOptions; those that are set). Its text goes to
    the node stream `stream` of its parent."""

    given: Mapping[str, Any] = field(default_factory=dict)
    returns: tuple[str, ...] | None = None
    isolated: bool = False
    event_scope: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    stream: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The fields that are set."""
        return {name: value for name, value in vars(self).items() if value not in (None, False, {})}


def scope_below(above: str | None, name: str | None, agent: str) -> str | None:
    """The event scope of a child: that of its parent, then its own name. None: neither names one."""
    if above is None and name is None:
        return None
    own = name or agent
    return own if above is None else f"{above}/{own}"


def child_text(
    *,
    run: str,
    agent: str,
    status: str,
    output: str | None,
    error: str | None,
    failure: Failure | None,
    state: Mapping[str, str],
    most_bytes: int,
) -> str:
    """The end of a child, as JSON text of an object: what `child` is in `map_out`. `state` are the JSON texts of the
    keys that it returns, which are not parsed. If they have more than `most_bytes`, they are left out, and `too_large`
    is how many bytes they have."""
    size = sum(len(text) for text in state.values())
    fields: dict[str, Any] = {"run": run, "agent": agent, "status": status, "output": output or "", **_cause(failure)}
    fields["error"] = error
    if size > most_bytes:
        return compact_json({**fields, "state": {}, "too_large": size})
    values = ",".join(f"{json.dumps(key)}:{text}" for key, text in state.items())
    return f'{compact_json(fields)[:-1]},"state":{{{values}}}}}'


def child_without_end(run: str, agent: str, status: str, error: str | None, failure: Failure | None) -> dict[str, Any]:
    """The same of a child without a record of its end: it never began, or its time is over."""
    about = {"run": run, "agent": agent, "status": status, "output": "", "error": error}
    return {**about, **_cause(failure), "state": {}}


def _cause(failure: Failure | None) -> dict[str, Any]:
    if failure is None:
        return {"error_kind": None, "error_type": None, "error_code": None}
    return {"error_kind": failure.kind, "error_type": stable_type(failure.error_type), "error_code": failure.code}


def wanted_keys(returns: Sequence[str]) -> list[str] | None:
    """The keys to read of a child's state. None: all."""
    return None if EVERY_KEY in returns else list(returns)

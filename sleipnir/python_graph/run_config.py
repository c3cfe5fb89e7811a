"""The configuration and the context of a run on the fleet, as its spec stores them: small, JSON, without secrets."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from sleipnir.errors import UsageError
from sleipnir.graph.findings import suggestion
from sleipnir.graph.plain import first_not_json
from sleipnir.redaction import is_secret_name

if TYPE_CHECKING:
    from sleipnir.graph.model import Graph

MOST_BYTES: Final = 65_536
"""Of both, as JSON: every claim of a visit returns them."""

LIMITS: Final = ("recursion_limit", "max_concurrency")

RECURSION_LIMIT: Final = 10_007
"""The super-steps of a run in process, unless its configuration has another limit; LangGraph's default."""

KEYS: Final = ("configurable", "metadata", "tags", "run_name", *LIMITS)
"""The keys that travel with a run."""


def stored_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration without its keys that are None. Raises UsageError for a key that does not travel, a value that
    JSON cannot hold, a limit below 1, and a text whose name marks it as a secret."""
    if not isinstance(config, Mapping):
        raise UsageError(f"config must be a mapping, not {type(config).__qualname__}")
    stored = {key: value for key, value in config.items() if value is not None}
    for key, value in stored.items():
        if key not in KEYS:
            raise UsageError(f"config key {key!r} does not travel with a run. {suggestion(str(key), KEYS, 'keys')}")
        if key in LIMITS and (type(value) is not int or value < 1):
            raise UsageError(f"{key} must be at least 1, a whole number, not {value!r}")
        if key in ("configurable", "metadata") and not isinstance(value, Mapping):
            raise UsageError(f"config key {key!r} must be a mapping, not {type(value).__qualname__}")
        if key == "run_name" and not isinstance(value, str):
            raise UsageError(f"config key {key!r} must be a text, not {type(value).__qualname__}")
        if key == "tags" and not (isinstance(value, list | tuple) and all(isinstance(tag, str) for tag in value)):
            raise UsageError(f"config key {key!r} must be a list of texts, not {value!r}")
        stored[key] = dict(value) if isinstance(value, Mapping) else list(value) if key == "tags" else value
    refuse_unfit("config", stored)
    return stored


def thread_id_of(config: Any) -> Any:
    """The `thread_id` of a configuration that nobody has checked; None: it has none."""
    configurable = config.get("configurable") if isinstance(config, Mapping) else None
    return configurable.get("thread_id") if isinstance(configurable, Mapping) else None


def remaining_steps(config: Mapping[str, Any], graph: Graph, step: int, limited_from: int = 0) -> int:
    """How many super-steps may follow the super-step `step` of a run with this configuration; `limited_from` is as in
    RunView."""
    limit: int = config.get("recursion_limit", RECURSION_LIMIT)
    left = limit - (step - (limited_from or graph.begins_at_start))
    return min(left, limit + 1)  # of a `dag`, only the visits on the way to this one count


def refuse_unfit(what: str, value: Mapping[str, Any]) -> None:
    """Raises UsageError for a value that JSON cannot hold, and for a text whose name marks it as a secret."""
    if reason := first_not_json(value):
        raise UsageError(f"the {what} is stored with the run as JSON: {reason}")
    if (name := next(_secrets(value, ""), None)) is not None:
        raise UsageError(
            f"the {what} is stored with the run, and the name {name!r} marks a secret: set an environment variable of "
            "the workers, and read it in the node"
        )


def refuse_size(config: Mapping[str, Any], context: Mapping[str, Any] | None) -> None:
    """Raises UsageError if both together are too large."""
    size = len(json.dumps([config, context]))
    if size > MOST_BYTES:
        raise UsageError(
            f"the config and the context have {size:,} bytes, at most {MOST_BYTES:,} are possible: every visit gets "
            "them. Give large values in the input"
        )


def _secrets(value: Any, path: str) -> Iterator[str]:
    """The places of texts with secret-like names."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            place = f"{path}.{key}" if path else str(key)
            if isinstance(inner, str) and inner and is_secret_name(str(key)):
                yield place
            yield from _secrets(inner, place)
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from _secrets(inner, f"{path}[{number}]")

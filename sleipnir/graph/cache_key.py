"""The key under which the result of a node is cached: a digest of what the result depends on (F40).

It has the agent, the node, its definition and its code, and what the node reads: the state keys of the policy, or all
that it may read, as canonical JSON. Equal values have equal keys on every worker: names are sorted, numbers are written
as JSON writes them (1 and 1.0 differ), and NaN is refused.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from sleipnir.graph.expression import ExpressionError, parse
from sleipnir.graph.model import FunctionNode, Graph, Json, LlmNode, Node, NodeCache
from sleipnir.graph.template import TemplateError, keys_read, render_typed, state_read_by

MOST_KEY_BYTES: Final = 16 * 2**20
"""Of the canonical text: a larger key costs more than most nodes."""

_NOT_HASHED: Final = frozenset({"description", "retry", "queue", "interrupt", "defer", "timeout", "cache"})
"""Fields of a node that no result depends on."""


class KeyProblem(Exception):
    """There is no key for this visit, so that it is executed without the cache. One line."""


def state_wanted(cache: NodeCache, node: Node, graph: Graph) -> frozenset[str] | None:
    """The state keys that the key of a visit reads; None: all."""
    if cache.key_func is not None:
        return None
    if isinstance(cache.key, list):
        return frozenset(cache.key)
    if isinstance(cache.key, str):
        return keys_read(cache.key) if "{{" in cache.key else parse(cache.key).keys
    if isinstance(node, FunctionNode) and node.reads is not None:
        return frozenset(node.reads)
    return state_read_by(node, graph.loop, summarises=graph.summary is not None)


def definition_digest(graph: Graph, node: Node, cache: NodeCache) -> str:
    """A digest of all in the definition that a result of the node depends on."""
    own = {name: value for name, value in vars(node).items() if name not in _NOT_HASHED}
    parts: dict[str, Any] = {
        "type": node.kind,
        "node": own,
        "state": graph.state,
        "version": cache.version,
        "key": cache.key if cache.key_func is None else cache.key_func,
    }
    if isinstance(node, LlmNode):
        names = ("model", "temperature", "top_p", "reasoning_effort", "skills_enabled", "enabled_skills")
        parts["model"] = [getattr(graph, name) for name in names]
        if graph.summary is not None and node.input is not None:
            parts["session"] = graph.session
    return digest_of(parts)


def selected(cache: NodeCache, node: Node, graph: Graph, state: Mapping[str, Json]) -> Json:
    """The part of the state that the key holds. Not of a policy with a `key_func`. Raises KeyProblem."""
    if isinstance(cache.key, str):
        try:
            return render_typed(cache.key, state) if "{{" in cache.key else parse(cache.key).value(state)
        except (TemplateError, ExpressionError) as error:
            raise KeyProblem(str(error)) from None
    wanted = state_wanted(cache, node, graph)
    names = state if wanted is None else wanted & state.keys()
    return {name: state[name] for name in names}


def digest_of(value: Any) -> str:
    """SHA-256 of the canonical JSON of a value. Raises KeyProblem."""
    try:
        text = json.dumps(_canonical(value), sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise KeyProblem(f"its key is not JSON: {str(error).partition(chr(10))[0]}") from None
    if len(text) > MOST_KEY_BYTES:
        raise KeyProblem(f"its key has {len(text):,} bytes, at most {MOST_KEY_BYTES:,} are possible")
    return hashlib.sha256(text.encode()).hexdigest()


def _canonical(value: Any) -> Any:
    """Names of mappings as texts; sets and dataclasses as lists and mappings."""
    if isinstance(value, Mapping):
        return {str(name): _canonical(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(each) for each in value]
    if isinstance(value, set | frozenset):
        return sorted((_canonical(each) for each in value), key=lambda each: json.dumps(each, sort_keys=True))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _canonical(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return value

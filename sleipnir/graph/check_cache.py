"""Rules about the cache of nodes: whose results can be kept, and by which key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sleipnir.graph.check_case import Case, Rule
from sleipnir.graph.expression import ExpressionError, parse
from sleipnir.graph.findings import KeyPath
from sleipnir.graph.model import CACHED, NodeCache, why_not_cached
from sleipnir.graph.template import malformed


def every_cached_result_can_be_used_again(case: Case) -> None:
    """The graph's own `cache` passes over the nodes that cannot have one."""
    for node_id, node in case.graph.nodes.items():
        if isinstance(node, CACHED) and node.cache and (why := why_not_cached(node)) is not None:
            message = f"Results of {node.kind} node '{node_id}' cannot be cached: {why}"
            case.findings.error(("nodes", node_id, "cache"), message, "Remove `cache`.")


def every_key_of_a_cache_can_be_read(case: Case) -> None:
    for cache, path in _caches(case):
        if cache.key is not None and cache.key_func is not None:
            case.findings.error((*path, "key_func"), "'key' and 'key_func' both make the key of the cache", "Keep one.")
        if isinstance(cache.key, str) and (problem := _problem(cache.key)) is not None:
            hint = 'Write `key: [n, user_id]`, a template such as `key: "{{user.id}}"`, or CEL over `state`.'
            case.findings.error((*path, "key"), f"'cache.key' cannot be read: {problem}", hint)


def _caches(case: Case) -> Iterator[tuple[NodeCache, KeyPath]]:
    if isinstance(case.graph.cache, NodeCache):
        yield case.graph.cache, ("cache",)
    for node_id, node in case.graph.nodes.items():
        if isinstance(node, CACHED) and isinstance(node.cache, NodeCache):
            yield node.cache, ("nodes", node_id, "cache")


def _problem(key: str) -> str | None:
    if "{{" in key:
        wrong = malformed(key)
        return None if wrong is None else f"{wrong!r} is not a placeholder"
    try:
        parse(key)
    except ExpressionError as error:
        return str(error)
    return None


RULES: Sequence[Rule] = (
    every_cached_result_can_be_used_again,
    every_key_of_a_cache_can_be_read,
)

"""The cache around an executor: a visit whose result another one has made is not executed.

docs/graph-language.md describes it under "Cached results".

Rules. Whoever finds no result takes the lease of its key and executes; all others with this key wait, for a short time
in their slot and then put off by the planner. Only a success is kept. Without a `cache` of the node nothing is asked.
What is wrong with the cache never fails a visit: it is executed without it.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Final

import structlog

from sleipnir.errors import ConfigError, NodeFailed, RecordUnreadable
from sleipnir.graph.cache_key import KeyProblem, definition_digest, digest_of, selected
from sleipnir.graph.model import FunctionNode, LlmNode, NodeCache, RagNode, ScriptNode
from sleipnir.messages import CACHE_MISS, CACHE_WAIT, VisitResult
from sleipnir.python_graph.objects import SENT
from sleipnir.runs.cached_results import (
    CacheBusy,
    CachedResult,
    CacheHit,
    CacheLease,
    CachePlace,
    ResultCache,
    may_be_kept,
)
from sleipnir.settings import Settings
from sleipnir_workers.callbacks.calling import call_in_child
from sleipnir_workers.execution.execution import Execution, VisitLost
from sleipnir_workers.functions import python_call, state_graph
from sleipnir_workers.llm.clients import clients_of
from sleipnir_workers.machine.host import this_host
from sleipnir_workers.results import typed_state

WAIT_S: Final = 1.0
"""How long a visit waits in its slot for the result of another one."""

LONGEST_WAIT_S: Final = 60.0
"""The same where nothing can be put off. Then it executes too: it may be part of what it waits for."""

_LOOK_S: Final = (0.02, 0.05, 0.1, 0.2)
_LATER_MS: Final = 500
_LATEST_MS: Final = 5_000

Run = Callable[[], VisitResult | None]


@dataclass(frozen=True)
class VisitCache:
    """The cache, for the executors of one process. `token` makes a new name for each execution. After `wait_s` a visit
    is put off, or if it cannot be (`puts_off`) executed. `code` is a digest of what the node's code is.

    `updates` gives what a node of a graph in this process has returned, to be kept with its result; `found` takes it.
    """

    cache: ResultCache
    token: Callable[[], str]
    entry_bytes: int
    default_model: Callable[[], str | None] = lambda: None
    wait_s: float = WAIT_S
    puts_off: bool = True
    code: Callable[[Execution], str] = lambda execution: ""
    updates: Callable[[int], tuple[Any, ...] | None] = lambda seq: None
    found: Callable[[Execution, CachedResult], None] = lambda execution, found: None
    held: dict[str, CacheLease] = field(default_factory=dict)
    """The leases of what this process executes now, by token."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def in_process(cls, cache: ResultCache, settings: Settings) -> VisitCache:
        """A cache in memory, for the visits of runs in this process: they wait for each other in their threads."""
        executions = count()
        return cls(
            cache,
            lambda: str(next(executions)),
            settings.cache_entry_bytes,
            default_model_here,
            wait_s=LONGEST_WAIT_S,
            puts_off=False,
        )

    def result(self, execution: Execution, run: Run) -> VisitResult | None:
        """The result of a visit: the cached one, or that of `run`. Raises what `run` raises."""
        policy = execution.graph.cache_of(execution.node)
        if policy is None or execution.role != "node" or execution.talk.told:  # an answer of a person is no input
            return run()
        try:
            place = CachePlace(execution.agent, execution.node.id, self._digest(execution, policy))
            answer = self._answer(execution, place)
        except VisitLost:
            return None
        except KeyProblem as problem:
            return _noted(run(), f"not cached: {problem}")
        match answer:
            case CachedResult():
                self.found(execution, answer)
                return answer.result()
            case CacheLease():
                return self._made(execution, answer, policy, run)
            case CacheBusy() if self.puts_off:
                return self._put_off(execution) or run()
        return run()

    def _answer(self, execution: Execution, place: CachePlace) -> CachedResult | CacheLease | CacheBusy | None:
        """What the cache has for the visit, at the end of the wait. None: it cannot be asked. Raises VisitLost."""
        token, until_s, looks, fresh = self.token(), time.monotonic() + self.wait_s, 0, False
        while True:
            try:
                answer = self.cache.take(place, token, fresh=fresh)
                if isinstance(answer, CacheHit):
                    return CachedResult.read(answer.text)
            except RecordUnreadable as error:
                _warn("a cached result cannot be read; it is made again", error)
                fresh = True
                continue
            except Exception as error:  # a cache must not fail a visit, whatever is wrong with it
                _warn("the cache cannot be asked", error)
                return None
            if not isinstance(answer, CacheBusy) or time.monotonic() > until_s:
                return answer
            execution.lost.wait(_LOOK_S[min(looks, len(_LOOK_S) - 1)])
            execution.check()
            looks += 1

    def _made(self, execution: Execution, lease: CacheLease, policy: NodeCache, run: Run) -> VisitResult | None:
        with self.lock:
            self.held[lease.token] = lease
        text: str | None = None
        try:
            result = run()
            if result is None:
                return None
            result = replace(result, cache=CACHE_MISS)
            if may_be_kept(result):
                text, problem = self._text(execution, result)
                result = _noted(result, f"not cached: {problem}") if problem else result
            return result
        finally:
            with self.lock:
                self.held.pop(lease.token, None)
            self._end(lease, text, policy)

    def _text(self, execution: Execution, result: VisitResult) -> tuple[str | None, str]:
        """The record of a result, or why there is none."""
        try:
            text = CachedResult.text_of(result, self.updates(execution.seq))
        except (TypeError, ValueError, RecursionError) as error:
            return None, f"its result is not JSON: {str(error).partition(chr(10))[0]}"
        if len(text) > self.entry_bytes:
            return None, f"its result has {len(text):,} characters, at most {self.entry_bytes:,} are kept"
        return text, ""

    def _end(self, lease: CacheLease, text: str | None, policy: NodeCache) -> None:
        try:
            if text is None or not self.cache.put(lease, text, policy.ttl):
                self.cache.release(lease)
        except Exception as error:
            _warn("the cache cannot be written", error)

    def _put_off(self, execution: Execution) -> VisitResult | None:
        """A result that is no failure: the planner starts the visit again later. None: the clock cannot be read."""
        later_ms = min(_LATER_MS * execution.attempt, _LATEST_MS) * random.uniform(0.7, 1.3)
        try:
            until_ms = self.cache.now_ms() + int(later_ms)
        except Exception as error:
            _warn("the cache cannot be asked", error)
            return None
        reason = "another visit makes the cached result that it needs"
        return VisitResult(False, error=reason, error_kind=CACHE_WAIT, later_ms=until_ms)

    def leases(self) -> list[CacheLease]:
        """Of what this process executes now."""
        with self.lock:
            return list(self.held.values())

    def _digest(self, execution: Execution, policy: NodeCache) -> str:
        """The digest of all that the result depends on. Raises KeyProblem, and VisitLost."""
        node, has_code = execution.node, isinstance(execution.node, ScriptNode | FunctionNode)
        parts: dict[str, Any] = {
            "definition": _definition(execution, policy),
            "code": self.code(execution) if has_code else "",
            "variables": execution.variables,
            "read": self._read(execution, policy),
        }
        if execution.item is not None:
            parts["item"] = execution.result_key
        if isinstance(node, RagNode):
            parts["knowledge"] = execution.knowledge
        elif isinstance(node, LlmNode):
            parts["model"] = self.default_model()
        elif policy.key is None and policy.key_func is None and execution.context is not None:
            parts["context"] = execution.context
        return digest_of(parts)

    def _read(self, execution: Execution, policy: NodeCache) -> Any:
        """What the key has of the state."""
        if policy.key_func is not None:
            return _by_function(policy.key_func, execution)
        try:
            if policy.key is None and SENT in execution.state:  # the whole input of this visit
                return {SENT: execution.state[SENT]}
            return selected(policy, execution.node, execution.graph, execution.state)
        except (ValueError, RecursionError) as error:  # a stored value that cannot be read
            raise KeyProblem(str(error)) from None


def executed(execution: Execution, run: Run) -> VisitResult | None:
    """The same without a cache."""
    return run()


def _by_function(name: str, execution: Execution) -> Any:
    """What a `key_func` returns for the visit, which it gets as the node does. Raises KeyProblem and VisitLost."""
    try:
        beside_keys = execution.objects is None and isinstance(execution.node, LlmNode | RagNode)
        if not beside_keys and (execution.objects is not None or execution.graph.state_classes):
            key = state_graph.cache_key(name, execution)
        elif beside_keys:
            key = call_in_child(name, execution)
        else:
            key = python_call.call(name, execution, lambda call: call(typed_state.function_state(execution)))
    except NodeFailed as error:
        raise KeyProblem(str(error)) from None
    return {"bytes": key.hex()} if isinstance(key, bytes) else key


def default_model_here() -> str | None:
    """The model of llm nodes without one, as this worker has it."""
    host = this_host()
    try:
        return host.settings.model or clients_of(host).model
    except ConfigError:  # the visit itself says so
        return None


def _warn(what: str, error: Exception) -> None:
    structlog.get_logger().warning(what, error=str(error))


def _noted(result: VisitResult | None, note: str) -> VisitResult | None:
    return None if result is None else replace(result, notes=(*result.notes, note))


_definitions: dict[tuple[int, str, NodeCache], tuple[Any, str]] = {}


def _definition(execution: Execution, policy: NodeCache) -> str:
    """Once per graph, which is kept with it: the id of another graph may be the same later."""
    name = (id(execution.graph), execution.node.id, replace(policy, key=None, key_func=None, ttl=None))
    found = _definitions.get(name)
    if found is None or found[0] is not execution.graph:
        if len(_definitions) > 1_000:
            _definitions.clear()
        found = _definitions[name] = execution.graph, definition_digest(execution.graph, execution.node, policy)
    return found[1]

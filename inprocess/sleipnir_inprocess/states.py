"""The state of a run in this process as objects, also with the writes that do not count yet."""

from __future__ import annotations

import json
from typing import Any

from sleipnir.graph.model import FunctionNode
from sleipnir.memory.store import MemoryRun
from sleipnir.memory.values import Texts, json_text
from sleipnir.python_graph import calling
from sleipnir.python_graph.compiled import CompiledGraph
from sleipnir.python_graph.objects import SENT
from sleipnir.python_graph.schema import ABSENT
from sleipnir.runs.claims import Claim
from sleipnir.runs.visits import Ended, Visit
from sleipnir_inprocess.threads import ThreadRun


def empty_state(graph: CompiledGraph) -> Texts:
    """The state of a thread without runs: the first values of keys with reducers."""
    first = {name: key.first for name, key in graph.parts.keys.items() if key.first is not ABSENT}
    return texts_of_values(graph, first)


def texts_of_values(graph: CompiledGraph, values: dict[str, Any]) -> Texts:
    return {name: json_text(value) for name, value in graph.objects.encoded(values).items()}


def decoded_state(graph: CompiledGraph, texts: Texts) -> dict[str, Any]:
    """A state as callers see it: the declared keys, in their order, as objects."""
    return graph.objects.decoded({name: json.loads(texts[name]) for name in graph.parts.keys if name in texts})


def seen_by(graph: CompiledGraph, node: str, claim: Claim) -> Any:
    """What the node of a claimed visit gets, as objects: its keys of the state, or the argument of a Send."""
    stored, objects = claim.state, graph.objects
    if SENT in stored:
        argument = json.loads(stored[SENT])
        return objects.decoded(argument) if isinstance(argument, dict) else argument
    model = graph.model.nodes[node]
    reads = model.reads if isinstance(model, FunctionNode) and model.reads is not None else graph.parts.keys
    return objects.decoded({key: json.loads(stored[key]) for key in reads if key in stored})


def held_visits(record: MemoryRun) -> list[tuple[Visit, int]]:
    """The visits that have ended in a super-step that has not, in visit order, each with its journal step."""
    held: list[tuple[Visit, int]] = []
    for visit in record.view.frontier.values():
        body = visit.body
        if isinstance(body, Ended) and body.step and not body.applied:
            held.append((visit, body.step))
    held.sort(key=lambda pair: pair[0].rank)
    return held


def ended_visits(run: ThreadRun) -> list[Visit]:
    """The held visits of a run that may go on. None if its super-step has failed as a whole."""
    held = [] if run.record is None else [visit for visit, _ in held_visits(run.record)]
    return [] if any(visit.seq in run.errors for visit in held) else held


def held_writes(graph: CompiledGraph, record: MemoryRun) -> list[tuple[str, dict[str, str]]]:
    """The nodes of these visits, and what they write."""
    keys, journal = graph.parts.keys, record.values.journal
    return [
        (visit.node, {name: text for name, text in journal[step][1].items() if name in keys})
        for visit, step in held_visits(record)
    ]


def state_of(graph: CompiledGraph, record: MemoryRun) -> dict[str, Any]:
    """The state as objects. The writes of ended visits count, though their super-step has not closed."""
    state, keys = decoded_state(graph, record.values.state), graph.parts.keys
    held: dict[str, list[Any]] = {}
    for _, written in held_writes(graph, record):
        for name, text in written.items():
            held.setdefault(name, []).append(json.loads(text))
    for name, stored in held.items():
        key = keys[name]
        if key.reducer is None:
            state[name] = graph.objects.decoded({name: stored[-1]})[name]
        else:
            state[name] = calling.folded_writes(key, state.get(name, key.first), graph.objects.writes(name, stored))
    return state

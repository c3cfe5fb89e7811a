"""Maps: one visit that waits, and a visit for each item (spec/graph-agents.md 2.7.8, graph-package.md F15).

A map's items are stored when it starts, one overlay each. When an item has ended its last body, its result replaces the
overlay; when all have, the results become one list, in input order. The planner does not read the results. settle.py
starts items, at most as many as the map allows.

A map of more than CHUNK items works in chunks, so that no commit grows with the map. When it starts, each chunk is
stored as one text. A chunk becomes overlays when its first item starts. When all items have ended, one events.Continued
per chunk gathers its results into one piece, and the pieces become the list.
"""

from __future__ import annotations

import json
from itertools import chain
from typing import Any

from sleipnir.graph.model import Json, LlmNode, MapNode, Node
from sleipnir.graph.plain import compact_json
from sleipnir.graph.template import TemplateError, keys_read, render_typed
from sleipnir.messages import overlay_text
from sleipnir.runs.run import changed
from sleipnir.runs.transitions import (
    CollectResults,
    DropValue,
    GatherResults,
    PutValues,
    SetValue,
    TakeResult,
    piece_field,
)
from sleipnir.runs.visits import READY, Body, Call, Failed, Fan, Item, Loop, Ready, Turn, Visit
from sleipnir_scheduler.planner import failing
from sleipnir_scheduler.planner.context import Context, VisitFailed, VisitOutcome
from sleipnir_scheduler.planner.ending import close, forget, without_agents
from sleipnir_scheduler.planner.engines import steps

CHUNK = 1_000
"""The most items that one commit stores, or whose results it gathers: 2 ms of Redis."""


BLOCK = 64
"""The number of items whose values are fetched together, if starting them needs values."""


def start(context: Context, visit: Visit, node: MapNode) -> None:
    """Store the items; or, after a retry, go on with the items that have not ended. Raises VisitFailed."""
    record = context.draft.record
    if isinstance(visit.body, Ready) and isinstance(visit.body.resumes, Fan):
        fan = visit.body.resumes
        waiting = context.begin(visit, fan)
        if fan.done == fan.total:
            _all_ended(context, waiting, fan)
        return
    items = _items(context, visit, node)
    private = context.values.overlay(visit)
    in_chunks = len(items) > CHUNK
    waiting = context.begin(visit, Fan(visit.seq, len(items), put=CHUNK if in_chunks else None))
    if not items:
        steps.ended(context, waiting, VisitOutcome(values={node.collect_into: []}))
        return
    record.item(PutValues(visit.seq, tuple({**private, node.item: item} for item in items[:CHUNK])))
    for first in range(CHUNK, len(items), CHUNK):
        record.item(SetValue(_chunk_field(visit.seq, first), compact_json(items[first : first + CHUNK])))


def open_item(context: Context, visit: Visit, fan: Fan) -> Visit:
    """The next item of a map that has not been started. Raises MissingValues."""
    node = _node(context, visit)
    if fan.next == fan.put:
        fan = _put_chunk(context, visit, fan, node)
    block = range(fan.next, min(fan.next - fan.next % BLOCK + BLOCK, fan.total if fan.put is None else fan.put))
    context.values.require_overlays((f"{fan.id}.{index}" for index in block), node.body[0])
    context.draft.visits.move(visit, changed(fan, next=fan.next + 1))
    return _open(context, visit, Item(fan.id, fan.next, of=visit.node), node.body[0])


def _put_chunk(context: Context, visit: Visit, fan: Fan, node: MapNode) -> Fan:
    """Store the items of the next chunk one by one. Raises MissingValues."""
    first = fan.put or 0
    field, private = _chunk_field(fan.id, first), context.values.overlay(visit)
    overlays = tuple({**private, node.item: item} for item in json.loads(context.values.item(field) or "[]"))
    context.draft.record.item(PutValues(fan.id, overlays, first=first))
    context.draft.record.item(DropValue(field))
    return changed(fan, put=first + len(overlays))


def _chunk_field(fan: int, first: int) -> str:
    """The field of the run's items that holds the chunk of a map that begins with the item `first`."""
    return f"{fan}.chunk.{first}"


def with_failed_items_to_do(fan: Fan, node: Node | None) -> Fan:
    """The fan of a map that runs again: with `on_item_error: fail`, failed items run again. Items that the map skips or
    reports have ended."""
    if not isinstance(node, MapNode) or node.on_item_error != "fail":
        return fan
    return changed(fan, done=fan.done - fan.failed, failed=0)


def item_ended(context: Context, visit: Visit, outcome: VisitOutcome) -> None:
    """An item's visit has ended: the next body, or the item's result."""
    item = _item_of(visit)
    map_visit, fan = _map_of(context, item)
    node, draft = _node(context, map_visit), context.draft
    position = item.position + 1
    if outcome.ok and position == len(node.body) and not (outcome.keys or outcome.values):
        where = f"map node '{node.id}': sub-branch [{item.index}]"
        outcome = VisitOutcome(ok=False, error=f"{where} did not write `output_key` '{node.output_key}'")
    draft.record.write(visit, ok=outcome.ok, error=outcome.error, **outcome.how)
    field = f"{item.map}.{item.index}"
    body = context.graph.nodes.get(visit.node)
    if not outcome.ok and isinstance(body, LlmNode) and body.fallback is not None:
        # Loki counts the item as done then, with the error as its output (spec 2.7.8).
        outcome = VisitOutcome(values={node.output_key: outcome.error})
    if not outcome.ok:
        _item_failed(context, visit, node, field, outcome.error or "failed")
        _count_done(context, map_visit, fan, failed=1)
    elif position < len(node.body):
        draft.visits.drop(visit)
        draft.record.item(_more(context, visit, field, outcome))
        _open(context, map_visit, changed(item, position=position), node.body[position])
    else:
        draft.visits.drop(visit)
        draft.record.item(_result(node, field, outcome))
        _count_done(context, map_visit, fan, failed=0)


def skip_failed_item(context: Context, visit: Visit, outcome: VisitOutcome) -> None:
    """An item that had failed has a result, or goes on with the next body when its map runs again."""
    item, draft = _item_of(visit), context.draft
    map_visit, fan = _map_of(context, item)
    node, field = _node(context, map_visit), f"{item.map}.{item.index}"
    draft.record.write(changed(visit, seq=draft.visits.number(), opened_ms=context.now_ms), **outcome.how)
    draft.visits.drop(visit)
    if not is_last_body(context, item):
        draft.record.item(_more(context, visit, field, outcome))
        next_item = changed(item, position=item.position + 1)
        _open(context, map_visit, next_item, node.body[item.position + 1], Failed(begun=False))
        return
    draft.record.item(_result(node, field, outcome))
    if isinstance(map_visit.body, Failed):
        # `with_failed_items_to_do` subtracts the failed items, of which this one may be.
        draft.visits.move(map_visit, changed(map_visit.body, was=changed(fan, done=fan.done + 1)))


def forget_items(context: Context, fan: Fan) -> None:
    """Close the items of a map that ends without them, and drop what is stored of them. Of a map in chunks, the values
    of single items stay until the run ends: there may be a million."""
    draft = context.draft
    items = [visit for visit in draft.visits.all() if visit.item is not None and visit.item.map == fan.id]
    own = {visit.seq for visit in items}
    loops = {visit.body.id for visit in items if isinstance(visit.body, Loop)}
    parts = [
        visit for visit in draft.visits.all() if isinstance(visit.place, Turn | Call) and visit.place.loop in loops
    ]
    for visit in [*items, *(part for part in parts if part.seq not in own)]:
        if isinstance(visit.place, Item):
            forget(draft, visit.body)
        close(draft, without_agents(draft, visit))
    if fan.put is None:
        fields = [f"{fan.id}.{index}" for index in range(fan.total)]
    else:
        fields = [_chunk_field(fan.id, first) for first in range(fan.put, fan.total, CHUNK)]
        fields += [piece_field(fan.id, piece) for piece in range(fan.gathered)]
    draft.record.drops += fields


def is_last_body(context: Context, item: Item) -> bool:
    """Whether the item's visit runs the last body of its map's chain."""
    node = _node(context, _map_of(context, item)[0])
    return item.position + 1 == len(node.body)


def output_key(context: Context, item: Item) -> str:
    """The key under which the last body of an item leaves its result."""
    return _node(context, _map_of(context, item)[0]).output_key


def _map_of(context: Context, item: Item) -> tuple[Visit, Fan]:
    """The map that an item is part of."""
    frontier = context.draft.visits.frontier
    for visit in chain((frontier[seq] for seq in frontier.maps), frontier.values()):
        fan = visit.body.was if isinstance(visit.body, Failed) else visit.body
        if isinstance(fan, Fan) and fan.id == item.map:
            return visit, fan
    raise LookupError(f"run {context.run.id} has no map {item.map}")


def _item_of(visit: Visit) -> Item:
    if not isinstance(visit.place, Item):
        raise TypeError(f"visit {visit.seq} of node '{visit.node}' is no item")
    return visit.place


def _items(context: Context, visit: Visit, node: MapNode) -> list[Json]:
    try:
        items = render_typed(node.over, context.values.state(keys_read(node.over), visit))
    except TemplateError as error:
        raise VisitFailed(f"map node '{node.id}': evaluating `over` template: {error}") from None
    if isinstance(items, str):
        try:
            parsed = json.loads(items)
        except (ValueError, RecursionError):
            parsed = None
        items = parsed if isinstance(parsed, list) else items
    if not isinstance(items, list):
        kind = _KINDS.get(type(items), "object")
        message = f"map node '{node.id}': `over` template '{node.over}' must resolve to an array, got {kind}"
        raise VisitFailed(message)
    return items


_KINDS: dict[type[Any], str] = {
    type(None): "null", bool: "bool", int: "number", float: "number", str: "string", dict: "object",
}  # fmt: skip


def _open(context: Context, map_visit: Visit, item: Item, name: str, body: Body = READY) -> Visit:
    node = context.graph.nodes.get(name)
    return context.draft.visits.open(
        name,
        node.kind if node else "unknown",
        place=item,
        body=body,
        group=map_visit.group,
        depth=map_visit.depth,
        overlay=f"{item.map}.{item.index}",
    )


def _item_failed(context: Context, visit: Visit, node: MapNode, field: str, error: str) -> None:
    """Apply `on_item_error` to a failed item. A failure that fails the map stays as a visit: `retry` runs it again."""
    if node.on_item_error == "fail":
        context.draft.visits.move(visit, steps.failed_body(visit, error))
    else:
        context.draft.visits.drop(visit)
        context.draft.record.item(
            SetValue(field, compact_json({"error": error}) if node.on_item_error == "collect" else "")
        )


def _more(context: Context, visit: Visit, field: str, outcome: VisitOutcome) -> TakeResult | SetValue:
    """Add the values of this body to the overlay for the next body: delivered, or decided by the planner."""
    if not outcome.values:
        return TakeResult(field, None, outcome.keys)
    visible = {**context.values.overlay(visit), **outcome.values}
    return SetValue(field, overlay_text({key: compact_json(value) for key, value in visible.items()}))


def _result(node: MapNode, field: str, outcome: VisitOutcome) -> TakeResult | SetValue:
    """The item's result: delivered under one key, or decided by the planner."""
    if not outcome.values:
        return TakeResult(field, node.output_key)
    return SetValue(field, compact_json(outcome.values.get(node.output_key, dict(outcome.values))))


def _count_done(context: Context, visit: Visit, fan: Fan, failed: int) -> None:
    after = changed(fan, done=fan.done + 1, failed=fan.failed + failed)
    visit = context.draft.visits.move(visit, after)
    if fan.done * 100 // after.total != after.done * 100 // after.total:
        progress = {"done": after.done, "total": after.total, "failed": after.failed}
        context.draft.record.notice("map_progress", seq=visit.seq, node=visit.node, **progress)
    if after.done == after.total:
        _all_ended(context, visit, after)


def gather(context: Context) -> bool:
    """Go on with a map whose items have all ended: the next piece of its results. False: there is none."""
    frontier = context.draft.visits.frontier
    for seq in sorted(frontier.maps):
        visit = frontier[seq]
        fan = visit.body
        if isinstance(fan, Fan) and fan.put is not None and fan.done == fan.total:
            _gather_piece(context, visit, fan)
            return True
    return False


def _gather_piece(context: Context, visit: Visit, fan: Fan) -> None:
    first = fan.gathered * CHUNK
    if first >= fan.total:
        _complete(context, visit, fan)
        return
    context.draft.record.item(GatherResults(fan.id, first, min(CHUNK, fan.total - first), fan.gathered))
    context.draft.visits.move(visit, changed(fan, gathered=fan.gathered + 1))
    context.draft.visits.continues = True


def _all_ended(context: Context, visit: Visit, fan: Fan) -> None:
    """All items have ended. The results of a map in chunks are gathered first, unless items have failed it."""
    if fan.put is None or _failed_items(context, fan):
        _complete(context, visit, fan)
    else:
        context.draft.visits.continues = True


def _failed_items(context: Context, fan: Fan) -> list[Visit]:
    """The items that fail their map, in their order."""
    if not fan.failed:
        return []
    visits = (visit for visit in context.draft.visits.all() if visit.state == "failed")
    items = [visit for visit in visits if isinstance(visit.place, Item) and visit.place.map == fan.id]
    return sorted(items, key=lambda visit: _item_of(visit).index)


def _complete(context: Context, visit: Visit, fan: Fan) -> None:
    """All items have ended, and their results are where they are collected from."""
    node = _node(context, visit)
    if failed := _failed_items(context, fan):
        first = failed[0].body
        item_error = (first.error if isinstance(first, Failed) else None) or "failed"
        where = f"map node '{node.id}': sub-branch [{_item_of(failed[0]).index}] "
        error = item_error.removeprefix(where)
        if failing.reaction(context, node) != "fail":  # no retry will run them again
            forget_items(context, fan)
        says_it = error != item_error  # `did not write ...`
        steps.ended(context, visit, VisitOutcome(ok=False, error=f"{where}{'' if says_it else 'failed: '}{error}"))
    else:
        steps.ended(
            context, visit, VisitOutcome(collect=CollectResults(fan.id, fan.total, node.collect_into, fan.gathered))
        )


def _node(context: Context, visit: Visit) -> MapNode:
    node = context.graph.nodes[visit.node]
    if not isinstance(node, MapNode):
        raise TypeError(f"node '{visit.node}' is no map")
    return node

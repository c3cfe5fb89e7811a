"""Maps: one visit that waits, and a visit for each item (spec/graph-agents.md 2.7.8, graph-package.md F15).

A map's items are put aside when it starts, one overlay each. An item that has been through the last body leaves its
result in the overlay's place; when all have, the results become one list, in input order, whatever ended first. The
results never pass through here. settle.py starts items, never more at once than the map allows.

A map of more than CHUNK items works in chunks, so that no commit grows with the map: when it starts, each chunk is put
aside as one text; a chunk becomes overlays when its first item starts; when all items have ended, each chunk of results
becomes one piece, by one event of the run's own each (events.Continued), and the pieces become the list.
"""

from __future__ import annotations

import json
from typing import Any

from sleipnir.graph.model import Json, LlmNode, MapNode
from sleipnir.graph.template import TemplateError, keys_read, render_typed
from sleipnir.messages import overlay_text
from sleipnir.runs.run import Fan, Item, Visit, changed
from sleipnir.runs.transitions import Collect, Drop, Fill, Gather, Put, Take
from sleipnir.runs.values import Wanted
from sleipnir_scheduler.planner import steps
from sleipnir_scheduler.planner.context import Context, Outcome, VisitFailed
from sleipnir_scheduler.planner.known import require

CHUNK = 1_000
"""Items that one commit puts aside, or whose results it gathers: 2 ms of Redis."""


BLOCK = 64
"""Items whose values are fetched at once, where starting one takes its values."""


def start(context: Context, visit: Visit, node: MapNode) -> None:
    """Put the items aside; or go on after a retry, with what is left to do. Raises VisitFailed."""
    if visit.fan is not None:
        context.draft.begin(visit, None)
        if visit.fan.done == visit.fan.total:
            _all_ended(context, context.draft.frontier[visit.seq])
        return
    items = _items(context, visit, node)
    private = context.overlay(visit)
    waiting = context.draft.begin(visit, None)
    in_chunks = len(items) > CHUNK
    waiting = context.draft.put(changed(waiting, fan=Fan(visit.seq, len(items), put=CHUNK if in_chunks else None)))
    if not items:
        steps.ended(context, waiting, Outcome(values={node.collect_into: []}))
        return
    context.draft.item(Put(visit.seq, tuple({**private, node.item: item} for item in items[:CHUNK])))
    for first in range(CHUNK, len(items), CHUNK):
        context.draft.item(Fill(_chunk_field(visit.seq, first), _text(items[first : first + CHUNK])))


def open_item(context: Context, visit: Visit) -> Visit:
    """The next item of a map that has not been started. Raises Missing."""
    assert visit.fan is not None
    fan, node = visit.fan, _node(context, visit)
    if fan.next == fan.put:
        fan = _put_chunk(context, visit, fan, node)
    block = range(fan.next, min(fan.next - fan.next % BLOCK + BLOCK, fan.total if fan.put is None else fan.put))
    context.require_overlays((f"{fan.id}.{index}" for index in block), node.body[0])
    context.draft.put(changed(visit, fan=changed(fan, next=fan.next + 1)))
    return _open(context, visit, Item(fan.id, fan.next, of=visit.node), node.body[0])


def _put_chunk(context: Context, visit: Visit, fan: Fan, node: MapNode) -> Fan:
    """Put the items of the next chunk aside one by one. Raises Missing."""
    assert fan.put is not None
    field, private = _chunk_field(fan.id, fan.put), context.overlay(visit)
    left = context.draft.left.get(field)
    if isinstance(left, Fill):  # the map starts in this draft, and has that many slots
        text = left.text
    else:
        require(context.known, Wanted(items=frozenset([field])))
        text = context.known.items[field]
    overlays = tuple({**private, node.item: item} for item in json.loads(text))
    context.draft.item(Put(fan.id, overlays, first=fan.put))
    context.draft.item(Drop(field))
    return changed(fan, put=fan.put + len(overlays))


def _chunk_field(fan: int, first: int) -> str:
    """Where among the run's items the chunk of a map's items is that begins with the item `first`."""
    return f"{fan}.chunk.{first}"


def with_failed_items_to_do(context: Context, visit: Visit) -> Visit:
    """A map that is run again: the items that failed it are to do. Those that it skips or reports are done."""
    assert visit.fan is not None
    fan = visit.fan
    if _node(context, visit).on_item_error != "fail":
        return visit
    return changed(visit, fan=changed(fan, done=fan.done - fan.failed, failed=0))


def item_ended(context: Context, visit: Visit, outcome: Outcome) -> None:
    """An item's visit has ended: the next body, or the item's result."""
    assert visit.item is not None
    of = map_of(context, visit)
    node, draft = _node(context, of), context.draft
    position = visit.item.position + 1
    if outcome.ok and position == len(node.body) and not (outcome.keys or outcome.values):
        where = f"map node '{node.id}': sub-branch [{visit.item.index}]"
        outcome = Outcome(ok=False, error=f"{where} did not write `output_key` '{node.output_key}'")
    draft.journal(visit, None, ok=outcome.ok, error=outcome.error, **outcome.how)
    field = f"{visit.item.map}.{visit.item.index}"
    body = context.graph.nodes.get(visit.node)
    if not outcome.ok and isinstance(body, LlmNode) and body.fallback is not None:
        # Loki counts the item as done then, with the error as its output (spec 2.7.8).
        outcome = Outcome(values={node.output_key: outcome.error})
    if not outcome.ok:
        _item_failed(context, visit, of, node, field, outcome.error or "failed")
    elif position < len(node.body):
        draft.drop(visit)
        draft.item(_more(context, visit, field, outcome))
        _open(context, of, changed(visit.item, position=position), node.body[position])
    else:
        draft.drop(visit)
        draft.item(_result(node, field, outcome))
        _count_done(context, of, failed=0)


def map_of(context: Context, visit: Visit) -> Visit:
    """The map that an item's visit is part of."""
    assert visit.item is not None
    frontier, fan = context.draft.frontier, visit.item.map
    waiting = (frontier[seq] for seq in frontier.maps)
    found = next((of for of in waiting if of.fan is not None and of.fan.id == fan), None)
    return found or next(of for of in frontier.values() if of.fan is not None and of.fan.id == fan)


def _items(context: Context, visit: Visit, node: MapNode) -> list[Json]:
    try:
        found = render_typed(node.over, context.state(keys_read(node.over), visit))
    except TemplateError as error:
        raise VisitFailed(f"map node '{node.id}': evaluating `over` template: {error}") from None
    if isinstance(found, str):
        try:
            parsed = json.loads(found)
        except (ValueError, RecursionError):
            parsed = None
        found = parsed if isinstance(parsed, list) else found
    if not isinstance(found, list):
        kind = _KINDS.get(type(found), "object")
        message = f"map node '{node.id}': `over` template '{node.over}' must resolve to an array, got {kind}"
        raise VisitFailed(message)
    return found


_KINDS: dict[type[Any], str] = {
    type(None): "null", bool: "bool", int: "number", float: "number", str: "string", dict: "object",
}  # fmt: skip


def _open(context: Context, of: Visit, item: Item, body: str) -> Visit:
    node = context.graph.nodes.get(body)
    place = {"group": of.group, "depth": of.depth, "overlay": f"{item.map}.{item.index}"}
    return context.draft.open(body, node.kind if node else "unknown", item=item, **place)


def _item_failed(context: Context, visit: Visit, of: Visit, node: MapNode, field: str, error: str) -> None:
    """What the map's author wants of it. A failure that fails the map keeps its place: `retry` runs it again."""
    if node.on_item_error == "fail":
        context.draft.put(changed(visit, failed=True, ready=False, queue=None, wake_ms=None, error=error))
    else:
        context.draft.drop(visit)
        context.draft.item(Fill(field, _text({"error": error}) if node.on_item_error == "collect" else ""))
    _count_done(context, of, failed=1)


def _more(context: Context, visit: Visit, field: str, outcome: Outcome) -> Take | Fill:
    """What the next body sees besides: delivered, or decided here."""
    if not outcome.values:
        return Take(field, None, outcome.keys)
    seen = {**context.overlay(visit), **outcome.values}
    return Fill(field, overlay_text({key: _text(value) for key, value in seen.items()}))


def _result(node: MapNode, field: str, outcome: Outcome) -> Take | Fill:
    """The item's result: delivered under one key, or decided here."""
    if not outcome.values:
        return Take(field, node.output_key)
    return Fill(field, _text(outcome.values.get(node.output_key, dict(outcome.values))))


def _text(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _count_done(context: Context, of: Visit, failed: int) -> None:
    assert of.fan is not None
    before, draft = of.fan, context.draft
    after = changed(before, done=before.done + 1, failed=before.failed + failed)
    of = draft.put(changed(of, fan=after))
    if before.done * 100 // after.total != after.done * 100 // after.total:
        draft.notice("map_progress", seq=of.seq, node=of.node, done=after.done, total=after.total, failed=after.failed)
    if after.done == after.total:
        _all_ended(context, of)


def gather(context: Context) -> bool:
    """Go on with a map whose items have all ended: the next piece of its results. False: there is none."""
    frontier = context.draft.frontier
    for seq in sorted(frontier.maps):
        of = frontier[seq]
        if of.fan is not None and of.fan.put is not None and of.fan.done == of.fan.total:
            _gather_piece(context, of, of.fan)
            return True
    return False


def _gather_piece(context: Context, of: Visit, fan: Fan) -> None:
    first = fan.gathered * CHUNK
    if first >= fan.total:
        _complete(context, of)
        return
    context.draft.item(Gather(fan.id, first, min(CHUNK, fan.total - first), fan.gathered))
    context.draft.put(changed(of, fan=changed(fan, gathered=fan.gathered + 1)))
    context.draft.continue_later()


def _all_ended(context: Context, of: Visit) -> None:
    """All items have ended. The results of a map in chunks are gathered first, unless items have failed it."""
    assert of.fan is not None
    if of.fan.put is None or _failed_items(context, of.fan):
        _complete(context, of)
    else:
        context.draft.continue_later()


def _failed_items(context: Context, fan: Fan) -> list[Visit]:
    """The items that fail their map."""
    if not fan.failed:
        return []
    return [visit for visit in context.draft.visits() if visit.failed and visit.item and visit.item.map == fan.id]


def _complete(context: Context, of: Visit) -> None:
    """All items have ended, and their results are where they are collected from."""
    assert of.fan is not None
    node, fan = _node(context, of), of.fan
    if bad := _failed_items(context, fan):
        first = min(bad, key=lambda other: other.item.index if other.item else 0)
        assert first.item is not None
        where = f"map node '{node.id}': sub-branch [{first.item.index}] "
        error = (first.error or "failed").removeprefix(where)
        says_it = error != first.error  # `did not write ...`
        steps.ended(context, of, Outcome(ok=False, error=f"{where}{'' if says_it else 'failed: '}{error}"))
    else:
        steps.ended(context, of, Outcome(collect=Collect(fan.id, fan.total, node.collect_into, fan.gathered)))


def _node(context: Context, visit: Visit) -> MapNode:
    node = context.graph.nodes[visit.node]
    assert isinstance(node, MapNode)
    return node

"""The scheduler's main loop on a real Redis, without its other services and without a broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sleipnir.runs import RunSpec
from sleipnir.store.store import Store
from sleipnir_scheduler.services.advance import Advance
from tests.unit.planner.driver import graph_of

ASKS = """
name: g
start: ask
nodes:
  ask: {type: input, question: "{{initial_prompt}}?", next: e}
  e: {type: end}
"""


def advance_of(store: Store, graph: str) -> Advance:
    """One that owns all partitions, and knows one graph."""
    numbers = range(store.keys.partitions)
    epochs = {number: owned.epoch for number, owned in store.partitions.own(numbers, "me", 60_000).items()}
    others: dict[str, Any] = {
        "ownership": SimpleNamespace(epochs=epochs, held=set()),
        "graphs": SimpleNamespace(get=lambda bundle, agent, overrides=None: graph_of(graph)),
        "dispatcher": SimpleNamespace(publish=lambda calls: SimpleNamespace(ahead=0)),
    }
    return Advance(store.partitions, **others, max_redeliveries=3)


def test_entries_of_two_partitions_with_the_same_id_are_not_mistaken_for_each_other(store: Store) -> None:
    """Ids are times: two partitions give the same one whenever they get an entry within the same millisecond."""
    runs = ["run000000001", "run000000002"]
    client = store.partitions._client
    for run in runs:
        store.runs.create(run, RunSpec("agent", "digest"), {"initial_prompt": run})
        inbox = store.keys.of_partition(store.keys.partition_of(run)).inbox
        [(entry, fields)] = client.xrange(inbox)
        client.xdel(inbox, entry)
        client.xadd(inbox, fields, id="9999999999999-0")
    assert len({store.keys.partition_of(run) for run in runs}) == 2
    advance_of(store, ASKS).run_once()
    assert [store.runs.gates(run)[0].question for run in runs] == [f"{run}?" for run in runs]

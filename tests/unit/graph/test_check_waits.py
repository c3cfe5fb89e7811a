"""The rules about wait nodes, and the texts that they are about."""

from __future__ import annotations

import pytest

from sleipnir.graph import waits
from sleipnir.graph.check import check
from sleipnir.graph.load import parse
from tests.unit.graph.test_graph_load import yaml_graph


def problems(keys: str) -> list[tuple[str, str | None]]:
    text = yaml_graph(f"a: {{type: wait, {keys}, next: z}}\nz: {{type: end}}", top="version: sleipnir/1")
    loaded = parse(text, "g.yaml")
    assert loaded.graph is not None, loaded.problems
    return [(each.message, each.code) for each in check(loaded.graph, loaded.positions, "g.yaml")]


@pytest.mark.parametrize(
    ("keys", "message", "code"),
    [
        ("description: x", "it waits for nothing", "SLP340"),
        ("for: 1s, until: '5'", "it waits for `for` and `until`", "SLP340"),
        ("for: 1s, event: e", "it waits for `for` and `event`", "SLP340"),
        ("for: 1s, timeout: 5s", "'timeout' has no effect without `event`", "SLP340"),
        ("for: 1s, consume: all", "'consume' has no effect without `event`", "SLP340"),
        ("until: noon", "'noon' is no time: neither ISO 8601 with a zone nor Unix seconds", "SLP340"),
        ("until: 2030-01-31T08:00", "'2030-01-31T08:00' has no zone: add Z, or an offset such as +01:00", "SLP340"),
        ("event: e, on_timeout: z", "'on_timeout' has no effect without a timeout", "SLP340"),
        ("event: order *", "the name of an event has no ' '", "SLP341"),
        ("event: -a", "'-a' is no name of an event", "SLP341"),
        ("event: e, filter: 'event.data.all(x, x > 1)'", "a filter may not loop (all, exists, filter, map) or build a "
         "pattern: decide that in a node after it", "SLP341"),
        ("event: e, filter: data.n > 1", "expression `data.n > 1`: 'data' does not exist; there are event, state. Put "
         "text in quotes", "SLP341"),
    ],
)  # fmt: skip
def test_a_wait_that_cannot_be_is_refused(keys: str, message: str, code: str) -> None:
    assert (message, code) in problems(keys)


@pytest.mark.parametrize(
    "keys",
    [
        "for: 1s",
        'until: "{{initial_prompt}}"',
        "until: '2030-01-31T08:00:00+01:00'",
        'event: "order.{{initial_prompt}}/paid", timeout: 1s, on_timeout: z, look_back: 24h, consume: one',
        "event: e, filter: event.data.n > 1 && state.initial_prompt == 'x', state_updates: {n: '{{event.data.n}}'}",
    ],
)
def test_a_wait_that_can_be_is_not(keys: str) -> None:
    assert problems(keys) == []


def test_a_time_is_the_same_in_every_zone_and_season() -> None:
    for text in ("2026-07-01T12:00:00+02:00", "2026-07-01T10:00:00Z", "2026-07-01 10:00+00:00", "1782900000"):
        assert waits.time_ms(text, 1_780_000_000_000) == 1_782_900_000_000
    assert waits.iso(1_782_900_000_000) == "2026-07-01T10:00:00.000Z"

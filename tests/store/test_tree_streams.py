"""The stream of a run with those of the runs below it: each in order, whole, from any place on."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from sleipnir.client import tree_streaming
from sleipnir.client.async_client import AsyncClient
from sleipnir.client.client import Run
from sleipnir.errors import UsageError
from sleipnir.runs.run import RunSpec
from sleipnir.runs.views import StreamEvent, TreeEvent
from sleipnir.settings import Settings
from sleipnir.store.live import Piece
from sleipnir.store.store import Store
from tests.waiting import wait_until

_numbers = itertools.count()


class Tale:
    """A run that only the test moves on, and runs below it."""

    def __init__(self, store: Store, above: Tale | None = None, node: str = "", scope: str | None = None) -> None:
        self.store, self.id = store, f"tree{next(_numbers):08d}"
        self.above, self.client = above, store._client
        self.path: list[str] = [] if above is None else [*above.path, node]
        self.top: Tale = self if above is None else above.top
        self.scope = scope
        prefix = store.keys.of_run(self.id).run.partition(":")[0]
        self.run = Run(
            store,
            self.id,
            Settings(redis_url=store.url, broker_url=store._settings.broker_url, key_prefix=prefix, partitions=2),
        )

    def exists(self) -> Tale:
        spec = RunSpec(agent="a", bundle="b", variables={})
        if self.above is not None:
            spec = RunSpec(
                agent="a", bundle="b", variables={}, parent=self.above.id, root=self.top.id, depth=len(self.path),
                path=self.path, event_scope=self.scope,
            )  # fmt: skip
        self.store.runs.create(self.id, spec, {})
        return self

    def begins(self) -> Tale:
        self.exists()
        self.happens(("run_started", {"graph": "g"}))
        return self

    def happens(self, *events: tuple[str, dict[str, Any]]) -> None:
        """What one commit tells, in a millisecond of its own."""
        self._pass_a_millisecond()
        self.client.xadd(self.store.keys.of_run(self.id).events, {"e": json.dumps(events)}, maxlen=1000)

    def _pass_a_millisecond(self) -> None:
        begun = self.store.now_ms()
        wait_until(lambda: self.store.now_ms() > begun, "a millisecond is over")

    def says(self, text: str, number: int = 0) -> None:
        self._pass_a_millisecond()
        assert self.store.live.add({self.id: [Piece(1, 1, "ask", number, text)]}) == set()

    def ends(self, status: str = "completed") -> None:
        self.client.hset(self.store.keys.of_run(self.id).run, "status", status)
        self.happens(("run_ended", {"status": status, "took_ms": 1}))

    def announces(self, node: str, scope: str | None = None) -> Tale:
        child = Tale(self.store, self, node, scope)
        self.happens(("child_started", {"seq": 1, "node": node, "child": child.id, "agent": "a"}))
        return child

    def hears_of(self, child: Tale, status: str = "completed") -> None:
        self.happens(("child_ended", {"seq": 1, "node": "n", "child": child.id, "status": status}))

    def all(self, *modes: Any, cursor: str | None = None, **options: Any) -> list[TreeEvent]:
        return trees(self.run.stream(modes or None, cursor, subgraphs=True, **options))


def trees(events: Iterator[StreamEvent]) -> list[TreeEvent]:
    return [event for event in events if isinstance(event, TreeEvent)]


def told(events: Sequence[TreeEvent]) -> list[str]:
    return ["/".join((*event.path, event.data.get("text", event.type))) for event in events]


@pytest.fixture
def top(store: Store) -> Tale:
    return Tale(store).begins()


def whole_tale(top: Tale) -> None:
    """Two levels below, each run with text."""
    child = top.announces("ask").begins()
    child.says("one")
    leaf = child.announces("look").begins()
    leaf.says("two")
    leaf.ends()
    child.hears_of(leaf)
    child.says("three", 1)
    child.ends()
    top.hears_of(child)
    top.ends()


WHOLE = [
    "run_started", "child_started", "ask/run_started", "ask/one", "ask/child_started", "ask/look/run_started",
    "ask/look/two", "ask/look/run_ended", "ask/child_ended", "ask/three", "ask/run_ended", "child_ended", "run_ended",
]  # fmt: skip


def test_runs_that_ended_before_are_given_whole_at_any_depth(top: Tale) -> None:
    whole_tale(top)
    events = top.all()
    assert told(events) == WHOLE, "in order of time"
    for path in ((), ("ask",), ("ask", "look")):
        assert len({event.run for event in events if event.path == path}) == 1


def test_reading_goes_on_after_any_event(top: Tale) -> None:
    whole_tale(top)
    for modes in ((), ("messages",), ("updates", "tools")):
        events = top.all(*modes)
        assert len(events) > 3
        for place, event in enumerate(events):
            rest = top.all(*modes, cursor=event.id)
            assert told(rest) == told(events[place + 1 :]), (modes, place)


def test_a_cursor_does_not_name_what_is_over(top: Tale) -> None:
    for number in range(30):
        child = top.announces(f"n{number}").begins()
        child.ends()
        top.hears_of(child)
    top.ends()
    assert max(len(json.loads(event.id)) for event in top.all()) <= 3


def test_runs_are_followed_as_they_begin(top: Tale) -> None:
    seen: list[TreeEvent] = []

    def read() -> None:
        for event in top.run.stream(None, subgraphs=True):
            assert isinstance(event, TreeEvent)
            seen.append(event)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    child = top.announces("ask")
    wait_until(lambda: "child_started" in told(seen), "the child is announced")
    child.begins()
    wait_until(lambda: "ask/run_started" in told(seen), "it has begun")
    child.says("one")
    wait_until(lambda: "ask/one" in told(seen), "its text arrives while it runs")
    top.ends()
    wait_until(lambda: "run_ended" in told(seen), "the run above is over")
    child.ends("cancelled")
    reader.join(10)
    assert not reader.is_alive()
    assert told(seen)[-1] == "ask/run_ended"


def test_a_run_that_is_retried_goes_on_once(top: Tale) -> None:
    child = top.announces("ask").begins()
    child.ends("failed")
    top.hears_of(child, "failed")
    top.happens(("child_retried", {"seq": 1, "node": "ask", "child": child.id, "agent": "a"}))
    stream = top.run.stream(None, subgraphs=True)
    first = [next(stream) for _ in range(6)]
    assert [event.type for event in first][-3:] == ["run_ended", "child_ended", "child_retried"]
    child.happens(("run_retried", {}))
    child.ends()
    top.hears_of(child)
    top.ends()
    expected = ["ask/run_retried", "ask/run_ended", "child_ended", "run_ended"]
    assert told(trees(stream)) == expected
    assert told(top.all(cursor=first[-1].id)) == expected


def test_an_expired_run_is_a_gap_and_a_refused_one_is_nothing(top: Tale) -> None:
    gone, refused = top.announces("gone"), top.announces("refused")
    top.hears_of(gone)
    top.hears_of(refused, "refused")
    top.ends()
    events = top.all()
    assert [(event.path, event.run) for event in events if event.type == "gap"] == [(("gone",), gone.id)]


def test_events_that_a_run_below_repeats_at_the_top_come_once(top: Tale) -> None:
    child = top.announces("ask").begins()
    opened = {"seq": 1, "node": "n", "kind": "approval", "question": "?"}
    child.happens(("gate_opened", opened))
    top.happens(("gate_opened", {"run": child.id, **opened, "path": ["ask"]}))
    child.ends()
    top.ends()
    assert [event.path for event in top.all() if event.type == "gate_opened"] == [("ask",)]


def test_programs_with_an_event_loop_have_it_too(top: Tale) -> None:
    whole_tale(top)

    async def read() -> list[StreamEvent]:
        async with AsyncClient(top.run.settings) as client:
            return [event async for event in client.stream(top.id, None, subgraphs=True)]

    assert asyncio.run(read()) == top.all()


def test_a_scope_selects_runs_below(top: Tale) -> None:
    for name in ("desk", "desktop"):
        child = top.announces(name, name).begins()
        leaf = child.announces("leaf", f"{name}/leaf").begins()
        leaf.ends()
        child.ends()
    plain = top.announces("plain").begins()
    below = plain.announces("scoped", "desk").begins()
    below.ends()
    plain.ends()
    top.ends()
    shown = {event.path: event.event_scope for event in top.all(event_scope="desk")}
    assert shown == {(): None, ("desk",): "desk", ("desk", "leaf"): "desk/leaf", ("plain", "scoped"): "desk"}
    shown = {event.path: event.event_scope for event in top.all(event_scope="desk/leaf")}
    assert shown == {(): None, ("desk", "leaf"): "desk/leaf"}


def test_more_runs_than_are_read_at_once_wait_for_their_turn(top: Tale, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_streaming, "MOST_FOLLOWED", 2)
    children = [top.announces(f"n{number}").begins() for number in range(6)]
    for child in children:
        child.ends()
    top.ends()
    ends = [event.path for event in top.all() if event.type == "run_ended"]
    assert sorted(ends) == [(), *((f"n{number}",) for number in range(6))]


def test_runs_that_a_cursor_cannot_name_are_gaps(top: Tale, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_streaming, "MOST_KNOWN", 3)
    children = [top.announces(f"n{number}") for number in range(4)]
    for child in children:
        child.begins().ends()
    top.ends()
    events = top.all("updates")
    lost = {event.run for event in events if event.type == "gap"}
    whole = {event.run for event in events if event.type == "run_ended"}
    assert lost | whole == {top.id, *(child.id for child in children)}
    assert not lost & whole


@pytest.mark.parametrize("cursor", ["", "[]", "{}", "0-0:/0-0:0", '{"%s": 1}', '{"%s": "x"}'])
def test_a_cursor_of_something_else_is_refused(top: Tale, cursor: str) -> None:
    with pytest.raises(UsageError, match="is not a position"):
        top.run.stream(cursor=cursor.replace("%s", top.id), subgraphs=True)


def test_options_that_do_not_fit_are_refused(top: Tale) -> None:
    with pytest.raises(UsageError, match="needs `subgraphs`"):
        top.run.stream(event_scope="desk")
    with pytest.raises(UsageError, match="no stream mode"):
        top.run.stream(["all"], subgraphs=True)  # type: ignore[list-item]

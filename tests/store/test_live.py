"""A run's stream: what models say and what happens, in order, from any place on, and nothing missing in silence."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sleipnir.client import streaming
from sleipnir.client.client import Run
from sleipnir.errors import RunNotFound, StoreUnavailable, UsageError
from sleipnir.runs.run import RunSpec
from sleipnir.runs.views import StreamEvent
from sleipnir.settings import Settings
from sleipnir.store import live
from sleipnir.store.connect import server_infos
from sleipnir.store.live import Piece
from sleipnir.store.store import Store
from tests.processes import RedisServer, wait_until
from tests.proxy import Proxy

STARTED = ("run_started", {"graph": "g"})
ENDED = ("run_ended", {"status": "completed", "took_ms": 1})
_numbers = itertools.count()


class Story:
    """A run that only the test moves on. What it says after an event, and what happens after a text, is of a later
    millisecond by the clock of Redis: texts and events are two streams, which only their milliseconds put in order."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.id = f"live{next(_numbers):08d}"
        self.keys = store.keys.of_run(self.id)
        self.client: Any = store._client
        store.runs.create(self.id, RunSpec(agent="a", bundle="b", variables={}), {})
        self.run = Run(store, self.id, Settings(redis_url=store.url, broker_url=store._settings.broker_url))
        self._last: str | None = None

    def happens(self, *events: tuple[str, dict[str, Any]]) -> None:
        """What one commit tells."""
        self._turn_to("event")
        self.client.xadd(self.keys.events, {"e": json.dumps(events)}, maxlen=1000)

    def ends(self) -> None:
        self.client.hset(self.keys.run, "status", "completed")
        self.happens(ENDED)

    def says(self, text: str, number: int, *, attempt: int = 1, draft: int = 1, seq: int = 1) -> None:
        self.add([Piece(seq, attempt, "ask", number, text, draft=draft)])

    def add(self, pieces: list[Piece]) -> None:
        self._turn_to("text")
        assert self.store.live.add({self.id: pieces}) == set()

    def _turn_to(self, kind: str) -> None:
        if self._last not in (None, kind):
            next_ms(self.store)
        self._last = kind

    def stream(self, *modes: Any, cursor: str | None = None) -> Iterator[StreamEvent]:
        return self.run.stream(modes or None, cursor)

    def all(self, *modes: Any, cursor: str | None = None) -> list[StreamEvent]:
        return list(self.stream(*modes, cursor=cursor))


def next_ms(store: Store) -> None:
    """Return when it is later by the clock of Redis."""
    begun = store.now_ms()
    wait_until(lambda: store.now_ms() > begun, "a millisecond is over")


@pytest.fixture
def story(store: Store) -> Story:
    return Story(store)


def said(events: list[StreamEvent]) -> list[str]:
    return [event.data["text"] for event in events if event.type == "text"]


def told(events: list[StreamEvent]) -> list[str]:
    return [event.data["text"] if event.type == "text" else event.type for event in events]


def test_texts_come_between_events_and_the_end_of_the_run_is_last(story: Story) -> None:
    story.happens(STARTED, ("visit_opened", {"seq": 1, "node": "ask", "kind": "llm"}))
    story.says("Hel", 0)
    story.says("lo", 1)
    story.happens(("visit_closed", {"seq": 1, "node": "ask", "ok": True, "keys": ["k"]}))
    story.ends()
    story.says("too late", 2, attempt=0)
    events = story.all()
    assert told(events) == ["run_started", "visit_opened", "Hel", "lo", "visit_closed", "run_ended"]
    piece = events[2]
    assert piece.mode == "messages"
    assert piece.data == {
        "seq": 1, "attempt": 1, "node": "ask", "piece": 0, "text": "Hel", "turn": 0, "draft": 1, "lost": 0,
        "last": False,
    }  # fmt: skip
    assert piece.at_ms > 0


@pytest.mark.conformance("EV-11")
def test_a_stream_continues_after_any_of_its_events_and_repeats_none(story: Story) -> None:
    story.happens(STARTED, ("visit_opened", {"seq": 1}), ("visit_opened", {"seq": 2}))
    story.says("a", 0)
    story.add([Piece(1, 1, "ask", 1, "b"), Piece(2, 1, "ask", 0, "c")])
    story.ends()
    events = story.all()
    assert len(events) == 7
    for place, event in enumerate(events):
        assert story.all(cursor=event.id) == events[place + 1 :]


@pytest.mark.parametrize(
    ("modes", "passed"),
    [
        (("messages",), ["hi", "visit_closed", "run_ended"]),
        (("updates",), ["run_started", "visit_closed", "visit_closed", "run_ended"]),
        (("tools",), ["tool_called", "tool_ended", "visit_closed", "run_ended"]),
        (("events",), ["visit_opened", "something_new", "visit_closed", "run_ended"]),
        ((), ["visit_closed", "run_ended"]),
    ],
)
@pytest.mark.conformance("SM-01", "SM-02", "SM-08")
def test_a_mode_passes_its_own_and_every_mode_failures_and_the_end(
    story: Story, modes: tuple[Any, ...], passed: list[str]
) -> None:
    _tell_one_of_each(story)
    events = list(story.run.stream(modes))
    assert told(events) == passed
    assert all(event.mode in modes or event.type in ("visit_closed", "run_ended") for event in events)


@pytest.mark.conformance("SM-09")
def test_without_modes_everything_is_passed(story: Story) -> None:
    _tell_one_of_each(story)
    assert len(story.run.stream(None).__next__().id) > 0
    assert len(story.all()) == 9


def _tell_one_of_each(story: Story) -> None:
    story.happens(STARTED, ("visit_opened", {"seq": 1}), ("something_new", {}))
    story.happens(("tool_called", {"seq": 1, "call": "c"}), ("tool_ended", {"seq": 1, "call": "c", "ok": False}))
    story.says("hi", 0)
    story.happens(("visit_closed", {"seq": 1, "ok": True}), ("visit_closed", {"seq": 2, "ok": False}))
    story.ends()


@pytest.mark.conformance("SH-04")
def test_duplicates_and_ended_attempts_are_left_out_and_a_new_attempt_starts_a_new_text(story: Story) -> None:
    story.happens(STARTED)
    story.says("one", 0)
    story.says("two", 1)
    story.says("two", 1)
    story.says("ONE", 0, attempt=2)
    story.says("three", 2, attempt=1)  # of the worker that was given up
    story.says("TWO", 1, attempt=2)
    story.says("One", 0, attempt=2, draft=2)  # the call is repeated
    story.ends()
    events = [event for event in story.all() if event.type == "text"]
    assert said(events) == ["one", "two", "ONE", "TWO", "One"]
    assert [event.data["text"] for event in events if event.data["piece"] == 0] == ["one", "ONE", "One"]


def test_pieces_that_were_dropped_before_they_were_read_leave_a_gap_that_counts_them(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MOST_PIECES", 100)
    story.happens(STARTED)
    stream = story.stream("messages")
    story.says("first", 0)
    assert next(stream).data["text"] == "first"
    story.add([Piece(1, 1, "ask", number, "x") for number in range(1, 1001)])
    gap = next(stream)
    assert (gap.type, gap.mode) == ("gap", "messages")
    kept = [next(stream) for _ in range(1000 - gap.data["lost"])]
    assert [event.data["piece"] for event in kept] == list(range(gap.data["lost"] + 1, 1001))
    story.ends()
    assert told(list(stream)) == ["run_ended"]
    assert told(story.all("messages", cursor=gap.id)) == [*["x"] * len(kept), "run_ended"], "the gap is told of once"


def test_a_stream_without_any_piece_left_has_a_gap_too(story: Story) -> None:
    story.happens(STARTED)
    story.says("a", 0)
    story.says("b", 1)
    story.client.delete(story.keys.live)  # expired
    story.ends()
    gap, *rest = story.all("messages", "updates")
    assert (gap.type, gap.data) == ("gap", {"lost": 2})
    assert told(rest) == ["run_started", "run_ended"]
    assert told(story.all("updates")) == ["run_started", "run_ended"], "nobody asked for pieces"


def test_events_that_were_dropped_before_they_were_read_leave_a_gap(story: Story) -> None:
    story.happens(STARTED)
    first = next(story.stream())
    for number in range(1100):
        story.happens(("visit_opened", {"seq": number}))
    story.ends()
    for events in (story.all(), story.all(cursor=first.id)):
        assert (events[0].type, events[0].mode, events[0].data) == ("gap", "events", {"lost": None})
        assert [event.type for event in events[1:]] == ["visit_opened"] * (len(events) - 2) + ["run_ended"]
        assert [event.data["seq"] for event in events[1:-1]] == list(range(1100 - len(events) + 2, 1100))
        assert "gap" not in told(story.all(cursor=events[0].id))


def test_a_run_that_ends_before_it_has_begun_misses_nothing(story: Story) -> None:
    story.ends()
    assert told(story.all()) == ["run_ended"]


@pytest.mark.conformance("EV-12")
def test_concurrent_runs_have_separate_streams(store: Store) -> None:
    stories = [Story(store) for _ in range(32)]
    store.live.add({story.id: [Piece(1, 1, "ask", 0, story.id)] for story in stories})
    next_ms(store)
    for story in stories:
        story.ends()
        assert told(story.all()) == [story.id, "run_ended"]


def test_a_reader_that_never_returns_costs_the_writer_nothing_and_finds_out_what_it_missed(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MOST_PIECES", 200)
    story.happens(STARTED)
    stream = story.stream()
    assert next(stream).type == "run_started"  # and now it stops reading, with its connection open
    for first in range(0, 20_000, 100):
        story.add([Piece(1, 1, "ask", number, "x" * 20) for number in range(first, first + 100)])
    assert story.client.xlen(story.keys.live) < 500, "as much is kept as without a reader"
    assert story.client.memory_usage(story.keys.live) < 200_000
    story.ends()
    gap, *pieces, end = list(stream)
    assert gap.data["lost"] + len(pieces) == 20_000
    assert end.type == "run_ended"


def test_a_stream_waits_for_a_run_that_has_not_begun_and_ends_with_it(story: Story) -> None:
    events: list[StreamEvent] = []
    reader = threading.Thread(target=lambda: events.extend(story.stream()))
    reader.start()
    wait_until(
        lambda: any(info["blocked_clients"] for info in server_infos(story.client, "clients")), "the reader waits"
    )
    story.happens(STARTED)
    story.says("a", 0)
    wait_until(lambda: told(events) == ["run_started", "a"], "it reads as it happens")
    story.ends()
    reader.join(60)
    assert told(events) == ["run_started", "a", "run_ended"]


def test_a_run_that_is_retried_continues_and_so_does_its_stream(story: Story) -> None:
    failed = ("run_ended", {"status": "failed", "took_ms": 1})
    story.happens(STARTED)
    story.happens(failed)
    story.client.hset(story.keys.run, mapping={"status": "failed", "retrying": 1})
    stream = story.stream()
    assert [next(stream).type for _ in range(2)] == ["run_started", "run_ended"]
    story.client.hdel(story.keys.run, "retrying")
    story.happens(("run_retried", {"node": "a"}))
    story.ends()
    assert told(list(stream)) == ["run_retried", "run_ended"]
    assert told(story.all("messages", cursor=story.all()[-1].id)) == [], "nothing comes after the end"


def test_pieces_of_a_removed_run_are_dropped_and_leave_no_keys(store: Store) -> None:
    keys = store.keys.of_run("gone00000000")
    assert store.live.add({"gone00000000": [Piece(1, 1, "ask", 0, "x")]}) == set()
    assert store._client.exists(keys.run, keys.live) == 0
    with pytest.raises(RunNotFound):
        next(Run(store, "gone00000000", Settings()).stream())


def test_each_write_renews_the_expiry_of_the_live_stream(story: Story) -> None:
    story.says("a", 0)
    assert 0 < story.client.pttl(story.keys.live) <= live.EXPIRE_MS
    story.client.pexpire(story.keys.live, live.EXPIRE_MS // 3)
    story.says("b", 1)
    assert story.client.pttl(story.keys.live) > live.EXPIRE_MS // 2


def test_a_script_that_redis_has_lost_is_loaded_again(story: Story) -> None:
    story.says("a", 0)
    story.client.script_flush()
    assert story.store.live.add({story.id: [Piece(1, 1, "ask", 1, "b")]}) == {story.id}, "refused for now"
    story.says("b", 1)
    assert story.client.xlen(story.keys.live) == 2


@pytest.mark.one_redis
def test_a_redis_that_is_full_refuses_pieces_for_now(story: Story, tmp_path: Path) -> None:
    story.client.config_set("maxmemory", 1)
    try:
        assert story.store.live.add({story.id: [Piece(1, 1, "ask", 0, "a")]}) == {story.id}
    finally:
        story.client.config_set("maxmemory", 0)
    story.says("a", 0)


@pytest.mark.parametrize(
    ("modes", "cursor", "message"),
    [
        (("message",), None, "there is no stream mode 'message'; there are messages, custom, updates, tools, events"),
        ("messages", None, "no stream mode"),
        (None, "1-0", "'1-0' is not a position in a run's stream"),
        (None, "1-0:/2-0:x", "is not a position"),
        (None, "0-0:1/0-0:0", "is not a position"),
        (None, f"{10**19}-0:/0-0:0", "is not a position"),
    ],
)
def test_a_wrong_mode_or_cursor_is_refused_at_once(story: Story, modes: Any, cursor: str | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        story.run.stream(modes, cursor)


@pytest.mark.one_redis
def test_a_reader_outlives_its_connections(redis_server: RedisServer, tmp_path: Path) -> None:
    proxy = Proxy(redis_server.socket)
    settings = Settings(redis_url=proxy.url, home=tmp_path, key_prefix="live-proxy", partitions=2)
    direct = settings.replaced(**redis_server.addresses)
    with Store.open(direct) as near, Store.open(settings) as far:
        story = Story(near)
        events: list[StreamEvent] = []
        reader = threading.Thread(target=lambda: events.extend(Run(far, story.id, settings).stream(None)))
        reader.start()
        story.happens(STARTED)
        for number in range(5):
            story.says(str(number), number)
            wait_until(lambda: said(events)[-1:] == [str(number)], "it is read")  # noqa: B023
            assert proxy.cut() > 0
        story.ends()
        reader.join(20)
        assert told(events) == ["run_started", *"01234", "run_ended"]
    proxy.stop()


def test_a_redis_that_stays_away_ends_the_stream_with_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "PATIENCE_S", 0.1)
    server = RedisServer()
    with Store.open(Settings(**server.addresses, home=tmp_path)) as store:
        stream = Story(store).stream()
        server.stop()
        with pytest.raises(StoreUnavailable):
            next(stream)

"""From tokens to pieces: nothing waits, nothing raises, and what is dropped is counted."""

from __future__ import annotations

import itertools
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from sleipnir.errors import StoreUnavailable
from sleipnir.runs.run import RunSpec
from sleipnir.settings import Settings
from sleipnir.store.live import Piece
from sleipnir.store.store import Store
from sleipnir_workers.visits import live
from sleipnir_workers.visits.live import LiveText, VisitEmissions
from tests.processes import RedisServer, wait_until
from tests.proxy import Proxy

_numbers = itertools.count()


class Pieces:
    """What a run's live stream holds."""

    def __init__(self, store: Store) -> None:
        self.store, self.run = store, f"pen{next(_numbers):09d}"
        store.runs.create(self.run, RunSpec(agent="a", bundle="b", variables={}), {})

    def all(self) -> list[Piece]:
        read = self.store.live.read(self.run, events="0", pieces="0", block_ms=None)
        return [entry.piece for entry in read.pieces]

    def text(self, seq: int = 1) -> str:
        return "".join(piece.text for piece in self.all() if piece.seq == seq)


@pytest.fixture
def pieces(store: Store) -> Pieces:
    return Pieces(store)


@pytest.fixture
def text(store: Store) -> LiveText:
    return LiveText(store)


@pytest.fixture
def by_hand(text: LiveText, monkeypatch: pytest.MonkeyPatch) -> LiveText:
    """Nothing is sent before `flush` is called."""
    monkeypatch.setattr(text, "_ensure_thread", lambda: None)
    monkeypatch.setattr(live, "FLUSH_S", 0.0)
    return text


def test_tokens_become_pieces_and_closing_publishes_all_of_them(text: LiveText, pieces: Pieces) -> None:
    with text.open(pieces.run, "ask", 1, 2, turn=3) as writer:
        for token in ("Hel", "", "lo ", "wörld"):
            writer.write(token)
    found = pieces.all()
    assert "".join(piece.text for piece in found) == "Hello wörld"
    assert [(p.seq, p.attempt, p.turn, p.draft, p.node, p.piece) for p in found] == [
        (1, 2, 3, 1, "ask", number) for number in range(len(found))
    ]
    assert [piece.last for piece in found] == [False] * (len(found) - 1) + [True]
    writer.write("after the end")
    writer.close()
    assert pieces.all() == found


def test_texts_that_arrive_together_are_one_piece(by_hand: LiveText, pieces: Pieces) -> None:
    writer = by_hand.open(pieces.run, "ask", 1, 1)
    for _ in range(50):
        writer.write("ab")
    assert by_hand.flush()
    writer.write("c")
    assert by_hand.flush()
    assert by_hand.flush(), "nothing is left to send"
    assert [piece.text for piece in pieces.all()] == ["ab" * 50, "c"]


def test_all_visits_of_a_process_go_in_one_round_trip(
    by_hand: LiveText, pieces: Pieces, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, calls = Pieces(pieces.store), []
    add = pieces.store.live.add
    monkeypatch.setattr(pieces.store.live, "add", lambda found: calls.append(found) or add(found))  # type: ignore[func-returns-value]
    for seq in range(1, 21):
        by_hand.open(pieces.run, "ask", seq, 1).write(str(seq))
        by_hand.open(other.run, "ask", seq, 1).write(str(-seq))
    by_hand.flush()
    assert len(calls) == 1
    assert {piece.seq: piece.text for piece in pieces.all()} == {seq: str(seq) for seq in range(1, 21)}
    assert {piece.seq: piece.text for piece in other.all()} == {seq: str(-seq) for seq in range(1, 21)}


def test_a_repeated_call_begins_the_next_draft_even_without_text(by_hand: LiveText, pieces: Pieces) -> None:
    writer = by_hand.open(pieces.run, "ask", 1, 1)
    writer.write("half an ans")
    by_hand.flush()
    writer.write("never sent")
    writer.restart()
    by_hand.flush()
    writer.write("An answer")
    by_hand.flush()
    assert [(piece.draft, piece.piece, piece.text) for piece in pieces.all()] == [
        (1, 0, "half an ans"), (2, 0, ""), (2, 1, "An answer"),
    ]  # fmt: skip


def test_a_writer_without_text_leaves_nothing(text: LiveText, pieces: Pieces) -> None:
    text.open(pieces.run, "ask", 1, 1).close()
    assert pieces.all() == []
    assert text._writers == set()


def test_long_text_is_cut_into_pieces_and_half_characters_are_replaced(by_hand: LiveText, pieces: Pieces) -> None:
    writer = by_hand.open(pieces.run, "ask", 1, 1)
    writer.write("x" * (live.MOST_IN_PIECE * 2 + 1))
    writer.write("\ud83d")
    by_hand.flush()
    assert [len(piece.text) for piece in pieces.all()] == [live.MOST_IN_PIECE, live.MOST_IN_PIECE, 2]
    assert pieces.text().endswith("x?")


def test_text_beyond_what_is_held_is_dropped_and_counted_where_it_is_missing(by_hand: LiveText, pieces: Pieces) -> None:
    writer = by_hand.open(pieces.run, "ask", 1, 1)
    writer.write("a" * live.MOST_HELD)
    writer.write("b" * 10)
    writer.write("c")
    by_hand.flush()
    writer.write("d")
    writer.close()
    by_hand.flush()
    found = pieces.all()
    assert pieces.text() == "a" * live.MOST_HELD + "d"
    assert [(piece.lost, piece.text[0]) for piece in found[-2:]] == [(11, "a"), (0, "d")]
    assert [piece.piece for piece in found] == list(range(len(found)))


def test_what_redis_does_not_take_is_sent_later_under_the_same_numbers(
    by_hand: LiveText, pieces: Pieces, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = by_hand.open(pieces.run, "ask", 1, 1)
    writer.write("one ")
    with monkeypatch.context() as away:
        away.setattr(pieces.store.live, "add", _away)
        assert not by_hand.flush()
        writer.write("two ")
        assert not by_hand.flush()
    assert by_hand.flush()
    writer.write("three")
    assert by_hand.flush()
    assert [(piece.piece, piece.text) for piece in pieces.all()] == [(0, "one "), (1, "two three")]


def _away(_: Any) -> set[str]:
    raise StoreUnavailable("no Redis")


def test_pieces_from_an_outage_of_redis_are_sent_afterwards(tmp_path: Path) -> None:
    server = RedisServer()
    try:
        with Store.open(Settings(**server.addresses, home=tmp_path)) as own:
            text, pieces = LiveText(own), Pieces(own)
            writer = text.open(pieces.run, "ask", 1, 1)
            writer.write("a")
            wait_until(lambda: pieces.text() == "a", "the first piece is there")
            server.kill()
            writer.write("b")
            writer.close()  # returns in time
            server.start()
            wait_until(lambda: pieces.text() == "ab" and pieces.all()[-1].last, "all of it is there, and its end")
            wait_until(lambda: not text._writers, "the writer is forgotten")
    finally:
        server.stop()


def test_a_redis_that_hangs_does_not_block_visits(redis_server: RedisServer, tmp_path: Path) -> None:
    proxy = Proxy(redis_server.socket)
    with Store.open(Settings(redis_url=proxy.url, home=tmp_path, key_prefix="hangs", partitions=2)) as far:
        text, pieces = LiveText(far), Pieces(far)
        writer = text.open(pieces.run, "ask", 1, 1)
        writer.write("begin ")
        wait_until(lambda: pieces.text() == "begin ", "it is connected")
        proxy.silence()
        for _ in range(1000):
            writer.write("x" * 100)
        writer.close()
        wait_until(lambda: pieces.text().startswith("begin xxx"), "a new connection carries on")
        wait_until(lambda: pieces.all()[-1].last, "and the end")
        found = pieces.all()
        assert sum(len(piece.text) + piece.lost for piece in found) == len("begin ") + 100_000
    proxy.stop()


def test_an_unexpected_failure_drops_the_pending_pieces_and_the_thread_continues(
    text: LiveText, pieces: Pieces, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = threading.Event()

    def fail(_: Any) -> set[str]:
        failed.set()
        raise RuntimeError("a bug")

    with monkeypatch.context() as broken:
        broken.setattr(pieces.store.live, "add", fail)
        writer = text.open(pieces.run, "ask", 1, 1)
        writer.write("dropped")
        assert failed.wait(60)
        wait_until(lambda: writer.unsent[0].lost, "it was dropped")
    writer.write("kept")
    writer.close()
    wait_until(lambda: pieces.all() and pieces.all()[-1].last, "the end is there")
    assert pieces.text() == "kept"
    assert sum(piece.lost for piece in pieces.all()) == len("dropped")


def test_an_ended_visit_whose_texts_cannot_be_sent_is_removed(
    by_hand: LiveText, pieces: Pieces, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces.store.live, "add", _away)
    monkeypatch.setattr(live, "GIVE_UP_S", 0.0)
    writer = by_hand.open(pieces.run, "ask", 1, 1)
    writer.write("a")
    writer.close()
    by_hand.flush()
    assert by_hand._writers == set()


def test_many_threads_may_write_at_once_and_each_text_stays_in_order(text: LiveText, pieces: Pieces) -> None:
    def say(seq: int) -> None:
        with text.open(pieces.run, "ask", seq, 1) as writer:
            for number in range(200):
                writer.write(f"{number} ")

    threads = [threading.Thread(target=say, args=(seq,)) for seq in range(1, 17)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_until(lambda: not text._writers, "all is sent")
    expected = "".join(f"{number} " for number in range(200))
    assert [pieces.text(seq) for seq in range(1, 17)] == [expected] * 16


def test_the_pause_grows_with_the_number_of_visits(by_hand: LiveText, pieces: Pieces) -> None:
    by_hand.open(pieces.run, "ask", 1, 1).write("x")
    by_hand.flush()
    assert by_hand._pause_s == live.EVERY_S
    for seq in range(2, 66):
        by_hand.open(pieces.run, "ask", seq, 1).write("x")
    by_hand.flush()
    assert by_hand._pause_s == pytest.approx(64 / live.MOST_PER_S)


def emissions(pieces: Pieces) -> list[Any]:
    """The emissions of the stored pieces, in order; a number: so many are lost."""
    found: list[Any] = []
    for piece in pieces.all():
        if piece.emissions:
            found += json.loads(piece.emissions)
        else:
            found.append({"chunk": json.loads(piece.chunk)} if piece.chunk else piece.lost)
    return found


def test_emissions_share_pieces_and_those_beyond_the_limits_are_counted(
    by_hand: LiveText, pieces: Pieces, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MOST_EMISSIONS", 20)
    writer = by_hand.open_emissions(pieces.run, "talk", 1, 2)
    writer.write("x" * (live.MOST_IN_PIECE + 1))
    for number in range(live.MOST_EMISSIONS + 2):
        writer.write(json.dumps({"chunk": number}))
    assert not writer.has_room
    assert by_hand.flush()
    assert emissions(pieces) == [*({"chunk": number} for number in range(20)), 3]
    assert [piece.lost for piece in pieces.all()] == [20, 3], "an earlier client reports what it cannot read as lost"
    assert writer.has_room
    writer.write('{"chunk":"later"}')
    writer.close()
    assert by_hand.flush()
    last = pieces.all()[-1]
    assert (last.chunk, last.emissions, last.attempt, last.last) == ('"later"', "", 2, True)
    assert writer.has_ended()
    assert pieces.text() == "", "an earlier client shows no text"


def test_a_piece_of_emissions_is_bounded_and_they_stay_in_order(by_hand: LiveText, pieces: Pieces) -> None:
    writer, written = by_hand.open_emissions(pieces.run, "talk", 1, 1), []
    for number in range(60):
        written.append({"category": "text", "text": f"{number} " + "x" * number * 5})
        writer.write(json.dumps(written[-1]))
    assert by_hand.flush()
    assert emissions(pieces) == written
    assert max(len(piece.emissions) for piece in pieces.all()) <= live.MOST_IN_PIECE + 2
    assert 1 < len(pieces.all()) < 10


def test_emissions_that_cannot_be_sent_are_counted_where_they_are_missing(by_hand: LiveText, pieces: Pieces) -> None:
    writer = by_hand.open_emissions(pieces.run, "talk", 1, 1)
    for number in range(5):
        writer.write(json.dumps({"chunk": number}))
    writer.skip(2)
    assert writer.collect()
    by_hand._drop()
    writer.write('{"chunk":5}')
    assert by_hand.flush()
    assert by_hand.flush()
    assert emissions(pieces) == [7, {"chunk": 5}]


def test_a_visit_that_emits_nothing_opens_no_writer(by_hand: LiveText, pieces: Pieces) -> None:
    with VisitEmissions(lambda: by_hand.open_emissions(pieces.run, "talk", 1, 1)) as visit:
        assert visit.has_room
    assert not by_hand._writers
    with VisitEmissions(lambda: by_hand.open_emissions(pieces.run, "talk", 1, 1)) as visit:
        visit.write('{"chunk":1}')
        visit.skip(3)
    assert by_hand.flush()
    assert emissions(pieces) == [{"chunk": 1}, 3]
    assert not by_hand._writers


def test_a_redis_that_is_away_slows_no_emitter(
    tmp_path: Path, text: LiveText, pieces: Pieces, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "_send", lambda by_run: set(by_run))  # as if Redis took nothing
    writer = text.open_emissions(pieces.run, "talk", 1, 1)
    started = time.monotonic()
    for number in range(50_000):
        writer.write(f'{{"chunk":{number}}}')
    assert time.monotonic() - started < 5
    assert not writer.has_room

"""Node streams, in Redis and in memory: what a writer appends, and what a reader gets after faults of any kind."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

import pytest

from sleipnir.graph.model import LlmNode
from sleipnir.memory.node_streams import MemoryStreams
from sleipnir.memory.store import MemoryStore
from sleipnir.messages import VisitResult
from sleipnir.python_graph.node_streams import RESET, StreamError, StreamItem, StreamNotBegun
from sleipnir.runs.node_streams import MOST_AHEAD, NodeStreams, StreamName, StreamWrite, TextPlace
from sleipnir.runs.run import RunSpec
from sleipnir.settings import Settings
from sleipnir.store.store import Store
from sleipnir_workers.execution import node_streams
from sleipnir_workers.execution.node_streams import StreamSource, StreamWriter
from tests.processes import RedisServer
from tests.proxy import Proxy

_numbers = itertools.count()
NODE = LlmNode(id="ask", prompt="p", stream_output="draft")
OK, FAILED = VisitResult(ok=True), VisitResult(ok=False, error="no such model", error_kind="model")


@pytest.fixture(params=["redis", "memory"])
def board(request: pytest.FixtureRequest) -> NodeStreams:
    if request.param == "memory":
        memory = MemoryStore()
        streams = MemoryStreams(memory)
        memory.create("flow", RunSpec("a", "b"), {})
        return streams
    store: Store = request.getfixturevalue("store")
    return store.streams


@pytest.fixture
def stream(board: NodeStreams, request: pytest.FixtureRequest) -> StreamName:
    if isinstance(board, MemoryStreams):
        return StreamName("flow", "draft")
    return new_stream(request.getfixturevalue("store"))


def new_stream(store: Store) -> StreamName:
    run = f"flow{next(_numbers):08d}"
    store.runs.create(run, RunSpec("a", "b"), {})
    return StreamName(run, "draft")


def writer(
    board: NodeStreams, stream: StreamName, attempt: int = 1, seq: int = 1, owner: int | None = None
) -> StreamWriter:
    place = TextPlace(seq if owner is None else owner, 0, seq, attempt)
    return StreamWriter(board, stream, place, threading.Event())


def source(board: NodeStreams, stream: StreamName, wait_s: float = 5.0) -> StreamSource:
    return StreamSource(board, stream, NODE, 2, lambda: False, wait_s)


def read(board: NodeStreams, stream: StreamName) -> list[StreamItem]:
    return list(source(board, stream).items())


def test_a_text_is_read_as_it_was_written_from_the_beginning_by_each_reader(
    board: NodeStreams, stream: StreamName
) -> None:
    out = writer(board, stream)
    out.begin()
    for piece in ("Hel", "", "lo ", "wörld 😀", "half of a pair \ud83d"):
        out.write(piece)
    out.close(OK)
    assert read(board, stream) == ["Hel", "lo ", "wörld 😀", "half of a pair ?"]
    assert read(board, stream) == ["Hel", "lo ", "wörld 😀", "half of a pair ?"]


@pytest.mark.conformance("SH-04")
def test_a_new_attempt_resets_the_stream_and_an_obsolete_one_writes_nothing_more(
    board: NodeStreams, stream: StreamName
) -> None:
    first, second = writer(board, stream), writer(board, stream, attempt=2)
    first.write("half an ans")
    items = source(board, stream).items()
    assert next(items) == "half an ans"
    second.begin()
    first.write("wer of the dead")
    second.write("An answer")
    first.close(OK)
    second.close(OK)
    assert list(items) == [RESET, "An answer"]
    assert read(board, stream) == ["An answer"]


def test_a_call_that_is_repeated_within_an_attempt_resets_it_too(board: NodeStreams, stream: StreamName) -> None:
    out = writer(board, stream)
    out.write("half")
    items = source(board, stream).items()
    assert next(items) == "half"
    out.restart()
    out.write("all")
    out.settle("all of it")
    out.close(OK)
    assert list(items) == [RESET, "all", " of it"]


def test_an_answer_that_differs_from_its_deltas_counts(board: NodeStreams, stream: StreamName) -> None:
    out = writer(board, stream)
    out.write("draft")
    out.settle("final")
    out.close(OK)
    assert "".join(str(item) for item in read(board, stream)) == "final"


def test_turns_are_one_text_and_a_turn_that_is_repeated_begins_it_anew(board: NodeStreams, stream: StreamName) -> None:
    first = writer(board, stream, seq=2, owner=1)
    first.begin()
    first.settle("first turn")
    first.close(VisitResult(ok=True, goes_on=True))
    items = source(board, stream).items()
    assert next(items) == "first turn"
    lost = writer(board, stream, seq=3, owner=1)
    lost.begin("first turn")
    lost.write("sec")
    assert next(items) == "\nsec"
    again = writer(board, stream, seq=3, attempt=2, owner=1)
    again.begin("first turn")
    again.write("second turn")
    again.close(OK)
    assert "".join("|" if item is RESET else str(item) for item in items) == "|first turn\nsecond turn"


@pytest.mark.conformance("SH-02")
def test_a_failure_ends_the_stream_with_its_error(board: NodeStreams, stream: StreamName) -> None:
    out = writer(board, stream)
    out.write("half")
    out.close(FAILED)
    items = source(board, stream).items()
    assert next(items) == "half"
    with pytest.raises(StreamError, match="node 'ask', which writes the stream 'draft', has failed: no such model"):
        next(items)


def test_a_text_without_its_end_is_not_taken_for_complete(board: NodeStreams, stream: StreamName) -> None:
    writer(board, stream).write("half")
    items = source(board, stream).items()
    assert next(items) == "half"
    with pytest.raises(StreamError, match="has ended without all text"):
        next(items)


def test_a_reader_waits_for_the_beginning_no_longer_than_it_says(board: NodeStreams, stream: StreamName) -> None:
    with pytest.raises(StreamNotBegun, match=r"has not begun to write the stream 'draft' within 0\.05s: the run"):
        list(source(board, stream, wait_s=0.05).items())


def test_each_write_may_be_repeated_and_a_gap_is_not_stored(board: NodeStreams, stream: StreamName) -> None:
    place = TextPlace(1, 0, 1, 1)
    part = StreamWrite(place, 0, 0, "abc", "end")
    assert board.write(stream, part).is_applied
    again = board.write(stream, part)
    assert (again.is_applied, again.stored) == (False, 3)
    assert board.write(stream, StreamWrite(place, 0, 3, "", "end")).is_applied
    assert not board.write(stream, StreamWrite(place, 0, 7, "x")).is_applied
    kinds = [(part.kind, part.text) for part in board.read(stream, "0-0", 0.0)]
    assert kinds == [("begin", ""), ("text", "abc"), ("end", "")]
    assert board.write(StreamName("gone", "draft"), part).is_obsolete or isinstance(board, MemoryStreams)


def test_a_writer_waits_for_a_live_reader_but_not_for_ever(
    board: NodeStreams, stream: StreamName, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_streams, "STALL_S", 0.3)
    out, long = writer(board, stream), "x" * (MOST_AHEAD + 10)
    out.write(long)  # nobody reads: it does not wait
    items = source(board, stream).items()
    next(items)
    board.mark(stream, 2, "ask", 10)
    ended = threading.Event()

    def write() -> None:
        out.write("y")
        ended.set()

    thread = threading.Thread(target=write)
    thread.start()
    assert not ended.wait(0.1), "the reader is far behind"
    board.mark(stream, 2, "ask", len(long))
    thread.join(5)
    assert ended.is_set(), "it goes on once the reader does"
    board.mark(stream, 2, "ask", 10)
    out.write("z")  # a reader that does not go on delays it by STALL_S
    out.write("z")
    out.close(OK)
    assert board.write(stream, StreamWrite(TextPlace(1, 0, 1, 1), 0, 0)).stored == len(long) + 3


@pytest.mark.one_redis
def test_text_whose_replies_are_lost_or_that_redis_cannot_take_is_stored_once_in_order(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    proxy = Proxy(redis_server.socket)
    with Store.open(Settings(home=tmp_path, redis_url=proxy.url, key_prefix="flow")) as store:
        stream = new_stream(store)
        out = writer(store.streams, stream)
        out.write("one ")
        proxy.lose_replies()
        out.write("two ")
        proxy.turn_to(str(tmp_path / "nowhere"))
        out.write("three ")
        out.write("four")
        closing = threading.Thread(target=out.close, args=(OK,))
        closing.start()
        proxy.turn_to(redis_server.socket)
        closing.join(60)
        assert not closing.is_alive()
        assert "".join(map(str, read(store.streams, stream))) == "one two three four"
    proxy.stop()


def test_what_redis_has_lost_is_sent_again(store: Store) -> None:
    stream = new_stream(store)
    out = writer(store.streams, stream)
    out.write("one ")
    of_run = store.keys.of_run(stream.run)
    store._client.delete(of_run.stream("draft"), of_run.stream_text("draft"))
    out.write("two")
    out.close(OK)
    assert "".join(map(str, read(store.streams, stream))) == "one two"


def test_a_stream_expires_with_the_retention_of_its_run_and_a_missing_run_gets_none(store: Store) -> None:
    stream = new_stream(store)
    out = writer(store.streams, stream)
    out.write("x")
    keys = list(store._client.scan_iter(f"{store.keys.of_run(stream.run).run}:stream*"))
    assert len(keys) == 2
    assert all(0 < store._client.pttl(key) <= 7 * 24 * 3_600_000 for key in keys)
    store.streams.mark(stream, 2, "ask", 1)
    store.streams.mark(stream, 2, "ask", None)
    for key in list(store._client.scan_iter(f"{store.keys.of_run(stream.run).run}:stream*")):
        assert store._client.pttl(key) > 0, key
    out = writer(store.streams, StreamName("missing", "draft"))
    out.write("x")
    out.close(OK)
    assert list(store._client.scan_iter(f"{store.keys.of_run('missing').run}*")) == []

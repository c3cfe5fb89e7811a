"""Signals: which waiting visits get which, in Redis and in memory; and what the script in Redis does with many."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from sleipnir.memory.store import now_ms
from sleipnir.runs.run import RunSpec
from sleipnir.runs.transitions import AwaitSignal, LeaveSignal
from sleipnir.store import signals as store_signals
from sleipnir.store.partitions import parked_runs
from sleipnir.store.runs.requests import NO_FENCE, Fence
from sleipnir.store.scripts import run_in_order
from sleipnir.store.store import Store
from sleipnir_scheduler.services import advance, parking
from tests.processes import wait_until
from tests.store.keepers import Keeper, MemoryKeeper, RedisKeeper, graphs_of

WAITS = """
name: g
version: sleipnir/1
start: pause
state: {got: str, least: int}
nodes:
  pause:
    type: wait
    event: "order.{{id}}.paid"
    OPTIONS
    state_updates: {got: "{{event.data.n}} of {{event.name}} by {{event.id}}"}
    next: done
  late: {type: end, output: late}
  done: {type: end, output: "{{got}}"}
"""

NAME = "order.17.paid"


@pytest.fixture(params=["redis", "memory"])
def keeper(request: pytest.FixtureRequest) -> Keeper:
    return MemoryKeeper() if request.param == "memory" else RedisKeeper(request.getfixturevalue("store"))


def run_id(number: int) -> str:
    return f"run{number:09d}"


def start(keeper: Keeper, number: int, options: str = "", **state: Any) -> str:
    """A run that waits for an event."""
    bundle = f"b{options}"
    keeper.graphs |= graphs_of(**{bundle: WAITS.replace("    OPTIONS\n", f"    {options}\n" if options else "")})
    spec = RunSpec("agent", bundle, by_version=True)
    assert keeper.create(run_id(number), spec, {"id": 17, "least": 5, "initial_prompt": "", **state})
    keeper.go_on()
    return run_id(number)


def ended(keeper: Keeper, *numbers: int) -> list[str | None]:
    """The outputs of runs; None of one that waits."""
    keeper.go_on()
    return [keeper.output(run_id(number)) for number in numbers]


def test_an_event_reaches_every_wait_for_its_name_once(keeper: Keeper) -> None:
    start(keeper, 1)
    start(keeper, 2)
    start(keeper, 3, id=18)
    assert keeper.signal(NAME, "e1", {"n": 1}) == 2
    got = f"1 of {NAME} by e1"
    assert ended(keeper, 1, 2, 3) == [got, got, None]
    assert keeper.signal(NAME, "e2", {"n": 2}) == 0


def test_an_event_with_a_known_id_is_the_same_event(keeper: Keeper) -> None:
    keeper.signal(NAME, "e1", {"n": 1})
    sent_ms = now_ms()
    wait_until(lambda: now_ms() > sent_ms + 1, "it is later")
    start(keeper, 1)
    assert keeper.signal(NAME, "e1", {"n": 2}) == 0
    assert ended(keeper, 1) == [None], "it came before the wait, which does not look back"


def test_an_event_that_came_before_counts_if_the_wait_looks_back(keeper: Keeper) -> None:
    keeper.signal(NAME, "e1", {"n": 1})
    keeper.signal(NAME, "e2", {"n": 2})
    start(keeper, 1, "look_back: 10m")
    start(keeper, 2, "look_back: 10m")
    assert ended(keeper, 1, 2) == [f"1 of {NAME} by e1"] * 2


def test_an_event_between_the_beginning_of_the_wait_and_its_registration_counts(keeper: Keeper) -> None:
    """The commit that begins to wait only owes the registration."""
    if not isinstance(keeper, RedisKeeper):
        pytest.skip("in memory, both happen at once")
    deliveries, keeper._deliveries = keeper._deliveries, _NoDeliveries()
    start(keeper, 1)
    assert keeper.signal(NAME, "e1", {"n": 1}) == 0
    keeper._deliveries = deliveries
    assert ended(keeper, 1) == [f"1 of {NAME} by e1"]


class _NoDeliveries:
    def run_once(self, *_: Any) -> int:
        return 0


def test_a_filter_reads_the_event_and_the_state_and_an_event_without_the_key_does_not_match(keeper: Keeper) -> None:
    start(keeper, 1, "filter: event.data.n >= state.least && event.name.startsWith('order')")
    assert keeper.signal(NAME, "e1", {"n": 4}) == 1
    keeper.signal(NAME, "e2", {"m": 9})
    keeper.signal(NAME, "e3")
    assert ended(keeper, 1) == [None]
    assert keeper.events(run_id(1)).count("signal_declined") == 3
    keeper.signal(NAME, "e4", {"n": 6})
    keeper.signal(NAME, "e5", {"n": 7})
    assert ended(keeper, 1) == [f"6 of {NAME} by e4"]


def test_one_event_goes_to_one_of_the_waits_that_want_it_for_themselves(keeper: Keeper) -> None:
    for number in (1, 2, 3):
        start(keeper, number, "consume: one")
    start(keeper, 4)
    assert keeper.signal(NAME, "e1", {"n": 1}) == 2
    got = f"1 of {NAME} by e1"
    assert ended(keeper, 1, 2, 3, 4) == [got, None, None, got]
    keeper.signal(NAME, "e2", {"n": 2})
    keeper.signal(NAME, "e3", {"n": 3})
    assert ended(keeper, 2, 3) == [f"2 of {NAME} by e2", f"3 of {NAME} by e3"]


def test_an_event_for_one_goes_on_to_the_next_whose_filter_is_true(keeper: Keeper) -> None:
    for number, least in ((1, 9), (2, 9), (3, 1), (4, 1)):
        start(
            keeper,
            number,
            "{consume: one, filter: event.data.n >= state.least}"[1:-1].replace(", ", "\n    "),
            least=least,
        )
    keeper.signal(NAME, "e1", {"n": 5})
    keeper.signal(NAME, "e2", {"n": 0})
    assert ended(keeper, 1, 2, 3, 4) == [None, None, f"5 of {NAME} by e1", None]
    keeper.signal(NAME, "e3", {"n": 10})
    assert ended(keeper, 1, 2, 4) == [f"10 of {NAME} by e3", None, None]


def test_an_event_that_nobody_took_is_given_to_one_later_wait_that_looks_back(keeper: Keeper) -> None:
    start(keeper, 1, "consume: one\n    filter: event.data.n > 5")
    keeper.signal(NAME, "e1", {"n": 1})
    assert ended(keeper, 1) == [None]
    start(keeper, 2, "consume: one\n    look_back: 10m")
    start(keeper, 3, "consume: one\n    look_back: 10m")
    assert ended(keeper, 1, 2, 3) == [None, f"1 of {NAME} by e1", None]


def test_an_event_for_one_that_was_cancelled_meanwhile_goes_to_the_next(keeper: Keeper) -> None:
    start(keeper, 1, "consume: one")
    start(keeper, 2, "consume: one")
    keeper.cancel(run_id(1))
    assert keeper.signal(NAME, "e1", {"n": 1}) == 1
    assert ended(keeper, 1, 2) == [None, f"1 of {NAME} by e1"]


def test_a_wait_that_times_out_takes_its_way_or_fails_and_gets_no_event_after_that(keeper: Keeper) -> None:
    start(keeper, 1, "timeout: 30s")
    start(keeper, 2, "timeout: 30s\n    on_timeout: late")
    assert keeper.let_timers_fire() == 2
    assert ended(keeper, 1, 2) == [None, "late"]
    assert "no event 'order.17.paid' for wait node 'pause' within 30s" in str(keeper.info(run_id(1)).error)
    assert keeper.signal(NAME, "e1", {"n": 1}) == 0


def test_a_paused_run_takes_its_event_and_goes_on_when_it_is_resumed(keeper: Keeper) -> None:
    start(keeper, 1)
    keeper.pause(run_id(1))
    keeper.go_on()
    keeper.signal(NAME, "e1", {"n": 1})
    assert ended(keeper, 1) == [None]
    assert keeper.info(run_id(1)).status == "paused"
    keeper.resume(run_id(1))
    assert ended(keeper, 1) == [f"1 of {NAME} by e1"]


def test_a_cancelled_run_leaves_nothing_behind(store: Store) -> None:
    keeper = RedisKeeper(store)
    for number, options in enumerate(("", "consume: one", "consume: one\n    filter: event.data.n > 1")):
        start(keeper, number, options)
    assert _waiting(store) == 3
    for number in range(3):
        keeper.cancel(run_id(number))
    keeper.go_on()
    keys = store.keys.of_signals(NAME)
    assert _waiting(store) == 0
    assert store._client.zcard(store.keys.of_partition(keys.partition).waits) == 0
    assert not [field for field in store._client.hkeys(keys.board) if field[:2] in ("w:", "o:")]
    assert 0 < store._client.pttl(keys.board) <= store_signals.KEEP_MS


def _waiting(store: Store) -> int:
    keys = store.keys.of_signals(NAME)
    return int(store._client.zcard(keys.every)) + int(store._client.zcard(keys.one))


def test_a_late_registration_of_a_visit_that_has_left_changes_nothing(store: Store) -> None:
    """A scheduler was frozen before it delivered the effect, and another one has delivered it too."""
    come = store.signals.deliver(Fence("3", "5-1"), run_id(1), AwaitSignal(NAME, 1, 1, 0))
    gone = store.signals.deliver(Fence("3", "5-2"), run_id(1), LeaveSignal(NAME, 1, 1))
    run_in_order(store._client, [come, gone, come])
    assert _waiting(store) == 0


def test_thousands_of_waits_are_told_a_page_at_a_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_signals, "PAGE", 20)
    keeper, number = RedisKeeper(store), itertools.count(1)
    visits = [
        store.signals.deliver(Fence("3", f"5-{next(number)}"), run_id(each), AwaitSignal(NAME, 1, 1, 0))
        for each in range(500)
    ]
    run_in_order(store._client, visits)
    start(keeper, 700)
    keys = store.keys.of_signals(NAME)
    assert keeper.signal(NAME, "e1", {"n": 1}) == 20
    assert keeper.signal(NAME, "e2", {"n": 2}) == 0, "the rest is on its way"
    effects = store.keys.of_partition(keys.partition).effects
    assert store._client.xlen(effects) == 21
    assert ended(keeper, 700) == [f"1 of {NAME} by e1"]
    assert _waiting(store) == 0, "the runs of the others do not exist, and they are forgotten"


def test_visits_of_runs_that_are_gone_are_forgotten_by_the_janitor(store: Store) -> None:
    keeper = RedisKeeper(store)
    for kind in (AwaitSignal(NAME, 1, 1, 0), AwaitSignal(NAME, 1, 1, 0, one=True)):
        run_in_order(store._client, [store.signals.deliver(Fence("3", f"5-{kind.one:d}"), run_id(kind.one), kind)])
    start(keeper, 2)
    partition = store.keys.of_signals(NAME).partition
    assert store.signals.look(partition, store.now_ms()) == 0, "it is not due"
    assert store.signals.look(partition, store.now_ms() + store_signals.LOOK_MS) == 2
    assert _waiting(store) == 1


def test_old_and_surplus_signals_are_dropped(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_signals, "MOST", 3)
    for number in range(5):
        store.signals.send(NAME, f"e{number}", str(number))
    keys = store.keys.of_signals(NAME)
    assert store._client.zcard(keys.log) == 4, "the bound is applied by the next call"
    assert store.signals.send(NAME, "e4", "4").is_new is False
    assert store._client.zcard(keys.log) == 3
    assert [each.data for each in store.signals.recent(10)] == ["4", "3", "2", None, None]
    monkeypatch.setattr(store_signals, "KEEP_MS", 0)
    store.signals.send("other", "e", "1")
    store.signals.send(NAME, "e9", "9")
    assert store._client.exists(keys.log) == 0


class ParkedKeeper(RedisKeeper):
    """Offers to parked runs are old at once."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(store)
        self.now_s = 0.0
        self._advance._parking._clock = lambda: self.now_s
        for module in (parked_runs, advance):
            monkeypatch.setattr(module, "OFFERED_MS", 0)

    def breaks(self, run: str) -> Callable[[], None]:
        """Let a run be unreadable, until the returned function is called."""
        spec = self._store.keys.of_run(run).spec
        text = self._store._client.get(spec)
        self._store._client.set(spec, "{")
        self._advance._views.clear()

        def mend() -> None:
            self._store._client.set(spec, text)
            self.look_again()

        return mend

    def look_again(self) -> None:
        self.now_s += 2 * parking.AGAIN_S
        self.go_on()
        self._advance._parking.forget()  # an idle scheduler begins a pass anew by itself, when its time has come
        self.go_on()


@pytest.fixture
def parked(store: Store, monkeypatch: pytest.MonkeyPatch) -> ParkedKeeper:
    return ParkedKeeper(store, monkeypatch)


ONE = "consume: one"
GOT = f"1 of {NAME} by "


def test_an_event_that_a_parked_run_was_offered_goes_to_the_next_and_to_no_other(parked: ParkedKeeper) -> None:
    for number in (1, 2, 3):
        start(parked, number, ONE)
    mend = parked.breaks(run_id(1))
    assert parked.signal(NAME, "e1", {"n": 1}) == 1
    parked.go_on()
    parked.look_again()
    assert ended(parked, 2, 3) == [f"{GOT}e1", None]
    mend()
    assert ended(parked, 1, 3) == [None, None], "it was taken"
    parked.signal(NAME, "e2", {"n": 1})
    assert ended(parked, 1, 3) == [None, f"{GOT}e2"], "what was parked is at the end of the line"
    parked.signal(NAME, "e3", {"n": 1})
    assert ended(parked, 1) == [f"{GOT}e3"]


@pytest.mark.parametrize("options", [ONE, f"{ONE}\n    filter: event.data.n == 1"])
def test_events_that_no_other_takes_are_there_for_a_run_that_was_parked(parked: ParkedKeeper, options: str) -> None:
    start(parked, 1, options)
    mend = parked.breaks(run_id(1))
    for number in range(3):
        parked.signal(NAME, f"e{number}", {"n": number})
    parked.go_on()
    for _ in range(3):
        parked.look_again()
    mend()
    assert ended(parked, 1) in ([f"{GOT}e1"], [f"0 of {NAME} by e0"])
    start(parked, 2, f"{ONE}\n    look_back: 1h")
    [second] = ended(parked, 2)
    assert second is not None and second not in ended(parked, 1), "each goes to one"


def test_a_parked_run_that_is_cancelled_leaves_its_events_to_others(parked: ParkedKeeper, store: Store) -> None:
    start(parked, 1, ONE)
    mend = parked.breaks(run_id(1))
    parked.signal(NAME, "e1", {"n": 1})
    parked.go_on()
    parked.look_again()
    parked.cancel(run_id(1))
    mend()
    start(parked, 2, f"{ONE}\n    look_back: 1h")
    assert ended(parked, 2) == [f"{GOT}e1"]
    board = store._client.hgetall(store.keys.of_signals(NAME).board)
    assert [field for field in board if field[:2] in ("w:", "o:", "p:")] == []


def test_an_offer_that_is_young_stays_with_the_parked_run(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = ParkedKeeper(store, monkeypatch)
    for module in (parked_runs, advance):
        monkeypatch.setattr(module, "OFFERED_MS", 3_600_000)
    start(keeper, 1, ONE)
    start(keeper, 2, ONE)
    mend = keeper.breaks(run_id(1))
    keeper.signal(NAME, "e1", {"n": 1})
    keeper.go_on()
    keeper.look_again()
    assert ended(keeper, 2) == [None]
    mend()
    assert ended(keeper, 1, 2) == [f"{GOT}e1", None]


@pytest.mark.parametrize("options", ["", "consume: one"])
def test_a_visit_whose_node_has_lost_what_it_was_told_is_told_again_when_it_waits_again(
    store: Store, options: str
) -> None:
    keeper = RedisKeeper(store)
    began_ms = store.now_ms()
    run = start(keeper, 1, options)
    assert keeper.signal(NAME, "e1", {"n": 1}) == 1
    assert keeper._deliveries.run_once(range(store.keys.partitions)) == 1
    store._client.xtrim(store.keys.of_partition(store.keys.partition_of(run)).inbox, maxlen=0)
    assert ended(keeper, 1) == [None]
    [visit] = store.runs.info(run).visits
    again = AwaitSignal(NAME, visit.seq, visit.attempt, began_ms, one=bool(options), sure=bool(options))
    run_in_order(store._client, [store.signals.deliver(NO_FENCE, run, again)])
    assert ended(keeper, 1) == [f"1 of {NAME} by e1"]

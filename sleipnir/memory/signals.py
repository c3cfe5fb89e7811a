"""Signals and the visits that wait for them, in memory: as store/lua/signals.lua has them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from sleipnir.runs.signals import Signalled
from sleipnir.runs.transitions import AwaitSignal, DeclineSignal, LeaveSignal

Waiter = tuple[str, int, int]
"""A run, a visit and its attempt."""

Told = tuple[str, Signalled]
"""A run, and what it is told."""


@dataclass
class _Sent:
    """A signal; of those that want one for themselves, `asked` have been offered it, `holder` has not answered yet."""

    number: int
    id: str
    data: str
    asked: set[Waiter] = field(default_factory=set)
    holder: Waiter | None = None
    taken: bool = False


@dataclass
class _Board:
    sent: list[_Sent] = field(default_factory=list)
    every: dict[Waiter, int] = field(default_factory=dict)
    """By visit that wants every signal, the first number that it was not told of."""
    one: dict[Waiter, AwaitSignal] = field(default_factory=dict)


class MemorySignals:
    """Signals by name. Each method returns what runs are to be told because of it."""

    def __init__(self) -> None:
        self._boards: dict[str, _Board] = defaultdict(_Board)

    def send(self, name: str, id_: str, data: str, at_ms: int) -> list[Told]:
        """Send a signal, unless its id is known."""
        board = self._boards[name]
        if any(each.id == id_ for each in board.sent):
            return []
        last = board.sent[-1].number if board.sent else 0
        board.sent.append(_Sent(max(at_ms * 1000, last + 1), id_, data))
        return list(_told(name, board))

    def await_(self, run: str, effect: AwaitSignal) -> list[Told]:
        board, waiter = self._boards[effect.name], (run, effect.seq, effect.attempt)
        if effect.one:
            board.one.setdefault(waiter, effect)
        else:
            board.every.setdefault(waiter, effect.since_ms * 1000)
        return list(_told(effect.name, board))

    def leave(self, run: str, effect: LeaveSignal) -> list[Told]:
        board, waiter = self._boards[effect.name], (run, effect.seq, effect.attempt)
        board.every.pop(waiter, None)
        board.one.pop(waiter, None)
        for sent in board.sent:
            if sent.holder == waiter:
                sent.holder, sent.taken = None, str(sent.number) == effect.took
        return list(_told(effect.name, board))

    def decline(self, run: str, effect: DeclineSignal) -> list[Told]:
        board, waiter = self._boards[effect.name], (run, effect.seq, effect.attempt)
        for sent in board.sent:
            if sent.holder == waiter and str(sent.number) == effect.number:
                sent.holder = None
        return list(_told(effect.name, board))


def _told(name: str, board: _Board) -> Iterator[Told]:
    """What visits are told now, and noted."""
    for waiter, since in list(board.every.items()):
        for sent in board.sent:
            if sent.number >= since:
                board.every[waiter] = sent.number + 1
                yield _news(name, waiter, sent, one=False)
    for sent in board.sent:
        if sent.taken or sent.holder is not None:
            continue
        busy = {each.holder for each in board.sent}
        for waiter, effect in board.one.items():
            is_promised = effect.sure and waiter in busy
            if waiter not in sent.asked and not is_promised and effect.since_ms * 1000 <= sent.number:
                sent.asked.add(waiter)
                sent.holder = waiter
                yield _news(name, waiter, sent, one=True)
                break


def _news(name: str, waiter: Waiter, sent: _Sent, *, one: bool) -> Told:
    run, seq, attempt = waiter
    return run, Signalled(seq, attempt, name, str(sent.number), sent.id, sent.data, one)

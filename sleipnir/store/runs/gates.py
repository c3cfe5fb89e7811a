"""Open questions to people, and their answers."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from sleipnir.access.audit import audit_text
from sleipnir.decoding import read_text
from sleipnir.errors import AnswerRefused, GateAnswered, GateClaimed, GateError, RecordUnreadable
from sleipnir.graph.answer_rules import AnswerRules
from sleipnir.messages import FINAL
from sleipnir.runs.conversation_names import DEFAULT_NAMESPACE
from sleipnir.runs.handling import MOST_VOICES, NO_HANDLING, GateHandling, VoiceCount, handling_of
from sleipnir.runs.run import Gate, RunSpec
from sleipnir.runs.views import GateInfo
from sleipnir.store.namespaced import is_complete, of_namespace
from sleipnir.store.record_text import dumps
from sleipnir.store.runs.connection import PAGE
from sleipnir.store.runs.requests import random_id
from sleipnir.store.runs.run_infos import RunInfos
from sleipnir.store.scripts import Arg, LuaScript

_ANSWER = LuaScript("answer")


class Gates(RunInfos):
    """Find open gates and answer them."""

    def gates(self, run_id: str) -> list[GateInfo]:
        """The unanswered questions of a run, in the order they were asked."""
        return self._gates([run_id])

    def _gates(self, run_ids: Sequence[str], namespace: str | None = None) -> list[GateInfo]:
        """The unanswered questions of several runs, run by run, in one round trip; only of runs of the namespace."""
        pipe = self._client.pipeline(transaction=False)
        for keys in map(self._keys.of_run, run_ids):
            pipe.hgetall(keys.gates)
            pipe.get(keys.spec)
        replies = pipe.execute()
        read = zip(run_ids, replies[::2], replies[1::2], strict=True)
        return [gate for run_id, fields, spec in read for gate in _open_gates(run_id, fields, spec, namespace)]

    def gates_below(self, run_id: str) -> list[GateInfo]:
        """The open questions of a run and of all child runs that it waits for, in the order they were asked."""
        gates, level = self.gates(run_id), [run_id]
        while level := [child for page in _pages(level) for info in self.find(page) if info for child in info.awaits]:
            gates += (gate for page in _pages(level) for gate in self._gates(page))
        return sorted(gates, key=lambda gate: gate.opened_ms)

    def open_gates(self, namespace: str | None = None, limit: int | None = None) -> list[GateInfo]:
        """The open questions of runs of one namespace or (None) of all, oldest first; with a limit the first ones, or
        some fewer while answers to them are on their way. It reads those that it returns, and no others."""
        indexes, is_exact = self._gate_indexes(namespace)
        most = limit if is_exact else None
        pipe = self._client.pipeline(transaction=False)
        for index in indexes:
            pipe.zrange(index, 0, -1 if most is None else most - 1, withscores=True)
        names = [name for _, name in sorted((at_ms, name) for reply in pipe.execute() for name, at_ms in reply)]
        chosen = dict.fromkeys(names[:most])
        runs = list(dict.fromkeys(name.rsplit("/", 1)[0] for name in chosen))
        gates = [gate for page in _pages(runs) for gate in self._gates(page, namespace)]
        if most is not None:
            gates = [gate for gate in gates if f"{gate.run}/{gate.seq}" in chosen]
        return sorted(gates, key=lambda gate: gate.opened_ms)[:limit]

    def gate_count(self, namespace: str | None = None) -> int:
        """How many questions are open, of the same cost for any number of them. Those whose answers are on their way
        count."""
        indexes, is_exact = self._gate_indexes(namespace)
        if not is_exact:
            return len(self.open_gates(namespace))
        pipe = self._client.pipeline(transaction=False)
        for index in indexes:
            pipe.zcard(index)
        return sum(pipe.execute())

    def _gate_indexes(self, namespace: str | None) -> tuple[list[str], bool]:
        """What lists the questions of a namespace in each partition, and whether it lists no others: the index of all
        does, which is read until it is listed by namespace in whole."""
        indexes = [self._keys.of_partition(partition).gates for partition in range(self._keys.partitions)]
        if namespace is None or not all(is_complete(self._client, indexes)):
            return indexes, namespace is None
        return [of_namespace(index, namespace) for index in indexes], True

    def answer(
        self, run_id: str, seq: int, text: str, attempt: int = 1, *, comment: str | None = None, role: str | None = None
    ) -> VoiceCount | None:
        """Answer the gate that this attempt of a visit has opened, in the `role` of the person. Safe to repeat. None:
        it is answered, else it needs the same answer of more people. Raises GateError if there is none, AnswerRefused,
        and GateAnswered if it was answered with another text."""
        run, partition = self._keys.of_run(run_id), self._keys.of_partition(self._keys.partition_of(run_id))
        keys = {
            "gates": run.gates, "inbox": partition.inbox, "run": run.run, "events": run.events,
            "audit": partition.audit,
        }  # fmt: skip
        after = {"question": seq, "attempt": attempt}
        entry = audit_text("question voiced", f"run {run_id}", self._by, after=after, reason=comment)
        args: dict[str, Arg] = {
            "run_id": run_id, "seq": seq, "text": dumps(text), "attempt": attempt, "by": self._by,
            "token": random_id(), "person": self._person.name, "role": role or self._person.role or "",
            "comment": comment or "", "most": MOST_VOICES, "entry": entry, "keep_ms": self._audit_ms,
        }  # fmt: skip
        reply = _ANSWER(self._client, keys, args)
        match reply[0]:
            case 2:
                return VoiceCount(reply[1], reply[2])
            case 0 if json.loads(reply[1]) != text:
                raise GateAnswered(gate_answered_text(run_id, seq, json.loads(reply[1]), reply[2]), reply[2], reply[3])
            case -1:
                raise GateError(self._closed(run_id, seq))
            case -2:
                raise self._refused(run_id, seq, reply[1], self._person.name)
            case -3:
                raise AnswerRefused(f"question {seq} of run {run_id!r} needs a comment with the answer", "comment")
            case -4:
                raise AnswerRefused(f"question {seq} of run {run_id!r} has {MOST_VOICES} answers already", "voices")
            case -5:
                raise claimed_error(run_id, seq, *reply[1:])
        return None

    def _refused(self, run_id: str, seq: int, why: str, person: str) -> AnswerRefused:
        """Who may answer, for a person who may not."""
        who = person or "nobody that is known"
        if why == "author":
            text = (
                f"question {seq} of run {run_id!r} is not for {who}, who has submitted the run: another person answers"
            )
            return AnswerRefused(text, why)
        gate = next((gate for gate in self.gates(run_id) if gate.seq == seq), None)
        rules = (gate.rules if gate else None) or AnswerRules()
        people = [*rules.assignees, *([f"people with the role {rules.role}"] if rules.role else ())]
        text = f"question {seq} of run {run_id!r} is not for {who}; it is for {', '.join(people) or 'others'}"
        return AnswerRefused(text, why, rules.assignees, rules.role)

    def question(self, run_id: str, seq: int, text_of: Callable[[GateInfo], str]) -> GateInfo | None:
        """The open question of a visit. None: it was answered with this text just now. Raises GateError as `answer`."""
        gate, answer = self._client.hmget(self._keys.of_run(run_id).gates, str(seq), f"{seq}:answer")
        if gate is None:
            raise GateError(self._closed(run_id, seq))
        found = GateInfo.of(run_id, _gate(str(seq), gate), ())
        if answer is None:
            return found
        if (given := json.loads(answer)) != text_of(found):
            raise GateError(gate_answered_text(run_id, seq, given))
        return None

    def _closed(self, run_id: str, seq: int) -> str:
        """Why a question is not open."""
        status = self._client.hget(self._keys.of_run(run_id).run, "status")
        if status in FINAL:
            return f"run {run_id!r} is {status}; its question {seq} needs no answer any more"
        return (
            f"run {run_id!r} has no open question {seq}: it was answered, has expired, or was of a run below that "
            f"is over; `sleipnir show {run_id}` lists what it waits for"
        )


def claimed_error(run_id: str, seq: int, person: str, at_ms: int, until_ms: int) -> GateClaimed:
    text = f"{person} has claimed question {seq} of run {run_id!r}, and holds it for now; take it over to answer it"
    return GateClaimed(text, person, at_ms, until_ms)


def gate_answered_text(run_id: str, seq: int, text: str, by: str = "") -> str:
    return f"question {seq} of run {run_id!r} was already answered with {text!r}" + (f" by {by}" if by else "")


def _pages(run_ids: Sequence[str]) -> Iterator[Sequence[str]]:
    return (run_ids[at : at + PAGE] for at in range(0, len(run_ids), PAGE))


def _open_gates(run_id: str, fields: Mapping[str, str], spec: str | None, namespace: str | None) -> Iterator[GateInfo]:
    path: tuple[str, ...] = ()
    of, agent = DEFAULT_NAMESPACE, ""
    gates = [_gate(name, text) for name, text in fields.items() if name.isdigit() and f"{name}:answer" not in fields]
    if spec and gates:
        with contextlib.suppress(RecordUnreadable):  # `show` says so
            read = read_text(RunSpec, spec, "spec", run_id)
            path, of, agent = tuple(read.path), read.namespace, read.agent
    if namespace not in (None, of):
        return
    for g in sorted(gates, key=lambda gate: gate.seq):
        yield replace(GateInfo.of(run_id, g, path, _handling(fields.get(f"{g.seq}:handling"), g, run_id)), agent=agent)


def _handling(text: str | None, gate: Gate, run_id: str) -> GateHandling:
    """One that a newer release wrote does not hide the question."""
    try:
        return handling_of(text, gate.attempt, run_id)
    except RecordUnreadable:
        return NO_HANDLING


def _gate(name: str, text: str) -> Gate:
    """A question; for an unreadable one, a placeholder with the reason, so that it does not hide the others."""
    try:
        return read_text(Gate, text, "question", name)
    except RecordUnreadable as error:
        return Gate(int(name), "?", "unreadable", str(error))

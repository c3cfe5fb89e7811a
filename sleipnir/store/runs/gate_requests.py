"""What people do with an open question besides answering it: claim, release, assign, snooze and comment it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from sleipnir.access.audit import audit_text
from sleipnir.errors import GateAnswered, GateError, UsageError
from sleipnir.runs.handling import MOST_COMMENTS
from sleipnir.runs.views import GateInfo
from sleipnir.store.runs.gates import Gates, claimed_error, gate_answered_text
from sleipnir.store.runs.requests import random_id
from sleipnir.store.scripts import Arg, LuaScript

_HANDLE = LuaScript("handle_gate")

Operation: TypeAlias = Literal["claim", "release", "assign", "snooze", "comment"]
_AUDITED: dict[Operation, str] = {
    "claim": "question claimed", "release": "question released", "assign": "question assigned",
    "snooze": "question snoozed", "comment": "",
}  # fmt: skip
"""The entries of the audit. That of a comment comes with its journal step."""


@dataclass(frozen=True)
class _Request:
    """The arguments of the script that only some operations use. `role` is that of who must be allowed to answer."""

    role: str = ""
    assignee: str = ""
    for_ms: int = 0
    until_ms: int = 0
    take_over: bool = False
    comment: str = ""


class GateRequests(Gates):
    """Every one is safe to repeat. It raises GateError if the question is not open, GateAnswered if it was answered."""

    def claim_gate(self, gate: GateInfo, for_ms: int, *, role: str | None, take_over: bool = False) -> int:
        """Claim a question for the person of this store, in a role, for so long. Returns until when. Raises
        GateClaimed for one that another person holds, unless it is taken over, and AnswerRefused."""
        request = _Request(role or self._person.role or "", for_ms=for_ms, take_over=take_over)
        return self._handle("claim", gate, request, {})

    def release_gate(self, gate: GateInfo) -> None:
        """End the claim of this person. Raises GateClaimed for that of another one."""
        self._handle("release", gate, _Request(), {})

    def assign_gate(self, gate: GateInfo, assignee: str | None, role: str | None) -> None:
        """Give a question to a person with this role, or (None) to nobody. Raises AnswerRefused for one who may not
        answer it."""
        self._handle("assign", gate, _Request(role or "", assignee or ""), {"assigned_to": assignee})

    def snooze_gate(self, gate: GateInfo, until_ms: int) -> None:
        """Hide a question from lists for the person of this store until then; a time that is over ends it."""
        self._handle("snooze", gate, _Request(until_ms=until_ms), {"until_ms": until_ms})

    def comment_gate(self, gate: GateInfo, text: str) -> None:
        """Say something about a question, which stays open; the scheduler writes it into the journal. The same text of
        the same person is kept once. Raises UsageError for a question that has as many comments as it keeps."""
        self._handle("comment", gate, _Request(comment=text), {})

    def claimed_by_person(self) -> list[GateInfo]:
        """The questions that the person of this store holds, as far as they are open."""
        indexes = [self._keys.of_partition(number).claimed_gates for number in range(self._keys.partitions)]
        pipe = self._client.pipeline(transaction=False)
        for index in indexes:
            pipe.zrange(index, 0, -1)
        runs = list(dict.fromkeys(name.rsplit("/", 1)[0] for names in pipe.execute() for name in names))
        found = self._gates(runs)
        return [gate for gate in found if gate.handling.claim and gate.handling.claim.person == self._person.name]

    def _handle(self, operation: Operation, gate: GateInfo, request: _Request, after: dict[str, Any]) -> int:
        run, partition = self._keys.of_run(gate.run), self._keys.of_partition(self._keys.partition_of(gate.run))
        keys = {
            "gates": run.gates, "claimed": partition.claimed_gates,
            "snoozed": partition.snoozed_gates(self._person.name), "events": run.events, "audit": partition.audit,
            "inbox": partition.inbox,
        }  # fmt: skip
        after = {"question": gate.seq, "attempt": gate.attempt, **after}
        entry = audit_text(_AUDITED[operation], f"run {gate.run}", self._by, after=after)
        args: dict[str, Arg] = {
            "op": operation, "name": f"{gate.run}/{gate.seq}", "seq": gate.seq, "attempt": gate.attempt, "by": self._by,
            "person": self._person.name, "role": request.role, "assignee": request.assignee, "for_ms": request.for_ms,
            "until_ms": request.until_ms, "token": random_id(), "take_over": "1" if request.take_over else "",
            "entry": entry, "keep_ms": self._audit_ms, "comment": request.comment, "most": MOST_COMMENTS,
        }  # fmt: skip
        reply = _HANDLE(self._client, keys, args)
        match reply[0]:
            case -1:
                raise GateError(self._closed(gate.run, gate.seq))
            case -2:
                raise self._refused(gate.run, gate.seq, reply[1], request.assignee or self._person.name)
            case -5:
                raise claimed_error(gate.run, gate.seq, *reply[1:])
            case -6:
                raise UsageError(f"question {gate.seq} of run {gate.run!r} has {MOST_COMMENTS} comments already")
            case 0:
                text = gate_answered_text(gate.run, gate.seq, json.loads(reply[1]), reply[2])
                raise GateAnswered(text, reply[2], reply[3])
        return int(reply[1])

"""Open questions as one person sees and handles them: `client.gate_inbox`.

    [gate, *_] = client.gate_inbox.page(view="mine").items
    client.gate_inbox.claim(gate)
    client.run(gate.run).answer("yes", gate)

A claim says that a person works on a question: until it ends, others answer it only after they have taken it over. An
assignment says whose work it is, and stops nobody. A snooze hides a question from what one person has to do. A comment
says something about it to those who answer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from sleipnir.client import run_queries
from sleipnir.client.gate_person import checked_comment, role_in, role_of, role_of_person
from sleipnir.errors import BundleError, GateError, RecordUnreadable, RunNotFound, UsageError
from sleipnir.graph.answer_rules import assignee_problem
from sleipnir.runs.actor import Person
from sleipnir.runs.gate_filters import GateCounts, GateFilter, GatePosition, GateView, PageOfGates

if TYPE_CHECKING:
    from sleipnir.graph.ways_on import WayOn
    from sleipnir.runs.views import GateInfo
    from sleipnir.settings import Settings
    from sleipnir.store.store import Store

CLAIM_S: Final = 900.0
"""How long a claim lasts, if nothing is said. It can be claimed again at any time."""
MOST_CLAIM_S: Final = 24 * 3600.0
MOST_SNOOZE_MS: Final = 366 * 24 * 3600 * 1000


class GateInbox:
    """The operations of one person: that of the client. Every one raises StoreUnavailable, GateError for a question
    that is not open, and GateAnswered for one that was answered; each change is written with its entry of the audit,
    and may be repeated."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store, self._settings = store, settings

    def page(
        self,
        *,
        view: GateView = "all",
        node: str | None = None,
        agent: str | None = None,
        namespace: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> PageOfGates:
        """Open questions of a namespace, the oldest first: `mine`, all that the `role` of the person may answer, `all`,
        those that are `overdue`, or that it has `snoozed`, which `mine` and `role` do not have. `after` is the cursor
        of a page, `namespace` as that of `Client.gates`. Raises UsageError."""
        position = GatePosition.of(after) if after is not None else None
        with self._store.errors():
            wanted = GateFilter(view, self._person(namespace), node, agent, self._overdue_since_ms())
            of = run_queries.one_namespace(namespace, self._settings.namespace)
            return self._store.runs.gate_page(wanted, of, position, max(1, limit))

    def walk(
        self,
        *,
        view: GateView = "all",
        node: str | None = None,
        agent: str | None = None,
        namespace: str | None = None,
    ) -> Iterator[GateInfo]:
        """All questions of a view, page by page."""
        after: str | None = None
        while True:
            page = self.page(view=view, node=node, agent=agent, namespace=namespace, after=after, limit=500)
            yield from page
            after = page.after
            if after is None:
                return

    def counts(self, *, namespace: str | None = None) -> GateCounts:
        """How many questions each view has."""
        with self._store.errors():
            wanted = GateFilter("all", self._person(namespace), overdue_since_ms=self._overdue_since_ms())
            of = run_queries.one_namespace(namespace, self._settings.namespace)
            return self._store.runs.gate_counts(wanted, of)

    def _overdue_since_ms(self) -> int:
        return self._store.now_ms() - round(self._settings.gate_overdue_s * 1000)

    def _person(self, namespace: str | None) -> Person:
        """The person with its role; of who has the password of Redis as gate_person.role_of has it."""
        person = self._store.person
        if person.role is not None:
            return person
        return Person(person.name, role_in(self._store, person.name, namespace or self._settings.namespace))

    def ways_on(self, gate: GateInfo) -> list[WayOn]:
        """Which nodes run next for each answer, as far as the graph of its run decides it; empty: the definition is not
        stored any more."""
        from sleipnir.client.pinned_graph import pinned_graph
        from sleipnir.graph.ways_on import ways_on

        with self._store.errors():
            try:
                graph = pinned_graph(self._store, self._store.runs.spec(gate.run))
            except (BundleError, RecordUnreadable, RunNotFound):
                return []
        return ways_on(graph, gate.node, gate.kind, gate.options)

    def claim(self, gate: GateInfo, *, for_s: float = CLAIM_S, take_over: bool = False) -> int:
        """Claim a question for `for_s` from now. Returns until when, in ms by Redis' clock. Raises GateClaimed for one
        that another person holds, unless it is taken over, and AnswerRefused for a person who may not answer it."""
        if not 1 <= for_s <= MOST_CLAIM_S:
            raise UsageError(f"a claim lasts from a second to {MOST_CLAIM_S / 3600:g} h, not {for_s:g} s")
        with self._store.errors():
            role = role_of(self._store, gate)
            return self._store.runs.claim_gate(gate, round(for_s * 1000), role=role, take_over=take_over)

    def release(self, gate: GateInfo) -> None:
        """End the claim of this person, if there is one. Raises GateClaimed for that of another one."""
        with self._store.errors():
            self._store.runs.release_gate(gate)

    def release_all(self) -> int:
        """End all claims of this person. Returns how many there were."""
        with self._store.errors():
            released = 0
            for gate in self._store.runs.claimed_by_person():
                with contextlib.suppress(GateError):  # it is closed, or another person has taken it over
                    self._store.runs.release_gate(gate)
                    released += 1
        return released

    def assign(self, gate: GateInfo, person: str | None) -> None:
        """Say whose work a question is; None: nobody's. Raises AnswerRefused for a person who may not answer it, and
        UsageError for one that is no user, if there are users."""
        with self._store.errors():
            if person is None:
                self._store.runs.assign_gate(gate, None, None)
                return
            if problem := assignee_problem(person):
                raise UsageError(problem)
            if self._store.access.has_users() and self._store.access.user(person) is None:
                raise UsageError(f"there is no user {person!r}")
            self._store.runs.assign_gate(gate, person, role_of_person(self._store, gate, person))

    def snooze(self, gate: GateInfo, until_ms: int | None) -> None:
        """Hide a question from what this person has to do until then, by Redis' clock; None: show it again."""
        with self._store.errors():
            now_ms = self._store.now_ms()
            if until_ms is not None and not now_ms < until_ms <= now_ms + MOST_SNOOZE_MS:
                raise UsageError("a question is snoozed until a time within the next 366 days")
            self._store.runs.snooze_gate(gate, until_ms or 0)

    def comment(self, gate: GateInfo, text: str) -> None:
        """Say something about a question without answering it: those who look at it see the comment, and the journal
        keeps it. Every approver may comment, even one who may not answer this question. The same text of the same
        person is kept once. Raises UsageError for an empty text, one that is too long, and a question with too
        many comments."""
        said = checked_comment(text)
        if said is None:
            raise UsageError("the comment is empty")
        with self._store.errors():
            self._store.runs.comment_gate(gate, said)

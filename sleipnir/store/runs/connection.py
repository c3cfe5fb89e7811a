"""What all operations of clients on runs use: the connection, the names of keys and the actor."""

from __future__ import annotations

from sleipnir.access.audit import KEEP_MS
from sleipnir.runs.actor import NOBODY, Person
from sleipnir.store.connect import Client
from sleipnir.store.keys import Keys

PAGE = 200  # runs that are read in one round trip


class RunConnection:
    """`by` is the actor, as text (runs/actor.py), and `retention_ms` is how long ended runs are kept at least,
    `audit_ms` an entry of the audit. `person` is who answers gates."""

    def __init__(
        self,
        client: Client,
        keys: Keys,
        by: str = "",
        retention_ms: int = 0,
        audit_ms: int = KEEP_MS,
        person: Person = NOBODY,
    ) -> None:
        self._client, self._keys, self._by, self._retention_ms = client, keys, by, retention_ms
        self._audit_ms, self._person = audit_ms, person

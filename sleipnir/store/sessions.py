"""The clients' operations on sessions: read, add without a run, remove. Runs add to a session by their commit."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from sleipnir.errors import SessionBusy
from sleipnir.runs.conversation_pages import PageOfConversations
from sleipnir.runs.sessions import SessionName
from sleipnir.runs.views import SessionInfo
from sleipnir.store.connect import Client
from sleipnir.store.conversation_lists import newest_names
from sleipnir.store.keys import Keys
from sleipnir.store.record_text import dumps
from sleipnir.store.scripts import Arg, LuaScript

_CHANGE = LuaScript("change_session")
_FIELDS = ("created_ms", "used_ms", "run", "busy", "dropped")


class Sessions:
    """Sessions, for clients."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client, self._keys = client, keys

    def page(
        self, agent: str | None, namespace: str | None, limit: int, after: str | None
    ) -> PageOfConversations[SessionInfo]:
        """Permanent sessions of an agent (None: of all) in a namespace (None: in all), the last used first, after a
        cursor. Raises UsageError."""

        def fits(text: str) -> bool:
            name = SessionName.of_text(text)
            return agent in (None, name.agent) and namespace in (None, name.namespace)

        indexes = [self._keys.of_partition(partition).sessions for partition in range(self._keys.partitions)]
        found = newest_names(self._client, indexes, fits, limit, after)
        return PageOfConversations(self._read(list(map(SessionName.of_text, found.names))), found.after)

    def all(self) -> list[SessionInfo]:
        """The permanent sessions of all agents."""
        return self._read(self._listed())

    def _listed(self) -> list[SessionName]:
        pipe = self._client.pipeline(transaction=False)
        for partition in range(self._keys.partitions):
            pipe.zrange(self._keys.of_partition(partition).sessions, 0, -1)
        return [SessionName.of_text(listed) for reply in pipe.execute() for listed in reply]

    def info(self, name: SessionName) -> SessionInfo | None:
        """None: there is no such session."""
        return next(iter(self._read([name])), None)

    def _read(self, names: Sequence[SessionName]) -> list[SessionInfo]:
        pipe = self._client.pipeline(transaction=False)
        for name in names:
            keys = self._keys.of_session(name)
            pipe.hmget(keys.session, _FIELDS)
            pipe.llen(keys.messages)
        replies = pipe.execute()
        return [
            SessionInfo(
                name.agent,
                name.name,
                int(created),
                int(used),
                messages,
                run if busy else None,
                int(dropped or 0),
                name.namespace,
            )
            for name, (created, used, run, busy, dropped), messages in zip(
                names, replies[::2], replies[1::2], strict=True
            )
            if created is not None
        ]

    def messages(self, name: SessionName) -> list[dict[str, Any]]:
        """The messages of a session, oldest first; empty if there is no such session."""
        return [json.loads(text) for text in self._client.lrange(self._keys.of_session(name).messages, 0, -1)]

    def add(self, name: SessionName, messages: Sequence[Mapping[str, Any]]) -> bool:
        """Add messages. False: there is no such session. Raises SessionBusy."""
        return self._change(name, 0, [dumps(message) for message in messages])

    def remove(self, name: SessionName) -> bool:
        """Delete a session. False: there is no such session. Raises SessionBusy."""
        return self._change(name, 1)

    def _change(self, name: SessionName, remove: int, added: Sequence[Arg] = ()) -> bool:
        keys = self._keys.of_session(name)
        partition = self._keys.of_partition(self._keys.partition_of(str(name)))
        slots = {"session": keys.session, "messages": keys.messages, "sessions": partition.sessions}
        code, run = _CHANGE(
            self._client, slots, {"name": str(name), "remove": remove, "token": secrets.token_hex(6)}, added
        )
        if code == -1:
            raise SessionBusy.by(name.name, name.agent, run)
        return bool(code)

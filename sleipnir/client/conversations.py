"""What goes on over several runs: threads, sessions, and the values that the runs of an agent share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from sleipnir.client import run_queries
from sleipnir.runs.cards import checked_namespace
from sleipnir.runs.conversation_pages import MOST_OF_PAGE, PageOfConversations
from sleipnir.runs.views import RunInfo, SessionInfo, ThreadInfo

if TYPE_CHECKING:
    from sleipnir.runs.sessions import SessionName
    from sleipnir.runs.shared_values import SharedInfo
    from sleipnir.runs.threads import ThreadName
    from sleipnir.settings import Settings
    from sleipnir.store.store import Store

T = TypeVar("T")


class Conversations:
    """The methods of Client for threads, sessions and shared values."""

    store: Store
    settings: Settings

    def threads(
        self,
        agent: str | None = None,
        *,
        namespace: str | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> PageOfConversations[ThreadInfo]:
        """The threads of an agent (None: of all), the one used last first: up to `limit`, 500 at most, after the cursor
        of the page before; without a limit all of them. `namespace` as that of `runs`."""
        with self.store.errors():
            of = run_queries.one_namespace(namespace, self.settings.namespace)
            return _pages(lambda most, at: self.store.threads.page(agent, of, most, at), limit, after)

    def thread(self, agent: str, name: str, *, namespace: str | None = None) -> ThreadInfo | None:
        """None: there is no such thread in the namespace (None: that of SLEIPNIR_NAMESPACE, or `default`)."""
        with self.store.errors():
            return self.store.threads.info(self._thread_name(agent, name, namespace))

    def thread_runs(self, agent: str, name: str, limit: int = 50, *, namespace: str | None = None) -> list[RunInfo]:
        """The runs of a thread, also queued ones, the last one first, as far back as they are stored; none if there is
        no such thread."""
        thread, found = self.thread(agent, name, namespace=namespace), list[RunInfo]()
        run = None if thread is None else thread.queued[-1] if thread.queued else thread.run
        with self.store.errors():
            while run is not None and len(found) < limit:
                [info] = self.store.runs.find([run])
                if info is None:
                    break
                found.append(info)
                run = info.previous
        return found

    def remove_thread(self, agent: str, name: str, *, namespace: str | None = None) -> bool:
        """Remove a thread. Its runs stay as long as other ended runs. False: there is no such thread. Raises
        ThreadBusy."""
        with self.store.errors():
            return self.store.threads.remove(self._thread_name(agent, name, namespace))

    def shared_values(self, agent: str, user: str | None = None) -> dict[str, Any]:
        """The values of an agent for all its runs, or those of one of its users, by key without their scope."""
        from sleipnir.runs.shared_values import shared_name

        name = shared_name(agent, user)
        with self.store.errors():
            [values] = self.store.shared_values.read([name])
        return values

    def set_shared_values(self, agent: str, values: Mapping[str, Any], user: str | None = None) -> None:
        """Set values of an agent for all its runs, or for those of a user: JSON by key without its scope. Others stay.
        Runs that have begun do not see them. Raises UsageError, also if they are too many or too large."""
        from sleipnir.runs.shared_values import shared_name, texts_of

        name, texts = shared_name(agent, user), texts_of(values)
        with self.store.errors():
            self.store.shared_values.write(name, texts)

    def remove_shared_values(self, agent: str, keys: Collection[str] | None = None, user: str | None = None) -> int:
        """Remove values of an agent, or of a user of it; without `keys` all of them. Returns how many there were. A run
        that goes on may write them again."""
        from sleipnir.runs.shared_values import shared_name

        name = shared_name(agent, user)
        with self.store.errors():
            return self.store.shared_values.remove(name, keys)

    def shared_value_counts(self, agent: str | None = None) -> list[SharedInfo]:
        """The agents, and their users, that have shared values; of all agents, or of one."""
        with self.store.errors():
            return self.store.shared_values.listed(agent)

    def sessions(
        self,
        agent: str | None = None,
        *,
        namespace: str | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> PageOfConversations[SessionInfo]:
        """The sessions of an agent (None: of all), as `threads`; temporary ones are not listed."""
        with self.store.errors():
            of = run_queries.one_namespace(namespace, self.settings.namespace)
            return _pages(lambda most, at: self.store.sessions.page(agent, of, most, at), limit, after)

    def session(self, agent: str, name: str, *, namespace: str | None = None) -> SessionInfo | None:
        """None: there is no such session in the namespace (None: that of SLEIPNIR_NAMESPACE, or `default`)."""
        with self.store.errors():
            return self.store.sessions.info(self._session_name(agent, name, namespace))

    def said(self, agent: str, session: str, *, namespace: str | None = None) -> list[dict[str, Any]]:
        """The messages of a session, oldest first, in the format for models; none if the session does not exist."""
        with self.store.errors():
            return self.store.sessions.messages(self._session_name(agent, session, namespace))

    def add_to_session(
        self, agent: str, session: str, messages: Sequence[Mapping[str, Any]], *, namespace: str | None = None
    ) -> bool:
        """Append messages to a session. False: there is no such session. Raises SessionBusy."""
        with self.store.errors():
            return self.store.sessions.add(self._session_name(agent, session, namespace), messages)

    def remove_session(self, agent: str, session: str, *, namespace: str | None = None) -> bool:
        """Delete a session. False: there is no such session. Raises SessionBusy."""
        with self.store.errors():
            return self.store.sessions.remove(self._session_name(agent, session, namespace))

    def _thread_name(self, agent: str, name: str, namespace: str | None) -> ThreadName:
        """Raises UsageError for what cannot name a namespace."""
        from sleipnir.runs.threads import ThreadName

        return ThreadName(agent, name, checked_namespace(namespace or self.settings.namespace))

    def _session_name(self, agent: str, name: str, namespace: str | None) -> SessionName:
        """Raises UsageError for what cannot name a namespace."""
        from sleipnir.runs.sessions import SessionName

        return SessionName(agent, name, checked_namespace(namespace or self.settings.namespace))


def _pages(
    read: Callable[[int, str | None], PageOfConversations[T]], limit: int | None, after: str | None
) -> PageOfConversations[T]:
    """One page, or (`limit` None) all of them as one."""
    if limit is not None:
        return read(limit, after)
    found: list[T] = []
    while True:
        page = read(MOST_OF_PAGE, after)
        found += page
        after = page.after
        if after is None:
            return PageOfConversations(found)

"""What goes on over several runs: threads, sessions, and the values that the runs of an agent share."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sleipnir.runs.views import RunInfo, SessionInfo, ThreadInfo

if TYPE_CHECKING:
    from sleipnir.runs.shared_values import SharedInfo
    from sleipnir.store.store import Store


class Conversations:
    """The methods of Client for threads, sessions and shared values."""

    store: Store

    def threads(self, agent: str | None = None) -> list[ThreadInfo]:
        """The threads of an agent (None: of all), the one used last first."""
        with self.store.errors():
            return self.store.threads.all() if agent is None else self.store.threads.of_agent(agent)

    def thread(self, agent: str, name: str) -> ThreadInfo | None:
        """None: there is no such thread."""
        from sleipnir.runs.threads import ThreadName

        with self.store.errors():
            return self.store.threads.info(ThreadName(agent, name))

    def thread_runs(self, agent: str, name: str, limit: int = 50) -> list[RunInfo]:
        """The runs of a thread, also queued ones, the last one first, as far back as they are stored; none if there is
        no such thread."""
        thread, found = self.thread(agent, name), list[RunInfo]()
        run = None if thread is None else thread.queued[-1] if thread.queued else thread.run
        with self.store.errors():
            while run is not None and len(found) < limit:
                [info] = self.store.runs.find([run])
                if info is None:
                    break
                found.append(info)
                run = info.previous
        return found

    def remove_thread(self, agent: str, name: str) -> bool:
        """Remove a thread. Its runs stay as long as other ended runs. False: there is no such thread. Raises
        ThreadBusy."""
        from sleipnir.runs.threads import ThreadName

        with self.store.errors():
            return self.store.threads.remove(ThreadName(agent, name))

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

    def sessions(self, agent: str) -> list[SessionInfo]:
        """The agent's sessions, the one used last first; temporary ones are not listed."""
        with self.store.errors():
            return self.store.sessions.of_agent(agent)

    def session(self, agent: str, name: str) -> SessionInfo | None:
        """None: there is no such session."""
        from sleipnir.runs.sessions import SessionName

        with self.store.errors():
            return self.store.sessions.info(SessionName(agent, name))

    def said(self, agent: str, session: str) -> list[dict[str, Any]]:
        """The messages of a session, oldest first, in the format for models; none if the session does not exist."""
        from sleipnir.runs.sessions import SessionName

        with self.store.errors():
            return self.store.sessions.messages(SessionName(agent, session))

    def add_to_session(self, agent: str, session: str, messages: Sequence[Mapping[str, Any]]) -> bool:
        """Append messages to a session. False: there is no such session. Raises SessionBusy."""
        from sleipnir.runs.sessions import SessionName

        with self.store.errors():
            return self.store.sessions.add(SessionName(agent, session), messages)

    def remove_session(self, agent: str, session: str) -> bool:
        """Delete a session. False: there is no such session. Raises SessionBusy."""
        from sleipnir.runs.sessions import SessionName

        with self.store.errors():
            return self.store.sessions.remove(SessionName(agent, session))

"""The messages of earlier turns that a turn of a thread begins with (spec/graph-package.md F50, F51).

`history: request` begins without them. `session: {max_history: N}` keeps the newest N: whole turns, and at least the
last one. A turn begins with a message of the user. System messages at the front always stay. With a summary the turn
begins with all messages: those that the summary covers are not sent.

The isolated modes begin without them too, and llm nodes send no messages that nodes of other agents have added
(`isolated_request`), or nodes of other runs (`isolated_invocation`), and that were mapped into the state. The last
message of a user is always sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sleipnir.graph.message_keys import MESSAGES, Author, author_of
from sleipnir.graph.model import Graph, Json

_USER: Final = "user"


def cuts(graph: Graph) -> bool:
    """Whether a turn may begin with fewer messages than its thread has."""
    return graph.history != "full" or (graph.max_history is not None and graph.summary is None)


def at_start(graph: Graph, state: Mapping[str, Any]) -> Mapping[str, Any]:
    """The state that a thread has, with the messages that its next turn begins with."""
    messages = state.get(MESSAGES)
    if not cuts(graph) or not isinstance(messages, list):
        return state
    return {**state, MESSAGES: kept(graph, messages)}


def kept(graph: Graph, messages: Sequence[Json]) -> list[Json]:
    """Those of the messages of earlier turns that the next turn begins with."""
    if graph.history != "full":
        return []
    first = next((place for place, each in enumerate(messages) if _role(each) != "system"), len(messages))
    earlier = list(messages[first:])
    if not cuts(graph) or graph.max_history is None or len(earlier) <= graph.max_history:
        return list(messages)
    turns = [place for place, each in enumerate(earlier) if _role(each) == _USER]
    least = len(earlier) - graph.max_history
    begin = next((place for place in turns if place >= least), turns[-1] if turns else least)
    return [*messages[:first], *earlier[begin:]]


def sent_of(graph: Graph, messages: Sequence[Mapping[str, Any]], own: Author, agent: str) -> list[Mapping[str, Any]]:
    """The messages of the state that an llm node of this author sends; `agent` is the name of its agent."""
    if not graph.history.startswith("isolated"):
        return list(messages)
    last = max((place for place, each in enumerate(messages) if _role(each) == _USER), default=None)
    by_run, names = graph.history == "isolated_invocation", {own.agent} if own.agent else {"", agent}

    def is_own(author: Author | None) -> bool:
        return author is None or (author.run == own.run if by_run else author.agent in names)

    return [each for place, each in enumerate(messages) if place == last or is_own(author_of(each))]


def _role(message: Json) -> str:
    role = str(message.get("role")) if isinstance(message, dict) else ""
    return _USER if role == "human" else role

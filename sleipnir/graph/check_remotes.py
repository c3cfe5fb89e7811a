"""Rules about `agents`, the remote agents of a graph: their addresses, the names of their tokens, and their own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from sleipnir.graph.check_case import Case, Rule
from sleipnir.graph.findings import KeyPath
from sleipnir.graph.model import remotes_of

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", re.ASCII)
TOKEN_NAME: Final = re.compile(r"[A-Z][A-Z0-9_]{0,63}", re.ASCII)
MOST_CHARACTERS: Final = 2_000


def every_remote_agent_has_an_address(case: Case) -> None:
    for name, remote in case.graph.agents.items():
        path: KeyPath = ("agents", name)
        if not NAME.fullmatch(name):
            hint = "It has up to 64 letters, digits, _ and -."
            case.findings.error(path, f"{name[:64]!r} is no name of a remote agent", hint)
        if (problem := _problem(remote.a2a)) is not None:
            hint = "Write the address of its endpoint, or of its card: `a2a: https://agents.example.com/risk`."
            case.findings.error((*path, "a2a"), f"'a2a' of agent '{name}' {problem}", hint)
        if remote.token is not None and not TOKEN_NAME.fullmatch(remote.token):
            hint = "It names a variable of the workers, SLEIPNIR_REMOTE_TOKEN_NAME: write `token: NAME`."
            message = f"'token' of agent '{name}' must be a name of capital letters, digits and _"
            case.findings.error((*path, "token"), message, hint)


def every_remote_agent_has_a_name_of_its_own(case: Case) -> None:
    """A run of a remote agent is found by its name in the whole document."""
    known = remotes_of(case.graph)
    for name in case.graph.agents:
        if name in case.graph.graphs:
            case.findings.error(("agents", name), f"'{name}' is also one of the `graphs`", "Rename one of the two.")
    for below, graph in case.graph.graphs.items():
        for name, remote in graph.agents.items():
            if known[name] != remote:
                message = f"graph '{below}' has another remote agent '{name}'"
                case.findings.error(("graphs", below, "agents", name), message, "Rename one of the two.")


def _problem(url: str) -> str | None:
    """What is wrong with an address. None: nothing."""
    if len(url) > MOST_CHARACTERS or not url.isascii() or any(character <= " " for character in url):
        return f"must be a URL of at most {MOST_CHARACTERS:,} ASCII characters without spaces"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        return f"is no URL: {error}"
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        return "must be a URL that begins with https:// or http://"
    if parts.username is not None or parts.password is not None:
        return "must not have a user or a password: name a `token`"
    return "must not have a query or a fragment" if parts.query or parts.fragment else None


RULES: Sequence[Rule] = (every_remote_agent_has_an_address, every_remote_agent_has_a_name_of_its_own)

"""The commands of a chat: `.help` etc. (spec 2.14, 3.5, 3.6, 5).

Rule. Output of a command goes to stderr, like everything except the agent's answers.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sleipnir.cli.terminal.terminal import note
from sleipnir.errors import UsageError
from sleipnir.runs.plain_text import one_line, printable
from sleipnir.runs.sessions import NO_SESSION_HERE, NO_SESSIONS, checked

if TYPE_CHECKING:
    from sleipnir.client.client import Client
    from sleipnir.graph.load import AgentFolder
    from sleipnir.graph.model import Graph

_COMMAND = re.compile(r"\.[a-z]+(\s|$)")


@dataclass
class ChatState:
    """The agent of a chat, and the parameters of the next message. `agent` is the argument, a name or a path."""

    client: Client
    agent: str
    folder: AgentFolder
    session: str | None = None
    variables: dict[str, str] = field(default_factory=dict)
    cwd: Path | None = None

    @property
    def name(self) -> str:
        """The agent's."""
        return self.folder.name

    def given(self) -> dict[str, str]:
        """The variables of the next message: an edited agent may have lost some."""
        known = {variable.name for variable in self.definition().variables}
        return {name: value for name, value in self.variables.items() if name in known}

    def definition(self) -> Graph:
        """The current definition in the agent's folder, which may be edited between two messages."""
        return self.client.definition(self.agent)

    @property
    def is_loop(self) -> bool:
        """Whether the agent has a config.yaml."""
        return self.definition().loop is not None

    def starters(self) -> list[str]:
        """The conversation starters, with variables inserted."""
        from sleipnir.agents.placeholders import interpolated, special_variables

        special = special_variables(os.environ, self.cwd or Path.cwd(), datetime.now().astimezone())
        starters = self.definition().conversation_starters
        return [interpolated(starter, values_of(self), special) for starter in starters]


@dataclass(frozen=True)
class SendMessage:
    """The command is replaced by this message."""

    text: str


class EndChat:
    """The chat is over."""


Then = SendMessage | EndChat | None


def is_command(line: str) -> bool:
    """Whether a line is a command, and not a message that begins with a full stop."""
    return _COMMAND.match(line) is not None


def do(line: str, chat: ChatState) -> Then:
    """Execute a command and return its effect on the chat. Raises UsageError."""
    name, *rest = line.split(maxsplit=1)
    command = COMMANDS.get(name)
    if command is None:
        raise UsageError(f"there is no command {name!r}; .help lists them")
    return command.act(chat, rest[0].strip() if rest else "")


def _help(chat: ChatState, words: str) -> None:
    for name, command in COMMANDS.items():
        note(f"  {f'{name} {command.takes}'.rstrip():<24}{command.help}")
    note("Ctrl-C stops the current answer, Ctrl-D leaves. All other input is a message.")


def _info(chat: ChatState, words: str) -> None:
    graph = chat.definition()
    kind = "graph.yaml, which starts again with each message" if graph.loop is None else "config.yaml"
    note(f"  agent       {chat.name} ({kind})")
    note(f"  folder      {chat.folder.path}")
    if graph.description:
        note(f"  about       {one_line(graph.description, 300)}")
    if graph.model:
        note(f"  model       {printable(graph.model)}")
    if graph.loop is not None:
        note(f"  session     {chat.session or 'none: messages are independent'}")
    for number, (name, value) in enumerate(values_of(chat).items()):
        note(f"  {'' if number else 'variables':<11} {name} = {one_line(value, 100)}")
    if graph.conversation_starters:
        note(f"  starters    {len(graph.conversation_starters)}; .starter lists them")


def _starter(chat: ChatState, words: str) -> Then:
    starters = chat.starters()
    if not starters:
        note(f"agent {chat.name!r} has no conversation starters")
        return None
    if not words:
        for number, starter in enumerate(starters, 1):
            note(f"  {number}. {one_line(starter)}")
        return None
    if not (words.isascii() and words.isdigit() and 1 <= int(words) <= len(starters)):
        raise UsageError(f"there is no starter {words!r}; type a number from 1 to {len(starters)}")
    starter = starters[int(words) - 1]
    note(printable(starter))
    return SendMessage(starter)


def _variable(chat: ChatState, words: str) -> None:
    if not words:
        for name, value in values_of(chat).items():
            note(f"  {name} = {one_line(value)}")
        return
    name, _, value = words.partition(" ")
    known = [variable.name for variable in chat.definition().variables]
    if name not in known:
        raise UsageError(f"agent {chat.name!r} has no variable {name!r}; it declares: {', '.join(known) or 'none'}")
    if not value:
        raise UsageError(f"write .variable {name} VALUE")
    chat.variables[name] = value.strip()


def _clear(chat: ChatState, words: str) -> None:
    if words != "todo":
        raise UsageError("write .clear todo")
    loop = chat.definition().loop
    if loop is None or not loop.auto_continue:
        raise UsageError(f"agent {chat.name!r} keeps no todo list (auto_continue)")
    if chat.session is not None:
        chat.client.add_to_session(chat.name, chat.session, _CLEARED)
    note("the todo list is cleared")


_CLEARED: tuple[dict[str, Any], ...] = (
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "cleared_by_user", "type": "function", "function": {"name": "todo__clear", "arguments": "{}"}}
        ],
    },
    {
        "role": "tool",
        "tool_call_id": "cleared_by_user",
        "content": json.dumps({"status": "ok", "message": "Todo list cleared"}),
    },
)
"""A list is derived from the calls in a conversation."""


def _session(chat: ChatState, words: str) -> None:
    if not chat.is_loop:
        raise UsageError((NO_SESSIONS if words else NO_SESSION_HERE).format(agent=chat.name))
    if words:
        chat.session = checked(words)
    if chat.session is None:
        note("  no session: messages are independent; .session NAME starts or continues one")
        return
    session = chat.client.session(chat.name, chat.session)
    note(f"  session {chat.session}: {session.messages if session else 0} messages")


def _exit(chat: ChatState, words: str) -> Then:
    return EndChat()


@dataclass(frozen=True)
class ChatCommand:
    """`takes` is the name of its arguments in the list of commands."""

    act: Callable[[ChatState, str], Then]
    help: str
    takes: str = ""


COMMANDS: Mapping[str, ChatCommand] = {
    ".help": ChatCommand(_help, "List the commands."),
    ".info": ChatCommand(_info, "Show the agent, its session and its variables."),
    ".starter": ChatCommand(_starter, "List the conversation starters, or send one.", "[N]"),
    ".variable": ChatCommand(
        _variable, "Show the variables, or change one for the following messages.", "[NAME VALUE]"
    ),
    ".clear": ChatCommand(_clear, "Empty the agent's todo list.", "todo"),
    ".session": ChatCommand(_session, "Show the session, or change to another one.", "[NAME]"),
    ".exit": ChatCommand(_exit, "Leave."),
}


def values_of(chat: ChatState) -> dict[str, str]:
    """The agent's current variables."""
    declared = {each.name: each.default for each in chat.definition().variables}
    return {name: chat.variables.get(name, default) or "" for name, default in declared.items()}

"""What can be typed in a chat besides messages, with a real store behind it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sleipnir.agents.finding import look_up
from sleipnir.cli.chat.commands import COMMANDS, ChatState, EndChat, SendMessage, do, is_command
from sleipnir.cli.chat.input import InputLines
from sleipnir.cli.runs.session import refuse_session, session_of
from sleipnir.client.client import Client
from sleipnir.errors import SessionBusy, UsageError
from sleipnir.settings import Settings
from tests.processes import RedisServer

CONFIG = """
name: Friend
description: Talks about towns.
model: openai:gpt-test
auto_continue: true
conversation_starters: ["How is {{town}}, {{who}}?", Hello]
variables:
  - {name: town, description: where, default: Oslo}
  - {name: who, description: who you are}
"""


@pytest.fixture
def chat(redis_server: RedisServer, tmp_path: Path) -> Iterator[ChatState]:
    folder = tmp_path / "friend"
    folder.mkdir()
    (folder / "config.yaml").write_text(CONFIG)
    settings = Settings(**redis_server.addresses, home=tmp_path / "home", key_prefix=tmp_path.name, partitions=2)
    with Client(settings) as client:
        yield ChatState(client, str(folder), look_up(folder, settings), "desk", {"who": "Kim"})


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        (".help", True),
        (".starter 2", True),
        (".nope", True),
        ("... and?", False),
        ("hello .help", False),
        (".5", False),
    ],
)
def test_a_message_may_begin_with_a_full_stop(line: str, answer: bool) -> None:
    assert is_command(line) is answer


def test_help_lists_every_command(chat: ChatState, capsys: pytest.CaptureFixture[str]) -> None:
    assert do(".help", chat) is None
    printed = capsys.readouterr()
    assert printed.out == ""
    assert [line.split()[0] for line in printed.err.splitlines()[:-1]] == list(COMMANDS)


def test_info_shows_the_agent_its_session_and_its_variables(
    chat: ChatState, capsys: pytest.CaptureFixture[str]
) -> None:
    do(".info", chat)
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().err.splitlines()]
    assert lines == [
        ["agent", "friend (config.yaml)"], ["folder", chat.agent], ["about", "Talks about towns."],
        ["model", "openai:gpt-test"], ["session", "desk"], ["variables", "town = Oslo"], ["who", "= Kim"],
        ["starters", "2; .starter lists them"],
    ]  # fmt: skip


@pytest.mark.conformance("T09", "C09")
def test_starters_are_listed_and_sent_with_variables_put_in(
    chat: ChatState, capsys: pytest.CaptureFixture[str]
) -> None:
    assert do(".starter", chat) is None
    assert capsys.readouterr().err == "  1. How is Oslo, Kim?\n  2. Hello\n"
    do(".variable town  New York", chat)
    assert do(".starter 1", chat) == SendMessage("How is New York, Kim?")
    for wrong in ("0", "3", "x", "²"):
        with pytest.raises(UsageError, match="type a number from 1 to 2"):
            do(f".starter {wrong}", chat)


def test_variables_hold_for_the_messages_to_come(chat: ChatState, capsys: pytest.CaptureFixture[str]) -> None:
    do(".variable town Bergen", chat)
    do(".variable", chat)
    assert capsys.readouterr().err == "  town = Bergen\n  who = Kim\n"
    assert chat.variables == {"who": "Kim", "town": "Bergen"}
    with pytest.raises(UsageError, match="has no variable 'x'; it declares: town, who"):
        do(".variable x 1", chat)
    with pytest.raises(UsageError, match=r"write \.variable town VALUE"):
        do(".variable town", chat)


def test_the_session_is_shown_and_changed(chat: ChatState, capsys: pytest.CaptureFixture[str]) -> None:
    do(".session", chat)
    do(".session other", chat)
    assert chat.session == "other"
    assert capsys.readouterr().err == "  session desk: 0 messages\n  session other: 0 messages\n"
    with pytest.raises(UsageError, match="cannot name a session"):
        do(".session a/b", chat)
    do(".session temp", chat)
    assert chat.session.startswith("temp-")


def test_clearing_the_todo_list_is_noted_in_the_session_and_refused_while_it_is_busy(chat: ChatState) -> None:
    assert chat.session is not None
    do(".clear todo", chat)  # nothing was said yet
    with pytest.raises(UsageError, match=r"write \.clear todo"):
        do(".clear", chat)
    run = chat.client.submit(chat.agent, "hi", variables=chat.variables, session=chat.session)
    with pytest.raises(SessionBusy, match=run.id):
        do(".clear todo", chat)
    assert chat.client.said(chat.name, chat.session) == []


def test_the_agent_s_own_session_holds_where_no_other_is_asked_for(chat: ChatState) -> None:
    """`temp` too; what becomes of that is the command's."""
    assert session_of(chat.client, chat.agent, None, False) is None
    file = Path(chat.agent) / "config.yaml"
    file.write_text(f"{CONFIG}agent_session: desk\n")
    assert session_of(chat.client, chat.agent, None, False) == "desk"
    assert session_of(chat.client, chat.agent, "other", False) == "other"
    assert session_of(chat.client, chat.agent, None, True) is None
    with pytest.raises(UsageError, match="exclude each other"):
        refuse_session("desk", True, chat.folder)


def test_an_unknown_command_is_reported(chat: ChatState) -> None:
    assert isinstance(do(".exit", chat), EndChat)
    with pytest.raises(UsageError, match=r"there is no command '\.nope'"):
        do(".nope", chat)


def test_piped_lines_are_read_one_by_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("one\r\n\n two \nlast")
    history = tmp_path / "history"
    with (tmp_path / "in").open(newline="") as piped:
        monkeypatch.setattr("sys.stdin", piped)
        typed = InputLines("> ", history=history)
        assert [typed.read() for _ in range(5)] == ["one", "", " two ", "last", None]
        typed.close()
    assert not history.exists()

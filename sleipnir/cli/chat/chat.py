"""`chat`: exchange messages with an agent.

Each message is a separate run. Runs of an agent with a config.yaml continue a session; a graph starts again with each
message.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sleipnir.cli import exit_codes
from sleipnir.cli.chat.commands import COMMANDS, ChatState, EndChat, SendMessage, do, is_command
from sleipnir.cli.chat.input import InputLines
from sleipnir.cli.failures import report
from sleipnir.cli.knowledge.building import BuildView, asker
from sleipnir.cli.options import GlobalOptions, pass_options
from sleipnir.cli.runs import agent_warnings
from sleipnir.cli.runs.follow import STREAM, follow, print_result
from sleipnir.cli.runs.gate_answers import NoAnswer, ScriptedAnswers, answer_gate, variable_asker
from sleipnir.cli.runs.parameters import AGENT, AGENT_VARIABLE, CWD, VAR, Pairs
from sleipnir.cli.runs.run import leave_waiting
from sleipnir.cli.runs.session import NO_SESSION, SESSION, refuse_session, session_of
from sleipnir.cli.terminal import terminal
from sleipnir.errors import SleipnirError, UsageError
from sleipnir.runs.plain_text import one_line
from sleipnir.runs.sessions import TEMP, SessionName, checked

if TYPE_CHECKING:
    from sleipnir.client.client import Client, Run

STOP_S = 15.0  # a script that is killed takes a heartbeat or two


@click.command()
@AGENT
@VAR
@AGENT_VARIABLE
@SESSION
@NO_SESSION
@CWD
@STREAM
@pass_options
def chat(
    options: GlobalOptions,
    agent: str,
    variables: Pairs,
    agent_variables: Pairs,
    session: str | None,
    without_session: bool,
    cwd: Path | None,
    stream: bool | None,
) -> int:
    """Chat with AGENT: each line is a message, its answer is printed on stdout. `.help` lists the commands.

    An agent with a config.yaml keeps the conversation: in the session NAME, or else until the chat ends. A graph starts
    again with each message. Ctrl-C stops the current answer, Ctrl-D leaves. Without a terminal each line of standard
    input is a message.

    Exit codes: 0, and without a terminal the code of the last message that was not answered: 1 its run failed, 2 it was
    refused, 3 it waits for an answer to a question, which ends the chat; 130 interrupted.
    """
    from sleipnir.agents.finding import look_up
    from sleipnir.agents.variables import resolved_variables

    settings = options.settings()
    folder = look_up(agent, settings)  # before a stack is started for an agent that does not exist
    refuse_session(session, without_session, folder)
    agent_warnings.warn(agent, folder, settings)
    with options.connected(workers=True) as client:
        agent_warnings.tell_warnings(client, agent, ())
        graph = client.definition(agent)
        given = resolved_variables(graph, dict([*agent_variables, *variables]), os.environ, variable_asker())
        with BuildView() as view:
            client.prepare_knowledge(agent, ask_knowledge=asker(view), tell_knowledge=view.report)
        name = session_of(client, agent, session, without_session)
        if graph.loop is not None and not without_session:
            name = checked(name or TEMP)
        talk = ChatState(client, agent, folder, name, given, cwd)
        typed = InputLines(f"{folder.name}> ", history=settings.home / "chat_history", words=list(COMMANDS))
        if terminal.can_ask():
            _welcome(talk)
        try:
            return _ChatLines(talk, options, stream).talk(typed)
        except KeyboardInterrupt:  # there is no person, and nothing under way
            return exit_codes.INTERRUPTED
        finally:
            typed.close()
            _forget_temporary(client, SessionName(folder.name, name or ""))


def _welcome(talk: ChatState) -> None:
    terminal.note(f"chat with {talk.name}; .help lists the commands, Ctrl-D leaves")
    for number, starter in enumerate(talk.starters(), 1):
        terminal.note(f"  .starter {number}  {one_line(starter, 100)}")


def _forget_temporary(client: Client, session: SessionName) -> None:
    """Remove the temporary session. If that fails now, it expires."""
    if session.expire_ms is not None:
        with contextlib.suppress(SleipnirError):
            client.remove_session(session.agent, session.name)


class _ChatLines:
    """Reads lines until the end of the input."""

    def __init__(self, talk: ChatState, options: GlobalOptions, stream: bool | None) -> None:
        self._talk, self._options, self._stream = talk, options, stream
        self._has_person = terminal.can_ask()

    def talk(self, typed: InputLines) -> int:
        """Answer lines until the chat ends. Returns the exit code of the last one."""
        code = exit_codes.COMPLETED
        while (line := typed.read()) is not None:
            if not line.strip():
                continue
            try:
                then = do(line.strip(), self._talk) if is_command(line.strip()) else SendMessage(line)
                if isinstance(then, EndChat):
                    break
                result = self._say(then.text) if isinstance(then, SendMessage) else exit_codes.COMPLETED
            except SleipnirError as failure:
                result = report(failure, verbose=bool(self._options.verbose))
            except KeyboardInterrupt:  # between two things that can be stopped
                terminal.note("")
                result = exit_codes.INTERRUPTED
            code = result or code
            if not self._has_person and result in (exit_codes.WAITING, exit_codes.INTERRUPTED):
                break
        return exit_codes.COMPLETED if self._has_person else code

    def _say(self, text: str) -> int:
        """Send a message, and print the answer. Returns the exit code of its run."""
        talk, run = self._talk, None
        try:
            with _unhurried():
                run = talk.client.submit(talk.agent, text, variables=talk.variables, cwd=talk.cwd, session=talk.session)
            started = run
            asked = ScriptedAnswers(())
            follow(
                started,
                lambda gate: answer_gate(started, gate, asked),
                stream=self._stream,
                brief=talk.is_loop,
                options=self._options,
            )
            return print_result(started)
        except NoAnswer:
            assert run is not None
            return leave_waiting(run, self._options, as_data=False, stream=self._stream)
        except KeyboardInterrupt:
            terminal.note("")
            if run is not None:
                _stop(run)
            return exit_codes.INTERRUPTED


def _stop(run: Run) -> None:
    """Cancel a run and wait for its end: until then its session accepts no other message."""
    with contextlib.suppress(UsageError):  # it has ended in time
        run.cancel()
    try:
        run.wait(STOP_S)
        terminal.note(f"run {run.id} was {run.status}")
    except (TimeoutError, KeyboardInterrupt):
        terminal.note(f"run {run.id} is being cancelled")


@contextlib.contextmanager
def _unhurried() -> Iterator[None]:
    """Ctrl-C comes when this is over: a run that was accepted must be known, to be cancelled."""
    pressed: list[Any] = []
    before = signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt

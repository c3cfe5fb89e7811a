"""`run` and `submit`: start an agent; `run` follows it in the foreground."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import click

from sleipnir.cli import exit_codes
from sleipnir.cli.knowledge.building import BuildView
from sleipnir.cli.options import GlobalOptions, pass_options
from sleipnir.cli.runs import agent_warnings, breakpoints
from sleipnir.cli.runs.follow import STREAM, follow, print_result, print_result_data, result_data, say_it_goes_on
from sleipnir.cli.runs.gate_answers import (
    NoAnswer,
    ScriptedAnswers,
    answer_gate,
    how_to_answer,
    refuse_unknown,
)
from sleipnir.cli.runs.in_process import follow_in_process
from sleipnir.cli.runs.parameters import (
    AGENT,
    AGENT_VARIABLE,
    BREAK_AFTER,
    BREAK_BEFORE,
    CONTEXT,
    CWD,
    FILE,
    MAX_COST,
    MAX_TOKENS,
    NAMESPACE,
    OVERRIDE,
    PATCH,
    PROMPT,
    RECURSION_LIMIT,
    STATE,
    STRICT,
    TAG,
    USER,
    VAR,
    Pairs,
    RunParameters,
    pairs,
)
from sleipnir.cli.runs.session import NO_SESSION, SESSION, refuse_session, session_of
from sleipnir.cli.runs.tape import connected_to_run, with_tape
from sleipnir.cli.runs.thread import THREAD, refuse_thread, tell_of_last_turn
from sleipnir.cli.runs.timings import summary
from sleipnir.cli.terminal import terminal
from sleipnir.cli.terminal.render import print_json
from sleipnir.cli.terminal.terminal import MARK
from sleipnir.errors import UsageError
from sleipnir.runs.budgets import check_budget
from sleipnir.runs.plain_text import printable
from sleipnir.runs.sessions import TEMP

if TYPE_CHECKING:
    from sleipnir.client.client import Client, Run
    from sleipnir_inprocess.agent_run import AgentRun

Command = TypeVar("Command", bound=Callable[..., int])

_TAPE = click.Path(file_okay=False, path_type=Path, resolve_path=True)
_JSON = click.option("--json", "as_data", is_flag=True, help="Print one JSON document on stdout instead of text.")


@dataclass(frozen=True)
class RunRequest(RunParameters):
    """The parameters that `run` and `submit` share."""

    agent: str
    prompt: str | None
    file: Path | None
    state: dict[str, Any]
    session: str | None
    without_session: bool
    thread: str | None
    max_cost_usd: float | None
    max_tokens: int | None
    request_id: str | None = None

    def checked_prompt(self, options: GlobalOptions) -> str:
        """Read the prompt, and refuse errors that can be detected without a stack, such as an agent that does not
        exist."""
        from sleipnir.agents.finding import look_up

        settings = options.settings()
        agent = look_up(self.agent, settings)
        refuse_session(self.session, self.without_session, agent)
        refuse_thread(self.thread, agent)
        agent_warnings.warn(self.agent, agent, settings)
        check_budget(self.max_cost_usd, self.max_tokens)
        return prompt_text(self.prompt, self.file, sys.stdin)

    def in_process(self, options: GlobalOptions, prompt: str) -> AgentRun:
        """Prepare the run for this process; on a terminal, ask for missing values."""
        from sleipnir.runs.actor import Actor
        from sleipnir_inprocess.agent_run import AgentRun

        if self.session is not None:
            raise UsageError("--session needs a deployment, which keeps sessions: leave out --in-process")
        if self.thread is not None:
            raise UsageError("--thread needs a deployment, which keeps threads: leave out --in-process")
        if self.user is not None:
            raise UsageError("--user needs a deployment, which keeps the values of users: leave out --in-process")
        return AgentRun(
            self.agent,
            prompt,
            state=self.state,
            max_cost_usd=self.max_cost_usd,
            max_tokens=self.max_tokens,
            settings=options.settings(),
            by=str(Actor.here("cli")),
            **self.options(None),
        )

    def submit(self, client: Client, prompt: str) -> Run:
        """Start the run; on a terminal, ask for missing values and show the progress of building bases."""
        agent_warnings.tell_warnings(client, self.agent, self.state)
        with BuildView() as view:
            run = client.submit(
                self.agent,
                prompt,
                state=self.state,
                session=_kept_session(client, self.agent, self.session, self.without_session),
                thread=self.thread,
                max_cost_usd=self.max_cost_usd,
                max_tokens=self.max_tokens,
                request_id=self.request_id,
                **self.options(view),
            )
        if self.thread is not None:
            tell_of_last_turn(client, run)
        return run


def _wanted(command: Command) -> Command:
    """The parameters of a RunRequest."""
    shared = (
        AGENT,
        PROMPT,
        FILE,
        VAR,
        AGENT_VARIABLE,
        STATE,
        CONTEXT,
        CWD,
        MAX_COST,
        MAX_TOKENS,
        RECURSION_LIMIT,
        BREAK_BEFORE,
        BREAK_AFTER,
        OVERRIDE,
        PATCH,
        TAG,
        NAMESPACE,
        STRICT,
        SESSION,
        NO_SESSION,
        THREAD,
        USER,
    )
    for parameter in reversed(shared):
        command = parameter(command)
    return command


@click.command()
@_wanted
@click.option(
    "--answer", "answers", multiple=True, metavar="NODE=TEXT", callback=pairs,
    help="Answer NODE's question with TEXT at each visit; repeat it for a second, third, ... visit.",
)  # fmt: skip
@click.option("--record", type=_TAPE, metavar="DIR", help="Write the models' answers into DIR, to replay them later.")
@click.option(
    "--replay", "replay_from", type=_TAPE, metavar="DIR",
    help="Take the models' answers from DIR instead of calling the models.",
)  # fmt: skip
@click.option(
    "--in-process", is_flag=True,
    help="Execute the run in this command, without Redis and workers. It is not durable.",
)  # fmt: skip
@_JSON
@STREAM
@pass_options
def run(
    options: GlobalOptions,
    /,
    answers: Pairs,
    record: Path | None,
    replay_from: Path | None,
    in_process: bool,
    as_data: bool,
    stream: bool | None,
    **wanted: Any,
) -> int:
    """Run AGENT (a name or a folder) with PROMPT, narrate on stderr, print its result on stdout.

    Without PROMPT, text piped into the command is the prompt; `-` reads it from a terminal too. Variables of the agent
    that have no value are asked for on the terminal. Questions are answered by --answer, else asked on the terminal.
    Without a terminal the run keeps waiting, and the command for the answer is printed. With --in-process it is gone
    then, and with every other end of this command. At a breakpoint the command ends, and the run waits for `resume`.

    Exit codes: 0 completed, 1 failed or cancelled, 2 wrong usage or a broken agent, 3 waiting for an answer or at a
    breakpoint, 130 interrupted (the run continues).
    """
    order = RunRequest(**wanted)
    prompt = order.checked_prompt(options)
    options = with_tape(options, record, replay_from, in_process=in_process)
    if in_process:
        prepared = order.in_process(options, prompt)
        more: dict[str, Any] = {"given": order.state, "as_data": as_data, "stream": stream}
        return follow_in_process(prepared, order.agent, answers, options, **more)
    with connected_to_run(options) as client:
        if answers:
            refuse_unknown(answers, client.nodes(order.agent), order.agent)
        started = order.submit(client, prompt)
        terminal.narrate_lines([f"{MARK}run {started.id}"])
        return _in_foreground(started, ScriptedAnswers(answers), options, as_data=as_data, stream=stream)


@click.command()
@_wanted
@click.option(
    "--request-id", "request_id", metavar="ID",
    help="Names this submission: the same command again prints the id of the run that it has started.",
)  # fmt: skip
@_JSON
@pass_options
def submit(options: GlobalOptions, /, as_data: bool, **wanted: Any) -> int:
    """Start a run of AGENT with PROMPT and print the run's id. The run continues without this command."""
    order = RunRequest(**wanted)
    prompt = order.checked_prompt(options)
    with options.connected(workers=False) as client:
        started = order.submit(client, prompt)
        if as_data:
            print_json(result_data(started, started.info()))
        else:
            click.echo(started.id)
    if options.is_embedded:
        terminal.note(f"it runs while `sleipnir up` runs; or follow it here: {options.command('watch', started.id)}")
    return exit_codes.COMPLETED


def _kept_session(client: Client, agent: str, asked: str | None, without: bool) -> str | None:
    """A temporary session has no use for a single run."""
    session = session_of(client, agent, asked, without)
    return None if session == TEMP else session


def prompt_text(prompt: str | None, file: Path | None, stdin: TextIO) -> str:
    """The prompt from the argument, the file and the standard input (see `run`). Raises UsageError."""
    piped = prompt is None and file is None and not stdin.isatty()
    if prompt == "-" or piped:
        prompt = stdin.read().removesuffix("\n").removesuffix("\r")
    if file is None:
        return prompt or ""
    try:
        content = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {str(file)!r} as UTF-8 text: {error}") from error
    return f"{prompt}\n\n{content}" if prompt else content


def _in_foreground(
    run: Run, answers: ScriptedAnswers, options: GlobalOptions, *, as_data: bool, stream: bool | None
) -> int:
    try:
        follow(
            run,
            lambda gate: answer_gate(run, gate, answers),
            stream=stream,
            as_data=as_data,
            options=options,
            on_stop=breakpoints.leave,
        )
    except NoAnswer:
        return leave_waiting(run, options, as_data=as_data, stream=stream)
    except breakpoints.AtBreakpoint as stop:
        breakpoints.say(stop.stopped, options)
        return leave_waiting(run, options, as_data=as_data, stream=stream)
    except KeyboardInterrupt:
        say_it_goes_on(run.id, options)
        return exit_codes.INTERRUPTED
    for node in sorted(answers.unused):
        terminal.note(f"note: --answer {node}=... was not used: the run did not ask at {node!r}")
    if options.verbose:
        for line in summary(run.info().agent, run.events(follow=False)):
            terminal.note(printable(line))
    return print_result(run, as_data=as_data, stream=stream)


def leave_waiting(run: Run, options: GlobalOptions, *, as_data: bool, stream: bool | None) -> int:
    """Print the commands that answer the open questions. Returns the exit code."""
    still_open = run.gates()
    for gate in still_open:
        terminal.note(how_to_answer(gate, options, still_open))
    terminal.note(f"and then: {options.command('watch', run.id)}")
    if as_data:
        print_result_data(run, run.info(), stream=stream)
    return exit_codes.WAITING

"""`run --in-process`: the run is executed by this command, without Redis, a scheduler or workers."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from sleipnir.cli import exit_codes
from sleipnir.cli.options import GlobalOptions
from sleipnir.cli.runs import agent_warnings
from sleipnir.cli.runs.follow import follow, print_result, print_result_data
from sleipnir.cli.runs.gate_answers import NoAnswer, ScriptedAnswers, answer_gate, refuse_unknown
from sleipnir.cli.runs.timings import summary
from sleipnir.cli.terminal import terminal
from sleipnir.cli.terminal.terminal import MARK
from sleipnir.runs.plain_text import printable

if TYPE_CHECKING:
    from sleipnir.cli.runs.parameters import Pairs
    from sleipnir_inprocess.agent_run import AgentRun

NOT_DURABLE = "note: this command executes the run itself; it is not durable: when the command ends, the run is gone"


def follow_in_process(
    run: AgentRun,
    agent: str,
    answers: Pairs,
    options: GlobalOptions,
    *,
    given: Collection[str],
    as_data: bool,
    stream: bool | None,
) -> int:
    """Execute a prepared run of `agent`, which began with the `given` state keys, and print its result. Returns the
    exit code."""
    if answers:
        refuse_unknown(answers, run.nodes(), agent)
    agent_warnings.tell(run.warnings(), agent, given)
    terminal.note(NOT_DURABLE)
    terminal.narrate_lines([f"{MARK}run {run.id}"])
    scripted = ScriptedAnswers(answers)
    try:
        follow(run, lambda gate: answer_gate(run, gate, scripted), stream=stream, as_data=as_data, options=options)
    except NoAnswer:
        pass
    except KeyboardInterrupt:
        terminal.note(f"\nrun {run.id} was interrupted, and is gone")
        return exit_codes.INTERRUPTED
    if not run.info().is_final:
        return _leave(run, as_data=as_data, stream=stream)
    for node in sorted(scripted.unused):
        terminal.note(f"note: --answer {node}=... was not used: the run did not ask at {node!r}")
    if options.verbose:
        for line in summary(run.info().agent, run.events()):
            terminal.note(printable(line))
    return print_result(run, as_data=as_data, stream=stream)


def _leave(run: AgentRun, *, as_data: bool, stream: bool | None) -> int:
    """The run waits for answers that the command cannot get: say which, and how to give them to the next run. Or it is
    at a breakpoint."""
    for gate in run.gates():
        question = terminal.first_line(gate.question)
        terminal.note(
            f"run {run.id} waited for an answer to {gate.node!r}, and is gone: {question}\n"
            f"  give it with: --answer {gate.node}=TEXT"
        )
    for info in run.active():
        for point in info.breakpoints:
            terminal.note(
                f"run {info.id} had stopped at a breakpoint {point.in_words}, and is gone: a deployment keeps such runs"
            )
    if as_data:
        print_result_data(run, run.info(), stream=stream)
    return exit_codes.WAITING

"""`gates` and `answer`: open questions to people, from any terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sleipnir.cli import terminal
from sleipnir.cli.completion import complete_run
from sleipnir.cli.options import GlobalOptions, pass_options
from sleipnir.cli.render import moment, print_json, print_table
from sleipnir.errors import GateError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sleipnir.client import Run
    from sleipnir.views import GateInfo


@click.command()
@click.option("--json", "as_data", is_flag=True, help="Print a JSON list.")
@pass_options
def gates(options: GlobalOptions, as_data: bool) -> None:
    """List the open questions of all runs."""
    with options.connected(workers=False) as client:
        found = client.gates()
    if as_data:
        print_json(found)
    elif found:
        rows = [(gate.run, gate.node, str(gate.seq), moment(gate.opened_ms), _text(gate)) for gate in found]
        print_table(("run", "node", "seq", "asked", "question"), rows)
    else:
        terminal.note("no open questions")


@click.command()
@click.argument("run_id", metavar="RUN", shell_complete=complete_run)
@click.argument("words", metavar="[GATE] TEXT", nargs=-1, required=True)
@pass_options
def answer(options: GlobalOptions, run_id: str, words: tuple[str, ...]) -> None:
    """Answer an open question of RUN with TEXT.

    GATE is the id of the node that asks, or the number of its visit; it can be left out when only one question
    is open. An approval takes the exact text of an option, or any other text as an answer of your own. TEXT may
    be empty ('') for an input's default.
    """
    if len(words) > 2:
        raise click.UsageError("TEXT is one argument; put it in quotes")
    *named, text = words
    with options.connected(workers=False) as client:
        run = client.run(run_id)
        gate = find_gate(run.gates(), named[0] if named else None, run.id)
        _mention_free_text(gate, text)
        run.answer(text, gate=gate.seq)
        _say_answered(run, gate, options)


def find_gate(open_gates: Sequence[GateInfo], name: str | None, run_id: str) -> GateInfo:
    """The one question that is meant. Raises GateError that lists the open ones."""
    if not open_gates:
        raise GateError(f"run {run_id} has no open question")
    by_node = [gate for gate in open_gates if name in (None, gate.node)]
    meant = by_node or [gate for gate in open_gates if name == str(gate.seq)]
    if len(meant) == 1:
        return meant[0]
    trouble = f"has no open question {name!r}" if not meant else f"has {len(meant)} open questions; name one"
    listed = "".join(f"\n  {gate.node} (visit {gate.seq}): {_text(gate)}" for gate in open_gates)
    raise GateError(f"run {run_id} {trouble}. Open:{listed}")


def _text(gate: GateInfo) -> str:
    options = f" [{', '.join(gate.options)}]" if gate.options else ""
    return terminal.one_line(gate.question) + options


def _mention_free_text(gate: GateInfo, text: str) -> None:
    """Not an error: approvals take free text. But a slip of the pen should not pass unseen."""
    if gate.kind == "approval" and gate.options and text not in gate.options:
        terminal.note(f"note: {text!r} is none of the options ({', '.join(gate.options)}); taken as free text")


def _say_answered(run: Run, gate: GateInfo, options: GlobalOptions) -> None:
    terminal.note(f"run {run.id}: {gate.node!r} is answered")
    if options.is_embedded:
        terminal.note(f"it goes on while `sleipnir up` runs; or follow it here: {options.command('watch', run.id)}")

"""`gates` and `answer`: open questions to people, from any terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sleipnir.cli import exit_codes
from sleipnir.cli.completion import complete_run
from sleipnir.cli.options import GlobalOptions, pass_options
from sleipnir.cli.runs.steering import each_run
from sleipnir.cli.terminal import terminal
from sleipnir.cli.terminal.render import moment, print_json, print_table

if TYPE_CHECKING:
    from sleipnir.client.client import Run
    from sleipnir.runs.views import GateInfo


@click.command()
@click.option("--json", "as_data", is_flag=True, help="Print a JSON list.")
@pass_options
def gates(options: GlobalOptions, as_data: bool) -> None:
    """List the open questions of all runs."""
    with options.connected(workers=False) as client:
        open_gates = client.gates()
    if as_data:
        print_json(open_gates)
    elif open_gates:
        rows = [(gate.run, gate.place, str(gate.seq), moment(gate.opened_ms), _text(gate)) for gate in open_gates]
        print_table(("run", "node", "seq", "asked", "question"), rows)
    else:
        terminal.note("no open questions")


@click.command()
@click.argument("run_id", metavar="RUN", shell_complete=complete_run)
@click.argument("words", metavar="[GATE] TEXT", nargs=-1, required=True)
@pass_options
def answer(options: GlobalOptions, run_id: str, words: tuple[str, ...]) -> int:
    """Answer an open question of RUN with TEXT; of several runs with the same TEXT, if RUN is RUN,RUN,...

    GATE is the id of the node that asks, the path to it through child runs (review/approve), or the number of its
    visit; it can be omitted if only one question is open in RUN and the runs that it waits for. An approval accepts the
    exact text of an option, or any other text as free text. TEXT may be empty ('') for an input's default.
    """
    if len(words) > 2:
        raise click.UsageError("TEXT must be one argument; put it in quotes")
    *named, text = words
    name = named[0] if named else None
    run_ids = [each for each in run_id.split(",") if each] or [run_id]
    if len(run_ids) > 1 and name is not None and name.isdigit():
        raise click.UsageError(
            "the number of a visit belongs to one run; for several runs name the question by its node"
        )

    def take(run: Run) -> None:
        meant = [gate for gate in run.gates() if name in (None, gate.node, gate.place, str(gate.seq))]
        if len(meant) == 1:
            _mention_free_text(meant[0], text)
        run.answer(text, gate=name)

    code = each_run(options, run_ids, take, "has taken the answer")
    if code == exit_codes.COMPLETED and options.is_embedded:
        command = options.command("watch", run_ids[0])
        terminal.note(f"it continues while `sleipnir up` runs; or follow it here: {command}")
    return code


def _text(gate: GateInfo) -> str:
    options = f" [{', '.join(gate.options)}]" if gate.options else ""
    return terminal.first_line(gate.question) + options


def _mention_free_text(gate: GateInfo, text: str) -> None:
    """Not an error, because approvals accept free text, but a typing error should be noticed."""
    if gate.kind == "approval" and gate.options and text not in gate.options:
        terminal.note(f"note: {text!r} is none of the options ({', '.join(gate.options)}); taken as free text")

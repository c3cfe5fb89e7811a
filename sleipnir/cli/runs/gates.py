"""`gates` and `answer`: open questions to people, from any terminal."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TextIO

import click

from sleipnir.cli import exit_codes
from sleipnir.cli.completion import complete_run
from sleipnir.cli.options import GlobalOptions, as_person, pass_options
from sleipnir.cli.runs.gate_answers import who_may_answer
from sleipnir.cli.runs.run_options import NAMESPACE_HELP
from sleipnir.cli.runs.steering import each_run
from sleipnir.cli.terminal import terminal
from sleipnir.cli.terminal.render import moment, print_json, print_table
from sleipnir.runs.interrupts import answer_of, typed_answer

if TYPE_CHECKING:
    from sleipnir.client.client import Run
    from sleipnir.graph.ways_on import WayOn
    from sleipnir.runs.gate_filters import GateView
    from sleipnir.runs.views import GateInfo


@click.command()
@click.argument("run_id", metavar="[RUN]", required=False, shell_complete=complete_run)
@click.option("--namespace", metavar="NAME", help=NAMESPACE_HELP)
@click.option(
    "--view",
    type=click.Choice(["mine", "role", "all", "overdue", "snoozed"]),
    default="all",
    help="mine: you hold them, they are assigned to you, or name you; role: you may answer them.",
)
@click.option("--node", metavar="NODE", help="Only those that this node asks.")
@click.option("--agent", metavar="AGENT", help="Only those of runs of this agent.")
@click.option("--ways", is_flag=True, help="With RUN: which nodes run next for each answer.")
@click.option("--json", "as_data", is_flag=True, help="Print a JSON list.")
@as_person
@pass_options
def gates(
    options: GlobalOptions,
    run_id: str | None,
    namespace: str | None,
    view: GateView,
    node: str | None,
    agent: str | None,
    ways: bool,
    as_data: bool,
    person: str | None,
) -> None:
    """List the open questions of all runs, or of RUN and the runs below it that it waits for."""
    if run_id is not None and (view != "all" or node or agent):
        raise click.UsageError("--view, --node and --agent are for the questions of all runs")
    if ways and run_id is None:
        raise click.UsageError("--ways needs RUN")
    with options.connected(workers=False) as client:
        now_ms = client.now_ms()
        if run_id is not None:
            open_gates = client.run(run_id).gates()
            ways_of = [client.gate_inbox.ways_on(gate) for gate in open_gates] if ways else []
        else:
            seen = client if person is None else client.acting_as(client.actor.named(person))
            open_gates = list(seen.gate_inbox.walk(view=view, node=node, agent=agent, namespace=namespace))
    if ways and as_data:
        print_json([{"gate": gate, "ways": found} for gate, found in zip(open_gates, ways_of, strict=True)])
    elif ways and open_gates:
        found_ways = [(gate, way) for gate, found in zip(open_gates, ways_of, strict=True) for way in found]
        listed = [(str(gate.seq), gate.place, way.answer or "any other", _way(way)) for gate, way in found_ways]
        print_table(("seq", "node", "answer", "next"), listed)
    elif as_data:
        print_json(open_gates)
    elif open_gates:
        rows = [
            (gate.run, gate.place, str(gate.seq), gate.key or "-", moment(gate.opened_ms), _text(gate, now_ms))
            for gate in open_gates
        ]
        print_table(("run", "node", "seq", "key", "asked", "question"), rows)
    else:
        terminal.note("no open questions")


@click.command()
@click.argument("run_id", metavar="RUN", shell_complete=complete_run)
@click.argument("words", metavar="[GATE] TEXT", nargs=-1)
@click.option(
    "--map",
    "file",
    type=click.File(encoding="utf-8"),
    help="Answer several questions: a JSON object by GATE ('-': stdin).",
)
@click.option(
    "--ahead", is_flag=True, help="With --map: wait for questions that are not open yet, until each answer is used."
)
@click.option("--comment", metavar="TEXT", help="Why; some questions require it.")
@as_person
@pass_options
def answer(
    options: GlobalOptions,
    run_id: str,
    words: tuple[str, ...],
    file: TextIO | None,
    ahead: bool,
    comment: str | None,
    person: str | None,
) -> int:
    """Answer an open question of RUN with TEXT; of several runs with the same TEXT, if RUN is RUN,RUN,...

    GATE is the key of an interrupt, or the id of the node that asks, alone or after the path through child runs
    (review/approve, each[3]/sure), or the number of its visit; it can be omitted if only one question is open in RUN
    and the runs that it waits for. An approval accepts the exact text of an option, or any other text as free text.
    TEXT may be empty ('') for an input's default. For an interrupt TEXT is JSON; what is no JSON is a text. If several
    people must give the same answer, yours is counted.
    """
    if len(words) > 2:
        raise click.UsageError("TEXT must be one argument; put it in quotes")
    if (file is None) == (not words):
        raise click.UsageError("give either TEXT or --map FILE")
    if ahead and file is None:
        raise click.UsageError("--ahead needs --map FILE, which names the questions")
    run_ids = [each for each in run_id.split(",") if each] or [run_id]
    *named, text = words or ("",)
    name = named[0] if named else None
    if len(run_ids) > 1 and name is not None and name.isdigit():
        raise click.UsageError(
            "the number of a visit belongs to one run; for several runs name the question by its node"
        )
    values = None if file is None else _answers_in(file)

    def take(run: Run) -> str | None:
        if values is not None:
            run.answer_all(values, ahead=ahead, comment=comment)
            return None
        meant = [gate for gate in run.gates() if name is None or name == str(gate.seq) or name in gate.names]
        if len(meant) == 1:
            _mention_free_text(meant[0], text)
            count = run.answer(typed_answer(meant[0], text), meant[0], comment=comment)
        else:
            count = run.answer(answer_of(text) if name and not meant else text, name, comment=comment)
        return None if count is None else f"{count.voices} of {count.quorum} people have given it"

    code = each_run(
        options, run_ids, take, "has taken the answer" if values is None else "has taken the answers", person
    )
    if code == exit_codes.COMPLETED and options.is_embedded:
        command = options.command("watch", run_ids[0])
        terminal.note(f"it continues while `sleipnir up` runs; or follow it here: {command}")
    return code


def _answers_in(file: TextIO) -> dict[str, Any]:
    """The answers of a resume map. Raises UsageError."""
    try:
        values = json.load(file)
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"--map {file.name}: not JSON: {error}") from None
    if not isinstance(values, dict) or not values:
        raise click.UsageError(f"--map {file.name}: must be a JSON object of answers by question")
    return values


def _text(gate: GateInfo, now_ms: int) -> str:
    options = f" [{', '.join(gate.options)}]" if gate.options else ""
    who, holder, assigned = who_may_answer(gate), gate.handling.holder(now_ms), gate.handling.assigned
    notes = [f"for {who}"] if who else []
    notes += [f"held by {holder}"] if holder else []
    notes += [f"assigned to {assigned.person}"] if assigned else []
    if count := len(gate.handling.comments):
        notes.append("1 comment" if count == 1 else f"{count} comments")
    return terminal.first_line(gate.question) + options + (f" ({'; '.join(notes)})" if notes else "")


_THEN = {
    "end": "", "question": " (asks)", "join": " (waits for others)", "code": " (then decided by code)", "more": " ...",
}  # fmt: skip


def _way(way: WayOn) -> str:
    """`book (once) -> mail -> done`."""
    steps = [f"{step.node} (once)" if step.once else step.node for step in way.steps]
    return (", " if way.together else " -> ").join(steps) + _THEN[way.then]


def _mention_free_text(gate: GateInfo, text: str) -> None:
    """Not an error, because approvals accept free text, but a typing error should be noticed."""
    if gate.kind == "approval" and gate.options and text not in gate.options:
        terminal.note(f"note: {text!r} is none of the options ({', '.join(gate.options)}); taken as free text")

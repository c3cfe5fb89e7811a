"""`lineage`: the runs that a run was forked from, and the forks of all of them, as a tree."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from sleipnir.cli.completion import complete_run
from sleipnir.cli.options import COUNT, GlobalOptions, pass_options
from sleipnir.cli.terminal.render import as_json, print_json
from sleipnir.runs.reasons import fork_in_words

if TYPE_CHECKING:
    from sleipnir.runs.views import Lineage, RunInfo

MOST = 20


@click.command()
@click.argument("run_id", metavar="RUN", shell_complete=complete_run)
@click.option(
    "--limit", type=COUNT, metavar="N", default=MOST, show_default=True, help="The forks of each run to show."
)
@click.option("--json", "as_data", is_flag=True, help="Print the tree as one JSON document.")
@pass_options
def lineage(options: GlobalOptions, run_id: str, limit: int, as_data: bool) -> None:
    """Draw the runs that RUN was forked from, and all their forks: status, step and changes of each."""
    with options.connected(workers=False) as client:
        run = client.run(run_id)
        tree = run.lineage(limit=limit)
    if as_data:
        print_json(data_of(tree))
        return
    click.echo(f"{tree.id} {_how(tree.info)}{_mark(tree, run.id)}")
    for line in lines_of(tree, run.id):
        click.echo(line)


def lines_of(tree: Lineage, run: str) -> Iterator[str]:
    """A line for each fork below: `├─ 4kq0... writer  completed  after step 3, fee, model openai:gpt-4o`."""
    rest = tree.count - len(tree.forks)
    for place, fork in enumerate(tree.forks, start=1):
        is_last = place == len(tree.forks) and rest <= 0
        yield f"{'└─' if is_last else '├─'} {fork.id} {_how(fork.info)}{_mark(fork, run)}"
        for line in lines_of(fork, run):
            yield f"{'  ' if is_last else '│ '} {line}"
    if rest > 0:
        yield f"└─ and {rest:,} more: sleipnir lineage {tree.id} --limit {tree.count}"


def data_of(tree: Lineage) -> dict[str, Any]:
    """The tree, for `--json`."""
    return {
        "id": tree.id,
        "run": tree.info and as_json(tree.info),
        "count": tree.count,
        "forks": [data_of(fork) for fork in tree.forks],
    }


def _how(info: RunInfo | None) -> str:
    if info is None:
        return "expired"
    return f"{info.agent}  {info.status}" + (f"  {fork_in_words(info)}" if info.forked_from else "")


def _mark(tree: Lineage, run: str) -> str:
    return "  (this run)" if tree.id == run else ""

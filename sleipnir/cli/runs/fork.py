"""`fork` and `rewind`: submit a run that goes on from a checkpoint of another one, and cancel that, or not."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sleipnir.cli.completion import (
    complete_agent,
    complete_checkpoint,
    complete_run,
    complete_thread,
    complete_visited_node,
)
from sleipnir.cli.options import COUNT_OR_NONE, GlobalOptions, pass_options
from sleipnir.cli.runs.parameters import OVERRIDE, PATCH, TAG, json_values
from sleipnir.cli.terminal.render import print_json
from sleipnir.cli.terminal.terminal import note

if TYPE_CHECKING:
    from sleipnir.client.client import Run

Command = TypeVar("Command", bound=Callable[..., None])


@dataclass(frozen=True)
class ForkParameters:
    """The parameters that `fork` and `rewind` share."""

    run_id: str
    step: int | None
    node: str | None
    state: dict[str, Any]
    agent: str | None
    model: str | None
    overrides: dict[str, dict[str, Any]]
    patches: dict[str, Any]
    thread: str | None
    tags: dict[str, str]

    def options(self) -> dict[str, Any]:
        """The keywords of Run.fork and Run.rewind."""
        if self.step is not None and self.node is not None:
            raise click.UsageError("--at and --before exclude each other")
        return {
            "at": self.step, "before": self.node, "state": self.state, "agent": self.agent, "model": self.model,
            "overrides": self.overrides or None, "patches": self.patches or None, "thread": self.thread,
            "tags": self.tags or None,
        }  # fmt: skip


def _shared(default: str) -> Callable[[Command], Command]:
    """The parameters of ForkParameters. `default` is where the fork begins if nothing is given."""

    def add(command: Command) -> Command:
        for parameter in reversed(_parameters(default)):
            command = parameter(command)
        return command

    return add


def _parameters(default: str) -> tuple[Callable[[Any], Any], ...]:
    return (
        click.argument("run_id", metavar="RUN", shell_complete=complete_run),
        click.option(
            "--at", "step", metavar="STEP", type=COUNT_OR_NONE, shell_complete=complete_checkpoint,
            help=f"Go on after this checkpoint.{default}",
        ),
        click.option(
            "--before", "node", metavar="NODE", shell_complete=complete_visited_node,
            help="Go on before the last visit of this node.",
        ),
        click.option(
            "--set", "state", multiple=True, metavar="NAME=JSON", callback=json_values,
            help="A value that replaces that of the past; repeatable.",
        ),
        click.option(
            "--agent", metavar="AGENT", shell_complete=complete_agent,
            help="The agent, or its folder, whose current definition the fork has. Default: that of RUN.",
        ),
        click.option(
            "--model", metavar="CLIENT:MODEL",
            help="The model of all llm nodes, also of those that name another one, and of agents that they start.",
        ),
        OVERRIDE,
        PATCH,
        TAG,
        click.option(
            "--thread", "thread", metavar="NAME", shell_complete=complete_thread,
            help="Be the next turn of this thread of the agent, which may be new, instead of being in no thread.",
        ),
        click.option("--json", "as_data", is_flag=True, help="Print a JSON document instead of the id."),
    )  # fmt: skip


@click.command()
@_shared(" Default: the last one that leads anywhere.")
@pass_options
def fork(options: GlobalOptions, /, as_data: bool, **parameters: Any) -> None:
    """Submit a run that goes on where RUN was after a step, and print its id without waiting.

    RUN stays as it is. What it did before that step is not done again; all later visits are new. `sleipnir history RUN`
    marks the checkpoints.
    """
    wanted = ForkParameters(**parameters)
    keywords = wanted.options()
    doubt_model(options, wanted.model)
    with options.connected(workers=False) as client:
        made = client.run(wanted.run_id).fork(**keywords)
        _print(options, made, as_data)


@click.command()
@_shared("")
@pass_options
def rewind(options: GlobalOptions, /, as_data: bool, **parameters: Any) -> None:
    """Go on again where RUN was after a step: `sleipnir fork`, and RUN is cancelled if it is not over.

    Prints the id of the run that goes on. The cancelled run names it (`sleipnir show RUN`).
    """
    wanted = ForkParameters(**parameters)
    keywords = wanted.options()
    if wanted.step is None and wanted.node is None:
        raise click.UsageError("name the step after which the run goes on again (--at), or the node (--before)")
    doubt_model(options, wanted.model)
    with options.connected(workers=False) as client:
        source = client.run(wanted.run_id)
        before = source.info()
        made = source.rewind(**keywords)
        _print(options, made, as_data)
    is_over = before.is_final
    note(f"run {source.id} is {before.status}, and stays so" if is_over else f"run {source.id} is being cancelled")


def doubt_model(options: GlobalOptions, model: str | None) -> None:
    """Warn of a model whose client seems to be misspelt: only the workers know all clients."""
    from sleipnir.graph.check_models import doubt_about_client
    from sleipnir.models.clients import clients_here

    clients = clients_here(os.environ, is_local=False)
    if model is not None and (doubt := doubt_about_client(model, clients)) is not None:
        note("warning: {}. {}".format(*doubt))


def _print(options: GlobalOptions, made: Run, as_data: bool) -> None:
    info = made.info()
    if as_data:
        print_json({"run": made.id, "source": info.forked_from, "step": info.forked_at, "thread": info.thread})
    else:
        click.echo(made.id)
    if options.is_embedded:
        note(f"it runs while `sleipnir up` runs; or follow it here: {options.command('watch', made.id)}")

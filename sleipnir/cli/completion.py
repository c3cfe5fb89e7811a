"""Tab completion: the scripts for the shells, and the names of agents, runs, batches, dead letters, state keys,
tools and rag nodes.

Rule. A key press must never hang, print an error or start a server: whatever goes wrong or takes longer than
TIME_LIMIT_S completes nothing.
"""

from __future__ import annotations

import contextlib
import importlib
import signal
from collections.abc import Callable, Iterator
from itertools import islice

import click
from click.shell_completion import CompletionItem, get_completion_class

from sleipnir.cli.options import GlobalOptions, from_context

VARIABLE = "_SLEIPNIR_COMPLETE"
TIME_LIMIT_S = 2.0
NEEDED = ("sleipnir.agents", "sleipnir.client")
"""Imported before the time begins: on a busy machine that alone takes longer, and what may hang is a Redis."""
SHOWN_RUNS = 50

WHERE = {
    "bash": '# In ~/.bashrc:  eval "$(sleipnir completion bash)"',
    "zsh": '# In ~/.zshrc:  eval "$(sleipnir completion zsh)"',
    "fish": "# sleipnir completion fish > ~/.config/fish/completions/sleipnir.fish",
}


@click.command()
@click.argument("shell", type=click.Choice(list(WHERE)))
def completion(shell: str) -> None:
    """Print the completion script for SHELL; its first line says where to put it."""
    from sleipnir.cli.app import app

    script_of = get_completion_class(shell)
    assert script_of is not None, "click knows the three shells"
    click.echo(WHERE[shell])
    click.echo(script_of(app, {}, "sleipnir", VARIABLE).source().strip())


Candidates = Callable[[GlobalOptions], Iterator[CompletionItem]]


def complete_agent(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of agents; of folders and files when a path was begun."""
    if "/" in incomplete or incomplete.startswith("."):
        return [CompletionItem(incomplete, type="file")]
    return _matching(_agents, ctx, incomplete)


def complete_shipped(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of the agents that ship with Sleipnir, but those on the command line already."""
    named = ctx.params.get(param.name or "") or ()
    found = _matching(_shipped, ctx, incomplete)
    return [item for item in found if item.value not in named]


def complete_run(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ids of the newest runs, with agent and status as help."""
    return _matching(_runs, ctx, incomplete)


def complete_archived(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ids of the runs that were archived last, with agent and status as help."""
    return _matching(_archived, ctx, incomplete)


def complete_batch(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ids and names of the newest batches, with agent and state as help."""
    return _matching(_batches, ctx, incomplete)


def complete_dead_letter(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ids of dead letters, with the run that each comes from as help, but those on the command line already."""
    named = ctx.params.get(param.name or "") or ()
    return [item for item in _matching(_dead_letters, ctx, incomplete) if item.value not in named]


def complete_state_key(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """`NAME=` for the keys that the agent on the command line declares, with their types as help."""
    agent = ctx.params.get("agent") or next(iter(ctx.args), None)  # an option without its value yet stops the parser
    return _matching(lambda options: _state_keys(options, agent), ctx, incomplete) if agent else []


def complete_tool(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of the tools of the agent on the command line, with their first lines as help."""
    agent = ctx.params.get("agent") or next(iter(ctx.args), None)
    return _matching(lambda options: _tools(options, agent), ctx, incomplete) if agent else []


def complete_rag_node(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of the rag nodes of the agent on the command line; the first word of a search may be one."""
    agent = ctx.params.get("agent") or next(iter(ctx.args), None)
    if not agent or ctx.params.get(param.name or ""):
        return []
    return _matching(lambda options: _rag_nodes(options, agent), ctx, incomplete)


def _matching(candidates: Candidates, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    with contextlib.suppress(Exception):
        for module in NEEDED:
            importlib.import_module(module)
    with contextlib.suppress(Exception), _time_limit():
        return [item for item in candidates(from_context(ctx)) if item.value.startswith(incomplete)]
    return []


def _agents(options: GlobalOptions) -> Iterator[CompletionItem]:
    from sleipnir.agents import places

    names = {
        file.parent.name
        for place in places(options.settings())
        for file in (*place.glob("[!.]*/graph.yaml"), *place.glob("[!.]*/config.yaml"))
    }
    return (CompletionItem(name) for name in sorted(names))


def _shipped(options: GlobalOptions) -> Iterator[CompletionItem]:
    from sleipnir.agents import shipped_agents

    return (CompletionItem(name) for name in sorted(shipped_agents()))


def _runs(options: GlobalOptions) -> Iterator[CompletionItem]:
    with options.connected_if_up() as client:
        runs = client.runs(limit=SHOWN_RUNS) if client else []
    return (CompletionItem(info.id, help=f"{info.agent}, {info.status}") for info in runs)


def _archived(options: GlobalOptions) -> Iterator[CompletionItem]:
    from sleipnir.archive import archived_runs

    folder = options.settings().archive
    for run in islice(archived_runs(folder), SHOWN_RUNS) if folder else ():
        yield CompletionItem(run.run, help=f"{run.agent}, {run.status}")


def _dead_letters(options: GlobalOptions) -> Iterator[CompletionItem]:
    with options.connected_if_up() as client:
        letters = list(islice(client.store.dead_letters.all(), SHOWN_RUNS)) if client else []
    return (CompletionItem(letter.id, help=f"of run {letter.run}") for letter in letters)


def _batches(options: GlobalOptions) -> Iterator[CompletionItem]:
    with options.connected_if_up() as client:
        batches = client.batches(limit=SHOWN_RUNS) if client else []
    for info in batches:
        for word in filter(None, (info.id, info.name)):
            yield CompletionItem(word, help=f"{info.agent}, {info.state}")


def _state_keys(options: GlobalOptions, agent: str) -> Iterator[CompletionItem]:
    from sleipnir.cli.agents import locate, read

    declared = read(locate(agent, options.settings())).state
    return (CompletionItem(f"{key}=", help=field.description or field.type) for key, field in declared.items())


def _tools(options: GlobalOptions, agent: str) -> Iterator[CompletionItem]:
    from sleipnir.agents import loki_config_dir
    from sleipnir.cli.agents import locate, read
    from sleipnir.tools.folder import tools_of

    source = locate(agent, options.settings())
    declarations = tools_of(source.path, loki_config_dir(), read(source)).declarations
    return (CompletionItem(each.name, help=each.description.partition("\n")[0]) for each in declarations)


def _rag_nodes(options: GlobalOptions, agent: str) -> Iterator[CompletionItem]:
    from sleipnir.agents import look_up
    from sleipnir.graph.load import load_agent
    from sleipnir.knowledge.preparing import nodes_of

    graph = load_agent(look_up(agent, options.settings())).graph
    return (CompletionItem(name) for name in (nodes_of(graph) if graph else ()))


@contextlib.contextmanager
def _time_limit() -> Iterator[None]:
    """Raise TimeoutError in the block after TIME_LIMIT_S. Only for the main thread, where completion runs."""

    def give_up(signum: int, frame: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, TIME_LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

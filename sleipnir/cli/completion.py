"""Tab completion: the scripts for the shells, and the names of agents, runs, threads, steps, batches, schedules, dead
letters, users, access tokens, webhooks, state keys, tools and rag nodes.

Rules. A key press must never hang, print an error or start a server. Files are read without a time limit. Redis has
TIME_LIMIT_S to answer, and its answer is cached in a file below the home, which is used if it does not answer in time
or the private stack is down.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem, get_completion_class

from sleipnir.cli.options import GlobalOptions, from_context, name_of

if TYPE_CHECKING:
    from sleipnir.runs.views import StepInfo

VARIABLE = "_SLEIPNIR_COMPLETE"
TIME_LIMIT_S = 2.0
SHOWN_RUNS = 50
SHOWN_THREADS = 200  # of all agents
SHOWN_STEPS = 500

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
    """Names of agents; of folders and files if the word is the beginning of a path."""
    if "/" in incomplete or incomplete.startswith("."):
        return [CompletionItem(incomplete, type="file")]
    return _matching(_agents, ctx, incomplete)


def complete_shipped(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of the agents that ship with Sleipnir, but those on the command line already."""
    named = ctx.params.get(param.name or "") or ()
    items = _matching(_shipped, ctx, incomplete)
    return [item for item in items if item.value not in named]


def complete_run(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ids of the newest runs, with agent and status as help."""
    return _matching(_kept("runs", _runs), ctx, incomplete)


def complete_checkpoint(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Steps of the run on the command line at which its state can be shown, with their nodes as help."""
    run = ctx.params.get("run_id") or next(iter(ctx.args), None)
    return _matching(lambda options: _checkpoints(options, run), ctx, incomplete) if run else []


def complete_visited_node(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Nodes that the run on the command line has visited."""
    run = ctx.params.get("run_id") or next(iter(ctx.args), None)
    return _matching(lambda options: _visited_nodes(options, run), ctx, incomplete) if run else []


def complete_open_visit(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Nodes whose visits of the run on the command line wait or have failed, with the numbers of these as help; the
    numbers too if a number is begun."""
    run = ctx.params.get("run_id") or next(iter(ctx.args), None)
    return _matching(lambda options: _open_visits(options, run, incomplete), ctx, incomplete) if run else []


def complete_thread(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of the threads that were used last, of the agent on the command line if one is there, with the number of
    their turns and their status as help."""
    agent = ctx.params.get("agent") or next(iter(ctx.args), None)
    name = None if agent is None else name_of(str(agent))
    return [
        CompletionItem(item.value.partition("/")[2], help=f"{item.value.partition('/')[0]}, {item.help}")
        for item in _matching(_kept("threads", _threads), ctx, "")
        if item.value.startswith(f"{name}/" if name else "")
        if item.value.partition("/")[2].startswith(incomplete)
    ]


def complete_user_of_agent(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Users with shared values, of the agent on the command line if one is there."""
    agent = ctx.params.get("agent") or next(iter(ctx.args), None)
    name = None if agent is None else name_of(str(agent))
    return [
        CompletionItem(item.value.partition("/")[2], help=item.help)
        for item in _matching(_kept("users-of-agents", _users_of_agents), ctx, "")
        if item.value.startswith(f"{name}/" if name else "")
        if item.value.partition("/")[2].startswith(incomplete)
    ]


def complete_shared_key(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Keys of the shared values of the agent, or of the user of it, on the command line."""
    agent, user = ctx.params.get("agent"), ctx.params.get("user")
    return _matching(lambda options: _shared_keys(options, str(agent), user), ctx, incomplete) if agent else []


def complete_archived(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ids of the runs that were archived last, with agent and status as help."""
    return _matching(_archived, ctx, incomplete)


def complete_tag(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Tags that the newest runs have."""
    return _matching(_kept("tags", _tags), ctx, incomplete)


def complete_batch(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ids and names of the newest batches, with agent and state as help."""
    return _matching(_kept("batches", _batches), ctx, incomplete)


def complete_schedule(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of schedules, with agent and state as help."""
    return _matching(_kept("schedules", _schedules), ctx, incomplete)


def complete_job(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ids of jobs, with action and state as help."""
    return _matching(_kept("jobs", _jobs), ctx, incomplete)


def complete_time_zone(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of time zones."""
    from zoneinfo import available_timezones

    return [CompletionItem(name) for name in sorted(available_timezones()) if name.startswith(incomplete)]


def complete_batch_node(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Nodes of the agent of the batch on the command line."""
    batch = ctx.params.get("batch_id") or next(iter(ctx.args), None)
    return _matching(lambda options: _batch_nodes(options, batch), ctx, incomplete) if batch else []


def complete_run_or_batch(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ids of the newest runs, then ids and names of the newest batches."""
    return [*complete_run(ctx, param, incomplete), *complete_batch(ctx, param, incomplete)]


def complete_dead_letter(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ids of dead letters, with the run that each comes from as help, but those on the command line already."""
    named = ctx.params.get(param.name or "") or ()
    return [
        item for item in _matching(_kept("dead-letters", _dead_letters), ctx, incomplete) if item.value not in named
    ]


def complete_user(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of users, with their access roles as help."""
    return _matching(_kept("users", _users), ctx, incomplete)


def complete_access_token(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ids of access tokens, with their user and label as help."""
    return _matching(_kept("tokens", _access_tokens), ctx, incomplete)


def complete_webhook(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of webhooks, with what they are about as help."""
    return _matching(_kept("webhooks", _webhooks), ctx, incomplete)


def complete_state_key(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """`NAME=` for the keys that the agent on the command line declares, with their types as help."""
    agent = ctx.params.get("agent") or next(iter(ctx.args), None)  # an option without its value yet stops the parser
    return _matching(lambda options: _state_keys(options, agent), ctx, incomplete) if agent else []


def complete_node(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Nodes of the agent on the command line, with their types as help."""
    agent = ctx.params.get("agent") or next(iter(ctx.args), None)
    return _matching(lambda options: _nodes(options, agent), ctx, incomplete) if agent else []


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
    with contextlib.suppress(Exception, _TimeIsUp):
        return [item for item in candidates(from_context(ctx)) if item.value.startswith(incomplete)]
    return []


class _NotAsked(Exception):
    """The private stack is down."""


class _TimeIsUp(BaseException):
    """Not a TimeoutError or any Exception, which redis-py would take for a slow server and retry."""


def _kept(kind: str, ask: Candidates) -> Candidates:
    """The stack's answer, or, if it does not answer in time, the cached one."""

    def candidates(options: GlobalOptions) -> Iterator[CompletionItem]:
        importlib.import_module("sleipnir.client.client")  # before the time begins: on a busy machine it takes seconds
        file = _kept_in(options, kind)
        try:
            with _time_limit():
                items = list(ask(options))
        except (Exception, _TimeIsUp):
            return iter(_read(file))
        with contextlib.suppress(OSError):
            _write(file, items)
        return iter(items)

    return candidates


def _kept_in(options: GlobalOptions, kind: str) -> Path:
    """One file for each deployment, whose address may contain a password."""
    settings = options.settings()
    address = hashlib.sha256(f"{settings.redis_url} {settings.key_prefix}".encode()).hexdigest()[:12]
    return settings.home / "completion" / f"{kind}-{address}.json"


def _read(file: Path) -> list[CompletionItem]:
    return [CompletionItem(str(value), help=str(help_)) for value, help_ in json.loads(file.read_text("utf-8"))]


def _write(file: Path, items: Sequence[CompletionItem]) -> None:
    """Written atomically, as another terminal may read it."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=file.parent, encoding="utf-8", delete=False) as staging:
        json.dump([[item.value, item.help or ""] for item in items], staging)
    Path(staging.name).replace(file)


def _agents(options: GlobalOptions) -> Iterator[CompletionItem]:
    from sleipnir.agents.finding import places

    names = {
        file.parent.name
        for place in places(options.settings())
        for file in (path for name in ("graph.yaml", "config.yaml", "graph.py") for path in place.glob(f"[!.]*/{name}"))
    }
    return (CompletionItem(name) for name in sorted(names))


def _shipped(options: GlobalOptions) -> Iterator[CompletionItem]:
    from sleipnir.agents.finding import shipped_agents

    return (CompletionItem(name) for name in sorted(shipped_agents()))


def _runs(options: GlobalOptions) -> Iterator[CompletionItem]:
    with options.connected_if_up() as client:
        if client is None:
            raise _NotAsked
        runs = client.runs(limit=SHOWN_RUNS)
    return (CompletionItem(info.id, help=f"{info.agent}, {info.status}") for info in runs)


def _tags(options: GlobalOptions) -> Iterator[CompletionItem]:
    with options.connected_if_up() as client:
        if client is None:
            raise _NotAsked
        with client.store.errors():
            tags = client.store.runs.known_tags(client.settings.namespace)
    return map(CompletionItem, tags)


def _threads(options: GlobalOptions) -> Iterator[CompletionItem]:
    """As `agent/name`."""
    with options.connected_if_up() as client:
        if client is None:
            raise _NotAsked
        with client.store.errors():
            infos = client.threads(limit=SHOWN_THREADS)
    turns = {info: "1 turn" if info.turns == 1 else f"{info.turns:,} turns" for info in infos}
    return (CompletionItem(f"{info.agent}/{info.name}", help=f"{turns[info]}, {info.status}") for info in infos)


def _users_of_agents(options: GlobalOptions) -> Iterator[CompletionItem]:
    """As `agent/user`."""
    with options.connected_if_up() as client:
        if client is None:
            raise _NotAsked
        infos = client.shared_value_counts()
    users = [info for info in infos if info.user is not None][:SHOWN_THREADS]
    return (CompletionItem(f"{info.agent}/{info.user}", help=f"{info.values:,} values") for info in users)


def _shared_keys(options: GlobalOptions, agent: str, user: str | None) -> Iterator[CompletionItem]:
    with _time_limit(), options.connected_if_up() as client:
        keys = [] if client is None else sorted(client.shared_values(name_of(agent), user))
    return map(CompletionItem, keys)


def _checkpoints(options: GlobalOptions, run: str) -> Iterator[CompletionItem]:
    steps = _steps(options, run)
    return (CompletionItem(str(step.step), help=step.node or step.kind) for step in steps if step.checkpoint)


def _visited_nodes(options: GlobalOptions, run: str) -> Iterator[CompletionItem]:
    return map(CompletionItem, sorted({step.node for step in _steps(options, run) if step.node and not step.item}))


def _open_visits(options: GlobalOptions, run: str, incomplete: str) -> Iterator[CompletionItem]:
    with _time_limit(), options.connected_if_up() as client:
        info = None if client is None else client.run(run).info()
    if info is None:
        return
    numbers: dict[str, list[int]] = {}
    live = ((visit.node, visit.seq) for visit in info.visits if visit.state != "ended" and visit.role == "node")
    kept = ((visit.node, visit.seq) for visit in info.kept if visit.again and visit.role == "node")
    for node, seq in (*live, *kept):
        numbers.setdefault(node, []).append(seq)
    for node, seqs in numbers.items():
        yield CompletionItem(node, help=f"visit {', '.join(map(str, seqs[:5]))}")
        if incomplete:
            yield from (CompletionItem(str(seq), help=node) for seq in seqs)


def _steps(options: GlobalOptions, run: str) -> list[StepInfo]:
    with _time_limit(), options.connected_if_up() as client:
        return [] if client is None else client.run(run).history(limit=SHOWN_STEPS)


def _archived(options: GlobalOptions) -> Iterator[CompletionItem]:
    from sleipnir.upkeep.archive import archived_runs

    folder = options.settings().archive
    for run in islice(archived_runs(folder), SHOWN_RUNS) if folder else ():
        yield CompletionItem(run.run, help=f"{run.agent}, {run.status}")


def _dead_letters(options: GlobalOptions) -> Iterator[CompletionItem]:
    with options.connected_if_up() as client:
        if client is None:
            raise _NotAsked
        letters = list(islice(client.store.dead_letters.all(), SHOWN_RUNS))
    return (CompletionItem(letter.id, help=f"of run {letter.run}") for letter in letters)


def _users(options: GlobalOptions) -> Iterator[CompletionItem]:
    with options.connected_if_up() as client:
        if client is None:
            raise _NotAsked
        users = client.access.users()
    for user in users:
        yield CompletionItem(user.name, help=", ".join(f"{role} in {name}" for name, role in user.roles.items()))


def _webhooks(options: GlobalOptions) -> Iterator[CompletionItem]:
    with options.connected_if_up() as client:
        if client is None:
            raise _NotAsked
        found = client.webhooks.all()
    return (CompletionItem(info.webhook.name, help=", ".join(info.webhook.on)) for info in found)


def _access_tokens(options: GlobalOptions) -> Iterator[CompletionItem]:
    with options.connected_if_up() as client:
        if client is None:
            raise _NotAsked
        tokens = client.access.tokens()
    return (CompletionItem(token.id, help=f"of {token.user} {token.label}".rstrip()) for token in tokens)


def _batches(options: GlobalOptions) -> Iterator[CompletionItem]:
    with options.connected_if_up() as client:
        if client is None:
            raise _NotAsked
        batches = client.batches(limit=SHOWN_RUNS, namespace="*")
    for info in batches:
        for word in filter(None, (info.id, info.name)):
            yield CompletionItem(word, help=f"{info.agent}, {info.state}")


def _schedules(options: GlobalOptions) -> Iterator[CompletionItem]:
    with options.connected_if_up() as client:
        if client is None:
            raise _NotAsked
        found = client.schedules()
    return (CompletionItem(info.name, help=f"{info.agent}, {info.state}") for info in found)


def _jobs(options: GlobalOptions) -> Iterator[CompletionItem]:
    with options.connected_if_up() as client:
        if client is None:
            raise _NotAsked
        found = client.jobs.page(SHOWN_RUNS, namespace="*")
    return (CompletionItem(info.id, help=f"{info.plan.action}, {info.progress.state}") for info in found)


def _batch_nodes(options: GlobalOptions, batch: str) -> Iterator[CompletionItem]:
    from sleipnir.client.pinned_graph import pinned_graph

    with _time_limit(), options.connected_if_up() as client:
        if client is None:
            return
        spec = client.store.batches.spec(client.open_batch(batch).id)
        nodes = sorted(pinned_graph(client.store, spec).nodes) if spec is not None else []
    yield from map(CompletionItem, nodes)


def _state_keys(options: GlobalOptions, agent: str) -> Iterator[CompletionItem]:
    from sleipnir.agents.source import locate, read

    declared = read(locate(agent, options.settings())).state
    return (CompletionItem(f"{key}=", help=field.description or field.type) for key, field in declared.items())


def _nodes(options: GlobalOptions, agent: str) -> Iterator[CompletionItem]:
    from sleipnir.agents.source import locate, read

    nodes = read(locate(agent, options.settings())).nodes
    return (CompletionItem(name, help=node.kind) for name, node in nodes.items())


def _tools(options: GlobalOptions, agent: str) -> Iterator[CompletionItem]:
    from sleipnir.agents.config_directory import functions_dir
    from sleipnir.agents.source import locate, read
    from sleipnir.tools.folder import tools_of

    source = locate(agent, options.settings())
    declarations = tools_of(source.path, functions_dir(), read(source)).declarations
    return (CompletionItem(each.name, help=each.description.partition("\n")[0]) for each in declarations)


def _rag_nodes(options: GlobalOptions, agent: str) -> Iterator[CompletionItem]:
    from sleipnir.agents.finding import look_up
    from sleipnir.graph.load import load_agent
    from sleipnir.knowledge.preparing import nodes_of

    graph = load_agent(look_up(agent, options.settings())).graph
    return (CompletionItem(name) for name in (nodes_of(graph) if graph else ()))


@contextlib.contextmanager
def _time_limit() -> Iterator[None]:
    """Raise _TimeIsUp in the block after TIME_LIMIT_S. Only for the main thread, where completion runs."""

    def give_up(signum: int, frame: object) -> None:
        raise _TimeIsUp

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, TIME_LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

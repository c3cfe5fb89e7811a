"""`kb`: build, show, search and remove the knowledge bases of an agent's rag nodes, or of its documents.

Rule. The builder, a process of the workers' package, does everything that needs documents, vectors or a model.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sleipnir.cli import exit_codes
from sleipnir.cli.completion import complete_agent, complete_rag_node
from sleipnir.cli.knowledge.bases import print_base, print_forecast, print_hits
from sleipnir.cli.knowledge.building import KEYWORDS_ONLY
from sleipnir.cli.options import COUNT, COUNT_OR_NONE, GlobalOptions, pass_options
from sleipnir.cli.terminal import terminal
from sleipnir.cli.terminal.render import moment, print_json, print_table, size
from sleipnir.errors import UsageError
from sleipnir.runs.plain_text import printable

if TYPE_CHECKING:
    from sleipnir.cli.knowledge.building import BuildView
    from sleipnir.graph.load import AgentFolder
    from sleipnir.graph.model import Graph, RagNode
    from sleipnir.knowledge.application import Application
    from sleipnir.knowledge.order import Order
    from sleipnir.knowledge.preparing import Asker, CarryOut
    from sleipnir.knowledge.rules import BaseOptions
    from sleipnir.settings import Settings


@click.group()
def kb() -> None:
    """Build, show, search and remove knowledge bases: one per rag node, or one of a config.yaml agent's documents."""


_AGENT = click.argument("agent", metavar="AGENT|FOLDER", shell_complete=complete_agent)
_NODE = click.argument("node", required=False, shell_complete=complete_rag_node)
_JSON = click.option("--json", "as_data", is_flag=True, help="Print JSON.")


def _build_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        _JSON,
        click.option("--yes", "-y", is_flag=True, help="No questions: take all defaults."),
        click.option("--dry-run", is_flag=True, help="Estimate chunks, tokens and cost; calls no model."),
        click.option("--continue", "go_on", is_flag=True, help="Leave out documents that fail to load."),
        click.option("--batch-size", type=COUNT, metavar="N", help="Chunks per call of the model."),
        click.option("--top-k", type=COUNT, metavar="N", help="Number of chunks of a search."),
        click.option("--reranker-model", metavar="ID", help="A model that orders the results of a search."),
        click.option("--chunk-overlap", type=COUNT_OR_NONE, metavar="BYTES"),
        click.option("--chunk-size", type=COUNT, metavar="BYTES"),
        click.option("--embedding-model", metavar="ID", help="`client:model`, or `none`: keywords only, no key."),
        _NODE,
        _AGENT,
    ):
        command = option(command)
    return command


@kb.command()
@_build_options
@pass_options
def build(options: GlobalOptions, /, agent: str, node: str | None, as_data: bool, **wish: Any) -> int:
    """Build the bases of AGENT that do not exist yet, or that of NODE.

    An existing base is not changed; it is shared with the workers again, if they do not have it.

    Values that neither an option, the node nor Loki's config.yaml sets are asked on a terminal. Without an embedding
    model (`--embedding-model none`) a base is searched by keywords, without a provider.
    """
    return _make(options, agent, node, _BuildOptions(**wish), as_data=as_data)


@kb.command()
@_build_options
@pass_options
def rebuild(options: GlobalOptions, /, agent: str, node: str | None, as_data: bool, **wish: Any) -> int:
    """Rebuild bases from the current documents.

    Those of AGENT, or that of NODE. Only changed chunks are embedded. Values that neither an option nor the node sets
    are kept. Existing runs keep their base.
    """
    return _make(options, agent, node, _BuildOptions(**wish, anew=True), as_data=as_data)


@kb.command()
@_AGENT
@_NODE
@_JSON
@pass_options
def show(options: GlobalOptions, agent: str, node: str | None, as_data: bool) -> None:
    """Show the contents of the bases of AGENT, or of that of NODE. Builds nothing."""
    bases = _bases_of(agent, options.settings())
    chosen = bases.chosen(node)
    built = [name for name in chosen if bases.file(name).is_file()]
    for name in chosen:
        if name not in built:
            terminal.note(f"{name}: not built; `{options.command('kb', 'build', agent, name)}` builds it")
    shown = []
    if built:
        carry_out = _alone(options)
        shown = [carry_out(bases.order("show", name), lambda message: None) for name in built]
    if as_data:
        print_json(shown)
    for index, base in enumerate(shown if not as_data else ()):
        if index:
            click.echo()
        print_base(base, bases.agent.path)


@kb.command(options_metavar="[OPTIONS]")
@_AGENT
@click.argument("words", nargs=-1, required=True, metavar="[NODE] QUERY", shell_complete=complete_rag_node)
@click.option("--top-k", type=COUNT, metavar="N", help="Number of chunks. Default: the base's own.")
@click.option("--source", "sources", multiple=True, metavar="GLOB", help="Only from matching sources; repeatable.")
@click.option("--per-source", type=COUNT, metavar="N", help="Maximum number of chunks of one source.")
@click.option("--full", is_flag=True, help="Print whole chunks.")
@_JSON
@pass_options
def search(
    options: GlobalOptions,
    agent: str,
    words: tuple[str, ...],
    top_k: int | None,
    sources: tuple[str, ...],
    per_source: int | None,
    full: bool,
    as_data: bool,
) -> None:
    """Search the base of NODE like a run.

    NODE may be omitted if the agent has only one. Quote the query, so that it is one argument.
    """
    from sleipnir.knowledge.order import SearchQuery

    bases = _bases_of(agent, options.settings())
    node, query = _node_and_query(bases, words)
    if not bases.file(node).is_file():
        raise UsageError(f"{node!r} is not built; `{options.command('kb', 'build', agent, node)}` builds it")
    order = replace(bases.order("search", node), question=SearchQuery(query, top_k, sources, per_source))
    with _builder(options) as carry_out, _view() as view:
        answer = carry_out(order, lambda message: view.report(f"{bases.agent.name}/{node}", message))
    if as_data:
        print_json(answer)
        return
    print_hits(answer["hits"], bases.agent.path, full=full)
    notes = [] if answer["hits"] else ["nothing found"]
    if answer["embedding_model"] is None:
        notes.append(f"searched by {KEYWORDS_ONLY}")
    if notes:
        terminal.note("; ".join(notes))


@kb.command()
@_AGENT
@_NODE
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@_JSON
@pass_options
def rm(options: GlobalOptions, agent: str, node: str | None, yes: bool, as_data: bool) -> int:
    """Remove the bases of AGENT, or that of NODE. Existing runs keep theirs; the next run builds it again, or asks,
    like the first one.
    """
    from sleipnir.cli.knowledge.building import asker

    bases = _bases_of(agent, options.settings())
    built = [name for name in bases.chosen(node) if bases.file(name).is_file()]
    if not built:
        raise UsageError(f"agent {bases.agent.name!r} has no base to remove")
    if not yes:
        listed = ", ".join(str(bases.file(name)) for name in built)
        with _view() as view:
            person = asker(view)
            if person is None:
                raise UsageError(f"there is no terminal to ask on; --yes removes {listed}")
            if not person.confirm(f"Remove {listed}?", default=False):
                return exit_codes.FAILED
    for name in built:
        bases.file(name).unlink(missing_ok=True)
    if as_data:
        print_json([{"agent": bases.agent.name, "node": name, "removed": bases.file(name)} for name in built])
    else:
        for name in built:
            terminal.result(f"removed {bases.file(name)}")
    return exit_codes.COMPLETED


@kb.command()
@click.argument("agent", required=False, metavar="[AGENT|FOLDER]", shell_complete=complete_agent)
@_JSON
@pass_options
def ls(options: GlobalOptions, agent: str | None, as_data: bool) -> None:
    """List the bases that agents have or need. Does not read them."""
    rows = [row for bases in _all_bases(options.settings(), agent) for row in bases.rows()]
    if as_data:
        print_json(rows)
    elif rows:
        print_table(("agent", "node", "size", "built", "file"), [_row(row) for row in rows])
    else:
        terminal.note("no knowledge bases" if agent is None else f"agent {agent!r} has no rag node and no documents")


@dataclass(frozen=True)
class _Bases:
    """An agent and the nodes of it that may have a base; None stands for the documents of a config.yaml agent."""

    agent: AgentFolder
    graph: Graph
    nodes: Mapping[str, RagNode | None]

    def file(self, node: str) -> Path:
        from sleipnir.knowledge.files import base_file

        return base_file(self.agent.path, node)

    def order(self, task: Any, node: str) -> Order:
        from sleipnir.knowledge.order import Order

        return Order(task, self.agent.name, node, str(self.agent.path))

    def chosen(self, node: str | None) -> list[str]:
        """The node that is named, or all. Raises UsageError."""
        if not self.nodes:
            raise UsageError(f"agent {self.agent.name!r} has no rag node and no documents")
        if node is None:
            return list(self.nodes)
        if node not in self.nodes:
            raise UsageError(f"agent {self.agent.name!r} has no rag node {node!r}; it has: {', '.join(self.nodes)}")
        return [node]

    def rows(self) -> Iterator[dict[str, Any]]:
        """One record per base for `kb ls`, built or not."""
        for node in self.nodes:
            with contextlib.suppress(OSError):
                file = self.file(node)
                stat = file.stat() if file.is_file() else None
                yield {
                    "agent": self.agent.name,
                    "node": node,
                    "file": str(file),
                    "built": stat is not None,
                    "file_bytes": None if stat is None else stat.st_size,
                    "built_ms": None if stat is None else stat.st_mtime_ns // 1_000_000,
                }


def _bases_of(agent: str, settings: Settings) -> _Bases:
    """Raises AgentNotFound and GraphError."""
    from sleipnir.agents.finding import look_up

    return _in_folder(look_up(agent, settings))


def _in_folder(folder: AgentFolder) -> _Bases:
    from sleipnir.errors import GraphError
    from sleipnir.graph.load import load_agent, refusal
    from sleipnir.knowledge.preparing import documents_of, nodes_of

    loaded = load_agent(folder)
    if loaded.graph is None:
        raise GraphError(refusal(folder.kind, str(folder.file), folder.name), loaded.problems)
    bases = _Bases(folder, loaded.graph, nodes_of(loaded.graph))
    wanted = {
        name: node
        for name, node in bases.nodes.items()
        if node is not None or documents_of(loaded.graph, node) or bases.file(name).is_file()
    }
    return replace(bases, nodes=wanted)


def _all_bases(settings: Settings, agent: str | None) -> Iterator[_Bases]:
    from sleipnir.agents.finding import look_up, names
    from sleipnir.errors import SleipnirError

    if agent is not None:
        yield _bases_of(agent, settings)
        return
    for name in names(settings):
        with contextlib.suppress(SleipnirError):  # `sleipnir agents` shows its problems
            yield _in_folder(look_up(name, settings))


def _alone(options: GlobalOptions) -> CarryOut:
    """A builder for operations without Redis: existing and possible bases."""
    from sleipnir.knowledge.builder import Builder

    return Builder(options.settings()).carry_out


@contextlib.contextmanager
def _builder(options: GlobalOptions) -> Iterator[CarryOut]:
    """A builder with the Redis in which builders wait for each other; that of the private stack, if necessary."""
    from sleipnir.knowledge.builder import Builder

    with options.connected(workers=False) as client:
        yield Builder(client.settings).carry_out


@contextlib.contextmanager
def _view() -> Iterator[BuildView]:
    from sleipnir.cli.knowledge.building import BuildView

    with BuildView() as view:
        yield view


@dataclass(frozen=True)
class _BuildOptions:
    """The options of `build` and `rebuild` (`anew`). They take precedence over the node and the application."""

    embedding_model: str | None
    chunk_size: int | None
    chunk_overlap: int | None
    reranker_model: str | None
    top_k: int | None
    batch_size: int | None
    go_on: bool
    dry_run: bool
    yes: bool
    anew: bool = False

    @property
    def values(self) -> dict[str, Any]:
        names = ("embedding_model", "chunk_size", "chunk_overlap", "reranker_model", "top_k", "batch_size")
        return {name: getattr(self, name) for name in names}


def _make(options: GlobalOptions, agent: str, node: str | None, wish: _BuildOptions, *, as_data: bool) -> int:
    from sleipnir.cli.knowledge.building import asker
    from sleipnir.knowledge.preparing import make

    bases = _bases_of(agent, options.settings())
    chosen = bases.chosen(node)
    there = [] if wish.anew else [name for name in chosen if bases.file(name).is_file()]
    for name in there:
        again = options.command("kb", "rebuild", agent, name)
        terminal.note(f"{name}: is built already, {bases.file(name)}; `{again}` builds it anew")
    with _view() as view:
        person = asker(view, yes=wish.yes)
        missing = [name for name in chosen if name not in there]
        orders = [_order(bases, name, wish, _alone(options), person) for name in missing]
        if wish.dry_run:
            results = [make(order, _alone(options), person, view.report) for order in orders]
        else:
            orders += [bases.order("index", name) for name in there]
            with _builder(options) as carry_out:
                results = [make(order, carry_out, person, view.report) for order in orders]
    if as_data:
        print_json(results)
        return exit_codes.COMPLETED
    for index, result in enumerate(results):
        if index:
            click.echo()
        (print_forecast if wish.dry_run else print_base)(result, bases.agent.path)
    return exit_codes.COMPLETED


def _order(bases: _Bases, name: str, wish: _BuildOptions, carry_out: CarryOut, person: Asker | None) -> Order:
    """The builder's task. Raises UsageError for missing values."""
    from sleipnir.knowledge.application import application
    from sleipnir.knowledge.preparing import documents_of
    from sleipnir.knowledge.rules import NO_DOCUMENTS, applying_to, completed, options_of

    node = bases.nodes[name]
    documents = documents_of(bases.graph, node)
    if not documents:
        raise UsageError(NO_DOCUMENTS.format(node=name))
    defaults = application()
    known = _as_built(bases, name, defaults, carry_out) if wish.anew and bases.file(name).is_file() else None
    wanted = completed(options_of(node, documents, known or applying_to(node, defaults)), **wish.values)
    if wanted.missing is not None:
        wanted = _asked(wanted, defaults, person)
    recipe = wanted.recipe()
    if recipe.chunk_overlap >= recipe.chunk_size:
        raise UsageError(f"chunk_overlap {recipe.chunk_overlap} must be less than chunk_size {recipe.chunk_size}")
    task = "forecast" if wish.dry_run else "rebuild" if wish.anew else "build"
    return replace(bases.order(task, name), recipe=recipe, loaders=dict(defaults.loaders), go_on=wish.go_on)


def _as_built(bases: _Bases, name: str, defaults: Application, carry_out: CarryOut) -> Application | None:
    """Values from the base's last build take precedence over the application's. None: the base cannot be read."""
    from sleipnir.errors import KnowledgeError
    from sleipnir.knowledge.recipe import NO_MODEL

    try:
        base = carry_out(bases.order("show", name), lambda message: None)
    except KnowledgeError as error:
        terminal.note(printable(f"note: {error}"))
        return None
    return replace(
        defaults,
        embedding_model=base["embedding_model"] or NO_MODEL,
        chunk_size=base["chunk_size"],
        chunk_overlap=base["chunk_overlap"],
        reranker_model=base["reranker_model"],
        top_k=base["top_k"],
    )


def _asked(wanted: BaseOptions, defaults: Application, person: Asker | None) -> BaseOptions:
    if person is None:
        option = "--embedding-model ID (`none`: keywords alone, no key)"
        if wanted.embedding_model is not None:
            option = "--chunk-size BYTES" if wanted.chunk_size is None else "--chunk-overlap BYTES"
        raise UsageError(f"{wanted.missing}\nOr give it here: {option}; --yes takes the usual values")
    completed = person.complete(wanted, defaults)
    if completed is None:
        raise UsageError(wanted.missing or "")
    return completed


def _node_and_query(bases: _Bases, words: Sequence[str]) -> tuple[str, str]:
    if len(words) == 2 and words[0] in bases.nodes:
        return words[0], words[1]
    if len(words) > 1:
        first = bases.chosen(words[0])[0]  # names the nodes there are, if it is none
        raise UsageError(f"quote the query, so that it is one word to the shell: {first} {' '.join(words[1:])!r}")
    nodes = bases.chosen(None)
    if len(nodes) > 1:
        raise UsageError(f"agent {bases.agent.name!r} has several bases, name one of them: {', '.join(nodes)}")
    return nodes[0], words[0]


def _row(row: Mapping[str, Any]) -> tuple[str, ...]:
    built = row["built"]
    return (
        row["agent"],
        row["node"],
        size(row["file_bytes"]) if built else "",
        moment(row["built_ms"]) if built else "not yet",
        row["file"],
    )

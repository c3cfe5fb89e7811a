#!/usr/bin/env python3
"""Validate and run every agent of a checkout of Loki, or of Coyote, its new name, and list the differences.

    python ops/compat/run.py [NAME=]CHECKOUT... [--validate-only] [--agent AGENT...] [--write]

A checkout holds `assets/agents` and `assets/functions`, or `agents` and `functions`. It is installed as that program
installs it, in `.config/loki` or `.config/coyote` (the one that its release reads) of a temporary home. Only the
address of the model is set; nothing else is changed. Each agent is validated, and run end to end on a private stack, in
a project of its own, with a model server that follows `scripted.py`; questions to people get their first option.

The table goes to stdout, progress to stderr; `--write` puts the table into docs/loki-compatibility.md. Exit code 0: all
agents are valid and complete; 1: some are not; 2: the command line is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT)]

from ops.compat.scripted import answer  # noqa: E402
from sleipnir.client.client import Client, Run  # noqa: E402
from sleipnir.errors import SleipnirError  # noqa: E402
from sleipnir.graph.check_models import NO_MODEL  # noqa: E402
from sleipnir.graph.load import parse  # noqa: E402
from sleipnir.knowledge.application import Application  # noqa: E402
from sleipnir.knowledge.rules import BaseOptions  # noqa: E402
from sleipnir.local.stack import stack  # noqa: E402
from sleipnir.settings import Settings  # noqa: E402
from sleipnir.testing import ModelServer  # noqa: E402

DOCUMENT = ROOT / "docs" / "loki-compatibility.md"
BEGIN, END = "<!-- made by ops/compat/run.py: begin -->", "<!-- made by ops/compat/run.py: end -->"
PROMPT = "Describe the project in this directory."
VALUES = {"dsn": "sqlite:///project.db"}
"""Of variables that an agent asks its user for. Others get a word."""
RUN_S = 180.0
USUAL = "Node is unreachable from the start node via declared edges"
"""Loki's own warning about nodes that scripts choose: it says nothing about compatibility."""

PROJECT = {
    "README.md": "# Project\n\nIt adds numbers.\n",
    "Makefile": "build lint test:\n\ttrue\n",
    "plans/steps/01-sum.md": "---\ntitle: Sum\nstatus: pending\n---\n\nAdd a function that sums a list.\n",
    "add.py": "def add(a, b):\n    return a + b\n",
}
GIT = (
    ("init", "--quiet"),
    ("add", "."),
    ("-c", "user.name=Nobody", "-c", "user.email=nobody@example.org", "commit", "--quiet", "--message=Begin"),
)
"""The commands that make the project a repository: agents that review ask for its differences."""


@dataclass(frozen=True)
class Checked:
    """The result of one agent. `status` None: it was not run. `visited` counts the nodes that ran, `differs` lists the
    differences that a user would notice."""

    agent: str
    kind: str
    errors: tuple[str, ...] = ()
    status: str | None = None
    visited: str = ""
    differs: tuple[str, ...] = ()

    @property
    def is_good(self) -> bool:
        return not self.errors and self.status in (None, "completed")

    def cleaned(self, places: Mapping[str, str]) -> Checked:
        """The same without paths of this machine."""
        return replace(self, errors=_cleaned(self.errors, places), differs=_cleaned(self.differs, places))


@dataclass(frozen=True)
class Table:
    """The results of the agents of a checkout that was installed in `place`."""

    name: str
    place: str
    results: Sequence[Checked]

    def text(self) -> str:
        """The section in Markdown."""
        good = sum(result.is_good for result in self.results)
        what = "valid" if all(result.status is None for result in self.results) else "valid and complete"
        summary = f"Installed in `{self.place}`: {good} of {len(self.results)} agents are {what}."
        rows = [_row("agent", "kind", "valid", "run", "what differs"), "|---|---|---|---|---|"]
        for result in self.results:
            valid = "yes" if not result.errors else "no"
            differs = "<br>".join([*result.errors, *result.differs]) or "nothing"
            run = ", ".join(part for part in (result.status or "not run", result.visited) if part)
            rows.append(_row(result.agent, result.kind, valid, run, differs))
        return "\n".join([f"### {self.name}", "", summary, "", *rows, ""])


@dataclass
class Seen:
    """The failures and nodes that the events of a run report, besides its end."""

    nodes: set[str] = field(default_factory=set)
    failed_visits: dict[str, str] = field(default_factory=dict)
    failed_tools: set[str] = field(default_factory=set)

    def hear(self, type_: str, data: Mapping[str, Any]) -> None:
        if type_ == "visit_closed":
            self.nodes.add(str(data.get("node")))
        if type_ == "visit_closed" and (error := data.get("error")):
            self.failed_visits[str(data.get("node"))] = last_line(str(error))
        if type_ == "tool_ended" and not data.get("ok", True):
            self.failed_tools.add(str(data.get("name")))

    def lines(self) -> list[str]:
        visits = [f"visit of `{node}` failed: {error}" for node, error in self.failed_visits.items()]
        return visits + [f"a call of `{tool}` failed" for tool in sorted(self.failed_tools)]


class Keywords:
    """Confirms that knowledge bases are built, for keywords only: no model for vectors is needed."""

    def confirm(self, question: str, *, default: bool) -> bool:
        return True

    def complete(self, wanted: BaseOptions, application: Application) -> BaseOptions:
        return replace(wanted, embedding_model=NO_MODEL)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.write and (options.agents or options.validate_only):
        parser.error("--write replaces whole tables and cannot be combined with --agent or --validate-only")
    checkouts = dict(map(named, options.checkouts))
    if len(checkouts) < len(options.checkouts):
        parser.error("two checkouts have one name; write NAME=CHECKOUT")
    try:
        if options.write:
            with_tables(DOCUMENT.read_text(encoding="utf-8"), "")  # fails before the runs
        chosen = {name: chosen_of(source_of(path), options.agents) for name, path in checkouts.items()}
    except Unusable as error:
        parser.error(str(error))
    tables = [Table(name, *checked(name, checkouts[name], agents, options)) for name, agents in chosen.items()]
    text = "\n".join(table.text() for table in tables)
    print(text)
    if options.write:
        DOCUMENT.write_text(with_tables(DOCUMENT.read_text(encoding="utf-8"), text), encoding="utf-8")
    return 0 if all(result.is_good for table in tables for result in table.results) else 1


class Unusable(Exception):
    """A checkout, or a request for it, is wrong. The text is the reason."""


def named(given: str) -> tuple[str, Path]:
    """The name of a checkout in the tables, and its path."""
    name, equals, path = given.partition("=")
    checkout = Path(path if equals else given).absolute()
    return (name if equals else checkout.name), checkout


def source_of(checkout: Path) -> Path:
    """The folder of a checkout that holds `agents`. Raises Unusable."""
    folder = next((root for root in (checkout / "assets", checkout) if (root / "agents").is_dir()), None)
    if folder is None:
        raise Unusable(f"{checkout} has no assets/agents and no agents folder")
    return folder


def chosen_of(source: Path, wanted: Sequence[str] | None) -> list[str]:
    """The agents to check. Raises Unusable if there are none, or if a wanted one is missing."""
    agents = agents_in(source)
    if not agents:
        raise Unusable(f"{source / 'agents'} holds no folder with a graph.yaml or a config.yaml")
    if missing := sorted(set(wanted or ()) - set(agents)):
        raise Unusable(f"{source / 'agents'} has no agent {', '.join(missing)}; there are {', '.join(agents)}")
    return [agent for agent in agents if not wanted or agent in wanted]


def checked(name: str, checkout: Path, agents: Sequence[str], options: argparse.Namespace) -> tuple[str, list[Checked]]:
    """The place where the checkout was installed, and the results of its agents."""
    with tempfile.TemporaryDirectory(prefix="compat-") as folder:
        home = Path(folder)
        config = install(checkout, home)
        valid = [validated(each, config, home) for each in _counted(f"{name}: validating", agents)]
        results = valid if options.validate_only else list(run_all(name, valid, config, home))
        return f"~/{config.relative_to(home)}", [
            each.cleaned({str(config): "CONFIG", str(home): "HOME"}) for each in results
        ]


def install(checkout: Path, home: Path) -> Path:
    """The configuration directory, in `home`, with all that the program installs into it."""
    source = source_of(checkout)
    config = home / ".config" / program_of(checkout)
    for part in ("agents", "functions", "skills"):
        if (source / part).is_dir():
            shutil.copytree(source / part, config / part, symlinks=True)
    return config


def program_of(checkout: Path) -> str:
    """The program's name in this release: Loki before 0.5, then Coyote. A checkout without a name is Coyote's."""
    try:
        package = tomllib.loads((checkout / "Cargo.toml").read_text(encoding="utf-8")).get("package", {})
    except (OSError, ValueError):
        return "coyote"
    return "loki" if str(package.get("name", "")).startswith("loki") else "coyote"


def agents_in(source: Path) -> list[str]:
    folders = (folder for folder in (source / "agents").iterdir() if not folder.name.startswith("."))
    return sorted(f.name for f in folders if (f / "graph.yaml").is_file() or (f / "config.yaml").is_file())


def environment(home: Path) -> dict[str, str]:
    """The variables of this process without those that would change what an agent is, and with a home of its own."""
    prefixes = ("SLEIPNIR_", "LOKI_", "COYOTE_", "LLM_AGENT_VAR_", "XDG_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
    return {**kept, "HOME": str(home), "SLEIPNIR_HOME": str(home / "sleipnir")}


def nodes_of(folder: Path) -> int:
    """How many nodes the graph of an agent has; 0 for a config.yaml."""
    file = folder / "graph.yaml"
    graph = parse(file.read_text(encoding="utf-8"), file.name).graph if file.is_file() else None
    return 0 if graph is None else len(graph.nodes)


def validated(agent: str, config: Path, home: Path) -> Checked:
    """The result of `sleipnir validate` for an installed agent."""
    kind = "graph" if (config / "agents" / agent / "graph.yaml").is_file() else "config"
    command = [sys.executable, "-m", "sleipnir", "validate", "--json", agent]
    done = subprocess.run(
        command, env={**environment(home), "PYTHONPATH": str(ROOT)}, cwd=home, capture_output=True, text=True
    )
    try:
        problems = json.loads(done.stdout)
    except ValueError:
        return Checked(agent, kind, (last_line(done.stderr) or "validate says nothing",))
    errors = tuple(_message_of(each) for each in problems if each["level"] == "error")
    warnings = (each for each in problems if each["level"] != "error" and USUAL not in each["message"])
    return Checked(agent, kind, errors, differs=tuple(_message_of(each) for each in warnings))


def run_all(name: str, agents: Sequence[Checked], config: Path, home: Path) -> Iterator[Checked]:
    """Run each agent that is valid, on one private stack."""
    with ModelServer(answer) as model, _only(environment(home) | model.env()):
        settings = Settings.from_env(model="openai:gpt-test")
        with stack(settings) as running, Client(running) as client:
            for number, agent in enumerate(agents, 1):
                done = agent if agent.errors else ran(agent, client, home, nodes_of(config / "agents" / agent.agent))
                _report(f"{name}: run {number}/{len(agents)} {agent.agent}: {done.status or 'not valid'}")
                yield done


def ran(agent: Checked, client: Client, home: Path, nodes: int) -> Checked:
    """The agent with the result of its run. `nodes` is the number of nodes of its graph; 0: it has no graph."""
    project = home / "projects" / agent.agent
    for name, text in PROJECT.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
    for command in GIT:
        subprocess.run(["git", *command], cwd=project, check=True, capture_output=True)
    seen = Seen()
    try:
        run = client.submit(
            agent.agent,
            PROMPT,
            caller_dir=project,
            ask_variable=lambda variable: VALUES.get(variable.name, "word"),
            ask_knowledge=Keywords(),
        )
        status = followed(run, seen)
        error = [last_line(run.error or "")] if status == "failed" else []
    except SleipnirError as refusal:
        status, error = "refused", [last_line(str(refusal))]
    visited = f"{len(seen.nodes)} of {nodes} nodes" if nodes else ""
    return replace(agent, status=status, visited=visited, differs=(*agent.differs, *error, *seen.lines()))


def followed(run: Run, seen: Seen) -> str:
    """Wait for the end of a run, and answer its questions meanwhile. One that takes too long is cancelled."""
    deadline = time.monotonic() + RUN_S
    while not run.info().is_final:
        for gate in run.gates():
            run.answer(gate.default or next(iter(gate.options), "yes"), gate)
        if time.monotonic() > deadline:
            run.cancel()
            return "too slow"
        time.sleep(0.2)
    for event in run.events(follow=False):
        seen.hear(event.type, event.data)
    return run.status


def with_tables(document: str, text: str) -> str:
    """The document with its tables replaced by these."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise Unusable(f"{DOCUMENT} lacks the lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{text}\n{END}{after}"


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else ""


def _cleaned(texts: Sequence[str], places: Mapping[str, str]) -> tuple[str, ...]:
    """The texts with paths replaced by their names in `places`; the longest paths come first."""
    for path in sorted(places, key=len, reverse=True):
        texts = [text.replace(path, places[path]) for text in texts]
    return tuple(texts)


def _counted(progress: str, agents: Sequence[str]) -> Iterator[str]:
    for number, agent in enumerate(agents, 1):
        _report(f"{progress} {number}/{len(agents)} {agent}")
        yield agent


def _report(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _message_of(problem: Mapping[str, Any]) -> str:
    hint = problem.get("hint")
    return f"{problem['message']}. {hint}" if hint else str(problem["message"])


@contextmanager
def _only(env: Mapping[str, str]) -> Iterator[None]:
    """Gives this process, and the processes that it starts, exactly these variables."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(env)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs="+", metavar="[NAME=]CHECKOUT")
    parser.add_argument("--validate-only", action="store_true", help="run no agent, and start no servers")
    parser.add_argument("--agent", dest="agents", action="append", help="only this one; may be given more than once")
    parser.add_argument("--write", action="store_true", help=f"put the tables into {DOCUMENT.relative_to(ROOT)}")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())

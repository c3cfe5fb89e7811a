#!/usr/bin/env python3
"""Every agent of a checkout of Loki, or of Coyote, which is its new name: is it valid, does it run, what differs?

    python ops/compat/run.py [NAME=]CHECKOUT... [--validate-only] [--agent AGENT...] [--write]

A checkout holds `assets/agents` and `assets/functions`, or `agents` and `functions`. It is installed as that program
installs it, in `.config/coyote` of a home of its own, and nothing is changed and nothing is set but where the model is.
Each agent is validated, and run end to end on a private stack, in a project of its own, with a model server that
follows `scripted.py`; questions to people get their first option. The table goes to stdout; `--write` puts it into
docs/loki-compatibility.md. Exit code 1 when an agent is not valid, or does not complete.
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT)]

from ops.compat.scripted import answer  # noqa: E402
from sleipnir import embedded  # noqa: E402
from sleipnir.client import Client, Run  # noqa: E402
from sleipnir.errors import SleipnirError  # noqa: E402
from sleipnir.knowledge.application import Application  # noqa: E402
from sleipnir.knowledge.rules import NO_MODEL, Wanted  # noqa: E402
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
    "Makefile": "test:\n\ttrue\n",
    "add.py": "def add(a, b):\n    return a + b\n",
}


@dataclass(frozen=True)
class Checked:
    """What came of one agent. `status` None: it was not run. `differs` are things that a user would notice."""

    agent: str
    kind: str
    errors: tuple[str, ...] = ()
    status: str | None = None
    differs: tuple[str, ...] = ()

    @property
    def is_good(self) -> bool:
        return not self.errors and self.status in (None, "completed")


@dataclass
class Seen:
    """What the events of a run tell besides its end."""

    failed_visits: dict[str, str] = field(default_factory=dict)
    failed_tools: set[str] = field(default_factory=set)

    def hear(self, type_: str, data: Mapping[str, Any]) -> None:
        if type_ == "visit_closed" and (error := data.get("error")):
            self.failed_visits[str(data.get("node"))] = last_line(str(error))
        if type_ == "tool_ended" and not data.get("ok", True):
            self.failed_tools.add(str(data.get("name")))

    def lines(self) -> list[str]:
        visits = [f"visit of `{node}` failed: {error}" for node, error in self.failed_visits.items()]
        return visits + [f"a call of `{tool}` failed" for tool in sorted(self.failed_tools)]


class Keywords:
    """Who has knowledge bases built, for keywords alone: no model for vectors is needed."""

    def confirm(self, question: str, *, default: bool) -> bool:
        return True

    def complete(self, wanted: Wanted, said: Application) -> Wanted:
        return replace(wanted, embedding_model=NO_MODEL)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    tables: dict[str, list[Checked]] = {}
    for given in options.checkouts:
        name, checkout = named(given)
        with tempfile.TemporaryDirectory(prefix="compat-") as home:
            config = install(checkout, Path(home))
            agents = [each for each in agents_in(config) if not options.agents or each in options.agents]
            valid = [validated(each, config, Path(home)) for each in agents]
            found = valid if options.validate_only else list(run_all(valid, config, Path(home)))
        tables[name] = found
    text = "\n".join(table(name, found) for name, found in tables.items())
    print(text)
    if options.write:
        DOCUMENT.write_text(with_tables(DOCUMENT.read_text(encoding="utf-8"), text), encoding="utf-8")
    return 0 if all(each.is_good for found in tables.values() for each in found) else 1


def named(given: str) -> tuple[str, Path]:
    """What a checkout is called in the table, and where it is. Exits when it holds no agents."""
    name, equals, path = given.partition("=")
    checkout = Path(path if equals else given).absolute()
    if not any((root / "agents").is_dir() for root in (checkout / "assets", checkout)):
        raise SystemExit(f"{checkout} holds neither assets/agents nor agents")
    return (name if equals else checkout.name), checkout


def install(checkout: Path, home: Path) -> Path:
    """The configuration directory, in `home`, with all that the program installs into it."""
    source = next(root for root in (checkout / "assets", checkout) if (root / "agents").is_dir())
    config = home / ".config" / "coyote"
    for part in ("agents", "functions", "skills"):
        if (source / part).is_dir():
            shutil.copytree(source / part, config / part, symlinks=True)
    return config


def agents_in(config: Path) -> list[str]:
    folders = (folder for folder in (config / "agents").iterdir() if not folder.name.startswith("."))
    return sorted(f.name for f in folders if (f / "graph.yaml").is_file() or (f / "config.yaml").is_file())


def environment(home: Path) -> dict[str, str]:
    """The variables of this process without those that would change what an agent is, and with a home of its own."""
    prefixes = ("SLEIPNIR_", "LOKI_", "COYOTE_", "LLM_AGENT_VAR_", "XDG_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
    return {**kept, "HOME": str(home), "SLEIPNIR_HOME": str(home / "sleipnir")}


def validated(agent: str, config: Path, home: Path) -> Checked:
    """What `sleipnir validate` says of an agent, where it stands."""
    kind = "graph" if (config / "agents" / agent / "graph.yaml").is_file() else "config"
    command = [sys.executable, "-m", "sleipnir", "validate", "--json", agent]
    done = subprocess.run(
        command, env={**environment(home), "PYTHONPATH": str(ROOT)}, cwd=home, capture_output=True, text=True
    )
    try:
        problems = json.loads(done.stdout.replace(str(config), "CONFIG"))
    except ValueError:
        return Checked(agent, kind, (last_line(done.stderr) or "validate says nothing",))
    return Checked(agent, kind, *of_problems(problems))


def of_problems(
    problems: Sequence[Mapping[str, Any]],
) -> tuple[tuple[str, ...], tuple[str, ...] | None, tuple[str, ...]]:
    """Errors, no status yet, and warnings that matter, from validate's JSON."""
    errors = tuple(_said(each) for each in problems if each["level"] == "error")
    warnings = (each for each in problems if each["level"] != "error" and USUAL not in each["message"])
    return errors, None, tuple(_said(each) for each in warnings)


def run_all(agents: Sequence[Checked], config: Path, home: Path) -> Iterator[Checked]:
    """Run each agent that is valid, on one private stack."""
    with ModelServer(answer) as model, _only(environment(home) | model.env()):
        settings = Settings.from_env(model="openai:gpt-test")
        with embedded.stack(settings) as running, Client(running) as client:
            for each in agents:
                yield each if each.errors else ran(each, client, home)


def ran(agent: Checked, client: Client, home: Path) -> Checked:
    """The agent, with what came of its run."""
    project = home / "projects" / agent.agent
    for name, text in PROJECT.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
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
    return Checked(agent.agent, agent.kind, (), status, (*agent.differs, *error, *seen.lines()))


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


def table(name: str, found: Sequence[Checked]) -> str:
    """The section of one checkout, in Markdown."""
    good = sum(each.is_good for each in found)
    what = "valid" if all(each.status is None for each in found) else "valid and complete"
    head = [f"### {name}", "", f"{good} of {len(found)} agents are {what}.", ""]
    rows = [_row("agent", "kind", "valid", "run", "what differs"), "|---|---|---|---|---|"]
    for each in found:
        valid = "yes" if not each.errors else "no"
        differs = "<br>".join([*each.errors, *each.differs]) or "nothing"
        rows.append(_row(each.agent, each.kind, valid, each.status or "not run", differs))
    return "\n".join([*head, *rows, ""])


def with_tables(document: str, text: str) -> str:
    """The document with these tables in the place of those that it has."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{DOCUMENT} lacks the lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{text}\n{END}{after}"


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else ""


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _said(problem: Mapping[str, Any]) -> str:
    hint = problem.get("hint")
    return f"{problem['message']}. {hint}" if hint else str(problem["message"])


@contextmanager
def _only(env: Mapping[str, str]) -> Iterator[None]:
    """This process with exactly these variables: what it starts has no others."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(env)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs="+", metavar="[NAME=]CHECKOUT")
    parser.add_argument("--validate-only", action="store_true", help="run no agent, and start no servers")
    parser.add_argument("--agent", dest="agents", action="append", help="only this one; may be given more than once")
    parser.add_argument("--write", action="store_true", help=f"put the tables into {DOCUMENT.relative_to(ROOT)}")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())

"""Variables that an agent's commands get besides a clean environment: those of `.env` files, and agent variables.

Rules. The value of an agent variable may name secrets of the worker, `{{NAME}}`: those of its secrets file, and
variables that SLEIPNIR_SECRET_NAMES lists (keyring.py, spec 3.5). They are inserted only when the environment of a
command is made; only the name is stored and transmitted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from sleipnir.agents.variables import env_name
from sleipnir.errors import ConfigError, NodeFailed
from sleipnir.graph.model import Graph
from sleipnir.messages import VisitResult
from sleipnir.redaction import redacted
from sleipnir.settings import PREFIX
from sleipnir_workers.machine.host import Host
from sleipnir_workers.machine.keyring import PLACEHOLDER, keyring_of

_BELOW_ROOT = re.compile(r"\$(?:LLM_ROOT_DIR|\{LLM_ROOT_DIR(?::?-.*?)?\})/([\w./-]+)")
_REFERENCE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")


def agent_variables(graph: Graph, run_variables: Mapping[str, str], host: Host) -> dict[str, str]:
    """LLM_AGENT_VAR_* for the variables of a run, and for the defaults of those that it was not given.

    Raises NodeFailed (`config`) when one names a secret and this worker's secrets file cannot be used.
    """
    return {env_name(name): _with_secrets(value, host) for name, value in _values(graph, run_variables).items()}


def secrets_of(graph: Graph, run_variables: Mapping[str, str], host: Host) -> list[str]:
    """The secrets that the variables of a run name."""
    names = {name for value in _values(graph, run_variables).values() for name in PLACEHOLDER.findall(value)}
    try:
        return [secret for name in names if (secret := _secret(name, host)) is not None]
    except NodeFailed:
        return []  # no command has run with them either


def without_secrets(result: VisitResult, graph: Graph, run_variables: Mapping[str, str], host: Host) -> VisitResult:
    """The result without the secrets that the variables of its run name: only the environment of its command may hold
    them."""
    secrets = secrets_of(graph, run_variables, host)
    if not secrets:
        return result
    sends = result.sends and tuple(
        replace(send, to=redacted(send.to, secrets), update=redacted(send.update, secrets)) for send in result.sends
    )
    question = result.interrupt
    return replace(
        result,
        delta=redacted(result.delta, secrets),
        next=redacted(result.next, secrets),
        sends=sends,
        error=redacted(result.error, secrets),
        error_type=redacted(result.error_type, secrets),
        notes=redacted(result.notes, secrets),
        interrupt=question and replace(question, value=redacted(question.value, secrets)),
    )


def _values(graph: Graph, run_variables: Mapping[str, str]) -> dict[str, str]:
    return {**{item.name: item.default for item in graph.variables if item.default is not None}, **run_variables}


def _with_secrets(value: str, host: Host) -> str:
    """The value with the secrets that it names. A placeholder with an unknown name stays as it is."""

    def secret_or_text(placeholder: re.Match[str]) -> str:
        secret = _secret(placeholder[1], host)
        return placeholder[0] if secret is None else secret

    return PLACEHOLDER.sub(secret_or_text, value)


def _secret(name: str, host: Host) -> str | None:
    """None for a name that agent variables may not use, as settings of Sleipnir hold the password of the store."""
    try:
        return None if name.startswith(PREFIX) else keyring_of(host).named.get(name)
    except ConfigError as error:
        raise NodeFailed(str(error), "config") from error


def root_of(file: Path, usual: Path, others: Iterable[Path]) -> Path:
    """LLM_ROOT_DIR for a program: the usual one, unless no file that the program names below it exists there, but one
    does in one of the others."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return usual
    names = [match[1] for match in _BELOW_ROOT.finditer(text)]
    if not names:
        return usual
    return next((root for root in (usual, *others) if any((root / name).exists() for name in names)), usual)


def roots(folder: Path, host: Host) -> Iterator[Path]:
    """The directories whose `agents` holds agents and `agents/.shared`: the tree of the agent's bundle, and those of
    this machine."""
    for agents_dir in (folder.parent, *host.agents_dirs):
        if agents_dir.name == "agents":
            yield agents_dir.parent


def parse_env_file(text: str) -> dict[str, str]:
    """KEY=VALUE lines; blank lines and lines that start with # are skipped, one pair of quotes is stripped."""
    return {name: value for name, value, _ in _lines(text)}


def expand_env_file(text: str, known: Mapping[str, str]) -> dict[str, str]:
    """As bash would read it: `$NAME` and `${NAME}` stand for earlier lines and `known`, but not in single quotes.

    Other expansions of the shell are not done; a command in a value stays text.
    """
    values: dict[str, str] = {}

    def value_of(reference: re.Match[str]) -> str:
        name = reference[1] or reference[2]
        return values[name] if name in values else known.get(name, "")

    for name, value, quote in _lines(text):
        values[name] = value if quote == "'" else _REFERENCE.sub(value_of, value)
    return values


def _lines(text: str) -> Iterator[tuple[str, str, str]]:
    """Name, value and the quote around the value."""
    for line in text.splitlines():
        name, equals, value = line.strip().removeprefix("export ").partition("=")
        name, value = name.strip(), value.strip()
        if not equals or not name or name.startswith("#"):
            continue
        quote = value[0] if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'" else ""
        yield name, value[1:-1] if quote else value, quote

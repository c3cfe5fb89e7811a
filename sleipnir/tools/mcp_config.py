"""mcp.json: the MCP servers and how to reach them (spec/graph-agents.md 4.6, 10.1).

Rules. `{"mcpServers": {name: {...}}}`; a missing or empty file means no servers. `type` is `stdio`, `http` (streamable
HTTP) or `sse`; without one, a `url` without a `command` means `http`, everything else `stdio`. Secrets `{{NAME}}` are
inserted before the JSON is parsed, escaped as JSON text, so that no value can end its string. All problems are reported
at once. A remote server with `oauth` requires a login in a browser (spec/coyote.md 10), which is not supported: it
can only be used with a token in its headers.

The servers hold secrets: they stay in the worker, and are never stored, sent or logged.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

from sleipnir.errors import ConfigError, Problem
from sleipnir.redaction import redacted

Transport: TypeAlias = Literal["stdio", "http", "sse"]

PLACEHOLDER = re.compile(r"\{\{\s*([A-Za-z0-9_.-]+)\s*\}\}")
NAME = re.compile(r"[A-Za-z0-9_-]{1,51}")  # with `mcp_describe_`, the 64 characters that providers allow

STDIO_FIELDS = ("command", "args", "cwd")
REMOTE_FIELDS = ("url", "headers", "oauth")
FIELDS = ("type", "command", "args", "env", "cwd", *REMOTE_FIELDS)
OAUTH_FIELDS = ("clientId", "clientSecret", "callbackPort", "redirectHost")

_SECRET_WORDS = ("key", "token", "password", "secret", "auth", "cookie", "credential")


class McpConfigError(ConfigError):
    """An mcp.json that cannot be used. `problems` holds all reasons."""

    def __init__(self, problems: Collection[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


@dataclass(frozen=True)
class McpServer:
    """A server of the file. Equal servers have the same connection and the same secrets."""

    name: str
    secrets: frozenset[str] = field(default=frozenset(), repr=False, kw_only=True)
    """Texts that no message may show."""

    def clean(self, text: str) -> str:
        """`text` without any of the secrets."""
        cleaned: str = redacted(text, self.secrets)
        return cleaned


@dataclass(frozen=True)
class StdioServer(McpServer):
    """A command that communicates on its stdin and stdout. `env` are its variables besides PATH and such.

    `cwd` is its working directory, relative to the file's folder, which is the default. `is_placed`: the file sets
    `cwd`; otherwise the server may run elsewhere (`started_in`).
    """

    command: str
    cwd: Path
    args: tuple[str, ...] = field(default=(), repr=False)
    env: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    is_placed: bool = True

    def started_in(self, directory: Path) -> StdioServer:
        """The server for calls of a visit in `directory`: it runs there unless mcp.json sets `cwd`. Its command, and
        arguments that name files, stay relative to mcp.json."""
        if self.is_placed:
            return self
        command = str(self.cwd / self.command) if "/" in self.command else self.command
        args = tuple(str(file) if (file := self.cwd / arg).is_file() else arg for arg in self.args)
        return replace(self, command=command, args=args, cwd=directory)


@dataclass(frozen=True)
class RemoteServer(McpServer):
    """A server that runs elsewhere. The URL may hold a secret."""

    url: str = field(repr=False)
    transport: Literal["http", "sse"] = "http"
    headers: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    needs_login: bool = False

    @property
    def host(self) -> str:
        """Host and port, the parts of the URL that messages may show."""
        return urlsplit(self.url).netloc.rpartition("@")[2]


def read(path: Path, secrets: Mapping[str, str]) -> dict[str, McpServer]:
    """The servers of the file `path`, in its order. `secrets` holds the values of `{{NAME}}`.

    Raises McpConfigError, also for an existing file that cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise McpConfigError([_problem(path, f"MCP config file cannot be read: {error}")]) from error
    return parse(text, path, secrets)


def parse(text: str, path: Path, secrets: Mapping[str, str]) -> dict[str, McpServer]:
    """The servers in `text`, the content of the file `path`. Raises McpConfigError."""
    if not text.strip():
        return {}
    used = set(PLACEHOLDER.findall(text))
    if missing := used - set(secrets):
        raise McpConfigError([_missing(text, path, missing)])
    problems: list[Problem] = []
    servers = _servers(_json(PLACEHOLDER.sub(lambda match: _escaped(secrets[match[1]]), text), path), path, problems)
    values = frozenset(secrets[name] for name in used)
    parsed: dict[str, McpServer] = {}
    for name, spec in servers.items():
        messages = list(_wrong(name, spec))
        problems += [_problem(path, message) for message in messages]
        if not messages:
            parsed[name] = _server(name, spec, path.parent, values)
    if problems:
        raise McpConfigError(problems)
    return parsed


def complaint(name: str, path: Path) -> str | None:
    """Why the file `path` has no server of this name, for the check of a graph; None if it has. Secrets are not needed,
    and other problems of the file are not reported."""
    try:
        text = path.read_text(encoding="utf-8-sig") if path.exists() else ""
        servers = _servers(_json(PLACEHOLDER.sub("0", text), path), path, []) if text.strip() else {}
    except (OSError, UnicodeDecodeError) as error:
        return f"MCP server '{name}' is not known: {path} cannot be read: {error}"
    except McpConfigError as error:
        return f"MCP server '{name}' is not known: {error.problems[0].message}"
    if name not in servers:
        return f"MCP server '{name}' is not in {path}; available: {', '.join(servers) or 'none'}"
    spec = servers[name]
    return login_needed(name) if isinstance(spec, dict) and _needs_login(spec) else None


def login_needed(name: str) -> str:
    """Why a server with `oauth` cannot be used."""
    return (
        f"MCP server '{name}' requires OAuth authentication, which this version does not support: it cannot be used. "
        'Put a token into its "headers", such as "Authorization": "Bearer {{TOKEN}}"'
    )


def _needs_login(spec: Mapping[str, Any]) -> bool:
    headers = spec.get("headers")
    names = headers if isinstance(headers, dict) else {}
    return _has(spec, "oauth") and not any(str(header).lower() == "authorization" for header in names)


def _missing(text: str, path: Path, missing: set[str]) -> Problem:
    line = next(n for n, line in enumerate(text.split("\n"), 1) if missing & set(PLACEHOLDER.findall(line)))
    return _problem(
        path,
        f"MCP config file references secrets that are missing from the vault: {json.dumps(sorted(missing))}",
        line,
        "Set each as a variable of that name in the environment of the llm workers, or in the .env of the "
        "configuration directory.",
    )


def _escaped(secret: str) -> str:
    return json.dumps(secret, ensure_ascii=False)[1:-1]


class _Pairs(dict[str, Any]):
    """A JSON object that remembers its duplicate keys."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        keys = [key for key, _ in pairs]
        self.duplicates = sorted({key for key in keys if keys.count(key) > 1})


def _json(text: str, path: Path) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_Pairs)
    except json.JSONDecodeError as error:
        # Without the column: inserted secrets have shifted it.
        message = f"MCP config file is not valid JSON: {error.msg}"
        raise McpConfigError([_problem(path, message, error.lineno)]) from None
    except RecursionError:
        raise McpConfigError([_problem(path, "MCP config file is nested too deeply")]) from None


def _servers(data: Any, path: Path, problems: list[Problem]) -> Mapping[str, Any]:
    """The value of `mcpServers`. Empty, with a problem added, if there is no such object."""
    if not isinstance(data, _Pairs):
        problems.append(_problem(path, 'MCP config file must be an object: {"mcpServers": {...}}'))
        return {}
    if "mcpServers" not in data and data:
        close = difflib.get_close_matches("mcpServers", data, n=1) or difflib.get_close_matches("servers", data, n=1)
        instead = f'; it has "{close[0]}" instead' if close else ""
        problems.append(_problem(path, f'MCP config file has no "mcpServers"{instead}'))
        return {}
    servers = data.get("mcpServers", _Pairs([]))
    if not isinstance(servers, _Pairs):
        problems.append(_problem(path, '"mcpServers" must be an object: a name for each server'))
        return {}
    problems += [_problem(path, f"MCP server '{name}' is defined twice") for name in servers.duplicates]
    return servers


def _wrong(name: str, spec: Any) -> Iterator[str]:
    """The problems of a server, with the specification's messages where it has any."""
    if NAME.fullmatch(name) is None:
        yield (
            f'MCP server \'{name}\' needs another name: at most 51 letters, digits, "_" and "-", '
            f"because models call mcp_search_<name>"
        )
    if not isinstance(spec, _Pairs):
        yield f'MCP server \'{name}\' must be an object with a "command" or a "url"'
        return
    yield from (f"MCP server '{name}' has \"{key}\" twice" for key in spec.duplicates)
    yield from (_unknown(name, key) for key in spec if key not in FIELDS)
    kind = _kind(spec)
    if kind not in ("stdio", "http", "sse"):
        yield f'MCP server \'{name}\' has unknown type {json.dumps(kind)}; use "stdio", "http" or "sse"'
        return
    yield from _wrong_types(name, spec)
    if kind == "stdio":
        if not _has(spec, "command"):
            yield f"MCP server '{name}' is missing a \"command\" field (required for stdio transport)"
        if any(_has(spec, key) for key in REMOTE_FIELDS):
            yield (
                f"MCP server '{name}' has type \"stdio\" but also specifies remote fields (url/headers). "
                f'Remove the remote fields or change the type to "http" or "sse".'
            )
        return
    if not _has(spec, "url"):
        yield f'MCP server \'{name}\' has type "{kind}" but is missing a "url" field'
    if any(_has(spec, key) for key in STDIO_FIELDS):
        yield (
            f"MCP server '{name}' has type \"{kind}\" but also specifies stdio fields (command/args/cwd). "
            f'Remove the stdio fields or change the type to "stdio".'
        )


def _kind(spec: Mapping[str, Any]) -> Any:
    if _has(spec, "type"):
        return spec["type"]
    return "http" if _has(spec, "url") and not _has(spec, "command") else "stdio"


def _has(spec: Mapping[str, Any], key: str) -> bool:
    return spec.get(key) is not None


def _unknown(name: str, key: str) -> str:
    close = difflib.get_close_matches(key, FIELDS, n=1)
    hint = f'did you mean "{close[0]}"?' if close else f"known fields: {', '.join(FIELDS)}"
    return f"MCP server '{name}' has an unknown field \"{key}\"; {hint}"


def _wrong_types(name: str, spec: Mapping[str, Any]) -> Iterator[str]:
    for key in ("command", "cwd", "url"):
        if _has(spec, key) and not (isinstance(spec[key], str) and spec[key].strip()):
            yield f"MCP server '{name}': \"{key}\" must be non-empty text"
    if isinstance(spec.get("url"), str) and spec["url"].strip() and not _is_http(spec["url"]):
        yield f"MCP server '{name}': \"url\" must begin with http:// or https:// and name a host"
    args = spec.get("args")
    if args is not None and not (isinstance(args, list) and all(isinstance(arg, str) for arg in args)):
        yield f"MCP server '{name}': \"args\" must be a list of texts"
    if not _is_map(spec.get("env"), str | bool | int):
        yield f"MCP server '{name}': \"env\" must be an object whose values are texts, whole numbers or booleans"
    oauth = spec.get("oauth")
    if oauth is not None and not (isinstance(oauth, dict) and oauth.keys() <= set(OAUTH_FIELDS)):
        yield f"MCP server '{name}': \"oauth\" must be an object; its known fields: {', '.join(OAUTH_FIELDS)}"
    if not _is_map(spec.get("headers"), str):
        yield f"MCP server '{name}': \"headers\" must be an object whose values are texts"


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:  # an IPv6 address without its end
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def _is_map(value: Any, types: Any) -> bool:
    return value is None or (isinstance(value, dict) and all(isinstance(item, types) for item in value.values()))


def _server(name: str, spec: Mapping[str, Any], folder: Path, resolved: frozenset[str]) -> McpServer:
    if _kind(spec) == "stdio":
        written = spec.get("env") or {}
        env = {key: value if isinstance(value, str) else json.dumps(value) for key, value in written.items()}
        return StdioServer(
            name,
            command=spec["command"],
            cwd=(folder / (spec.get("cwd") or "")).absolute(),
            args=tuple(spec.get("args") or ()),
            env=env,
            is_placed=bool(spec.get("cwd")),
            secrets=resolved | _named_as_secrets(env),
        )
    headers = dict(spec.get("headers") or {})
    return RemoteServer(
        name,
        url=spec["url"],
        transport=_kind(spec),
        headers=headers,
        needs_login=_needs_login(spec),
        secrets=resolved | _named_as_secrets(headers),
    )


def _named_as_secrets(values: Mapping[str, str]) -> frozenset[str]:
    """The values whose keys name secrets: they are written into the file itself."""
    return frozenset(text for key, text in values.items() if any(word in key.lower() for word in _SECRET_WORDS))


def _problem(path: Path, message: str, line: int | None = None, hint: str | None = None) -> Problem:
    return Problem("error", message, str(path), line, hint=hint)

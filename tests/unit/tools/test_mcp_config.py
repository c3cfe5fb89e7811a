"""mcp.json: what it may say, what it means, and what is said of one that is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sleipnir.graph.check import validate
from sleipnir.tools.mcp_config import McpConfigError, McpServer, RemoteServer, StdioServer, complaint, parse, read

FILE = Path("/config/functions/mcp.json")


def servers(spec: dict[str, Any], secrets: dict[str, str] | None = None) -> dict[str, McpServer]:
    return parse(json.dumps({"mcpServers": spec}), FILE, secrets or {})


def problems(text: str, secrets: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(McpConfigError) as raised:
        parse(text, FILE, secrets or {})
    return [problem.message for problem in raised.value.problems]


def problems_of(spec: Any) -> list[str]:
    return problems(json.dumps({"mcpServers": {"s": spec}}))


@pytest.mark.conformance("X17")
def test_a_stdio_server_with_all_its_fields() -> None:
    spec = {"type": "stdio", "command": "npx", "args": ["-y", "it"], "env": {"A": "x", "B": True, "C": 3}, "cwd": "sub"}
    assert servers({"s": spec}) == {
        "s": StdioServer(
            "s",
            command="npx",
            args=("-y", "it"),
            env={"A": "x", "B": "true", "C": "3"},
            cwd=FILE.parent / "sub",
        )
    }


@pytest.mark.conformance("X17")
@pytest.mark.parametrize("transport", ["http", "sse"])
def test_a_remote_server_with_all_its_fields(transport: Any) -> None:
    spec = {"type": transport, "url": "https://mcp.example/x", "headers": {"X-Team": "a"}}
    expected = RemoteServer("s", url="https://mcp.example/x", transport=transport, headers={"X-Team": "a"})
    assert servers({"s": spec}) == {"s": expected}


def test_without_a_type_a_url_means_http_and_a_command_stdio() -> None:
    found = servers({"a": {"url": "http://localhost:1/mcp"}, "b": {"command": "b"}, "c": {"command": "c", "url": None}})
    assert found["a"] == RemoteServer("a", url="http://localhost:1/mcp", transport="http")
    assert found["b"] == StdioServer("b", command="b", cwd=FILE.parent, is_placed=False)
    assert isinstance(found["c"], StdioServer)


def test_servers_keep_the_order_of_the_file() -> None:
    assert list(servers({name: {"command": "x"} for name in "zam"})) == ["z", "a", "m"]


@pytest.mark.parametrize("text", ["", " \n", "{}", '{"mcpServers": {}}'])
def test_an_empty_file_means_no_servers(tmp_path: Path, text: str) -> None:
    (tmp_path / "mcp.json").write_text(text)
    assert read(tmp_path / "mcp.json", {}) == {}


def test_a_missing_file_means_no_servers_and_one_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    assert read(tmp_path / "mcp.json", {}) == {}
    with pytest.raises(McpConfigError, match=r"cannot be read: .*directory"):
        read(tmp_path, {})
    (tmp_path / "latin.json").write_bytes(b'{"mcpServers": "\xe9"}')
    with pytest.raises(McpConfigError, match=r"cannot be read: .*utf-8"):
        read(tmp_path / "latin.json", {})


@pytest.mark.conformance("CY85")
@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, ["MCP server 's' is missing a \"command\" field (required for stdio transport)"]),
        ({"type": "stdio"}, ["MCP server 's' is missing a \"command\" field (required for stdio transport)"]),
        ({"type": "http"}, ['MCP server \'s\' has type "http" but is missing a "url" field']),
        ({"type": "sse"}, ['MCP server \'s\' has type "sse" but is missing a "url" field']),
        (
            {"type": "http", "url": "http://h/", "args": ["x"]},
            [
                "MCP server 's' has type \"http\" but also specifies stdio fields (command/args/cwd). "
                'Remove the stdio fields or change the type to "stdio".'
            ],
        ),
        (
            {"command": "x", "headers": {}},
            [
                "MCP server 's' has type \"stdio\" but also specifies remote fields (url/headers). "
                'Remove the remote fields or change the type to "http" or "sse".'
            ],
        ),
        ({"type": "ws"}, ['MCP server \'s\' has unknown type "ws"; use "stdio", "http" or "sse"']),
        ({"type": ["a"]}, ['MCP server \'s\' has unknown type ["a"]; use "stdio", "http" or "sse"']),
        (
            {"command": "x", "arg": []},
            ['MCP server \'s\' has an unknown field "arg"; did you mean "args"?'],
        ),
        (
            {"command": "x", "disabled": True},
            [
                "MCP server 's' has an unknown field \"disabled\"; known fields: type, command, args, env, cwd, url, "
                "headers, oauth"
            ],
        ),
        (
            {"url": "http://h", "oauth": {"client": "x"}},
            [
                "MCP server 's': \"oauth\" must be an object; its known fields: clientId, clientSecret, callbackPort, "
                "redirectHost"
            ],
        ),
        ({"command": " "}, ["MCP server 's': \"command\" must be non-empty text"]),
        ({"command": "x", "cwd": 1}, ["MCP server 's': \"cwd\" must be non-empty text"]),
        ({"command": "x", "args": "y"}, ["MCP server 's': \"args\" must be a list of texts"]),
        ({"command": "x", "args": [1]}, ["MCP server 's': \"args\" must be a list of texts"]),
        (
            {"command": "x", "env": {"A": 1.5}},
            ["MCP server 's': \"env\" must be an object whose values are texts, whole numbers or booleans"],
        ),
        (
            {"url": "http://h", "headers": {"A": 1}},
            ["MCP server 's': \"headers\" must be an object whose values are texts"],
        ),
        ({"url": "h:80/x"}, ["MCP server 's': \"url\" must begin with http:// or https:// and name a host"]),
        ({"url": "http://[::1/x"}, ["MCP server 's': \"url\" must begin with http:// or https:// and name a host"]),
        ("npx", ['MCP server \'s\' must be an object with a "command" or a "url"']),
    ],
)
def test_every_wrong_server_is_reported_in_one_sentence(spec: Any, expected: list[str]) -> None:
    assert problems_of(spec) == expected


def test_all_problems_of_all_servers_come_at_once() -> None:
    text = json.dumps({"mcpServers": {"a": {}, "b c": {"command": "x"}, "d": {"url": 1}}})
    assert problems(text) == [
        "MCP server 'a' is missing a \"command\" field (required for stdio transport)",
        'MCP server \'b c\' needs another name: at most 51 letters, digits, "_" and "-", '
        "because models call mcp_search_<name>",
        "MCP server 'd': \"url\" must be non-empty text",
    ]


def test_what_is_written_twice_is_a_problem() -> None:
    text = '{"mcpServers": {"a": {"command": "x"}, "a": {"command": "y", "command": "z"}}}'
    assert problems(text) == ["MCP server 'a' is defined twice", "MCP server 'a' has \"command\" twice"]


def test_a_file_of_another_shape_is_refused_with_the_missing_key() -> None:
    assert problems("[]") == ['MCP config file must be an object: {"mcpServers": {...}}']
    assert problems('{"mcpServer": {}}') == ['MCP config file has no "mcpServers"; it has "mcpServer" instead']
    assert problems('{"servers": {}}') == ['MCP config file has no "mcpServers"; it has "servers" instead']
    assert problems('{"mcpServers": []}') == ['"mcpServers" must be an object: a name for each server']
    assert problems("[" * 100_000) == ["MCP config file is nested too deeply"]


@pytest.mark.conformance("CY98")
def test_broken_json_is_reported_with_file_and_line() -> None:
    with pytest.raises(McpConfigError) as raised:
        parse('{\n  "mcpServers": {\n    "a": oops\n', FILE, {})
    assert str(raised.value) == f"{FILE}:3: MCP config file is not valid JSON: Expecting value"


def test_secrets_are_put_in_each_on_its_own() -> None:
    spec = {"url": "https://h/{{A}}/{{ B }}", "headers": {"Authorization": "Bearer {{A}}{{C.d-e}}"}}
    found = servers({"s": spec}, {"A": "aaaaaa", "B": "bbbbbb", "C.d-e": 'c"}\n', "UNUSED": "zzzzzz"})["s"]
    assert isinstance(found, RemoteServer)
    assert found.url == "https://h/aaaaaa/bbbbbb"
    assert found.headers == {"Authorization": 'Bearer aaaaaac"}\n'}
    assert "aaaaaa" not in repr(found)
    assert found.clean("aaaaaa of bbbbbb, zzzzzz") == "[redacted] of [redacted], zzzzzz"


def test_missing_secrets_are_listed_with_the_line_of_the_first() -> None:
    text = '{"mcpServers": {\n "a": {"command": "{{HERE}}",\n "env": {"X": "{{ZEBRA}}", "Y": "{{ALPHA}}"}}}}'
    with pytest.raises(McpConfigError) as raised:
        parse(text, FILE, {"HERE": "x"})
    (problem,) = raised.value.problems
    assert problem.message == ('MCP config file references secrets that are missing from the vault: ["ALPHA", "ZEBRA"]')
    assert problem.line == 3
    assert problem.hint and "environment of the llm workers" in problem.hint


def test_values_that_are_named_like_secrets_are_hidden_too() -> None:
    found = servers({"s": {"command": "x", "env": {"GITHUB_TOKEN": "ghp_123456", "ROOT": "/data/files", "KEY": "no"}}})
    assert found["s"].clean("ghp_123456 cannot read /data/files, no") == "[redacted] cannot read /data/files, no"
    assert "ghp_123456" not in repr(found["s"])


def test_the_place_of_a_remote_server_has_no_path_and_no_user() -> None:
    assert RemoteServer("s", url="https://me:pw@h.example:8443/secret?k=v").host == "h.example:8443"


def test_an_entry_that_changed_is_another_server() -> None:
    first, same, other = (servers({"s": {"command": "x", "env": {"A": value}}})["s"] for value in "aab")
    assert first == same and hash(first) == hash(same)
    assert first != other


# What the check of a graph says


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "is not in {file}; available: none"),
        (" ", "is not in {file}; available: none"),
        ('{"mcpServers": {"b": {}, "c": {"url": "{{SECRET}}"}}}', "is not in {file}; available: b, c"),
        ('{"mcpServers": ', "is not known: MCP config file is not valid JSON: Expecting value"),
    ],
)
def test_a_server_that_a_file_has_not_is_a_complaint(tmp_path: Path, text: str | None, said: str) -> None:
    file = tmp_path / "mcp.json"
    if text is not None:
        file.write_text(text)
    assert complaint("a", file) == f"MCP server 'a' {said.format(file=file)}"


def test_a_configured_server_has_no_complaint_regardless_of_its_secrets(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_text('{"mcpServers": {"a": {"command": "x", "env": {"KEY": "{{NOT_HERE}}", "N": {{N}}}}}}')
    assert complaint("a", file) is None


@pytest.mark.conformance("M06")
def test_a_server_that_this_machine_does_not_have_is_a_warning_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "graph.yaml"
    file.write_text("name: g\nmcp_servers: [mine, theirs]\nstart: e\nnodes: {e: {type: end}}\n")
    found = validate(file, mcp_servers=lambda name: None if name == "mine" else f"no {name}")
    assert [(problem.level, problem.line, problem.column, problem.message) for problem in found] == [
        ("warning", 2, 21, "no theirs")
    ]


@pytest.mark.conformance("CY86")
def test_a_command_has_no_oauth_block() -> None:
    assert problems_of({"type": "stdio", "command": "x", "oauth": {}}) == [
        "MCP server 's' has type \"stdio\" but also specifies remote fields (url/headers). "
        'Remove the remote fields or change the type to "http" or "sse".'
    ]


@pytest.mark.conformance("CY89")
def test_a_server_with_oauth_is_one_that_needs_a_login_and_others_are_as_they_are(tmp_path: Path) -> None:
    """Finding U7 of the second review: one `oauth` block failed all servers of the file."""
    block = {"clientId": "c", "clientSecret": None, "callbackPort": 1, "redirectHost": "h"}
    remote = {"type": "http", "url": "http://h/", "oauth": block}
    given = {**remote, "headers": {"authorization": "Bearer x"}}
    servers = {"a": remote, "b": {"command": "x"}, "c": given}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    found = read(tmp_path / "mcp.json", {})
    assert list(found) == ["a", "b", "c"]
    assert [getattr(server, "needs_login", False) for server in found.values()] == [True, False, False]
    told = complaint("a", tmp_path / "mcp.json") or ""
    assert told.startswith("MCP server 'a' requires OAuth authentication, which this version does not support")
    assert [complaint(name, tmp_path / "mcp.json") for name in ("b", "c")] == [None, None]

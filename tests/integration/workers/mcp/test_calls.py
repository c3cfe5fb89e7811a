"""What a model sees of MCP servers: three functions each, and an answer to every call."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sleipnir.tools.mcp_config import McpConfigError, RemoteServer
from sleipnir_workers import mcp
from sleipnir_workers.mcp import Connections, answer, configured, declarations, split_name
from sleipnir_workers.mcp.catalogue import Catalogue, Tool, described
from sleipnir_workers.mcp.ranking import Ranking, words
from tests.integration.workers.mcp.servers import plain

SERVERS = {"plain": plain(), "dying": plain("dies at start", "dying")}


@pytest.fixture(scope="module")
def connections() -> Iterator[Connections]:
    opened = Connections()
    yield opened
    opened.close()


# Declarations


@pytest.mark.conformance("X17", "M04")
def test_each_server_has_exactly_three_functions() -> None:
    names = [each["function"]["name"] for each in declarations(["git-hub", "b"])]
    assert names == [
        "mcp_search_git-hub", "mcp_describe_git-hub", "mcp_invoke_git-hub",
        "mcp_search_b", "mcp_describe_b", "mcp_invoke_b",
    ]  # fmt: skip


@pytest.mark.conformance("X17")
def test_the_functions_have_the_parameters_of_the_specification() -> None:
    search, describe, invoke = (each["function"]["parameters"] for each in declarations(["s"]))
    assert search["required"] == ["query"] and search["properties"]["query"]["type"] == "string"
    top_k = search["properties"]["top_k"]
    assert (top_k["type"], top_k["default"], top_k["maximum"]) == ("integer", 8, 20)
    assert describe["required"] == ["tool"] and set(describe["properties"]) == {"tool"}
    assert invoke["required"] == ["tool"] and invoke["properties"]["arguments"]["type"] == "object"


def test_the_declaration_asks_the_model_to_describe_before_it_invokes() -> None:
    for each in declarations(["s"]):
        assert each["type"] == "function"
        description = each["function"]["description"]
        assert "mcp_describe_s" in description or each["function"]["name"] == "mcp_describe_s"
        assert "mcp_invoke_s" in description or each["function"]["name"] == "mcp_invoke_s"


def test_names_are_split_where_the_server_begins() -> None:
    assert split_name("mcp_search_a_search_b") == ("search", "a_search_b")
    assert split_name("mcp_invoke_x") == ("invoke", "x")
    assert [split_name(name) for name in ("mcp_search_", "mcp_list_x", "search_x", "")] == [None] * 4


def test_nothing_but_a_connection_imports_the_sdk() -> None:
    code = (
        "import sys, sleipnir_workers.mcp as m, sleipnir.tools.mcp_config\n"
        "m.declarations(['a']); m.process_connections(); m.close()\n"
        "print([name for name in ('mcp', 'mcp_types', 'anyio', 'httpx2', 'litellm') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


# Search


def test_words_are_split_where_identifiers_are_and_lose_their_plural() -> None:
    assert words("createIssue list_ISSUES HTTPServer x2 Class") == [
        "create", "issue", "list", "issue", "http", "server", "x2", "class",
    ]  # fmt: skip
    assert words("Größe, 数") == ["größe", "数"]


def test_rare_words_and_short_texts_rank_higher_and_equals_keep_their_order() -> None:
    ranking = Ranking(["get a file", "get a file from the archive of old files", "get a user", "get a user", "put"])
    assert ranking.best("get file", 9) == [0, 1, 2, 3]
    assert ranking.best("user", 9) == [2, 3]
    assert ranking.best("get", 1) == [2] or ranking.best("get", 1) == [0]
    assert ranking.best("nothing of this", 9) == [1]
    assert ranking.best("absent", 9) == []


def test_the_score_is_bm25_with_k1_of_1_2_and_b_of_0_75() -> None:
    ranking = Ranking(["a a b", "b"])
    # ln(1 + (2 - 1 + 0.5) / (1 + 0.5)) * 2 * 2.2 / (2 + 1.2 * (0.25 + 0.75 * 3 / 2))
    assert ranking._score(0, ["a"]) == pytest.approx(0.693147 * 4.4 / 3.65, rel=1e-5)
    assert ranking._score(1, ["a"]) == 0


def test_a_query_without_words_gives_the_first_tools_and_no_tools_give_nothing() -> None:
    assert Ranking(["a", "b", "c"]).best("*", 2) == [0, 1]
    assert Ranking([]).best("a", 2) == [] and Ranking([]).best("", 2) == []
    assert Ranking(["", ""]).best("a", 2) == []


def test_a_tool_is_found_by_its_name_its_description_and_its_server() -> None:
    catalogue = Catalogue("tracker", [Tool("createIssue", "", {}), Tool("find", "Looks issues up.", {})])
    assert [found["name"] for found in catalogue.search("create issues", 9)] == ["createIssue", "find"]
    assert [found["name"] for found in catalogue.search("tracker", 1)] == ["createIssue"]


def test_the_first_of_two_tools_of_one_name_is_the_one() -> None:
    catalogue = Catalogue("s", [Tool("a", "first", {"type": "object"}), Tool("a", "second", {})])
    assert len(catalogue) == 1
    tool = catalogue.get("a")
    assert tool is not None and described(tool)["properties"]["arguments"] == {"type": "object"}


# The worker's own configuration


def test_the_servers_of_a_worker_get_their_secrets_from_its_env_file_and_its_environment(tmp_path: Path) -> None:
    file, env_file = tmp_path / "mcp.json", tmp_path / ".env"
    assert configured(file, {}, env_file) == {}
    spec = {"url": "https://h/{{ONE}}", "headers": {"X": "{{TWO}}"}}
    file.write_text(json.dumps({"mcpServers": {"s": spec}}))
    with pytest.raises(McpConfigError, match=r"missing from the vault: \[\"TWO\"\]"):
        configured(file, {"ONE": "1"}, env_file)
    env_file.write_text("TWO='second'\nONE=first\n")
    server = configured(file, {"ONE": "1"}, env_file)["s"]
    assert isinstance(server, RemoteServer)
    assert (server.url, server.headers) == ("https://h/first", {"X": "second"})


# Answers


def call(connections: Connections, name: str, **arguments: Any) -> Any:
    return answer(name, arguments, SERVERS, connections)


@pytest.mark.conformance("X17")
def test_the_three_functions_answer(connections: Connections) -> None:
    assert call(connections, "mcp_search_plain", query="echo", top_k=1.0) == [
        {"name": "echo", "server": "plain", "description": "Does echo."}
    ]
    assert call(connections, "mcp_describe_plain", tool="echo") == {
        "type": "object",
        "properties": {
            "tool": {"type": "string"},
            "arguments": {"type": "object", "properties": {"value": {"type": "string"}}},
        },
    }
    assert call(connections, "mcp_invoke_plain", tool="echo") == {
        "content": [{"type": "text", "text": "{}"}],
        "isError": False,
    }


def test_a_result_that_holds_a_secret_of_its_server_is_shown_without(connections: Connections) -> None:
    servers = {"plain": replace(plain(), secrets=frozenset({"hunter2-hunter2"}))}
    said = {"tool": "echo", "arguments": {"value": "it is hunter2-hunter2"}}
    result = answer("mcp_invoke_plain", said, servers, connections)
    assert json.loads(result["content"][0]["text"]) == {"value": "it is [redacted]"}


def test_arguments_may_be_an_object_or_the_text_of_one(connections: Connections) -> None:
    for arguments in ({"value": "x"}, '{"value": "x"}'):
        result = call(connections, "mcp_invoke_plain", tool="echo", arguments=arguments)
        assert json.loads(result["content"][0]["text"]) == {"value": "x"}


@pytest.mark.parametrize(
    ("name", "arguments", "error"),
    [
        ("mcp_search_plain", {}, "MCP search failed: 'query' is missing; it must be a text"),
        ("mcp_search_plain", {"query": "x", "top_k": "9"}, "MCP search failed: 'top_k' must be a whole number"),
        ("mcp_search_plain", {"query": "x", "top_k": 1.5}, "MCP search failed: 'top_k' must be a whole number"),
        ("mcp_describe_plain", {"tool": 1}, "MCP describe failed: 'tool' is missing; it must be the name of a tool"),
        ("mcp_describe_plain", {"tool": "no"}, "MCP describe failed: no not found in plain MCP server catalog"),
        ("mcp_invoke_plain", {"tool": "no"}, "MCP tool invocation failed: no not found in plain MCP server catalog"),
        (
            "mcp_invoke_plain",
            {"tool": "echo", "arguments": "[1]"},
            "MCP tool invocation failed: 'arguments' must be an object",
        ),
        (
            "mcp_invoke_plain",
            {"tool": "echo", "arguments": "{"},
            "MCP tool invocation failed: 'arguments' must be an object",
        ),
        (
            "mcp_invoke_other",
            {"tool": "x"},
            "MCP tool invocation failed: MCP server 'other' is not in mcp.json; there are plain, dying",
        ),
        (
            "mcp_search_dying",
            {"query": "x"},
            "MCP search failed: MCP server 'dying' could not be started: it exited with code 1; its last lines:\n"
            "no database at db.example:5432, password is hunter2-hunter2",
        ),
    ],
)
def test_a_failure_is_an_answer_too(connections: Connections, name: str, arguments: dict[str, Any], error: str) -> None:
    assert answer(name, arguments, SERVERS, connections) == {"tool_call_error": error}


def test_a_call_of_something_else_is_the_callers_mistake(connections: Connections) -> None:
    with pytest.raises(ValueError, match="'user__ask' is no MCP function"):
        call(connections, "user__ask")


def test_the_connections_of_a_process_are_its_own_and_end_with_close() -> None:
    first = mcp.process_connections()
    assert mcp.process_connections() is first
    mcp.close()
    mcp.close()
    assert mcp.process_connections() is not first

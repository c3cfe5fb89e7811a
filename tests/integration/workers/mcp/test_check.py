"""`python -m sleipnir_workers.mcp check`: which servers of a file work, before anything needs them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sleipnir_workers.mcp import CheckedServer, check, check_each
from sleipnir_workers.mcp.__main__ import main
from tests.integration.workers.mcp.servers import HERE, plain

GOOD = {"command": sys.executable, "args": ["-I", "-S", "plain_server.py", "none"], "cwd": str(HERE)}
DEAD = {"command": "bash", "args": ["-c", "echo no $WORD >&2; exit 3"], "env": {"WORD": "{{MCP_TEST_SECRET}}"}}
MISSING = {"command": "no-such-command"}


def run(folder: Path, servers: dict[str, Any], *options: str) -> Result:
    file = folder / "mcp.json"
    file.write_text(json.dumps({"mcpServers": servers}))
    return CliRunner().invoke(main, ["check", str(file), *options])


def test_each_server_is_started_and_its_problems_are_reported() -> None:
    good, dead = check_each({"good": plain(name="good"), "dead": plain("dies at start", "dead")})
    assert good == CheckedServer("good", tools=7)
    problem = dead.problem or ""
    assert problem.startswith("MCP server 'dead' could not be started: it exited with code 1; its last lines:\n")
    assert check({"silent": plain("silent", "silent")}, start_s=0.3) == [
        "MCP server 'silent' could not be started: it did not answer within 0.3 s"
    ]
    assert check({}) == []


def test_the_command_prints_what_works_and_what_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCP_TEST_SECRET", "of-the-environment")
    (tmp_path / "env").write_text("MCP_TEST_SECRET=of-the-file\n")
    result = run(tmp_path, {"good": GOOD, "dead": DEAD, "missing": MISSING}, "--env-file", str(tmp_path / "env"))
    assert result.exit_code == 1
    assert result.output == (
        "ok    good: 7 tools\n"
        "fail  MCP server 'dead' could not be started: it exited with code 3; its last lines:\nno [redacted]\n"
        "fail  MCP server 'missing' could not be started: "
        "its command 'no-such-command' was not found on the PATH of this worker\n"
    )


@pytest.mark.conformance("CY89")
def test_a_server_that_needs_a_login_fails_alone(tmp_path: Path) -> None:
    """Finding U7 of the second review: one `oauth` block failed all servers of the file."""
    result = run(tmp_path, {"login": {"url": "http://127.0.0.1:9/", "oauth": {}}, "good": GOOD})
    assert result.exit_code == 1
    ok, fail = result.output.splitlines()
    assert ok == "ok    good: 7 tools"
    assert fail.startswith(
        "fail  MCP server 'login' requires OAuth authentication, which this version does not support"
    )


def test_one_server_can_be_checked_alone_and_the_result_be_json(tmp_path: Path) -> None:
    result = run(tmp_path, {"good": GOOD, "missing": MISSING}, "--server", "good", "--json")
    assert result.exit_code == 0
    assert json.loads(result.output) == {
        "ok": True,
        "servers": [{"server": "good", "tools": 7, "problem": None}],
        "problems": [],
    }


def test_a_file_that_cannot_be_used_has_an_exit_code_of_its_own(tmp_path: Path) -> None:
    result = run(tmp_path, {"a": {"type": "http"}})
    assert result.exit_code == 2
    assert result.output == (
        f'fail  {tmp_path / "mcp.json"}: MCP server \'a\' has type "http" but is missing a "url" field\n'
    )
    result = run(tmp_path, {"a": MISSING}, "--server", "b", "--json")
    assert result.exit_code == 2
    assert json.loads(result.output)["problems"] == [
        f"{tmp_path / 'mcp.json'}: MCP server 'b' is not in it; there are a"
    ]


def test_a_file_without_servers_is_right(tmp_path: Path) -> None:
    result = run(tmp_path, {})
    assert (result.exit_code, result.output) == (0, "no servers\n")

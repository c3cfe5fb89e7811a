"""Where an MCP server works that is called for a visit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sleipnir.graph.model import LlmNode
from sleipnir.runs.conversation import StoredConversation
from sleipnir.runs.visits import Part
from sleipnir.tools.mcp_config import McpServer, StdioServer
from sleipnir_workers import mcp
from sleipnir_workers.execution.execution import DirectoryMissing
from sleipnir_workers.tools.node import run_tool
from tests.unit.workers.visits import host, visit

NODE = LlmNode(id="ask", prompt="hi", tools=("mcp:files", "mcp:far"))


class Lab:
    """A configuration with mcp.json, a project, and what was asked of which server."""

    def __init__(self, root: Path) -> None:
        self.functions, self.project, self.asked = root / "loki" / "functions", root / "project", list[McpServer]()
        for folder in (self.functions, self.project):
            folder.mkdir(parents=True)
        (self.functions / "server.py").write_text("")
        self.env = {"LOKI_CONFIG_DIR": str(root / "loki")}

    def configure(self, **spec: Any) -> None:
        servers = {"files": {"command": "python3", **spec}, "far": {"url": "https://mcp.example.org/"}}
        (self.functions / "mcp.json").write_text(json.dumps({"mcpServers": servers}))

    def call(self, server: str = "files", **fields: Any) -> McpServer:
        """The server that answers a call of a visit."""
        function = {"name": f"mcp_invoke_{server}", "arguments": '{"tool": "ls"}'}
        reply = json.dumps({"tool_calls": [{"function": function}]})
        fields = {
            "cwd": self.project,
            "part": Part(1, 0, 0),
            "talk": StoredConversation(turns=((reply, ()),)),
            **fields,
        }
        assert run_tool(NODE, visit(NODE, self.project, role="tool", **fields), host(self.env)).ok
        return self.asked[-1]


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    lab = Lab(tmp_path)

    def answer(name: str, arguments: Any, servers: Mapping[str, McpServer], *_: Any, **__: Any) -> str:
        lab.asked.append(servers[name.removeprefix("mcp_invoke_")])
        return "done"

    monkeypatch.setattr(mcp, "answer", answer)
    return lab


def test_a_server_works_where_the_visit_does(lab: Lab) -> None:
    """Finding U6 of the second review."""
    lab.configure(args=["server.py", ".", "--root"])
    server = lab.call()
    assert isinstance(server, StdioServer)
    assert (server.cwd, server.command) == (lab.project, "python3")
    assert server.args == (str(lab.functions / "server.py"), ".", "--root"), "files are relative to mcp.json"


def test_a_command_with_a_path_is_relative_to_mcp_json(lab: Lab) -> None:
    lab.configure(command="./bin/server")
    server = lab.call()
    assert isinstance(server, StdioServer)
    assert server.command == str(lab.functions / "bin/server")


@pytest.mark.parametrize("cwd", [".", "sub"])
def test_a_server_whose_directory_is_configured_works_there(lab: Lab, cwd: str) -> None:
    lab.configure(cwd=cwd, args=["server.py"])
    server = lab.call()
    assert isinstance(server, StdioServer)
    assert (server.cwd, server.args) == (lab.functions / cwd, ("server.py",))


def test_runs_with_scratch_folders_share_one_server(lab: Lab) -> None:
    """A server of its own for each run would cost a process and its start each."""
    lab.configure(args=["server.py"])
    server = lab.call(scratch=lab.project)
    assert isinstance(server, StdioServer)
    assert (server.cwd, server.args) == (lab.functions, ("server.py",))


def test_a_directory_that_is_not_here_matters_only_to_a_server_that_would_work_in_it(lab: Lab) -> None:
    """Finding U6 of the second review."""
    lab.configure()
    gone = lab.project / "gone"
    assert lab.call("far", cwd=gone).name == "far"
    with pytest.raises(DirectoryMissing):
        lab.call("files", cwd=gone)

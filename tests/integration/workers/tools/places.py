"""Makes agents with tools, and places where their calls run."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sleipnir.graph.model import EndNode, Graph
from sleipnir.python_graph.interrupts import VisitAnswers
from sleipnir.tools.folder import Tools, tools_of
from sleipnir_workers.tools.call import answer
from sleipnir_workers.tools.place import Place
from sleipnir_workers.tools.repeated_calls import PastCall
from sleipnir_workers.tools.results import ToolOutcome
from tests.unit.workers.visits import host


class Agent:
    """The agent `triage` in a folder of its own, beside a configuration directory of its own."""

    def __init__(self, tmp_path: Path, **settings: Any) -> None:
        self.folder, self.config = tmp_path / "bundle", tmp_path / "loki"
        self.cwd = tmp_path / "cwd"
        for folder in (self.folder, self.config, self.cwd):
            folder.mkdir(exist_ok=True)
        self.settings = settings
        self.env: dict[str, str] = {}
        self.variables: Mapping[str, str] = {}
        self.global_tools: list[str] = []
        self.lost = threading.Event()

    def has(self, name: str, text: str) -> Agent:
        """Write a file of the agent's folder; under `loki/...` one of the configuration directory."""
        path = (self.config.parent if name.startswith("loki/") else self.folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if name.startswith("loki/functions/tools/"):
            self.global_tools.append(path.name)
        return self

    @property
    def tools(self) -> Tools:
        graph = Graph(name="t", start="e", nodes={"e": EndNode(id="e", output="")}, global_tools=self.global_tools)
        return tools_of(self.folder, self.config / "functions", graph)

    @property
    def place(self) -> Place:
        worker = host({"LOKI_CONFIG_DIR": str(self.config), **self.env}, **self.settings)
        return Place("triage", self.folder, self.cwd, worker, self.variables, self.lost)

    def call(
        self,
        name: str,
        arguments: Any = "{}",
        *,
        allowed: Sequence[str] | None = None,
        earlier: Sequence[PastCall] = (),
        answers: VisitAnswers | None = None,
    ) -> ToolOutcome:
        call = PastCall(name, arguments)
        return answer(call, self.tools, self.place, allowed=allowed, earlier=earlier, answers=answers)

"""The config.yaml agents that ship, as runs: a scripted model calls their tools, which work on a project of the test.

All are under way on one scheduler and two workers: that is why they are one test, of which each agent is a part.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sleipnir.agents.bundle import BundleCache, pack
from sleipnir.agents.config_directory import functions_dir
from sleipnir.graph.check import validate
from sleipnir.graph.load import load_file
from sleipnir.graph.python_source import statements
from sleipnir.testing import Call, ModelServer, Reply, Request
from sleipnir.tools.folder import tools_of
from tests.agents.in_process import AGENTS, write
from tests.processes import RedisServer, Stack

READING = ["get_structure", "search_files", "search_content", "read_file"]
TOOLS = {
    "explore": [*READING, "find_similar"],
    "oracle": ["get_project_info", "read_file", "search_code", "list_directory"],
    "coder": [*READING, "write_file", "patch_file", "delete_file", "run_build", "run_tests"],
    "demo": ["split_bill", "convert", "packing_list"],
    "orchestrator": [],
}

PROJECT = {
    "Makefile": "test:\n\tsh test.sh\n",
    "test.sh": '[ "$(sh double.sh 4)" = 8 ] && echo 1 passed\n',
    "double.sh": "echo $(($1 * 3))\n",
}


@dataclass(frozen=True)
class Case:
    """What the model says in its turns to a run of an agent."""

    says: Sequence[Reply | str]
    variables: Mapping[str, str] = field(default_factory=dict)


def calls(*wanted: tuple[str, dict[str, Any]]) -> Reply:
    return Reply(calls=[Call(name, arguments) for name, arguments in wanted])


CASES = {
    "explore": Case(
        [
            calls(("get_structure", {}), ("search_content", {"pattern": r"\$1", "file_type": "sh"})),
            calls(("read_file", {"path": "double.sh", "lines": ""}), ("read_file", {"path": "../secret.txt"})),
            "It is tripled in double.sh:1.",
        ]
    ),
    "oracle": Case([calls(("get_project_info", {}), ("list_directory", {})), "Multiply by two, not three."]),
    "coder": Case(
        [
            calls(("todo__init", {"goal": "double"}), ("todo__add", {"task": "repair it"}), ("run_tests", {})),
            calls(("patch_file", {"path": "double.sh", "old_text": "* 3", "new_text": "* 2"}), ("run_build", {})),
            "That should do.",
            calls(("run_tests", {})),
            calls(("todo__done", {"id": 1})),
            "double.sh doubles.\nDONE",
        ]
    ),
    "demo": Case(
        [calls(("split_bill", {"total": 96.5, "people": 3}), ("convert", {"value": 1, "unit": "ell"})), "32.16 each."],
        {"currency": "SEK"},
    ),
    "orchestrator": Case(["Nothing needs to be done."]),
}


@dataclass(frozen=True)
class Ended:
    output: str | None
    requests: Sequence[Request]
    project: Path

    @property
    def told(self) -> str:
        """The system prompt."""
        return self.requests[0].system or ""

    def results(self, turn: int) -> list[Any]:
        """What the model was told of the calls of a turn."""
        return [json.loads(each.text) for each in self.requests[turn].tool_results]


def explore_finds_and_reads(ended: Ended) -> None:
    assert f"which is . as seen from {ended.project}." in ended.told
    structure, found = ended.results(1)
    assert structure == {"output": "project/ (3 files)\n  Makefile\n  double.sh\n  test.sh"}
    assert found == {"output": "1 match in 2 files of type sh:\ndouble.sh:1: echo $(($1 * 3))"}
    read, refused = ended.results(2)
    assert read == {"output": "double.sh, lines 1-1 of 1:\n1| echo $(($1 * 3))"}
    assert refused == {
        "tool_call_error": "Tool call 'read_file' exited with code 1",
        "stderr": "'../secret.txt' is outside the project. Paths are relative to the project directory: src/main.py.",
    }


def oracle_knows_the_project(ended: Ended) -> None:
    facts, listed = ended.results(1)
    assert "Tests: make test\n" in facts["output"]
    assert listed["output"].startswith(".: 3 entries\n")


def coder_repairs_what_a_test_shows(ended: Ended) -> None:
    *listed, before = ended.results(1)
    assert listed == [{"status": "ok", "message": "Initialized new todo list"}, {"status": "ok", "id": 1}]
    assert (before["command"], before["exit_code"]) == ("make test", 2)
    patched, build = ended.results(2)
    assert patched == {"output": "Changed double.sh at line 1."}
    assert build["stderr"].startswith("No build command is known")
    assert "○ 1. repair it" in ended.requests[3].prompt  # it is not let off before its list is done
    [after] = ended.results(4)
    assert (after["exit_code"], after["output"].splitlines()[-1]) == (0, "1 passed")
    assert (ended.project / "double.sh").read_text() == "echo $(($1 * 2))\n"


def demo_calculates_in_the_currency_that_was_asked_for(ended: Ended) -> None:
    assert "The person who travels is called traveller, and pays in SEK." in ended.told
    shared, refused = ended.results(1)
    assert shared == {"currency": "SEK", "with_tip": 96.5, "each_pays": 32.16, "pay_one_cent_more": 2}
    assert refused["stderr"].endswith("unknown unit 'ell': use km, mi, kg, lb, l, gal, C or F")


def orchestrator_answers(ended: Ended) -> None:
    assert len(ended.requests) == 1


CHECKS = {
    "explore": explore_finds_and_reads,
    "oracle": oracle_knows_the_project,
    "coder": coder_repairs_what_a_test_shows,
    "demo": demo_calculates_in_the_currency_that_was_asked_for,
    "orchestrator": orchestrator_answers,
}


@pytest.fixture
def model() -> Iterator[ModelServer]:
    def reply(request: Request) -> Reply | str:
        return CASES[str(request.conversation)].says[request.turn - 1]

    with ModelServer(reply) as server:
        yield server


def test_agents_do_their_work_with_their_tools(
    model: ModelServer, redis_server: RedisServer, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    write(tmp_path, {"secret.txt": "the secret\n"})
    with Stack(redis_server, tmp_path / "home", key_prefix="config-agents", model="openai:gpt-test") as stack:
        own = {"LOKI_CONFIG_DIR": str(tmp_path / "loki")}
        stack.start_scheduler()
        stack.start_worker("models", "llm", concurrency=4, env={**model.env(), **own}, ready=False)
        stack.start_worker("tools", "scripts", concurrency=4, env=own, ready=False)
        for name in ("models", "tools"):
            stack.wait_for_worker(name, 90)  # on a busy machine the import of litellm takes its time
        with stack.client() as client:
            runs = {}
            for name, case in CASES.items():
                project = tmp_path / name / "project"
                write(project, PROJECT)
                prompt = f"[conversation {name}] Do your work."
                runs[name] = client.submit(AGENTS / name, prompt, variables=case.variables, caller_dir=project)
            for name, run in runs.items():
                with subtests.test(name):
                    info = run.wait(90)
                    assert (info.status, info.error) == ("completed", None)
                    assert str(run.output).endswith(str(CASES[name].says[-1]))
                    requests = model.calls_of(name)
                    assert set(TOOLS[name]) <= set(requests[0].tools)
                    CHECKS[name](Ended(run.output, requests, tmp_path / name / "project"))


@pytest.mark.parametrize("agent", TOOLS)
def test_an_agent_loads_without_a_complaint_and_has_the_tools_of_its_page(agent: str) -> None:
    folder = AGENTS / agent
    assert validate(folder) == []
    graph = load_file(folder).graph
    assert graph is not None
    assert graph.name == agent
    assert graph.description
    tools = tools_of(folder, functions_dir(), graph)
    assert tools.names == TOOLS[agent]
    page = (folder / "README.md").read_text()
    assert [name for name in tools.names if f"`{name}`" not in page] == []
    assert [variable.name for variable in graph.variables if f"`{variable.name}`" not in page] == []


@pytest.mark.parametrize("agent", [*TOOLS, ".shared"])
def test_its_tools_are_written_for_the_python_of_any_worker(agent: str) -> None:
    for file in (AGENTS / agent).glob("*.py"):
        assert statements(file.read_text(), (3, 9))


@pytest.mark.parametrize("agent", ["explore", "oracle", "coder"])
def test_the_shared_folder_is_stored_once_and_unpacked_next_to_each_agent(agent: str, tmp_path: Path) -> None:
    """Finding U5 of the second review."""
    assert [path.parent.name for path in AGENTS.rglob("project.py")] == [".shared"]
    bundle = pack(AGENTS / agent, limit_bytes=2**20)
    folder = BundleCache(tmp_path, lambda _: bundle.packed).get(bundle.digest, agent).folder
    load = f"import sys; sys.path[0] = {str(folder)!r}; import tools; print(tools.project.__file__)"
    done = subprocess.run([sys.executable, "-B", "-c", load], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(folder.parent / ".shared" / "project.py")

"""sleipnir.testing.run with processes and sockets: scripts, models, the fixtures of pytest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from sleipnir.testing import Call, ModelServer, Reply, Request, Rule, Script, run


def agent(folder: Path, graph: str, **files: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "graph.yaml").write_text(dedent(graph))
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(dedent(text))
    return folder


def test_scripts_run_as_processes_in_the_working_directory(tmp_path: Path) -> None:
    folder = agent(
        tmp_path / "counter",
        """
        name: counter
        start: count
        variables: [{name: WORD, description: a word, default: bells}]
        nodes:
          count: {type: script, script: count.py, next: shell}
          shell: {type: script, script: shell.sh, next: done}
          done: {type: end, output: "{{n}} {{word}}"}
        """,
        count_py="""
            import json, os
            open("left.txt", "w").write("here")
            state = json.loads(os.environ["GRAPH_STATE"])
            print(json.dumps({"n": len(state["initial_prompt"].split()), "pid": os.getpid()}))
        """,
        shell_sh="""
            printf '{"word": "%s"}' "$LLM_AGENT_VAR_WORD"
        """,
    )
    work = tmp_path / "work"
    work.mkdir()
    result = run(folder, "three old bells", cwd=work, variables={"WORD": "ropes"})
    assert (result.status, result.output) == ("completed", "3 ropes"), result.error
    assert (work / "left.txt").read_text() == "here"
    assert not (folder / "left.txt").exists()
    assert result.state["pid"] != os.getpid()


LLM = """
    name: sorter
    start: read
    nodes:
      read:
        type: llm
        model: openai:gpt-test
        prompt: "{{initial_prompt}}"
        output_schema: {type: object, properties: {topic: {type: string}}}
        next: done
      done: {type: end, output: "{{topic}}"}
"""


def test_a_model_is_called_over_http(tmp_path: Path) -> None:
    folder = agent(tmp_path / "sorter", LLM)
    with ModelServer(['{"topic": "a crack"}']) as server:
        result = run(folder, "Our bell is cracked", model=server)
    assert (result.status, result.output) == ("completed", "a crack"), result.error
    assert "Our bell is cracked" in server.requests[0].prompt
    assert result.usage.calls == 1 and result.usage.input_tokens == 10


def test_a_script_of_replies_is_enough(tmp_path: Path) -> None:
    folder = agent(tmp_path / "sorter", LLM)
    assert run(folder, "x", model=Script(default='{"topic": "a rope"}')).output == "a rope"
    assert run(folder, "x", model=['{"topic": "a wheel"}']).output == "a wheel"


def test_a_model_with_tools_has_its_turns_and_calls(tmp_path: Path) -> None:
    folder = agent(
        tmp_path / "clerk",
        """
        name: clerk
        start: work
        nodes:
          work:
            type: llm
            model: openai:gpt-test
            prompt: "{{initial_prompt}}"
            tools: [add]
            state_updates: {said: "{{output}}"}
            next: done
          done: {type: end, output: "{{said}}"}
        """,
        tools_py="""
            def add(a: int, b: int) -> int:
                \"\"\"Add two numbers.

                Args:
                    a: the first
                    b: the second
                \"\"\"
                return a + b
        """,
    )
    script = Script(
        rules=[Rule(Reply(calls=[Call("add", {"a": 2, "b": 3})]), turn=1), Rule("it is 5", result_of="add")],
    )
    result = run(folder, "2 and 3?", model=script, cwd=tmp_path)
    assert (result.status, result.output) == ("completed", "it is 5"), result.error
    assert [visit.role for visit in result.visits] == ["turn", "tool", "turn", "node", "node"]


def test_pytest_finds_the_fixtures(tmp_path: Path) -> None:
    agent(tmp_path / "sorter", LLM)
    (tmp_path / "test_sorter.py").write_text(
        dedent(
            """
            def test_a_letter(run_agent, model, tmp_path):
                server = model(['{"topic": "a crack"}'])
                result = run_agent("./sorter", "cracked", model=server)
                assert result.output == "a crack"
                assert len(server.requests) == 1
            """
        )
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "sleipnir.testing.plugin", "-p", "no:randomly", "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def test_importing_the_test_kit_imports_neither_the_workers_nor_redis() -> None:
    program = "import sys, json, sleipnir.testing; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    roots = {name.partition(".")[0] for name in json.loads(done.stdout)}
    dear = {"redis", "celery", "kombu", "litellm", "sleipnir_scheduler", "sleipnir_workers", "sleipnir_inprocess"}
    assert not roots & dear


def test_a_model_spawns_an_agent_and_collects_its_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one process: a child that waits for a model does not keep its parent's turns from going on."""
    helper = (
        "name: helper\ndescription: Helps.\nstart: f\nnodes: {f: {type: end, output: 'helped {{initial_prompt}}'}}\n"
    )
    agent(tmp_path / "helper", helper)
    boss = tmp_path / "boss"
    boss.mkdir()
    (boss / "config.yaml").write_text(
        "name: boss\nmodel: openai:gpt-test\ninstructions: Lead.\ncan_spawn_agents: true\n"
    )
    monkeypatch.setenv("SLEIPNIR_AGENTS_DIR", str(tmp_path))

    def lead(request: Request) -> Reply | str:
        results = [json.loads(result.text) for result in request.tool_results]
        match request.turn:
            case 1:
                return Reply(calls=[Call("agent__spawn", {"agent": "helper", "prompt": "Ann"})])
            case 2:
                return Reply(calls=[Call("agent__collect", {"id": results[-1]["id"]})])
        return f"it says: {results[-1]['output']}"

    result = run("boss", "help Ann", model=lead)
    assert (result.status, result.output) == ("completed", "it says: helped Ann"), result.error

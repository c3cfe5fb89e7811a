"""The command line as a process: what it loads, what Tab completes, pipes that close."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sleipnir.cli import front_page, main

HEAVY = ("celery", "kombu", "litellm", "pydantic", "redis", "rich", "yaml")


def run_python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SLEIPNIR_")}
    return subprocess.run(
        [sys.executable, *arguments], env=clean | environment, capture_output=True, text=True, timeout=60
    )


def loaded_by(*arguments: str) -> set[str]:
    """The modules that a command line has loaded when it ends."""
    program = (
        "import json, sys\nfrom sleipnir.cli import main\n"
        f"try:\n    main({list(arguments)!r})\nfinally:\n    print(json.dumps(list(sys.modules)), file=sys.stderr)"
    )
    return set(json.loads(run_python("-c", program).stderr.splitlines()[-1]))


def test_the_help_page_loads_neither_click_nor_anything_heavy() -> None:
    assert loaded_by("--help") & {*HEAVY, "click", "importlib.metadata", "dataclasses", "inspect"} == set()


def test_the_help_of_a_command_loads_nothing_heavy() -> None:
    """One process, which ends at the first command that loads what it should not."""
    program = (
        "import sys\nfrom sleipnir.cli import main\n"
        f"for command in {list(front_page.COMMANDS)!r}:\n"
        "    assert main([command, '--help']) == 0\n"
        f"    loaded = {set(HEAVY)!r} & set(sys.modules)\n"
        "    assert not loaded, (command, loaded)\n"
    )
    finished = run_python("-c", program)
    assert finished.returncode == 0, finished.stderr


def test_a_probe_loads_neither_celery_nor_kombu() -> None:
    loaded = loaded_by("--redis-url", "redis://127.0.0.1:1/0", "worker", "--health")
    assert "redis" in loaded
    assert loaded & {"celery", "kombu", "litellm", "rich", "yaml", "sleipnir_workers"} == set()


def test_a_command_that_looks_at_runs_loads_little_besides_redis_py() -> None:
    """Finding U13 of the second review: most of `sleipnir ps` was imports."""
    program = (
        "import json, sys\nfrom sleipnir.cli import app, options\nfrom sleipnir.cli.runs import ps\n"
        "with options.GlobalOptions("
        "redis_url='redis://127.0.0.1:1/0').connected(workers=False):\n    pass"
    )
    closed = f"try:\n    {program.replace(chr(10), chr(10) + '    ')}\nexcept Exception as error: said = str(error)\n"
    listed = run_python("-c", closed + "print(said)\nprint(json.dumps(list(sys.modules)))").stdout.splitlines()
    assert "127.0.0.1:1" in listed[0]
    loaded = set(json.loads(listed[1]))
    assert "redis" in loaded and "sleipnir.client.client" in loaded
    heavy = {
        "celery", "kombu", "litellm", "rich", "yaml", "structlog", "jsonschema", "opentelemetry.sdk",
        "sleipnir.client.preparation", "sleipnir.agents.finding", "sleipnir.client.batch", "sleipnir.graph.load",
        "sleipnir.graph.model", "sleipnir.knowledge", "sleipnir.store.partitions", "sleipnir.runs.transitions",
        "sleipnir.client.streaming",
    }  # fmt: skip
    assert loaded & heavy == set()


def test_an_output_that_is_full_is_named() -> None:
    command = [sys.executable, "-m", "sleipnir", "--help"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == "error: the output cannot be written: No space left on device\n"


def test_the_module_is_the_command() -> None:
    finished = run_python("-m", "sleipnir", "--help")
    assert (finished.returncode, finished.stdout) == (0, front_page.text() + "\n")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_the_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert script.startswith("# ")
    assert f"_SLEIPNIR_COMPLETE={shell}_complete" in script


def press(*words: str, **environment: str) -> list[str]:
    """What bash is offered for the last word."""
    finished = run_python(
        "-m", "sleipnir", _SLEIPNIR_COMPLETE="bash_complete", COMP_WORDS=" ".join(["sleipnir", *words]),
        COMP_CWORD=str(len(words)), **environment,
    )  # fmt: skip
    assert finished.stderr == ""
    return [line.partition(",")[2] for line in finished.stdout.splitlines() if line]


def complete(*words: str, **environment: str) -> list[str]:
    """The same, of a few key presses: one that takes too long offers nothing."""
    return next(filter(None, (press(*words, **environment) for _ in range(5))), [])


def test_tab_completes_commands_and_options() -> None:
    assert complete("wa") == ["watch", "wait"]
    assert complete("--red") == ["--redis-url"]
    assert complete("run", "--ans") == ["--answer"]


def test_tab_completes_the_templates_of_a_new_agent() -> None:
    assert complete("init", "words", "--template", "") == ["script", "llm", "map", "loop", "rag"]


def test_tab_completes_agents_by_name(tmp_path: Path) -> None:
    for name in ("zebra", "zoo", ".zshared"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "graph.yaml").touch()
    assert complete("run", "z", SLEIPNIR_AGENTS_DIR=str(tmp_path)) == ["zebra", "zoo"]
    assert complete("--agents-dir", str(tmp_path), "run", "ze") == ["zebra"]


def test_tab_completes_the_shipped_agents_that_are_not_named_yet() -> None:
    assert complete("agents", "in") == ["install"]
    assert complete("agents", "install", "he") == ["hello"]
    assert press("agents", "install", "hello", "he") == []
    assert complete("agents", "install", "--reset", "log") == ["log-triage"]


def test_tab_completes_the_state_keys_that_an_agent_declares(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "graph.yaml").write_text(
        "name: shop\nstart: done\nstate:\n  total: {type: int}\n  topic: {type: string}\n  n: {type: int}\n"
        "nodes:\n  done: {type: end}\n"
    )
    assert complete("run", "shop", "--state", "t", SLEIPNIR_AGENTS_DIR=str(tmp_path)) == ["total=", "topic="]
    assert press("run", "none", "--state", "t", SLEIPNIR_AGENTS_DIR=str(tmp_path)) == []


def test_tab_prints_nothing_if_completion_fails() -> None:
    assert press("run", "z", SLEIPNIR_PARTITIONS="many") == []
    assert press("watch", "a", SLEIPNIR_REDIS_URL="redis://127.0.0.1:1/0") == []


@pytest.mark.parametrize("arguments", [["--help"], ["doctor", "--settings"], ["completion", "bash"]])
def test_a_reader_that_stops_reading_causes_no_traceback(arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "sleipnir", *arguments]
    finished = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writing)
    assert (finished.returncode, finished.stderr) == (1, "")

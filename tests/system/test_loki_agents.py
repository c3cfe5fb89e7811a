"""Folders of config.yaml agents as they are written for Loki, run as they are: with instructions that their own
function writes, a file that they share, variables, secrets and `.env` files (spec 3)."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis

from sleipnir.testing import Call, ModelServer, Reply, Request
from tests.processes import RedisServer, Stack

PASSWORD = "correct-horse-battery"
CONFIG = """
name: {name}
description: Looks after a project
version: 1
model: openai:gpt-test
temperature: 0.2
dynamic_instructions: {dynamic}
instructions: |
  You look after {{{{project-dir}}}} on {{{{__os__}}}}, called from {{{{__cwd__}}}}.
  {{{{__tools__}}}}
variables:
  - name: project-dir
    description: The project
  - name: dsn
    description: The database
    default: "pg://me:{{{{DB_PASSWORD}}}}@db"
  - name: style
    description: How to answer
    default: terse
conversation_starters:
  - What is in {{{{project-dir}}}}?
"""
SHARED = """#!/usr/bin/env bash
# Helpers of several agents.
project_dir() {
    echo "${LLM_AGENT_VAR_PROJECT_DIR:-.}"
}
"""
PROMPT_UTILS = """#!/usr/bin/env bash
error() { echo "error: $*" >&2; }
"""
TOOLS_SH = r"""#!/usr/bin/env bash
set -eo pipefail

# shellcheck disable=SC1090
source "$LLM_PROMPT_UTILS_FILE"
source "$LLM_ROOT_DIR/agents/.shared/utils.sh"
export AUTO_CONFIRM=true

# @env LLM_OUTPUT=/dev/stdout The output path
# @env LLM_AGENT_VAR_PROJECT_DIR=.
# @describe Tools to look after a project

# @cmd Write the instructions of this agent
_instructions() {
    cat <<EOT >> "$LLM_OUTPUT"
You look after $(project_dir) of team $TEAM, and answer in {{style}} words on {{__os__}}.
EOT
}

# @cmd Search the project
# @option --pattern! What to look for
# @option --file-type <EXT> Only files with this extension
# @flag --count Only say how many there are
search_content() {
    local dir
    dir=$(project_dir)
    [[ -n "$DSN_CHECK" && "$LLM_AGENT_VAR_DSN" == *"$DSN_CHECK"* ]] || error "another password"
    grep -rh --include="*.${argc_file_type:-*}" "$argc_pattern" "$dir" >> "$LLM_OUTPUT" || true
    echo "from $LLM_AGENT_NAME in $(basename "$LLM_AGENT_CACHE_DIR"), team $TEAM, region $REGION" >> "$LLM_OUTPUT"
}

# See more details at https://github.com/sigoden/argc
eval "$(argc --argc-eval "$0" "$@")"
"""
TOOLS_PY = '''import os
from pathlib import Path
from typing import Optional


def _instructions():
    """Write the instructions of this agent."""
    return f"You look after {os.environ['LLM_AGENT_VAR_PROJECT_DIR']} of team {os.environ['TEAM']}. " + "{{style}}"


def _files(kind):
    return Path(os.environ["LLM_AGENT_VAR_PROJECT_DIR"]).glob(f"*.{kind or '*'}")


def search_content(pattern: str, file_type: Optional[str] = None):
    """Search the project.

    Args:
        pattern: What to look for
        file_type: Only files with this extension
    """
    lines = [line for file in _files(file_type) for line in file.read_text().splitlines() if pattern in line]
    dsn = os.environ["LLM_AGENT_VAR_DSN"]
    found = {"lines": lines, "team": os.environ["TEAM"], "region": os.environ["REGION"]}
    return {**found, "dsn": dsn, "checked": os.environ["DSN_CHECK"] in dsn}
'''


@dataclass(frozen=True)
class Lab:
    stack: Stack
    model: ModelServer
    loki: Path
    project: Path

    def run(self, agent: str, *options: str, **env: str) -> tuple[int, str, str]:
        """`sleipnir run AGENT "find bells"`: its exit code, stdout and stderr."""
        own = {"LOKI_CONFIG_DIR": str(self.loki)}
        done = self.stack.sleipnir("run", agent, "find {{style}} bells", *options, **own, **env)
        return done.returncode, done.stdout.strip(), done.stderr

    def agent(self, name: str, tools: str, text: str, *, dynamic: bool) -> None:
        folder = self.loki / "agents" / name
        folder.mkdir()
        (folder / "config.yaml").write_text(CONFIG.format(name=name, dynamic=str(dynamic).lower()))
        (folder / tools).write_text(text)
        (folder / ".env").write_text(f"# of this agent\nTEAM='{name} folk'\nDSN_CHECK={PASSWORD}\n")


def replies(request: Request) -> Reply | str:
    """Search once, then quote what was found."""
    if request.turn == 1:
        return Reply("Let me look.", calls=[Call("search_content", {"pattern": "bell", "file_type": "txt"})])
    return str(request.messages[-1]["content"])


@pytest.fixture(scope="module")
def lab(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    tmp_path = tmp_path_factory.mktemp("loki-agents")
    loki, project = tmp_path / "loki", tmp_path / "project"
    for file, text in {
        loki / "agents" / ".shared" / "utils.sh": SHARED,
        loki / "functions" / "utils" / "prompt-utils.sh": PROMPT_UTILS,
        loki / ".env": "REGION=north\nTEAM=nobody\n",
        project / "notes.txt": "a bell\na whistle\n",
        project / "notes.md": "another bell\n",
    }.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (loki / "secrets.env").touch(0o600)
    (loki / "secrets.env").write_text(f"DB_PASSWORD={PASSWORD}\n")
    own = {"LOKI_CONFIG_DIR": str(loki)}
    with ModelServer(replies) as model, Stack(redis_server, tmp_path / "home", key_prefix="lokiagents") as stack:
        stack.start_scheduler()
        stack.start_worker("models", "llm", env={**model.env(), **own}, ready=False)
        stack.start_worker("tools", "scripts", env=own, ready=False)
        for name in ("models", "tools"):
            stack.wait_for_worker(name, 90)  # on a busy machine the import of litellm takes its time
        yield Lab(stack, model, loki, project)


@pytest.mark.conformance("C03", "C05", "C06", "C07", "C11")
def test_an_agent_with_bash_tools_runs_as_it_is(lab: Lab) -> None:
    lab.agent("bell-ringer", "tools.sh", TOOLS_SH, dynamic=True)
    code, output, narration = lab.run("bell-ringer", "--var", f"project-dir={lab.project}")
    assert code == 0, narration
    told = lab.model.requests[-2]
    system, user = told.messages
    first, _, mine = str(system["content"]).partition("\n\n")
    assert first == f"You look after {lab.project} of team bell-ringer folk, and answer in terse words on linux."
    assert mine.startswith("## ")
    assert user["content"] == "find {{style}} bells"
    assert told.tools[0] == "search_content"
    assert "_instructions" not in told.tools
    found = "a bell\nfrom bell-ringer in bell-ringer, team bell-ringer folk, region north"
    assert output == f"Let me look.\n{json.dumps({'output': found}, separators=(',', ':'))}"
    assert "another password" not in narration


@pytest.mark.conformance("C05", "C06", "C07")
def test_an_agent_with_python_tools_runs_as_it_is_and_its_secrets_stay_on_the_worker(lab: Lab) -> None:
    lab.agent("bell-hop", "tools.py", TOOLS_PY, dynamic=True)
    env = {"LLM_AGENT_VAR_PROJECT_DIR": str(lab.project), "LLM_AGENT_VAR_STYLE": "long"}
    code, output, narration = lab.run("bell-hop", "--agent-variable", "style", "short", **env)
    assert code == 0, narration
    told = lab.model.requests[-2].messages[0]
    assert str(told["content"]).startswith(f"You look after {lab.project} of team bell-hop folk. short\n\n## ")
    assert json.loads(output.partition("\n")[2]) == {
        "lines": ["a bell"],
        "team": "bell-hop folk",
        "region": "north",
        "dsn": "pg://me:[redacted]@db",
        "checked": True,
    }
    everything = b""
    for url in lab.stack.redis.urls:
        with redis.Redis.from_url(url) as client:
            everything += b"".join(client.dump(key) or b"" for key in client.scan_iter(count=1000))
    assert b"{{DB_PASSWORD}}" in everything
    assert PASSWORD.encode() not in everything
    assert PASSWORD not in lab.stack.log("tools") + lab.stack.log("models") + lab.stack.log("scheduler") + narration


@pytest.mark.conformance("C03", "C04", "C05")
def test_static_instructions_and_a_variable_without_a_value(lab: Lab) -> None:
    lab.agent("bell-tower", "tools.py", TOOLS_PY, dynamic=False)
    code, _, narration = lab.run("bell-tower")
    assert code == 2
    assert "The following agent variables are required:\n  - project-dir: The project\n" in narration
    code, _, narration = lab.run("bell-tower", LLM_AGENT_VAR_PROJECT_DIR=str(lab.project))
    assert code == 0, narration
    first, listed, *_ = str(lab.model.requests[-2].messages[0]["content"]).splitlines()
    assert first == f"You look after {lab.project} on linux, called from {Path.cwd()}."
    assert listed == "1. search_content: Search the project."


@pytest.mark.conformance("C05")
def test_a_person_at_a_terminal_is_asked_for_what_nothing_sets(lab: Lab) -> None:
    lab.agent("bell-boy", "tools.py", TOOLS_PY, dynamic=False)
    mine, theirs = pty.openpty()
    command = [sys.executable, "-m", "sleipnir", "submit", "bell-boy", "find bells"]
    env = {**lab.stack.environment(), "LOKI_CONFIG_DIR": str(lab.loki)}
    process = subprocess.Popen(command, env=env, stdin=theirs, stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    question = b"project-dir (The project):"
    read_until(mine, question)
    os.write(mine, b" \n")
    read_until(mine, b"This field is required", question)
    os.write(mine, f"{lab.project}\n".encode())
    run, _ = process.communicate(timeout=60)
    os.close(mine)
    assert process.returncode == 0
    with lab.stack.client() as client:
        assert client.run(run.decode().strip()).wait(60).status == "completed"
    assert str(lab.model.requests[-2].messages[0]["content"]).startswith(f"You look after {lab.project} on linux")


def read_until(fd: int, *wanted: bytes) -> None:
    """Until all of these were written to the terminal, in their order."""
    seen = b""
    for each in wanted:
        while each not in seen:
            seen += os.read(fd, 4096)
        seen = seen.partition(each)[2]

"""The model of a campaign: a scripted server, and what depends on it and on other agents.

An answer is drawn from the request alone: from the settings that overrides change, the prompt, the results of tools. So
a run that lost an override, or a turn that was asked anew with another conversation, ends in another way.
"""

from __future__ import annotations

import json
import random
import zlib
from pathlib import Path
from typing import Any, Final

from sleipnir.testing import Call, ModelServer, Reply, Request

QUEUE: Final = "llm"
MODEL: Final = "openai:gpt-test"
HELPER: Final = "helper"
"""The agent that agent nodes of all graphs start."""

_SETTINGS = ("model", "temperature", "top_p", "max_tokens", "seed")

HELP: Final = """
name: helper
version: sleipnir/1
start: work
state: {{depth: int, notes: list, seen: any}}
nodes:
  work: {{type: script, script: work.py, timeout: 60, next: ask}}
  ask: {{type: llm, model: "{model}", prompt: "helper {{{{depth}}}}", state_updates: {{said: "{{{{output}}}}"}},
        next: done}}
  done: {{type: end, output: "{{{{said}}}}"}}
"""
WORK: Final = """
import json, os, random, sys, threading

state = json.load(open(os.environ["GRAPH_STATE_FILE"])) if "GRAPH_STATE_FILE" in os.environ else json.loads(
    os.environ["GRAPH_STATE"])
with open({effects!r}, "a") as file:
    file.write(os.environ["GRAPH_VISIT"] + "\\n")
threading.Event().wait(random.choice([0, 0, 0.05, 0.3]))
if state["depth"] % 5 == 4:
    sys.exit("drawn failure")
print(json.dumps({{"seen": [state["depth"], *state.get("notes", [])]}}))
"""


def server() -> ModelServer:
    return ModelServer(_answer)


def _answer(request: Request) -> Reply:
    settings = {name: request.body.get(name) for name in _SETTINGS}
    said = [message.get("content") for message in request.messages]
    number = zlib.crc32(json.dumps([settings, said]).encode())
    delay_s = random.choice([0, 0, 0.05, 0.4])
    if "leave" in request.tools and request.turn == 1:
        return Reply("", calls=[Call("leave", {"value": number % 100 + each}) for each in range(2)], delay_s=delay_s)
    return Reply(f"m{number % 1000}", delay_s=delay_s)


def write_helper(folder: Path, effects: Path) -> None:
    """The agent that agent nodes start, unless it is there."""
    if not folder.exists():
        folder.mkdir(parents=True)
        (folder / "graph.yaml").write_text(HELP.format(model=MODEL))
        (folder / "work.py").write_text(WORK.format(effects=str(effects)))


def overrides(agent: Path) -> dict[str, Any]:
    """The overrides of all runs of an agent's folder, as options of `submit`: of some of its llm nodes, and of those of
    its children."""
    chance, names = random.Random(zlib.crc32(agent.name.encode())), _llm_nodes(agent)
    if not names or chance.random() < 0.4:
        return {}
    given: dict[str, Any] = {"*": {"temperature": 0.25}}
    given[chance.choice(names)] = {"max_tokens": chance.randint(10, 99), "seed": chance.randint(1, 9)}
    return {"overrides": given}


def _llm_nodes(agent: Path) -> list[str]:
    from sleipnir.graph.load import load_file

    graph = load_file(agent / "graph.yaml").graph
    assert graph is not None
    kinds = {"llm": "{}", "agent": "{}/ask"}
    return sorted(kinds[node.kind].format(name) for name, node in graph.nodes.items() if node.kind in kinds)

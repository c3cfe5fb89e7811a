"""Agents that talk, for the tests of pages: a model server of the test, a worker that calls it, agents of each kind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sleipnir.testing import ModelServer, Reply, Request
from tests.browser.console_scene import HOSTILE, RIGHT_TO_LEFT, Scene
from tests.processes import write_agent

SLOW = Reply("The bell of the north tower is cracked, and must be cast anew. " * 6, piece_characters=6, pause_s=0.15)
"""A text that takes half a minute, so that a page is seen while it comes."""
FRIEND = f"""
name: bell-helper
model: openai:gpt-test
instructions: You know everything about bells.
conversation_starters: ["Which bells are cracked?", {HOSTILE!r}]
"""
TALK = """
name: bell-desk
version: sleipnir/1
start: write
state:
  letter: {type: string, default: ""}
  copies: {type: int, default: 2, description: How many to print}
variables:
  - {name: town, description: where the bell hangs, default: Oslo}
nodes:
  write:
    {type: llm, model: "openai:gpt-test", prompt: "Answer {{initial_prompt}}", state_updates: {letter: "{{output}}"},
     next: sure}
  sure:
    {type: approval, question: "Send this letter?", options: [send, drop], routes: {send: check, drop: dropped},
     on_other: dropped}
  check: {type: agent, agent: nightly-report, prompt: "check", next: sent}
  sent: {type: end, output: "sent: {{letter}}"}
  dropped: {type: end, output: "dropped"}
"""


def reply(request: Request) -> Reply:
    """What the model says: slowly, if it is asked so."""
    if "slowly" in request.prompt:
        return SLOW
    return Reply(f"You said {request.prompt[-40:]} {HOSTILE} {RIGHT_TO_LEFT}", piece_characters=12)


@contextmanager
def models_of(scene: Scene) -> Iterator[ModelServer]:
    """The scene with `bell-helper`, a config.yaml agent with sessions, and `bell-desk`, a graph that asks."""
    friend = scene.folder / "bell-helper"
    friend.mkdir()
    (friend / "config.yaml").write_text(FRIEND, encoding="utf-8")
    write_agent(scene.folder / "bell-desk", TALK)
    with ModelServer(reply, models=["gpt-test"]) as server:
        scene.stack.start_worker("llm", "llm", env=server.env())
        yield server

"""Which messages of other agents llm nodes send, by the modes of `history` (spec/graph-package.md F50).

In our sense of them: the messages of other agents that a state has are those that its nodes have mapped into it.
Without isolation all of them are sent, as no message is in a state by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sleipnir.client.client import Run
from sleipnir.settings import Settings
from sleipnir.testing import ModelServer, Reply, Request, run
from tests.processes import RedisServer, Stack, write_agent

EDITOR = """
name: editor-NAME
version: sleipnir/1
start: write
model: openai:gpt-test
state: {messages: messages}
history: MODE
nodes:
  write: {type: llm, instructions: write, next: check}
  check: {type: agent, agent: CRITIC, CHILD, next: again}
  again: {type: agent, agent: CRITIC, CHILD, next: improve}
  improve: {type: llm, instructions: improve, next: e}
  e: {type: end, output: "{{last_response}}"}
"""
CHILD = 'map_in: {messages: "{{messages}}"}, map_out: {messages: "{{child.state.messages}}"}'
CRITIC = """
name: critic-NAME
version: sleipnir/1
start: judge
model: openai:gpt-test
state: {messages: messages}
history: MODE
nodes:
  judge: {type: llm, instructions: judge, next: e}
  e: {type: end, output: "{{last_response}}"}
"""
MODES = ("full", "request", "isolated_request", "isolated_invocation")


def said(request: Request) -> Reply:
    """The node, and the texts that it was sent: `improve(hi write(hi))`."""
    node, *texts = (str(message["content"]) for message in request.messages)
    return Reply(f"{node}({len(texts)})")


@pytest.fixture
def model() -> Iterator[ModelServer]:
    with ModelServer(said) as model:
        yield model


def editors(folder: Path, of_editor: str, of_critic: str = "full") -> Path:
    name = f"{of_editor}-{of_critic}".replace("_", "-")
    critic = CRITIC.replace("MODE", of_critic).replace("NAME", name)
    write_agent(folder / f"critic-{name}", critic)
    text = EDITOR.replace("MODE", of_editor).replace("CRITIC", f"critic-{name}").replace("CHILD", CHILD)
    return write_agent(folder / f"editor-{name}", text.replace("NAME", name))


def sent_by(model: ModelServer, node: str) -> list[list[str]]:
    """The texts of the messages after the instructions, by call."""
    calls = ([str(message["content"]) for message in request.messages] for request in model.requests)
    return [texts[1:] for texts in calls if texts[0] == node]


HI = ["hi", "write(1)"]
CRITICS = ["judge(2)", "judge(3)"]


@pytest.mark.conformance("SE-05")
@pytest.mark.parametrize(
    ("mode", "improve"),
    [
        ("full", [*HI, *CRITICS]), ("request", [*HI, *CRITICS]), ("isolated_request", HI), ("isolated_invocation", HI),
    ],
)  # fmt: skip
def test_an_agent_sends_messages_of_its_children_unless_it_is_isolated(
    tmp_path: Path, model: ModelServer, mode: str, improve: list[str]
) -> None:
    result = run(editors(tmp_path, mode), "hi", model=model, settings=Settings(agents_dir=tmp_path))
    assert result.status == "completed", result.error
    assert sent_by(model, "judge") == [HI, [*HI, "judge(2)"]]
    assert sent_by(model, "improve") == [improve]
    assert [message["content"] for message in result.state["messages"]] == [*HI, *CRITICS, f"improve({len(improve)})"]


@pytest.mark.conformance("SE-05")
@pytest.mark.parametrize(
    ("mode", "second"),
    [
        ("full", [*HI, "judge(2)"]), ("request", [*HI, "judge(2)"]), ("isolated_request", ["hi", "judge(1)"]),
        ("isolated_invocation", ["hi"]),
    ],
)  # fmt: skip
def test_a_child_sends_messages_of_its_parent_and_of_its_earlier_runs_by_its_own_mode(
    tmp_path: Path, model: ModelServer, mode: str, second: list[str]
) -> None:
    result = run(editors(tmp_path, "full", mode), "hi", model=model, settings=Settings(agents_dir=tmp_path))
    assert result.status == "completed", result.error
    assert sent_by(model, "judge")[1] == second


@pytest.fixture
def stack(redis_server: RedisServer, tmp_path: Path, model: ModelServer) -> Iterator[Stack]:
    with Stack(redis_server, tmp_path / "home", key_prefix="others", agents_dir=tmp_path) as stack:
        stack.start_scheduler("scheduler")
        stack.start_worker("models", "llm", env=model.env())
        yield stack


def ended(run: Run) -> Run:
    assert run.wait(60).status == "completed", run.error
    return run


@pytest.mark.conformance("SE-05")
def test_turns_of_a_thread_in_all_modes_on_the_fleet(stack: Stack, tmp_path: Path, model: ModelServer) -> None:
    agents = {mode: editors(tmp_path, mode) for mode in MODES}
    with stack.client() as client:
        for mode, agent in agents.items():
            first = ended(client.submit(agent, "hi", thread="t"))
            ids = [message["id"].split("/", 3) for message in first.state()["messages"]]
            name = f"critic-{mode.replace('_', '-')}-full"
            assert [parts[3:] for parts in ids] == [[], [], [name], [name], []]
            assert {parts[0] for parts in ids if len(parts) == 3} == {first.id}
            model.requests.clear()
            ended(client.submit(agent, "more", thread="t"))
            earlier = [*HI, *CRITICS, "improve(4)"] if mode == "full" else []
            own = ["more", f"write({len(earlier) + 1})"]
            others = [f"judge({len(earlier) + 2})", f"judge({len(earlier) + 3})"]
            seen = [] if mode.startswith("isolated") else others
            assert sent_by(model, "improve") == [[*earlier, *own, *seen]], mode
            model.requests.clear()

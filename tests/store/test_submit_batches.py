"""What submitting a batch refuses, row by row and as a whole, and what repeating it does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sleipnir.client.batch import SubmittedRows
from sleipnir.client.client import Client
from sleipnir.errors import AgentNotFound, BatchNotFound, UsageError
from sleipnir.settings import Settings
from tests.processes import RedisServer, write_agent

AGENT = """
name: rows
version: sleipnir/1
start: done
state: {n: {type: int, required: true}, tags: {type: list}}
nodes:
  done: {type: end, output: "{{n}}"}
"""


@pytest.fixture
def client(redis_server: RedisServer, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Client]:
    settings = Settings(
        **redis_server.addresses, home=tmp_path, agents_dir=tmp_path / "agents", key_prefix=request.node.name[:40]
    )
    with Client(settings) as opened:
        yield opened


def refused(client: Client, agent: Path, rows: list[Any], **options: Any) -> tuple[SubmittedRows | None, list[str]]:
    said: list[str] = []
    batch = client.batch(agent, rows, on_bad=lambda bad: said.append(str(bad)), **options)
    return batch.submitted, said


def test_bad_rows_are_reported_and_good_ones_are_kept(client: Client, tmp_path: Path) -> None:
    agent = write_agent(tmp_path / "rows", AGENT)
    rows = [
        {"k": "a", "n": 1}, {"k": "b", "n": "one"}, {"k": "c"}, {"k": "a", "n": 2}, {"n": 1}, "text",
        {"k": "d", "n": 1, "prompt": "\ud800"}, {"k": "e", "n": 1, "tags": float("nan")}, {"k": "z", "n": 3},
    ]  # fmt: skip
    submitted, said = refused(client, agent, rows, key="k")
    assert submitted == SubmittedRows(added=2, known=0, bad=7)
    assert [line.split(":")[0] for line in said] == [f"row {number}" for number in (2, 3, 4, 5, 6, 7, 8)]
    assert said[:2] == [
        "row 2: state key 'n' must be int, not string 'one'",
        "row 3: state key 'n' is required: give it a value of type int",
    ]
    assert said[2] == "row 4: its key 'a' is that of a row before it"
    assert said[5] == "row 7: it is not valid UTF-8 text"


def test_a_submission_that_was_interrupted_continues_and_adds_nothing_twice(client: Client, tmp_path: Path) -> None:
    agent = write_agent(tmp_path / "rows", AGENT)

    def breaks() -> Iterator[dict[str, int]]:
        yield from ({"n": number} for number in range(60))
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        client.batch(agent, breaks(), id="nightly")
    batch = client.open_batch("nightly")
    assert (batch.info().state, batch.info().total) == ("accepting", 50)
    (agent / "graph.yaml").write_text(AGENT.replace("n: {type: int, required: true}", "n: {type: string}"))
    submitted, said = refused(client, agent, [{"n": number} for number in range(100)], id="nightly")
    assert (submitted, said) == (SubmittedRows(added=50, known=50), [])  # they go by the agent of then
    assert batch.info().state == "running"
    submitted, said = refused(client, agent, [{"n": 7}, {"n": 1}], id="nightly")
    assert submitted == SubmittedRows(added=0, known=1, bad=1)
    assert said == ["row 1: its key '1' is that of a row of the batch with other contents"]
    assert [info.total for info in client.batches()] == [100]


def test_what_makes_no_sense_is_refused_and_nothing_is_stored(client: Client, tmp_path: Path) -> None:
    agent = write_agent(tmp_path / "rows", AGENT)
    for options, why in (
        ({"priority": 6}, "priority must be 1 to 5, not 6"),
        ({"parallel": 0}, "parallel must be more than 0"),
        ({"canary": -1}, "canary must be more than 0"),
        ({"id": "a b"}, "'a b' cannot name a batch"),
    ):
        with pytest.raises(UsageError, match=why):
            client.batch(agent, [{"n": 1}], **options)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no row that could be run"):
        client.batch(agent, [{"n": "x"}])
    with pytest.raises(UsageError, match="there is no row; nothing"):
        client.batch(agent, [])
    with pytest.raises(AgentNotFound):
        client.batch("nobody", [{"n": 1}])
    assert client.batches() == []


def test_all_rows_of_a_batch_have_the_agent_of_its_beginning_despite_later_edits(
    client: Client, tmp_path: Path
) -> None:
    agent = write_agent(tmp_path / "rows", AGENT)
    batch = client.batch(agent, [{"n": 1}], id="nightly")
    began = client.store.batches.spec(batch.id)
    write_agent(tmp_path / "rows", AGENT.replace("type: int", "type: string"))
    submitted, said = refused(client, agent, [{"n": 1}, {"n": 2}, {"n": "text"}], id="nightly")
    assert submitted == SubmittedRows(added=1, known=1, bad=1), "rows are held to the agent of then"
    assert said == ["row 3: state key 'n' must be int, not string 'text'"]
    assert client.store.batches.spec(batch.id) == began
    other = client.store.batches.spec(client.batch(agent, [{"n": "text"}]).id)
    assert began is not None
    assert other is not None
    assert other.bundle != began.bundle, "a batch that begins now has the agent of now"


def test_a_batch_is_found_by_its_id_or_the_beginning_of_it(client: Client, tmp_path: Path) -> None:
    agent = write_agent(tmp_path / "rows", AGENT)
    batch = client.batch(agent, [{"n": 1}], name="one")
    assert client.open_batch(batch.id[:8]).id == batch.id
    for unknown in ("nothing-of-the-kind", batch.id[:3]):
        with pytest.raises(BatchNotFound):
            client.open_batch(unknown)
    other = write_agent(tmp_path / "other", AGENT)
    with pytest.raises(UsageError, match="is of agent 'rows'"):
        client.batch(other, [{"n": 1}], id=batch.id)


ASKING = """
name: rows
version: sleipnir/1
start: ask
nodes:
  ask: {type: llm, model: "openai:one", prompt: "{{initial_prompt}}", next: below}
  below: {type: agent, agent: child, prompt: hi, next: done}
  done: {type: end, output: over}
"""
CHILD = """
name: child
version: sleipnir/1
start: ask
nodes:
  ask: {type: llm, model: "openai:one", prompt: hi, next: done}
  done: {type: end, output: over}
"""


def test_a_batch_that_is_continued_keeps_its_overrides_and_refuses_others(client: Client, tmp_path: Path) -> None:
    agent = write_agent(tmp_path / "rows", ASKING)
    child = write_agent(tmp_path / "agents/child", CHILD)
    rows: list[Any] = [{"prompt": "one"}, {"prompt": "two"}, {"prompt": "three"}, {"prompt": "four"}]
    given: dict[str, Any] = {"*": {"temperature": 0.5}, "below/ask": {"max_tokens": 7}}
    patches = {"ask#instruction": "Be brief."}
    client.batch(agent, rows[:1], id="with", overrides=given, patches=patches)
    child.joinpath("graph.yaml").write_text(CHILD.replace("ask", "answer"))  # they go by the agents of then

    again = client.batch(agent, rows[:2], id="with", overrides=given, patches=patches)
    assert again.submitted == SubmittedRows(added=1, known=1, bad=0)
    again = client.batch(agent, rows[:3], id="with")
    assert again.submitted == SubmittedRows(added=1, known=2, bad=0)
    kept = {"*": {"temperature": 0.5}, "below/ask": {"max_tokens": 7}, "ask": {"instruction": "Be brief."}}
    assert client.store.batches.spec("with").of_nodes == kept  # type: ignore[union-attr]

    for others in ({"overrides": {"*": {"temperature": 0.7}}}, {"overrides": given}, {"patches": patches}):
        with pytest.raises(UsageError, match="'with' exists and has other overrides and patches"):
            client.batch(agent, rows, id="with", **others)  # type: ignore[arg-type]
    client.batch(agent, rows, id="without")
    with pytest.raises(UsageError, match="'without' exists and has no overrides and patches"):
        client.batch(agent, rows, id="without", overrides={"*": {"temperature": 0.5}})
    with pytest.raises(UsageError, match="has no node 'aks'"):
        client.batch(agent, rows, id="with", overrides={"aks": {"seed": 1}})
    assert client.open_batch("with").info().total == 3

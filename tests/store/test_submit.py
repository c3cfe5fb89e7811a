"""What submitting refuses, and that it leaves nothing behind then."""

from __future__ import annotations

from pathlib import Path

import pytest

from sleipnir.client.client import Client
from sleipnir.errors import GraphError
from sleipnir.settings import Settings
from tests.processes import RedisServer, write_agent

WRONG = """
name: wrong
version: sleipnir/1
start: a
nodes:
  a: {type: router, next: [b, x], branch: {by: "{{k}}", to: {y: z}}}
  b: {type: join, wait_for: [c]}
"""


def test_a_run_whose_model_may_start_agents_has_the_list_of_all_agents_and_their_sessions(
    redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = {"boss": "can_spawn_agents: true", "keeper": "agent_session: desk", "other": "agent_session: temp"}
    for name, more in folders.items():
        write_config(tmp_path / "agents" / name, f"name: {name}\nmodel: openai:m\n{more}\n")
    far = write_config(tmp_path / "srv" / "v2", "name: far\nmodel: openai:m\n")
    monkeypatch.setenv("FAR_AWAY_DATA_DIR", str(far))
    settings = Settings(**redis_server.addresses, home=tmp_path, agents_dir=tmp_path / "agents", key_prefix="spawns")
    with Client(settings) as client:
        spec = client.store.runs.spec(client.submit("boss", "go").id)
    assert {"boss", "keeper", "other", "far-away"} <= spec.agents.keys()
    assert spec.sessions == {"keeper": "desk"}


def write_config(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(text)
    return folder


@pytest.mark.conformance("BD-14", "BD-17")
def test_a_graph_that_is_wrong_is_refused_with_everything_that_is_wrong_and_nothing_is_stored(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    with Client(Settings(**redis_server.addresses, home=tmp_path, key_prefix="submit")) as client:
        with pytest.raises(GraphError, match="Graph validation failed with 4 error") as caught:
            client.submit(write_agent(tmp_path / "wrong", WRONG))
        assert [(p.line, p.message) for p in caught.value.problems if p.level == "error"] == [
            (6, "the edge to 'b' bypasses its join: 'b' waits for 'c', not 'a'"),
            (6, "References non-existent node 'x' in 'next'"),
            (6, "References non-existent node 'z' in 'branch'"),
            (7, "References non-existent node 'c' in 'wait_for'"),
        ]
        assert client.runs(10) == []


def test_a_misspelt_option_is_refused_and_nothing_is_stored(redis_server: RedisServer, tmp_path: Path) -> None:
    agent = write_agent(tmp_path / "right", "name: right\nstart: e\nnodes: {e: {type: end}}\n")
    with Client(Settings(**redis_server.addresses, home=tmp_path, key_prefix="options")) as client:
        with pytest.raises(TypeError, match="unexpected keyword argument 'varables'"):
            client.submit(agent, varables={})  # type: ignore[call-arg]
        batch = client.batch(agent, [{"prompt": "one"}], id="kept")
        with pytest.raises(TypeError, match="unexpected keyword argument 'workdir'"):
            client.batch(agent, [{"prompt": "two"}], id="kept", workdir=tmp_path)  # type: ignore[call-arg]
        assert client.runs(10) == []
        assert batch.info().total == 1

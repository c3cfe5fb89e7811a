"""Rag nodes on real processes: bases are built at submit, pinned to the run, and searched by a rag worker.

All cases share one scheduler and its workers, and are under way together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sleipnir.client.client import Client, Run
from sleipnir.errors import UsageError
from sleipnir.knowledge.files import digest_of
from sleipnir.testing import ModelServer, Request
from tests.processes import RedisServer, Stack, write_agent

GRANITE = "# Granite\n\nGranite is a coarse rock of quartz and feldspar.\n"
BASALT = "# Basalt\n\nBasalt is a dark rock that flows out of volcanoes.\n"

LOOK = """
name: {name}
start: look
nodes:
  look:
    type: rag
    documents: [stones]
    query: "{{{{initial_prompt}}}}"
    top_k: 1
    {how}
    state_updates:
      context: "{{{{output.context}}}}"
      sources: "{{{{output.sources}}}}"
      at: "{{{{output.hits[0].lines}}}}"
    next: done
  done: {{type: end, output: "{{{{context}}}}"}}
"""
WORDS = "embedding_model: none"
VECTORS = "embedding_model: openai:embed\n    chunk_size: 400\n    chunk_overlap: 20"
ABOVE = """
name: above
start: call
nodes:
  call: {type: agent, agent: words, prompt: "volcanoes", state_updates: {said: "{{output}}"}, next: done}
  done: {type: end, output: "{{said}}"}
"""
MANY = """
name: many
start: each
nodes:
  each: {type: map, over: "{{what}}", as: one, branch: look, collect_into: found, output_key: found_one, next: done}
  look: {type: rag, documents: [stones], query: "{{one}}", top_k: 1, embedding_model: none,
         state_updates: {found_one: "{{output.sources}}"}}
  done: {type: end}
"""


@dataclass
class Lab:
    stack: Stack
    client: Client
    agents: Path

    def agent(self, name: str, graph: str) -> str:
        folder = write_agent(self.agents / name, graph)
        (folder / "stones").mkdir()
        (folder / "stones" / "granite.md").write_text(GRANITE)
        (folder / "stones" / "basalt.md").write_text(BASALT)
        return name


def replies(request: Request) -> str:
    return f"You said: {request.messages[-1]['content']}"


@pytest.fixture(scope="module")
def lab(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    place = tmp_path_factory.mktemp("rag")
    settings = {"key_prefix": "rag", "agents_dir": place / "agents", "model": "openai:gpt-test"}
    with (
        pytest.MonkeyPatch.context() as patch,
        ModelServer(replies) as model,
        Stack(redis_server, place / "home", **settings) as stack,
    ):
        for name, value in {**model.env(), "LOKI_CONFIG_DIR": str(place / "loki")}.items():
            patch.setenv(name, value)  # of the builders, which a client starts
        stack.start_scheduler()
        stack.start_worker("knowledge", "rag", concurrency=4, ready=False)
        stack.start_worker("models", "llm", concurrency=2, ready=False)
        for name in ("knowledge", "models"):
            stack.wait_for_worker(name, 90)
        with stack.client() as client:
            yield Lab(stack, client, place / "agents")


def completed(run: Run) -> Run:
    info = run.wait(60)
    assert info.status == "completed", info.error
    return run


@pytest.mark.conformance("K02", "K03", "K04", "K06", "L07")
def test_rag_nodes_find_what_was_in_their_documents_at_submit(lab: Lab, subtests: pytest.Subtests) -> None:
    words = lab.client.submit(lab.agent("words", LOOK.format(name="words", how=WORDS)), "What flows out of volcanoes?")
    vectors = lab.client.submit(lab.agent("vectors", LOOK.format(name="vectors", how=VECTORS)), "quartz and feldspar")
    above = lab.client.submit(lab.agent("above", ABOVE))
    many = lab.client.submit(lab.agent("many", MANY), state={"what": ["quartz", "volcanoes", "nowhere"]})
    basalt, granite = (str(lab.agents / "words" / "stones" / name) for name in ("basalt.md", "granite.md"))

    with subtests.test("by keywords"):
        state = completed(words).state()
        assert state["context"] == f"[Source: {basalt}]\n{BASALT.strip()}"
        assert (state["sources"], state["at"]) == (f'["{basalt}"]', "[1,3]")
        assert words.info().usage.calls == 0

    with subtests.test("by vectors too, with a model that counts"):
        assert completed(vectors).output == f"[Source: {granite.replace('words', 'vectors')}]\n{GRANITE.strip()}"
        usage = vectors.info().usage
        assert usage.calls == 1 and usage.input_tokens > 0

    with subtests.test("the base is a file in the agent's folder, and the run names it"):
        file = lab.agents / "vectors" / "look.yaml"
        spec = lab.client.store.runs.spec(vectors.id)
        assert spec.knowledge == {"vectors/look": digest_of(file)}

    with subtests.test("in a child run"):
        assert completed(above).output == f"[Source: {basalt}]\n{BASALT.strip()}"

    with subtests.test("for each item of a map"):
        found = completed(many).state()["found"]
        assert [Path(each.strip('[]"')).name for each in found] == ["granite.md", "basalt.md", ""]


@pytest.mark.conformance("C08")
def test_the_prompt_of_an_agent_has_the_hits_of_its_documents(lab: Lab, subtests: pytest.Subtests) -> None:
    folder = lab.agents / "geologist"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("name: geologist\ninstructions: Be brief.\ndocuments: [basalt.md]\n")
    (folder / "basalt.md").write_text(BASALT)

    with subtests.test("without a base it is asked all the same"):
        assert completed(lab.client.submit("geologist", "What flows?")).output == "You said: What flows?"

    with subtests.test("with one, the question comes with the context"):
        built = lab.stack.sleipnir("kb", "build", "geologist", "--embedding-model", "none", "--yes")
        assert built.returncode == 0, built.stderr
        said = completed(lab.client.submit("geologist", "What flows out of volcanoes?")).output
        assert said is not None
        assert f"[Source: {folder}/basalt.md]\n{BASALT.strip()}" in said
        assert said.endswith("<user_query>\nWhat flows out of volcanoes?\n</user_query>")


@pytest.mark.conformance("K07")
def test_an_agent_whose_base_cannot_be_built_is_refused_before_anything_runs(lab: Lab) -> None:
    name = lab.agent("unsaid", LOOK.format(name="unsaid", how="chunk_size: 400"))
    with pytest.raises(UsageError, match="Agent 'unsaid' requires RAG for rag node 'look'"):
        lab.client.submit(name, "anything")
    assert [info for info in lab.client.runs() if info.agent == name] == []
    assert not (lab.agents / name / "look.yaml").exists()


def test_a_base_that_is_not_in_the_index_store_any_more_fails_the_run_and_reports_where_it_was(lab: Lab) -> None:
    name = lab.agent("gone", LOOK.format(name="gone", how=WORDS))
    lab.client.pause_all("a person")
    try:
        run = lab.client.submit(name, "volcanoes")
        index_store, digest = lab.stack.home / "knowledge", str(digest_of(lab.agents / name / "look.yaml"))
        (index_store / digest).rename(index_store / "elsewhere")
    finally:
        lab.client.resume_all()
    error = run.wait(60).error
    assert error is not None
    assert [
        part for part in ("rag node 'look' retrieval failed", digest[:12], str(index_store)) if part not in error
    ] == []


def test_a_base_whose_index_was_removed_is_indexed_again_at_the_next_submit(lab: Lab) -> None:
    name = lab.agent("again", LOOK.format(name="again", how=WORDS))
    completed(lab.client.submit(name, "volcanoes"))
    index_store, digest = lab.stack.home / "knowledge", str(digest_of(lab.agents / name / "look.yaml"))
    (index_store / digest).rename(index_store / "away")
    with lab.stack.client() as another:  # which has not looked at the index store yet
        completed(another.submit(name, "volcanoes"))
    assert (index_store / digest).is_dir()

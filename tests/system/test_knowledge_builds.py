"""Bases are built by one builder at a time, by real processes with a real Redis and a scripted model server: complete
or not at all, whoever dies when, and nothing is embedded twice that was paid for."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sleipnir.client.client import Client
from sleipnir.errors import KnowledgeError, SleipnirError, StoreUnavailable
from sleipnir.knowledge.builder import Builder
from sleipnir.knowledge.files import base_file, digest_of, lease_name
from sleipnir.knowledge.order import BuildFailed, BuildMessage, Order, Progress, SearchQuery, message_of
from sleipnir.knowledge.recipe import Recipe
from sleipnir.settings import Settings
from sleipnir.staging import staging
from sleipnir.store.address import is_cluster
from sleipnir.store.keys import Keys
from sleipnir.store.store import Store
from sleipnir.testing.reply import Reply
from sleipnir.testing.request import Request
from sleipnir.testing.server import ModelServer
from sleipnir_workers.knowledge import loki_file
from sleipnir_workers.knowledge.__main__ import kind_of
from sleipnir_workers.knowledge.artefact import Artefact
from sleipnir_workers.knowledge.bucket import client
from sleipnir_workers.knowledge.build import run
from sleipnir_workers.knowledge.search import search
from sleipnir_workers.knowledge.store_choice import index_store_of
from sleipnir_workers.llm.failures import CallFailed
from sleipnir_workers.machine.host import Host
from tests import starter
from tests.processes import RedisServer, new_deployment, wait_until
from tests.s3_server import s3_server

MODEL = "fake:embedder"


class World:
    """An agent with documents, the deployment that its base is for, and builders: in this process, or of their own."""

    def __init__(self, redis: RedisServer, prefix: str, folder: Path, server: ModelServer) -> None:
        self.server, self.agent, self.home = server, folder / "agent", folder / "home"
        self.settings = Settings(
            **redis.addresses, home=self.home, key_prefix=prefix, partitions=1, lease_s=2.0, heartbeat_s=0.2
        )
        new_deployment(redis.url, Keys(prefix, 1, is_cluster(redis.url)))
        self.env = server.env("fake")
        self.index_store = self.home / "knowledge"
        (self.agent / "docs").mkdir(parents=True)
        self.told: list[BuildMessage] = []

    def write(self, name: str, *paragraphs: str) -> None:
        (self.agent / "docs" / name).write_text("\n\n".join(paragraphs))

    def order(self, task: Any = "build", *, model: str | None = MODEL, **more: Any) -> Order:
        recipe = Recipe(["docs"], model, chunk_size=60, chunk_overlap=0, batch_size=2)
        return replace(Order(task, "agent", "kb", str(self.agent), recipe=recipe), **more)

    def run(self, order: Order) -> dict[str, Any]:
        """Carry it out here. What is told is in `told`."""
        self.told = []
        host = Host({**os.environ, **self.env}, self.settings)
        value = run(order, host, self.told.append).value
        return dict(json.loads(json.dumps(value)))

    def by_a_builder(self, order: Order, told: Callable[[BuildMessage], None] = lambda told: None) -> Mapping[str, Any]:
        return Builder(self.settings).carry_out(order, told)

    def start(self, order: Order, **env: str) -> tuple[starter.Started, Path]:
        """A builder process; its pid, and the file of what it tells."""
        with tempfile.TemporaryFile() as said, tempfile.NamedTemporaryFile(delete=False, dir=self.home.parent) as out:
            said.write(order.line().encode())
            said.seek(0)
            clean = {name: value for name, value in os.environ.items() if not name.startswith("SLEIPNIR_")}
            environment = {**clean, **self.settings.to_env(), **self.env, **env}
            command = [sys.executable, "-m", "sleipnir_workers.knowledge"]
            with (self.home.parent / "builders.log").open("ab") as log:
                return starter.start(command, environment, said, out, log), Path(out.name)

    @property
    def file(self) -> Path:
        return base_file(self.agent, "kb")

    def asked(self) -> list[str]:
        """The texts that the model was asked for, in order."""
        return [text for request in list(self.server.requests) for text in request.inputs]

    def is_whole(self) -> set[str]:
        """Every base and index that can be seen is complete. Returns the digests in the index store."""
        visible = {path.name for path in self.agent.iterdir() if not path.name.startswith(".")}
        assert visible <= {"docs", "kb.yaml"}
        if self.file.exists():
            base = loki_file.read(self.file)
            assert base.vectors is None or len(base.vectors) == sum(1 for _ in base.chunks())
        indexes = (
            [path for path in self.index_store.iterdir() if not path.name.startswith(".")] if self.home.exists() else []
        )
        for folder in indexes:
            index = Artefact.open(folder)
            assert index.info.digest == folder.name
            index.close()
        if self.file.exists():
            assert digest_of(self.file) in {folder.name for folder in indexes}
        return {folder.name for folder in indexes}

    def left(self) -> list[str]:
        """What is in staging, in the agent's folder and in the index store."""
        places = [place for place in (self.agent, self.index_store) if place.exists()]
        return [str(path) for place in places for path in place.iterdir() if path.name.startswith(".")]

    def holder(self) -> str | None:
        with Store.open(self.settings) as store:
            building = store.knowledge.building(lease_name(self.agent, "kb"))
            return None if building is None else building.who


@pytest.fixture
def world(redis_server: RedisServer, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    chooser: Callable[[Request], Reply] | None = getattr(request, "param", None)
    with ModelServer(embeddings=chooser or ()) as server:
        made = World(redis_server, f"kb-{tmp_path.name}", tmp_path, server)
        made.write("a.md", *(f"Paragraph {number} of the first document, about horses." for number in range(6)))
        made.write("b.txt", *(f"Paragraph {number} of the second document, about eight legs." for number in range(4)))
        yield made


def spent(value: Mapping[str, Any]) -> tuple[int, int]:
    return value["spent"]["embedded"], value["spent"]["reused"]


# One builder.


def test_a_build_makes_the_file_and_shares_its_index(world: World) -> None:
    built = world.run(world.order())
    assert (built["agent"], built["node"], built["file"]) == ("agent", "kb", str(world.file))
    assert built["sources"] == {str(world.agent / "docs" / "a.md"): 6, str(world.agent / "docs" / "b.txt"): 4}
    assert (built["chunks"], built["embedding_model"], built["documents"]) == (10, MODEL, [str(world.agent / "docs")])
    assert spent(built) == (10, 0)
    assert built["digest"] == digest_of(world.file)
    assert built["file_bytes"] == world.file.stat().st_size
    assert world.is_whole() == {built["digest"]}
    stages = list(dict.fromkeys(told.stage for told in world.told if isinstance(told, Progress)))
    assert stages == ["load", "embed", "write", "share"]
    with Store.open(world.settings) as store:
        shared = store.knowledge.shared(built["digest"])
        assert shared is not None
        assert (shared.agent, shared.node, shared.shelf) == ("agent", "kb", str(world.index_store))
        assert shared.bytes_ == built["index_bytes"] > 0
    assert (world.holder(), world.left()) == (None, [])


@pytest.mark.conformance("K05")
def test_a_base_that_is_there_is_not_built_again(world: World) -> None:
    first = world.run(world.order())
    world.write("a.md", "something else")
    changed = world.file.stat().st_mtime_ns
    again = world.run(world.order())
    assert {**again, "spent": None} == {**first, "spent": None}
    assert world.file.stat().st_mtime_ns == changed
    assert world.run(world.order("show")) == again


def test_no_base_is_a_document_of_another_one(world: World) -> None:
    """Where the documents are the agent's folder itself."""
    recipe = replace(world.order().recipe or Recipe([], None), documents=["."])
    first = world.run(world.order(recipe=recipe))
    with staging(world.agent) as other_builder:
        (other_builder / "third.yaml").write_text("half a base")
        second = world.run(world.order(node="second", recipe=recipe))
    again = world.run(world.order("rebuild", recipe=recipe))
    assert first["sources"] == second["sources"] == again["sources"]
    assert {Path(path).name for path in first["sources"]} == {"a.md", "b.txt"}


def test_a_rebuild_embeds_what_has_changed(world: World) -> None:
    first = world.run(world.order())
    world.write("b.txt", "A new paragraph.", "Paragraph 1 of the second document, about eight legs.")
    asked = len(world.asked())
    (world.home / "embeddings.sqlite").unlink()  # what the base itself holds need not be in the cache
    again = world.run(world.order("rebuild"))
    assert world.asked()[asked:] == ["A new paragraph."]
    assert (again["chunks"], spent(again)) == (8, (1, 7))
    assert again["digest"] != first["digest"]
    base = loki_file.read(world.file)
    assert base.vectors is not None
    world.file.unlink()
    fresh = world.run(world.order())
    whole = loki_file.read(world.file)
    assert whole.vectors is not None
    assert fresh["digest"] == again["digest"], "as if it had been built at once"
    assert world.is_whole() == {first["digest"], again["digest"]}


def test_another_model_or_none_makes_a_base_of_its_own(world: World) -> None:
    world.run(world.order())
    other = world.order(
        "rebuild", recipe=replace(world.order().recipe or Recipe([], None), embedding_model="fake:other")
    )
    assert spent(world.run(other)) == (10, 0)
    plain = world.run(world.order("rebuild", model=None))
    assert (plain["embedding_model"], plain["dimensions"], spent(plain)) == (None, None, (0, 0))
    found = world.run(world.order("search", recipe=None, question=SearchQuery("horses", top_k=2)))
    assert [hit["source"] for hit in found["hits"]] == [str(world.agent / "docs" / "a.md")] * 2


def test_a_forecast_asks_no_model_and_writes_nothing(world: World) -> None:
    told = world.run(world.order("forecast"))
    assert (told["chunks"], told["to_embed"], told["tokens"] > 0) == (10, 10, True)
    assert world.asked() == []
    assert not world.file.exists()
    world.run(world.order())
    world.write("b.txt", "A new paragraph.")
    told = world.run(world.order("forecast"))
    assert (told["chunks"], told["to_embed"]) == (7, 1)


def test_a_base_file_without_an_index_is_indexed_and_searched(world: World) -> None:
    built = world.run(world.order())
    shutil.rmtree(world.index_store)
    indexed = world.run(world.order("index", recipe=None))
    assert {**indexed, "spent": None} == {**built, "spent": None}
    assert world.is_whole() == {built["digest"]}
    question = SearchQuery("Paragraph 3 of the first document, about horses.", top_k=1)
    found = world.run(world.order("search", recipe=None, question=question))
    assert [(hit["text"], hit["lines"]) for hit in found["hits"]] == [(question.text, [7, 7])]
    assert found["context"] == f"[Source: {world.agent / 'docs' / 'a.md'}]\n{question.text}"


def test_a_damaged_index_is_written_again(world: World) -> None:
    built = world.run(world.order())
    (world.index_store / built["digest"] / "vectors.npy").write_bytes(b"x")
    indexed = world.run(world.order("index", recipe=None))
    assert any("it is written again" in notice for notice in indexed["notices"])
    world.is_whole()


# What cannot be built.


def fails(world: World, order: Order) -> BuildFailed:
    """It changes nothing."""
    before = digest_of(world.file), sorted(world.index_store.glob("*"))
    with pytest.raises((SleipnirError, CallFailed)) as raised:
        world.run(order)
    after = digest_of(world.file), sorted(world.index_store.glob("*"))
    assert (after, world.left(), world.holder()) == (before, [], None)
    return BuildFailed(str(raised.value), kind_of(raised.value))


def test_each_failure_reports_what_is_wrong_and_who_must_act(world: World) -> None:
    recipe = world.order().recipe
    assert recipe is not None
    nothing = world.order(recipe=replace(recipe, documents=[]))
    assert fails(world, nothing) == BuildFailed("Cannot build RAG knowledge base 'kb' with no documents", "usage")
    nonsense = world.order(recipe=replace(recipe, chunk_size=40, chunk_overlap=40))
    assert "chunk_overlap 40, which is not less than its chunk_size 40" in fails(world, nonsense).message
    nowhere = fails(world, world.order(recipe=replace(recipe, documents=["missing.md"])))
    assert (nowhere.kind, "No RAG files" in nowhere.message) == ("sources", True)
    above = fails(world, world.order(recipe=replace(recipe, documents=["../secret.md"])))
    assert above == BuildFailed("Invalid document path: '../secret.md'", "usage")
    (world.agent / "docs" / "broken.md").write_bytes(b"\xff\xfe\x00binary\x80")
    broken = fails(world, world.order())
    assert (broken.kind, str(world.agent / "docs" / "broken.md") in broken.message) == ("sources", True)
    (world.agent / "docs" / "broken.md").unlink()
    unknown = fails(world, world.order(model="nobody:embedder"))
    assert (unknown.kind, "nobody" in unknown.message) == ("model", True)
    unbuilt = fails(world, world.order("index", recipe=None))
    assert (unbuilt.kind, str(world.file) in unbuilt.message) == ("usage", True)
    assert world.asked() == []


@pytest.mark.parametrize("world", [lambda request: Reply(status=401, error="wrong key")], indirect=True)
def test_an_error_of_the_model_is_reported(world: World) -> None:
    failed = fails(world, world.order())
    assert (failed.kind, "wrong key" in failed.message) == ("model", True)


def other_dimensions(request: Request) -> Reply:
    """Of a model that was exchanged meanwhile."""
    return Reply(dimensions=32 if "exchanged" in request.inputs[0] else None)


@pytest.mark.parametrize("world", [other_dimensions], indirect=True)
def test_a_model_that_changes_its_dimensions_changes_no_base(world: World) -> None:
    built = world.run(world.order())
    world.write("c.md", "This comes from a model that was exchanged.")
    failed = fails(world, world.order("rebuild"))
    assert (failed.kind, "a vector of 32 dimensions, but those before have 64" in failed.message) == ("model", True)
    assert world.run(world.order("show"))["digest"] == built["digest"]


def test_failed_documents_are_left_out_if_the_order_allows_it(world: World) -> None:
    (world.agent / "docs" / "broken.md").write_bytes(b"\xff\xfe\x00binary\x80")
    built = world.run(world.order(go_on=True))
    assert (built["chunks"], len(built["notices"])) == (10, 1)
    assert "broken.md" in built["notices"][0]


def test_a_base_that_cannot_be_read_is_replaced_by_a_rebuild_and_refused_otherwise(world: World) -> None:
    world.file.write_text("not: a base\n")
    with pytest.raises(SleipnirError, match="Failed to load rag 'kb'"):
        world.run(world.order())
    built = world.run(world.order("rebuild"))
    assert "it is replaced" in built["notices"][0]
    world.is_whole()


def test_without_redis_nothing_is_built(world: World) -> None:
    world.settings = world.settings.replaced(redis_url="redis://127.0.0.1:9/0")
    with pytest.raises(StoreUnavailable):
        world.run(world.order())
    assert not world.file.exists()


FULL = """
import resource, runpy, sleipnir_workers.knowledge.build
resource.setrlimit(resource.RLIMIT_FSIZE, (%d, %d))
runpy.run_module("sleipnir_workers.knowledge", run_name="__main__")
"""


@pytest.mark.parametrize(("size", "named"), [(2_000, "agent/"), (20_000, "home/knowledge/")])
def test_a_disk_that_is_full_is_named_and_nothing_is_half_written(world: World, size: int, named: str) -> None:
    """Of the agent's folder, and then of the index store. A limit of the size of files stands in for the disk."""
    world.write("a.md", *(f"Paragraph {number} of many." for number in range(200)))
    order = world.order(model=None)
    if "shelf" not in named:
        order = replace(order, recipe=replace(order.recipe or Recipe([], None), chunk_size=2_000))
    done = subprocess.run(
        [sys.executable, "-c", FULL % (size, size)], input=order.line(), capture_output=True, text=True,
        env={**os.environ, **world.settings.to_env()}, timeout=60,
    )  # fmt: skip
    assert done.stdout, done.stderr
    failed = message_of(done.stdout.splitlines()[-1])
    assert isinstance(failed, BuildFailed), done.stderr
    assert (failed.kind, f"cannot write {world.home.parent}/{named}" in failed.message) == ("store", True), failed
    assert not world.file.exists()
    assert (world.is_whole(), world.left(), world.holder()) == (set(), [], None)


@pytest.mark.parametrize("world", [lambda request: Reply()], indirect=True)
def test_a_base_that_is_built_here_is_searched_there(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through S3, by a machine that has neither the documents nor the builder's home."""
    with s3_server("bases") as s3:
        for name, value in s3.env.items():
            monkeypatch.setenv(name, value)
        client.cache_clear()
        world.settings = world.settings.replaced(knowledge="s3://bases/of/tests")
        built = world.run(world.order())
        assert set(s3.objects) == {f"bases/of/tests/{built['digest']}.tar"}
        elsewhere = index_store_of(world.settings.replaced(home=world.home.parent / "elsewhere"))
        opened = elsewhere.open(built["digest"])
        index = Artefact.open(opened.folder)
        found = search(index, SearchQuery("eight legs", top_k=1), None, None)
        assert found.sources == (str(world.agent / "docs" / "b.txt"),)
        index.close()
        opened.close()
        client.cache_clear()


RAG = """
name: agent
start: kb
nodes:
  kb: {type: rag, documents: [docs], embedding_model: none, chunk_size: 60, chunk_overlap: 0, next: done}
  done: {type: end}
"""


def test_an_index_store_that_was_emptied_is_filled_by_the_next_run(world: World) -> None:
    (world.agent / "graph.yaml").write_text(RAG)
    world.run(world.order(model=None))
    [index] = world.index_store.iterdir()
    shutil.rmtree(index)
    with Client(world.settings) as runs:
        runs.submit(world.agent)
    assert index.is_dir()


# Builders as processes.


@pytest.fixture
def keyed(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """The keys of the model are in this process's environment, as builders that a client starts have them."""
    for name, value in world.env.items():
        monkeypatch.setenv(name, value)
    return world


def hangs(request: Request) -> Reply:
    """Until the server is told to release."""
    return Reply(hang=True)


@pytest.mark.parametrize("world", [hangs], indirect=True)
def test_one_of_two_concurrent_builders_builds_and_the_other_waits_and_uses_the_base(keyed: World) -> None:
    waits: list[BuildMessage] = []
    with ThreadPoolExecutor() as pool:
        first = pool.submit(keyed.by_a_builder, keyed.order())
        who = wait_until(lambda: keyed.asked() and keyed.holder(), "the first one builds")
        refused = pytest.raises(KnowledgeError, match=f"is being built: {who} builds agent/kb since")
        with refused:
            keyed.run(keyed.order(wait=False))
        second = pool.submit(keyed.by_a_builder, keyed.order(), waits.append)
        wait_until(lambda: waits, "the second one waits")
        keyed.server.release()
        built, used = first.result(), second.result()
    assert isinstance(waits[0], Progress)
    assert (waits[0].stage, waits[0].what.startswith(f"{who} builds agent/kb since ")) == ("wait", True)
    assert {type(told) for told in waits} == {Progress}
    assert (spent(built), spent(used)) == ((10, 0), (0, 0))
    assert {**used, "spent": None} == {**built, "spent": None}
    assert sorted(keyed.asked()) == sorted(set(keyed.asked())), "nothing was embedded twice"
    assert (keyed.is_whole(), keyed.left(), keyed.holder()) == ({built["digest"]}, [], None)


@pytest.mark.parametrize("world", [hangs], indirect=True)
def test_ctrl_c_stops_the_builder_which_gives_its_lease_back(keyed: World) -> None:
    def interrupted(told: BuildMessage) -> None:
        if isinstance(told, Progress) and told.stage == "embed":
            assert keyed.holder() is not None
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        keyed.by_a_builder(keyed.order(), interrupted)
    assert (keyed.holder(), keyed.left(), keyed.file.exists()) == (None, [], False)


@pytest.mark.parametrize("world", [hangs], indirect=True)
def test_a_builder_that_is_killed_is_named_and_the_next_one_continues(keyed: World) -> None:
    def killed(told: BuildMessage) -> None:
        if isinstance(told, Progress) and told.stage == "embed" and (who := keyed.holder()):
            os.kill(int(who.rpartition(":")[2]), signal.SIGKILL)

    said = r"'agent/kb' was ended by SIGKILL\..* reuses the chunks that were embedded"
    with pytest.raises(KnowledgeError, match=said) as raised:
        keyed.by_a_builder(keyed.order(), killed)
    assert raised.value.transient
    keyed.server.release()
    assert keyed.by_a_builder(keyed.order())["chunks"] == 10


@pytest.mark.parametrize("world", [hangs], indirect=True)
def test_a_builder_without_a_reader_stops(world: World) -> None:
    read, write = os.pipe()
    with tempfile.TemporaryFile() as said, os.fdopen(write, "wb") as out, Path(os.devnull).open("wb") as err:
        said.write(world.order().line().encode())
        said.seek(0)
        env = {**os.environ, **world.settings.to_env(), **world.env}
        builder = starter.start([sys.executable, "-m", "sleipnir_workers.knowledge"], env, said, out, err)
    wait_until(world.asked, "it builds")
    os.close(read)
    world.server.release()
    assert builder.wait(60) == -signal.SIGPIPE
    assert (world.holder(), world.left(), world.file.exists()) == (None, [], False)


def test_without_the_extra_the_builder_reports_what_to_install(world: World, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    missing.mkdir()
    (missing / "numpy.py").write_text("raise ModuleNotFoundError('No module named numpy', name='numpy')")
    path = os.pathsep.join(filter(None, [str(missing), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, **world.settings.to_env(), "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-m", "sleipnir_workers.knowledge"], input=world.order().line(), capture_output=True,
        text=True, env=env, timeout=60,
    )  # fmt: skip
    said = "numpy is not installed, and builders need it: pip install '.[rag]' in a checkout"
    assert message_of(done.stdout) == BuildFailed(said, "usage")


def test_a_crashed_builder_is_reported_with_its_last_output(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLEIPNIR_NO_SUCH_SETTING", "1")
    with pytest.raises(KnowledgeError, match="SLEIPNIR_NO_SUCH_SETTING is set, but there is no such setting"):
        world.by_a_builder(world.order())


KILLS, SEED = int(os.environ.get("KNOWLEDGE_KILLS", "12")), 7
CHUNKS, DELAY_S = 60, 0.03


@pytest.mark.timeout(400)
@pytest.mark.parametrize("world", [lambda request: Reply(delay_s=DELAY_S)], indirect=True)
def test_builders_that_are_killed_at_any_moment_leave_nothing_half_done_and_pay_for_nothing_twice(world: World) -> None:
    """A build, and once there is a base, rebuilds of documents that change now and then. Each dies some time after a
    random line of what it tells. `KNOWLEDGE_KILLS=50` for more of it."""
    chance, ends = random.Random(SEED), Counter[str]()
    world.settings = world.settings.replaced(lease_s=0.5, heartbeat_s=0.1)
    whole = len(_written_by(world, "no version", lambda builder, told: builder.wait(60)))
    world.file.unlink()
    for kill in range(KILLS):
        before, after = digest_of(world.file), chance.choice([chance.randrange(whole), chance.randrange(10)])
        pause_s = chance.uniform(0, 2 * DELAY_S)

        def dies(builder: starter.Started, told: Path, after: int = after, pause_s: float = pause_s) -> None:
            wait_until(
                lambda: builder.poll() is not None or told.read_text().count("\n") >= after, "so much is told", 60
            )
            with contextlib.suppress(subprocess.TimeoutExpired):
                builder.wait(pause_s)
            builder.kill()
            builder.wait()

        stages = _written_by(world, f"version {kill // 2}", dies)
        ends[stages[-1] if stages else "start"] += 1
        world.is_whole()
        if before is not None:
            assert world.file.exists(), "a base that was there does not go away"
    _write(
        world, "the last version"
    )  # an index that is in the index store already would not be written, nor staging cleared up
    built = world.run(world.order("rebuild"))
    assert built["chunks"] == CHUNKS + 4
    assert (world.left(), world.holder()) == ([], None)
    assert built["digest"] in world.is_whole()
    times = Counter(world.asked())
    again = sum(times.values()) - len(times)
    print(f"\n{KILLS} kills, last told {dict(ends)}: {len(times)} chunks embedded, {again} of them again")
    assert again <= KILLS * 4 * 2, "what was in flight: four batches of two"


def _write(world: World, version: str) -> None:
    world.write("a.md", *(f"Paragraph {number:02} of {version}, which is long enough." for number in range(CHUNKS)))


def _written_by(world: World, version: str, see: Callable[[starter.Started, Path], object]) -> list[str]:
    """Have a builder build what is new, see how it goes, and say what it told: the stages."""
    _write(world, version)
    builder, told = world.start(world.order("rebuild" if world.file.exists() else "build"))
    see(builder, told)
    found = [message_of(line) for line in told.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return [each.stage if isinstance(each, Progress) else "done" for each in found]

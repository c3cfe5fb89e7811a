"""`gc` finds what nothing needs any more, and nothing else, whatever is submitted meanwhile."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from sleipnir.agents.bundle import UNPACKED
from sleipnir.client.client import Client
from sleipnir.errors import KnowledgeError
from sleipnir.knowledge.files import index_store_name
from sleipnir.knowledge.order import Order
from sleipnir.runs.run import RunSpec
from sleipnir.runs.threads import ThreadName
from sleipnir.settings import Settings
from sleipnir.store.store import Store
from sleipnir.upkeep import garbage
from sleipnir.upkeep.garbage import garbage_items
from sleipnir_workers.knowledge import s3_garbage
from tests.finished import created, finished
from tests.processes import write_agent
from tests.s3_server import S3, Stored, s3_server

RUN = "run000000001"
OLD_MS = 1000
END = "name: one\nstart: a\nnodes:\n  a: {type: end, output: done}\n"


@pytest.fixture
def settings(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Those of the store, with places of its own: nothing of this machine is looked at."""
    monkeypatch.setattr(garbage.tempfile, "gettempdir", lambda: str(tmp_path / "tmp"))
    monkeypatch.setenv("LOKI_CONFIG_DIR", str(tmp_path / "loki"))
    (tmp_path / "tmp").mkdir()
    return Settings(
        redis_url=store.url,
        broker_url=store._settings.broker_url,
        home=tmp_path,
        agents_dir=tmp_path / "agents",
        key_prefix=store.keys.prefix,
        partitions=2,
    )


def found(store: Store, settings: Settings, *, sessions: bool = False) -> list[tuple[str, str]]:
    return [(each.kind, each.name) for each, _ in garbage_items(store, settings, sessions=sessions)]


def sweep(store: Store, settings: Settings, *, sessions: bool = False) -> list[str]:
    return [each.name for each, remove in garbage_items(store, settings, sessions=sessions) if remove()]


def share(store: Store, settings: Settings, digest: str) -> Path:
    """An index in the index store, listed long ago."""
    folder = Path(index_store_name(settings)) / digest
    if not index_store_name(settings).startswith("s3://"):
        folder.mkdir(parents=True)
        (folder / "index").write_text("x" * 10)
    shared = store.knowledge.share(digest, agent="agent", node="rag", bytes_=10, shelf=index_store_name(settings))
    text = store._client.hget(store.keys.shelf, digest)
    assert text is not None
    store._client.hset(store.keys.shelf, digest, text.replace(str(shared.at_ms), str(OLD_MS)))
    return folder


def test_a_healthy_deployment_has_nothing_to_remove(store: Store, settings: Settings) -> None:
    finished(store, RUN)
    created(store, "run000000002")
    store.bundles.put("digest", b"x", OLD_MS)
    assert found(store, settings, sessions=True) == []


def test_the_remains_of_a_run_with_deleted_keys_are_removed(store: Store, settings: Settings) -> None:
    created(store, RUN)
    created(store, "run000000002")
    keys, part = store.keys.of_run(RUN), store.keys.of_partition(store.keys.partition_of(RUN))
    store._client.delete(keys.run)
    store._client.zadd(part.gates, {f"{RUN}/3": 1})
    assert set(found(store, settings)) == {("run", RUN), ("keys", RUN)}
    sweep(store, settings)
    assert not store._client.exists(keys.state, keys.spec, keys.journal)
    assert not store._client.zrange(part.gates, 0, -1)
    assert [info.id for info in store.runs.recent(10)] == ["run000000002"]
    assert found(store, settings) == []


def test_a_run_that_came_back_meanwhile_is_left_alone(store: Store, settings: Settings) -> None:
    created(store, RUN)
    run = store.keys.of_run(RUN).run
    fields = store._client.hgetall(run)
    store._client.delete(run)
    looked = list(garbage_items(store, settings, sessions=False))
    store._client.hset(run, mapping=fields)
    assert [remove() for _, remove in looked] == [False, False]
    assert store.runs.info(RUN).status == "submitted"


def test_bundles_that_no_kept_run_goes_by_are_dropped_after_an_hour(store: Store, settings: Settings) -> None:
    for digest in ("own", "childs", "nobodys"):
        store.bundles.put(digest, b"12345", OLD_MS)
    store.bundles.put("new", b"x", store.now_ms())
    created(store, RUN, bundle="own", agents={"child": "childs"})
    ((bundle, remove),) = list(garbage_items(store, settings, sessions=False))
    assert (bundle.kind, bundle.name, bundle.bytes_) == ("bundle", "nobodys", 5)
    store.bundles.touch("nobodys", store.now_ms())
    assert not remove(), "a submit has named it meanwhile"
    assert store.bundles.get("nobodys") == b"12345"


def test_bases_that_no_run_pins_and_no_agent_here_asks_leave_the_index_store(store: Store, settings: Settings) -> None:
    base = write_agent(settings.home / "agents" / "mine", END, rag_yaml="of mine\n") / "rag.yaml"
    named = garbage.digest_of(base)
    assert named is not None
    pinned, unused, asked = ("a" * 64, "b" * 64, "c" * 64)
    folders = {digest: share(store, settings, digest) for digest in (named, pinned, unused, asked)}
    created(store, RUN, knowledge={"agent/rag": pinned})
    store.knowledge.use(asked)
    assert found(store, settings) == [("base", f"agent/rag {unused[:12]}")]
    ((_, remove),) = list(garbage_items(store, settings, sessions=False))
    store.knowledge.use(unused)
    assert not remove(), "a submit has asked for it meanwhile"
    store._client.zadd(store.keys.bases_used, {unused: OLD_MS})
    assert sweep(store, settings) == [f"agent/rag {unused[:12]}"]
    assert [digest for digest, folder in folders.items() if not folder.exists()] == [unused]
    assert store.knowledge.shared(unused) is None
    assert store._client.zscore(store.keys.bases_used, unused) is None


def lie(settings: Settings, name: str, manifest: str) -> Path:
    """A folder in the index store that no run refers to, and that is old."""
    folder = Path(index_store_name(settings)) / name
    folder.mkdir(parents=True)
    for file in (folder / "manifest.json", folder):
        if file != folder:
            file.write_text(manifest)
        os.utime(file, (1, 1))
    return folder


def test_bases_in_the_index_store_that_are_not_listed_are_removed_and_what_is_no_base_is_not(
    store: Store, settings: Settings
) -> None:
    unlisted, asked, pinned, new, elsewhere, other = (letter * 64 for letter in "abcdef")
    for digest in (unlisted, asked, pinned, new, elsewhere):
        lie(settings, digest, json.dumps({"digest": digest}))
    lie(settings, "notes", json.dumps({"digest": unlisted}))
    lie(settings, other, "[1]")
    os.utime(Path(index_store_name(settings)) / new)
    store.knowledge.use(asked)
    store.knowledge.share(elsewhere, agent="a", node="n", bytes_=1, shelf="/another")
    created(store, RUN, knowledge={"agent/rag": pinned})
    ((base, remove),) = list(garbage_items(store, settings, sessions=False))
    assert (base.kind, base.name, base.bytes_) == ("base", unlisted[:12], 78)
    assert remove()
    left = {path.name for path in Path(index_store_name(settings)).iterdir()}
    assert left == {asked, pinned, new, elsewhere, other, "notes"}


@pytest.mark.timeout(300)  # it starts processes, which takes long on a busy machine
def test_bases_leave_an_index_store_in_s3_too(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed, unlisted, pinned, new = (letter * 64 for letter in "abcd")
    in_s3 = settings.replaced(knowledge="s3://bucket/bases")
    with s3_server("bucket") as s3:
        for name, value in s3.env.items():
            monkeypatch.setenv(name, value)
        for name in (*(f"{each}.tar" for each in (listed, unlisted, pinned, new)), "notes.tar", f"deep/{listed}.tar"):
            s3.objects[f"bucket/bases/{name}"] = stored = Stored(b"12345", {})
            stored.modified = stored.modified if name.startswith(new) else "1970-01-02T00:00:00.000Z"
        share(store, in_s3, listed)
        created(store, RUN, knowledge={"agent/rag": pinned})
        looked = list(garbage_items(store, in_s3, sessions=False))
        assert [(base.name, base.bytes_) for base, _ in looked] == [
            (f"agent/rag {listed[:12]}", 10),
            (unlisted[:12], 5),
        ]
        assert [remove() for base, remove in looked if base.bytes_ == 10] == [True]
        store.knowledge.use(unlisted)
        order = Order("unshelve", "gc", "shelf", folder="", digest=unlisted, before_ms=OLD_MS)
        assert s3_garbage.run(order, in_s3).value == {"removed": False}, "a submit has asked for it meanwhile"
        gone = {f"bucket/bases/{listed}.tar"}
        assert gone.isdisjoint(s3.objects) and len(s3.objects) == 5
        assert store.knowledge.shared(listed) is None


def test_an_index_store_that_is_away_keeps_nothing_else_from_being_found(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.bundles.put("nobodys", b"12345", OLD_MS)
    away = S3(("bucket",))
    away.url = "http://127.0.0.1:9"
    for name, value in {**away.env, "AWS_MAX_ATTEMPTS": "1"}.items():
        monkeypatch.setenv(name, value)
    looking = garbage_items(store, settings.replaced(knowledge="s3://bucket"), sessions=False)
    assert next(looking)[0].name == "nobodys"
    with pytest.raises(KnowledgeError, match="s3://bucket cannot be used"):
        next(looking)


def test_sessions_are_a_persons_and_removed_only_when_that_is_asked_for(store: Store, settings: Settings) -> None:
    write_agent(settings.home / "agents" / "mine", END)
    for agent in ("mine", "removed"):
        partition = store.keys.partition_of(f"{agent}/talk")
        names = (f"{agent:_<7}{number:05}" for number in range(99))
        run_id = next(name for name in names if store.keys.partition_of(name) == partition)
        assert store.runs.create(run_id, RunSpec(agent, "digest", session="talk"), {})
    assert found(store, settings, sessions=True) == [], "a run is under way"
    for key in store._client.scan_iter(f"{store.keys.prefix}:*:session:*"):
        if not key.endswith(":messages"):
            store._client.hdel(key, "busy")
    assert found(store, settings) == []
    assert sweep(store, settings, sessions=True) == ["removed/talk"]
    assert [info.agent for info in store.sessions.all()] == ["mine"]


def test_threads_of_agents_that_are_gone_are_removed_with_sessions_unless_a_run_is_under_way(
    store: Store, settings: Settings
) -> None:
    write_agent(settings.home / "agents" / "mine", END)
    for agent in ("mine", "removed"):
        partition = store.keys.partition_of(f"{agent}/talk")
        names = (f"{agent:_<7}{number:05}" for number in range(99))
        run_id = next(name for name in names if store.keys.partition_of(name) == partition)
        store.threads.start(run_id, RunSpec(agent, "digest").in_thread("talk", 1, None), {}, None)
    assert found(store, settings, sessions=True) == [], "a run is under way"
    for info in store.threads.all():
        store._client.hset(store.keys.of_run(info.run).run, "status", "completed")
        store._client.hdel(store.keys.of_thread(ThreadName(info.agent, "talk")), "busy")
    assert found(store, settings) == []
    assert sweep(store, settings, sessions=True) == ["removed/talk"]
    assert [info.agent for info in store.threads.all()] == ["mine"]


def test_what_dead_processes_left_on_this_machine_is_removed_and_what_is_used_is_not(
    store: Store, settings: Settings
) -> None:
    tmp, index_store = settings.home / "tmp", Path(index_store_name(settings))
    for name in ("graph-state-old.json", "graph-state-open.json", "graph-state-new.json", "notes.json"):
        (tmp / name).write_text("{}")
        if "new" not in name:
            os.utime(tmp / name, (1, 1))
    index_store.mkdir()
    (index_store / ".knowledge-dead").mkdir()
    (index_store / ".knowledge-dead" / "part").write_text("12345")
    (index_store / ".knowledge-dead.lock").touch()
    unpacking = settings.home / UNPACKED / ".unpack-dead"
    unpacking.mkdir(parents=True)
    os.utime(unpacking, (1, 1))
    with garbage.staging(index_store) as alive, (tmp / "graph-state-open.json").open():
        (index_store / ".knowledge-late").mkdir()
        (index_store / ".knowledge-late.lock").touch()
        assert set(found(store, settings)) == {
            ("staging", str(index_store / ".knowledge-late")),
            ("staging", str(unpacking)),
            ("temporary", str(tmp / "graph-state-old.json")),
        }
        sweep(store, settings)
        assert alive.is_dir()
    assert sorted(path.name for path in tmp.iterdir()) == [
        "graph-state-new.json", "graph-state-open.json", "notes.json",
    ]  # fmt: skip
    assert not unpacking.exists()


def test_what_is_submitted_at_the_same_time_loses_nothing(store: Store, settings: Settings) -> None:
    """Bundles that look unused when each round begins: `gc` and the submits race for them."""
    agents = [write_agent(settings.home / "agents" / f"a{number}", END + f"# {number}\n") for number in range(5)]
    over = threading.Event()
    swept: list[str] = []

    def keep_sweeping() -> None:
        while not over.is_set():
            swept.extend(sweep(store, settings))

    sweeper = threading.Thread(target=keep_sweeping)
    sweeper.start()
    try:
        for round_ in range(6):
            with Client(settings) as client:
                ids = [client.submit(agent, str(round_)).id for agent in agents]
            used = {store.runs.spec(run_id).bundle for run_id in ids}
            assert all(store.bundles.get(digest) for digest in used)
            store._client.zadd(store.keys.bundles, dict.fromkeys(used, OLD_MS))
            for run_id in ids:
                keys = store.keys.of_run(run_id)
                store._client.delete(keys.run, keys.spec)
    finally:
        over.set()
        sweeper.join()
    assert swept


def test_scratch_folders_go_when_their_runs_have_been_over_for_the_retention(store: Store, settings: Settings) -> None:
    """Finding U6 of the second review."""
    finished(store, RUN)
    created(store, "run000000002")
    for run in (RUN, "run000000002", "of another deployment"):
        (settings.home / "work" / run).mkdir(parents=True)
        (settings.home / "work" / run / "notes.txt").write_text("x")
    assert found(store, settings) == []
    at_once = settings.replaced(work_retention_s=0.0)
    assert found(store, at_once) == [("scratch", str(settings.home / "work" / RUN))]
    sweep(store, at_once)
    assert not (settings.home / "work" / RUN).exists()

"""Who builds a base, and which ones are shared, on a real Redis."""

from __future__ import annotations

from pathlib import Path

from sleipnir.knowledge.files import lease_name
from sleipnir.settings import Settings
from sleipnir.store.knowledge import SharedIndex
from sleipnir.store.store import Store
from tests.processes import wait_until


def test_one_process_builds_and_others_learn_which_and_since_when(store: Store) -> None:
    knowledge = store.knowledge
    before_ms = store.now_ms()
    assert knowledge.building("base") is None
    assert knowledge.take("base", "mine", "here:1") is None
    refused = knowledge.take("base", "other", "there:2")
    assert refused is not None
    assert (refused.who, before_ms <= refused.since_ms <= store.now_ms()) == ("here:1", True)
    assert knowledge.building("base") == refused
    assert knowledge.take("another base", "other", "there:2") is None
    knowledge.release("another base", "other")
    knowledge.release("base", "mine")


def test_taking_again_keeps_the_lease_and_its_beginning(store: Store) -> None:
    knowledge, key = store.knowledge, store.keys.build("base")
    assert knowledge.take("base", "mine", "here:1") is None
    begun = knowledge.building("base")
    store._client.pexpire(key, 5_000)
    assert knowledge.take("base", "mine", "here:1") is None
    assert store._client.pttl(key) > 5_000
    assert knowledge.building("base") == begun
    knowledge.release("base", "mine")


def test_a_lease_is_given_back_by_its_holder_alone_and_twice_is_safe(store: Store) -> None:
    knowledge = store.knowledge
    assert knowledge.take("base", "mine", "here:1") is None
    knowledge.release("base", "other")
    assert knowledge.take("base", "other", "there:2") is not None
    for _ in range(2):
        knowledge.release("base", "mine")
    assert knowledge.take("base", "other", "there:2") is None
    knowledge.release("base", "other")
    assert not store._client.exists(store.keys.build("base"))


def test_the_lease_of_a_dead_builder_lapses(store: Store, tmp_path: Path) -> None:
    short = Settings(
        redis_url=store.url,
        broker_url=store._settings.broker_url,
        home=tmp_path,
        key_prefix=store.keys.prefix,
        partitions=2,
        lease_s=0.05,
    )
    with Store.open(short) as dying:
        assert dying.knowledge.take("base", "dead", "here:1") is None
    wait_until(lambda: store.knowledge.take("base", "mine", "here:2") is None, "the lease has lapsed")
    store.knowledge.release("base", "mine")


def test_a_shared_base_is_listed_until_it_is_removed(store: Store) -> None:
    knowledge = store.knowledge
    assert (knowledge.shared("d1"), knowledge.all_shared(), knowledge.forget("d1")) == (None, [], False)
    first = knowledge.share("d1", agent="a", node="n", bytes_=10, shelf="/shelf")
    assert first == SharedIndex("d1", "a", "n", 10, "/shelf", first.at_ms)
    second = knowledge.share("d2", agent="a", node="m", bytes_=20, shelf="s3://bucket")
    again = knowledge.share("d1", agent="a", node="n", bytes_=10, shelf="/other")
    assert knowledge.shared("d1") == again
    assert sorted(knowledge.all_shared(), key=lambda shared: shared.digest) == [again, second]
    assert knowledge.forget("d1")
    assert knowledge.all_shared() == [second]
    assert knowledge.forget("d2")


def test_a_base_has_one_lease_for_all_names_of_its_folder(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    assert lease_name(link, "docs") == lease_name(real / ".." / "real", "docs") != lease_name(real, "other")

"""The number of partitions: a property of the deployment, which its first process stores."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sleipnir.errors import ConfigError
from sleipnir.settings import Settings
from sleipnir.store import layout
from sleipnir.store.store import Store
from tests.processes import RedisServer


class Deployment:
    def __init__(self, addresses: Mapping[str, Any], home: Path) -> None:
        self._addresses, self._home = addresses, home

    def partitions(self, wanted: int | None = None, **options: Any) -> int:
        """What a process with this setting uses."""
        settings = Settings(**self._addresses, home=self._home, key_prefix=self._home.name, partitions=wanted)
        with Store.open(settings, **options) as store:
            return store.keys.partitions

    def clear(self, *, of_meta_only: bool = False) -> None:
        with Store.open(Settings(**self._addresses, home=self._home, key_prefix=self._home.name)) as store:
            keys = [store.keys.meta] if of_meta_only else list(store._client.scan_iter(f"{store.keys.prefix}:*"))
            store._client.delete(*keys)

    def own(self) -> None:
        """A scheduler starts, and stores who owns its partitions."""
        with Store.open(Settings(**self._addresses, home=self._home, key_prefix=self._home.name)) as store:
            store.partitions.own(range(store.keys.partitions), "me", 60_000)


@pytest.fixture
def deployment(redis_server: RedisServer, tmp_path: Path) -> Deployment:
    return Deployment(redis_server.addresses, tmp_path)


def test_a_new_deployment_has_256_and_all_its_processes_use_them(deployment: Deployment) -> None:
    assert [deployment.partitions(wanted) for wanted in (None, None, 256)] == [256, 256, 256]


@pytest.mark.parametrize("number", [2, 16, 4096])
def test_a_process_without_the_setting_uses_the_number_that_is_stored(deployment: Deployment, number: int) -> None:
    assert [deployment.partitions(wanted) for wanted in (number, None, number)] == [number] * 3


def test_another_number_than_the_stored_one_is_refused_and_the_stored_one_stays(deployment: Deployment) -> None:
    deployment.partitions(64)
    with pytest.raises(ConfigError, match="created with 64 partitions, but SLEIPNIR_PARTITIONS is 256"):
        deployment.partitions(256)
    assert deployment.partitions() == 64


def test_a_new_deployment_with_too_few_is_refused(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    deployment.partitions(4)  # as an earlier release made it
    monkeypatch.setattr(layout, "FEWEST", 16)
    assert deployment.partitions(4) == 4
    deployment.clear()
    with pytest.raises(ConfigError, match="a new deployment has from 16 to 4,096 partitions"):
        deployment.partitions(4)
    assert deployment.partitions() == 256


def test_data_without_a_stored_number_have_the_default_of_earlier_releases(deployment: Deployment) -> None:
    """Runs in other partitions than those that schedulers own would wait for ever."""
    deployment.partitions(16)
    deployment.own()
    deployment.clear(of_meta_only=True)
    assert deployment.partitions() == 16
    assert deployment.partitions(16) == 16


def test_who_only_looks_fixes_no_number(deployment: Deployment) -> None:
    assert deployment.partitions(may_create=False) == 256
    assert deployment.partitions(32, may_create=False) == 32
    assert deployment.partitions(64) == 64


def test_a_store_that_is_not_open_has_no_names_of_runs(tmp_path: Path) -> None:
    with Store(Settings(redis_url="redis://127.0.0.1:1/0", home=tmp_path)) as store, pytest.raises(LookupError):
        store.keys.of_run("run000000001")

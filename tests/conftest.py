"""Fixtures that many tests share. Processes live for a session of a pytest worker, key prefixes for one test."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import re
import signal
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling

from sleipnir.settings import Settings
from sleipnir.store import layout
from sleipnir.store.store import Store
from tests import surroundings
from tests.examples import UNIT_EXAMPLES
from tests.processes import CALM, RedisServer, Stack
from tests.redis_cluster import ServerCluster, wanted_nodes
from tests.waiting import wait_until

surroundings.set_up()
layout.FEWEST = 1  # two partitions show as much as sixteen, and cost a test less

# No deadline: a busy machine takes half a second for a millisecond's work, and the bench measures speed. Tests with
# more examples in the profiles `slow` and `ci` ask for the profile's name; `unit` has fewer (examples.py).
for profile in ("default", "slow", "ci", "unit"):
    hypothesis.settings.register_profile(
        profile,
        deadline=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
        max_examples=UNIT_EXAMPLES if profile == "unit" else 100,
    )
hypothesis.settings.load_profile("default")

TOGETHER = ("tests/agents/", "tests/docs/")
STACK = "the users of `stack`"
"""What shares a fixture of the session goes to one pytest worker: these folders, and all files whose tests use `stack`.
Each worker would start these processes for itself. Idle ones take a few percent of a core each, as long as the session
lasts."""
LONGEST = ("tests/chaos/", "tests/system/test_init.py", "tests/unit/planner/test_plan_properties.py")
LONG = (*LONGEST, "tests/system/")
"""Where tests take seconds or minutes each."""

# A shell that starts the tests in the background lets them ignore Ctrl-C, and what they start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


class _NamedLoop(asyncio.SelectorEventLoop):
    """One that nobody closes is found in some later test; so it says whose it is."""

    def __init__(self, *args: object) -> None:
        self._of = os.environ.get("PYTEST_CURRENT_TEST")
        super().__init__(*args)  # type: ignore[arg-type]

    def __repr__(self) -> str:
        return f"{super().__repr__()} made in {self._of}"


asyncio.DefaultEventLoopPolicy._loop_factory = _NamedLoop  # type: ignore[attr-defined]

_prefixes = (f"t{number}" for number in itertools.count())


TESTS = Path(__file__).parent
BROWSER = TESTS / "browser"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What needs a browser is collected only if it is named, as `make test-browser` does."""
    named = any(Path(config.invocation_params.dir, arg.split("::")[0]).is_relative_to(BROWSER) for arg in config.args)
    return True if collection_path == BROWSER and not named else None


def pytest_report_header() -> str:
    return surroundings.tested_redis()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest begins first, so that all pytest workers end together. Random within the parts."""
    items.sort(key=lambda item: _part(item.nodeid))


def pytest_collection_finish() -> None:
    """Ten thousand tests and their parameters stay: no collection of garbage has to go through them."""
    gc.freeze()


def pytest_unconfigure() -> None:
    """End the helpers and launchers of tests that did a worker's work in this process, as a worker's end does."""
    if (helper := sys.modules.get("sleipnir_workers.processes.helper")) is not None:
        for helpers in list(helper._all):
            helpers.close()
    if (warm := sys.modules.get("sleipnir_workers.processes.warm_python")) is not None:
        launchers = [*warm.warm_python.launchers(), *warm._retired]
        warm.warm_python.close()
        wait_until(lambda: all(launcher.has_ended() for launcher in launchers), "the launchers have ended")


def _part(nodeid: str) -> int:
    file = nodeid.partition("::")[0]
    if _group(file):
        return 0
    if nodeid.startswith(LONGEST):
        return 1
    if nodeid.startswith(LONG):
        return 2 if _shares_a_fixture(file) else 3
    return 5 if nodeid.startswith("tests/unit/") else 4


@cache
def _group(file: str) -> str | None:
    """The tests that share processes with those of this file, if there are any."""
    for folder in TOGETHER:
        if file.startswith(folder):
            return folder
    return STACK if file.startswith("tests/system/") and _uses_stack((TESTS.parent / file).read_text()) else None


_ASKS_FOR_STACK = re.compile(r"^(?:@pytest\.fixture.*\ndef \w+|def test_\w+)\([^)]*\bstack: Stack", re.MULTILINE)


def _uses_stack(text: str) -> bool:
    """Whether a test module asks for the fixture `stack` and has none of its own."""
    return _ASKS_FOR_STACK.search(text) is not None and "\ndef stack(" not in text


@cache
def _shares_a_fixture(file: str) -> bool:
    return 'scope="module"' in (TESTS.parent / file).read_text()


class OneWorkerEach(LoadScopeScheduling):
    """Gives the tests that share processes to one pytest worker, and files of quick tests as a whole. Long tests that
    share nothing go one by one."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if group := _group(file):
            return group
        return nodeid if file.startswith(LONG) and not _shares_a_fixture(file) else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneWorkerEach | None:
    """For `make test`. Another `--dist` keeps its meaning."""
    return OneWorkerEach(config, log) if config.getoption("dist") == "loadscope" else None


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer | ServerCluster]:
    """A real redis-server for the session; or a cluster of them, with a redis-server that is the broker."""
    server = RedisServer()
    cluster = ServerCluster(nodes, broker_url=server.url) if (nodes := wanted_nodes()) else None
    yield cluster or server
    for each in (cluster, server):
        if each is not None:
            each.stop()


@pytest.fixture
def store(redis_server: RedisServer, tmp_path: Path) -> Iterator[Store]:
    """A store under a key prefix of its own. Fails the test when it leaves a key that no rule lets die."""
    prefix = next(_prefixes)
    settings = Settings(**redis_server.addresses, home=tmp_path, key_prefix=prefix, partitions=2)
    with Store.open(settings) as opened:
        yield opened


@pytest.fixture
def own_store(tmp_path: Path) -> Iterator[Store]:
    """A store on a server of its own, for tests that count its commands: the session's also serves a stack."""
    server = RedisServer()
    try:
        with Store.open(Settings(**server.addresses, home=tmp_path, partitions=2)) as opened:
            yield opened
    finally:
        server.stop()


@pytest.fixture(scope="session")
def stack(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A scheduler and one worker for all queues, shared by the tests that break nothing."""
    with Stack(redis_server, tmp_path_factory.mktemp("stack"), key_prefix="shared", **CALM) as running:
        running.start_scheduler()
        running.start_worker()
        yield running

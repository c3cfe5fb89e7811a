"""Fixtures that many tests share. Processes live for a session of a pytest worker, key prefixes for one test."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from sleipnir.settings import Settings
from sleipnir.store.store import Store
from tests import surroundings
from tests.examples import UNIT_EXAMPLES
from tests.processes import RedisServer, Stack

surroundings.set_up()

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

LONG_FIRST = ("tests/chaos/", "tests/docs/", "tests/system/", "tests/unit/planner/test_plan_properties.py")
"""Where tests take seconds or minutes each. What begins last is quick, so that all pytest workers end together."""

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


BROWSER = Path(__file__).parent / "browser"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What needs a browser is collected only if it is named, as `make test-browser` does."""
    named = any(Path(config.invocation_params.dir, arg.split("::")[0]).is_relative_to(BROWSER) for arg in config.args)
    return True if collection_path == BROWSER and not named else None


def pytest_report_header() -> str:
    return surroundings.tested_redis()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keeps the random order within the two parts."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONG_FIRST))


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """A real redis-server for the session."""
    server = RedisServer()
    yield server
    server.stop()


@pytest.fixture
def store(redis_server: RedisServer, tmp_path: Path) -> Iterator[Store]:
    """A store under a key prefix of its own. Fails the test when it leaves a key that no rule lets die."""
    prefix = next(_prefixes)
    settings = Settings(redis_url=redis_server.url, home=tmp_path, key_prefix=prefix, partitions=2)
    with Store.open(settings) as opened:
        yield opened


@pytest.fixture
def own_store(tmp_path: Path) -> Iterator[Store]:
    """A store on a server of its own, for tests that count its commands: the session's also serves a stack."""
    server = RedisServer()
    try:
        with Store.open(Settings(redis_url=server.url, home=tmp_path, partitions=2)) as opened:
            yield opened
    finally:
        server.stop()


@pytest.fixture(scope="session")
def stack(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A scheduler and one worker for all queues, shared by the tests that break nothing."""
    with Stack(redis_server, tmp_path_factory.mktemp("stack"), key_prefix="shared") as running:
        running.start_scheduler()
        running.start_worker()
        yield running

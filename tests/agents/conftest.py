"""One stack for the tests that run shipped agents: starting it takes seconds, a run much less."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.processes import RedisServer
from tests.shipped import Lab


@pytest.fixture(scope="session")
def lab(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab(redis_server, tmp_path_factory.mktemp("shipped")) as running:
        yield running

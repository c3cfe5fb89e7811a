"""Where the tests run shipped agents: on one stack, as starting it takes seconds, a run much less; and in this
process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.processes import RedisServer
from tests.shipped import InProcessLab, Lab


@pytest.fixture(scope="session", params=["on a stack", "in process"])
def lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab | InProcessLab]:
    if request.param == "in process":
        with InProcessLab(tmp_path_factory.mktemp("in_process")) as here:
            yield here
        return
    redis_server: RedisServer = request.getfixturevalue("redis_server")
    with Lab(redis_server, tmp_path_factory.mktemp("shipped")) as running:
        yield running

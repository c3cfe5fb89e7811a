"""Runs that an earlier release has stored are read, and end as they would have ended there.

The release of issue 15 recorded them: one run in every kind of state, with the outcome that it reached from there
(tests/fixtures/stored_runs/record.py).
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.processes import RedisServer
from tests.stored_runs import ORDERED_HASHES, Deployment, load, outcome, settings_of

FOLDER = Path(__file__).parents[1] / "fixtures" / "stored_runs"


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    running = RedisServer(*ORDERED_HASHES)
    yield running
    running.stop()


def recorded() -> Iterator[Any]:
    for line in gzip.decompress((FOLDER / "runs.jsonl.gz").read_bytes()).splitlines():
        run = json.loads(line)
        yield pytest.param(run, id=run["name"])


@pytest.mark.parametrize("run", list(recorded()))
def test_a_stored_run_ends_as_the_release_that_stored_it_would_have_ended_it(
    server: RedisServer, tmp_path: Path, run: Mapping[str, Any]
) -> None:
    settings = settings_of(server.url, tmp_path, key_prefix=re.sub(r"\W", "-", run["name"]))
    load(settings, run["keys"], run["at_ms"])
    deployment = Deployment(settings, run["script"])
    try:
        deployment.finish(run["root"])
        ended = outcome(deployment)
    finally:
        deployment.close()
    assert ended["statuses"] == run["outcome"]["statuses"]
    for id_, expected in run["outcome"]["runs"].items():
        for part, value in expected.items():
            assert ended["runs"][id_].get(part) == value, f"{part} of {id_}"
    assert ended == run["outcome"]

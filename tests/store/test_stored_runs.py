"""Runs that an earlier release has stored are read, and end as they would have ended there.

The release of issue 15 recorded them: one run in every kind of state, with the outcome that it reached from there
(tests/fixtures/stored_runs/record.py).
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from sleipnir.store.store import Store
from tests.stored_runs import Deployment, load, outcome, settings_of

FOLDER = Path(__file__).parents[1] / "fixtures" / "stored_runs"


def recorded() -> Iterator[Any]:
    for line in gzip.decompress((FOLDER / "runs.jsonl.gz").read_bytes()).splitlines():
        run = json.loads(line)
        yield pytest.param(run, id=run["name"])


@pytest.mark.parametrize("run", list(recorded()))
def test_a_stored_run_ends_as_the_release_that_stored_it_would_have_ended_it(
    store: Store, tmp_path: Path, run: Mapping[str, Any]
) -> None:
    settings = settings_of(store.url, tmp_path, key_prefix=store.keys.prefix)
    load(settings, run["keys"])
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

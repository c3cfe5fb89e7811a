"""This tree finishes runs that an earlier one has stored, with the same outcome.

The tree of commit 4c47d28 recorded them: one run in every kind of state, and one of each graph from its start, with the
outcome that it reached from there (tests/fixtures/stored_runs/record.py).
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

REWORDED: Mapping[str, str] = {}
"""Parts of messages, as they were when the runs were recorded, and as they are now."""


def without_twins(value: Any) -> Any:
    """Without what tells visits of one node apart in events and paths: the recorded runs have none of it."""
    if isinstance(value, dict):
        plain = {key: without_twins(each) for key, each in value.items() if key != "twin"}
        return {**plain, "path": [place.partition("[")[0] for place in plain["path"]]} if "path" in plain else plain
    return [without_twins(each) for each in value] if isinstance(value, list) else value


UNKNOWN_THEN = ("overlays", "unrouted", "counted")


def without_what_forks_need(value: Any) -> Any:
    """Without what this release journals of commands and of the unfinished visits of a `dag`, and what it keeps of an
    entry that a limit refused."""
    if isinstance(value, list):
        return [without_what_forks_need(each) for each in value]
    if not isinstance(value, dict):
        return value
    kept = {key: without_what_forks_need(each) for key, each in value.items() if key not in UNKNOWN_THEN}
    if isinstance(closing := kept.get("closing"), dict):
        kept["closing"] = {key: each for key, each in closing.items() if key not in ("lists", "ways")}
        if kept.get("rank"):
            del kept["closing"]
    if isinstance(routes := kept.get("routes"), dict):
        kept["routes"] = {seq: targets for seq, targets in routes.items() if targets}
        if not kept["routes"]:
            del kept["routes"]
    return kept


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    running = RedisServer(*ORDERED_HASHES)
    yield running
    running.stop()


def recorded() -> Iterator[Any]:
    for line in gzip.decompress((FOLDER / "runs.jsonl.gz").read_bytes()).splitlines():
        run = json.loads(line)
        run["outcome"] = reworded(run["outcome"])
        yield pytest.param(run, id=run["name"])


def reworded(value: Any) -> Any:
    if isinstance(value, str):
        for before, now in REWORDED.items():
            value = value.replace(before, now)
    if isinstance(value, dict):
        return {key: reworded(each) for key, each in value.items()}
    return [reworded(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("run", list(recorded()))
def test_a_stored_run_ends_as_in_the_tree_that_stored_it(
    server: RedisServer, tmp_path: Path, run: Mapping[str, Any]
) -> None:
    settings = settings_of(server.url, tmp_path, key_prefix=re.sub(r"\W", "-", run["name"]))
    load(settings, run["keys"], run["at_ms"])
    deployment = Deployment(settings, run["script"])
    try:
        deployment.finish(run["root"])
        ended = without_what_forks_need(without_twins(outcome(deployment)))
    finally:
        deployment.close()
    assert ended["statuses"] == run["outcome"]["statuses"]
    for id_, expected in run["outcome"]["runs"].items():
        for part, value in expected.items():
            assert ended["runs"][id_].get(part) == value, f"{part} of {id_}"
    assert ended == run["outcome"]

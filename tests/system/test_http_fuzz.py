"""The short form of `make fuzz-api`: random requests that fit the document of the interface, and such that do not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.fuzz_api import one_round, open_stack
from tests.console import Console, console_of
from tests.processes import RedisServer

SEED = 4711


@pytest.fixture(scope="module")
def console(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    with open_stack(redis_server, tmp_path_factory.mktemp("fuzz"), key_prefix="fuzz") as stack:
        stack.start_scheduler()
        stack.start_worker()
        with console_of(stack) as running:
            yield running


@pytest.mark.timeout(600)
def test_no_request_is_a_server_error_and_each_answer_is_documented(console: Console, tmp_path: Path) -> None:
    is_right, cases, text = one_round(console, tmp_path, SEED, 8, "examples,fuzzing")
    assert is_right, text
    assert cases > 300, text


@pytest.mark.parametrize("number", [2**53, 2**63, 10**40])
def test_a_number_that_redis_does_not_take_is_refused(console: Console, number: int) -> None:
    run = console.post("/runs", {"agent": "asking"}).data["id"]
    assert console.get(f"/runs/{run}/history?after={number}").problem == "invalid-request"
    assert console.post("/runs", {"agent": "asking", "max_tokens": number}).problem == "invalid-request"


@pytest.mark.parametrize("gate", ["x", "x1", "1x", "1.", "%C2%B2", "\u0661".encode().hex(), "1%0A"])
def test_what_is_no_number_of_a_question_is_refused(console: Console, gate: str) -> None:
    run = console.post("/runs", {"agent": "asking"}).data["id"]
    assert console.post(f"/gates/{run}/{gate}/answer", {"answer": "yes"}).problem == "invalid-request"


ALLOWED = {"/cache": "DELETE, GET", "/jobs/preview": "POST"}


@pytest.mark.parametrize("path", ["/runs", "/signals", "/cache", "/jobs/preview"])
def test_a_method_that_a_path_does_not_take_is_refused_with_all_that_it_takes(console: Console, path: str) -> None:
    answer = console.request("PATCH", path)
    assert (answer.status, answer.headers["Allow"]) == (405, ALLOWED.get(path, "GET, POST"))


@pytest.mark.parametrize(
    "body", [b'{"agent": "asking", "state": ' + b"[" * 100_000, b'{"agent": "\\ud800"}', b"\x00", b"1e999"]
)
def test_json_that_cannot_be_read_or_stored_is_refused(console: Console, body: bytes) -> None:
    answer = console.request("POST", "/runs", raw=body, headers={"Content-Type": "application/json"})
    assert answer.problem in ("bad-request", "invalid-request", "not-found")

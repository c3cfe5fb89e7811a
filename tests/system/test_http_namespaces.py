"""Questions and batches of other namespaces over HTTP: not listed, not there, and not touched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from sleipnir.access.records import EVERY
from tests.console import Console, console_of
from tests.processes import RedisServer, Stack, write_agent
from tests.waiting import wait_until

ASKS = """
name: asks
start: sure
nodes:
  sure: {type: approval, question: "sure?", options: [yes, no], routes: {yes: done, no: done}, on_other: done}
  done: {type: end, output: ok}
"""


@pytest.fixture(scope="module")
def stack(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    home = tmp_path_factory.mktemp("namespaces")
    write_agent(home / "agents" / "asks", ASKS)
    with Stack(redis_server, home, key_prefix="httpnamespaces", agents_dir=home / "agents") as found:
        found.start_scheduler()
        yield found


@pytest.fixture(scope="module")
def tokens(stack: Stack) -> dict[str, str]:
    """Of an operator of the server's namespace, of one who may look everywhere besides, and of one who may do all."""
    users: Mapping[str, Mapping[str, str]] = {
        "operator": {"default": "operator"},
        "looker": {"default": "operator", EVERY: "viewer"},
        "all": {EVERY: "admin"},
    }
    with stack.client() as client:
        for name, roles in users.items():
            client.access.add_user(name, None, dict(roles))
        return {name: f"Bearer {client.access.create_token(name).text}" for name in users}


@pytest.fixture(scope="module")
def console(stack: Stack, tokens: dict[str, str]) -> Iterator[Console]:
    with console_of(stack) as running:
        yield running


@pytest.fixture(scope="module")
def made(stack: Stack) -> dict[str, tuple[str, str]]:
    """By namespace a run with an open question, and a batch of the name `nightly` whose row asks too."""
    found = {}
    with stack.client() as client:
        for namespace in ("default", "other"):
            run = client.submit("asks", "hello", namespace=namespace)
            batch = client.batch("asks", [{"prompt": "row"}], name="nightly", namespace=namespace)
            wait_until(lambda of=namespace: client.gate_count(namespace=of) == 2, "run and row ask")  # type: ignore[misc]
            found[namespace] = (run.id, batch.id)
    return found


def test_questions_of_another_namespace_are_neither_listed_nor_there(
    console: Console, tokens: dict[str, str], made: dict[str, tuple[str, str]]
) -> None:
    run, foreign = made["default"][0], made["other"][0]
    page = console.get("/gates", Authorization=tokens["operator"]).data
    assert page["count"] == len(page["items"]) == 2
    assert run in [gate["run"] for gate in page["items"]]
    assert foreign not in str(page)
    assert len(console.get("/gates?limit=1", Authorization=tokens["operator"]).data["items"]) == 1
    one = console.get("/gates?namespace=*", Authorization=tokens["operator"]).data
    assert one["count"] == 2, "what the caller may see"
    for path in ("/gates?namespace=other", f"/gates/{foreign}/1", f"/runs/{foreign}/gates"):
        answer = console.get(path, Authorization=tokens["operator"])
        assert (answer.status, answer.problem) == (404, "not-found"), path
    answer = console.post(f"/gates/{foreign}/1/answer", {"answer": "yes"}, Authorization=tokens["operator"])
    assert (answer.status, answer.problem) == (404, "not-found")
    assert console.get("/gates?namespace=*", Authorization=tokens["looker"]).data["count"] == 4
    assert console.get("/gates?namespace=other", Authorization=tokens["looker"]).data["count"] == 2
    answer = console.post(f"/gates/{foreign}/1/answer", {"answer": "yes"}, Authorization=tokens["looker"])
    assert (answer.status, answer.problem) == (403, "forbidden")


def test_batches_of_another_namespace_are_neither_listed_nor_there(
    console: Console, stack: Stack, tokens: dict[str, str], made: dict[str, tuple[str, str]]
) -> None:
    own, foreign = made["default"][1], made["other"][1]
    me = {"Authorization": tokens["operator"]}
    assert [batch["batch"]["id"] for batch in console.get("/batches", **me).data] == [own]
    assert console.get("/batches/nightly", **me).data["batch"]["id"] == own, "the name is that of another batch there"
    for path in ("", "/errors", "/results"):
        answer = console.get(f"/batches/{foreign}{path}", **me)
        assert (answer.status, answer.problem) == (404, "not-found"), path
    for what in ("pause", "resume", "retry-failed", "cancel"):
        answer = console.post(f"/batches/{foreign}/{what}", **me)
        assert (answer.status, answer.problem) == (404, "not-found"), what
    assert console.get("/batches?namespace=other", **me).status == 404
    given = {**me, "Content-Type": "application/x-ndjson"}
    answer = console.request("POST", f"/batches?agent=asks&id={foreign}", None, given, raw=b'{"prompt": "mine"}\n')
    assert (answer.status, answer.problem) == (404, "not-found"), "no row is added to it"
    with stack.client() as client:
        info = client.open_batch(foreign).info()
        assert (info.total, info.state, info.namespace) == (1, "running", "other")
    found = console.get("/batches?namespace=*", Authorization=tokens["looker"]).data
    assert {each["batch"]["id"] for each in found} == {own, foreign}
    assert console.get(f"/batches/{foreign}", Authorization=tokens["looker"]).status == 200
    answer = console.post(f"/batches/{foreign}/cancel", Authorization=tokens["looker"])
    assert (answer.status, answer.problem) == (403, "forbidden")
    assert console.post(f"/batches/{foreign}/pause", Authorization=tokens["all"]).status == 200


def test_what_is_of_another_namespace_and_what_is_nowhere_look_the_same(
    console: Console, tokens: dict[str, str], made: dict[str, tuple[str, str]]
) -> None:
    (_, own_batch), (foreign, foreign_batch) = made["default"], made["other"]
    for there, nowhere in (
        (f"/runs/{foreign}", "/runs/zzzzzzzzzzzz"),
        (f"/runs/{foreign[:8]}", "/runs/zzzzzzzz"),
        (f"/runs/{foreign}/gates", "/runs/zz/gates"),
        (f"/batches/{foreign_batch}", "/batches/zzzzzzzzzzzz"),
    ):
        answers = [console.get(path, Authorization=tokens["operator"]) for path in (there, nowhere)]
        assert [answer.status for answer in answers] == [404, 404], there
        assert answers[0].data["detail"] == answers[1].data["detail"], there
    assert console.get(f"/batches/{own_batch[:8]}", Authorization=tokens["operator"]).status == 200
    answer = console.get("/runs/zzzzzzzz", Authorization=tokens["looker"])
    assert "no run starts with" in answer.data["detail"]

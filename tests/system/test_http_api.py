"""What the HTTP API does with runs, questions, batches and the rest, on a real scheduler, worker and Redis."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.console import Answer, Console, console_of
from tests.processes import CALM, RedisServer, Stack, write_agent
from tests.waiting import wait_until

ASKING = """
name: asking
version: sleipnir/1
start: greet
nodes:
  greet: {type: function, call: "steps.py:greet", next: sure}
  sure: {type: approval, question: "sure?", options: [yes, no], routes: {yes: done, no: done}, on_other: done}
  done: {type: end, output: "{{greeting}}"}
"""
WORK = """
name: work
version: sleipnir/1
start: work
nodes:
  work: {type: script, script: work.sh, next: done}
  done: {type: end, output: "{{where}} {{initial_prompt}}"}
"""
FAILING = """
name: failing
version: sleipnir/1
start: fail
nodes:
  fail: {type: function, call: "steps.py:fail", next: done}
  done: {type: end, output: "{{greeting}}"}
"""
STEPS = """
def greet(state):
    return {"greeting": f"hello {state['initial_prompt']}"}


def fail(state):
    if state.get("greeting"):
        return {}
    raise ValueError("nobody to greet")
"""
HOSTILE = "version: sleipnir/1\nname: <b>\nstart: e\nnodes:\n  e: {type: end, output: '{{oops'}\n  f: {type: nothing}\n"


@pytest.fixture(scope="module")
def stack(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("api")
    agents = folder / "agents"
    write_agent(agents / "asking", ASKING, steps_py=STEPS)
    write_agent(agents / "failing", FAILING, steps_py=STEPS)
    write_agent(agents / "work", WORK, work_sh='printf \'{"where": "%s"}\' "$PWD"\n')
    write_agent(agents / "broken", HOSTILE)
    settings = {"key_prefix": "api", "agents_dir": agents, "log_format": "json", **CALM}
    with Stack(redis_server, folder / "home", **settings) as running:
        running.start_scheduler()
        running.start_worker()
        yield running


@pytest.fixture(scope="module")
def console(stack: Stack) -> Iterator[Console]:
    with console_of(stack) as running:
        yield running


def submitted(console: Console, agent: str, prompt: str = "", **more: Any) -> str:
    answer = console.post("/runs", {"agent": agent, "prompt": prompt, **more})
    assert answer.status == 201, answer.body
    assert answer.headers["Location"] == f"/api/v1/runs/{answer.data['id']}"
    return str(answer.data["id"])


def ended(console: Console, run: str) -> Any:
    def look() -> Any:
        found = console.get(f"/runs/{run}").data
        return found if found["run"]["status"] in ("completed", "failed", "cancelled") else None

    return wait_until(look, f"run {run} has ended")


def asked(console: Console, run: str) -> Any:
    (gate,) = wait_until(lambda: console.get(f"/runs/{run}/gates").data, "the person is asked")
    return gate


def test_a_run_is_submitted_asked_answered_and_looked_at(console: Console) -> None:
    run = submitted(console, "asking", "Ann")
    gate = asked(console, run)
    assert (gate["question"], gate["options"]) == ("sure?", ["yes", "no"])
    assert gate["seq"] in [each["seq"] for each in console.get("/gates?limit=500").data["items"]]
    place = f"/gates/{run}/{gate['seq']}.{gate['attempt']}"
    assert console.get(place).data == gate
    assert console.post(f"{place}/answer", {"answer": "yes"}).data["outcome"] == "accepted"
    detail = ended(console, run)
    assert (detail["run"]["status"], detail["output"]) == ("completed", "hello Ann")
    assert [(each["what"], each["by"]) for each in detail["run"]["changes"]] == [
        ("answered", "anonymous@127.0.0.1 (api)")
    ]
    history = console.get(f"/runs/{run}/history").data
    assert [step["node"] for step in history["items"]] == [None, "greet", "sure", "done"]
    assert history["after"] is None
    assert console.get(f"/runs/{run}/state").data["state"]["greeting"] == "hello Ann"
    assert "greeting" not in console.get(f"/runs/{run}/state?at=0").data["state"]
    difference = console.get(f"/runs/{run}/state/difference?first=0&second=1").data
    assert difference["added"]["greeting"] == "hello Ann"
    assert [step["node"] for step in console.get(f"/runs/{run}/trace").data["steps"]] == ["greet", "sure", "done"]
    assert console.get(f"/runs/{run}/tree").data["info"]["id"] == run
    assert console.get(f"/runs/{run}/lineage").data["id"] == run
    assert console.get(f"/runs/{run}/late-results").data == []


def test_two_people_answer_one_question_and_the_second_hears_who_was_first(console: Console) -> None:
    run = submitted(console, "asking", "Ann")
    gate = asked(console, run)
    answers: dict[str, Answer] = {}

    def answer(text: str) -> None:
        answers[text] = console.post(f"/gates/{run}/{gate['seq']}/answer", {"answer": text})

    people = [threading.Thread(target=answer, args=(text,)) for text in ("yes", "no")]
    for person in people:
        person.start()
    for person in people:
        person.join()
    (won,) = (text for text, given in answers.items() if given.status == 200)
    ended(console, run)
    other = "no" if won == "yes" else "yes"
    assert answers[other].status == 409
    late = console.post(f"/gates/{run}/{gate['seq']}/answer", {"answer": other})
    assert (late.status, late.problem) == (409, "already-answered")
    assert (late.data["answer"], late.data["answered_by"]) == (won, "anonymous@127.0.0.1 (api)")
    assert late.data["answered_at_ms"] > gate["opened_ms"]
    assert console.get(f"/gates/{run}/{gate['seq']}").problem == "already-answered"
    assert console.post(f"/gates/{run}/{gate['seq']}/answer", {"answer": won}).status == 200, "it may be repeated"
    assert console.post(f"/gates/{run}/99/answer", {"answer": "yes"}).problem == "no-question"


def test_the_same_idempotency_key_is_the_same_run(console: Console) -> None:
    body = {"agent": "work", "prompt": "once"}
    first, second = (console.post("/runs", body, **{"Idempotency-Key": "order-1"}) for _ in range(2))
    assert (first.status, first.data) == (second.status, second.data)
    other = console.post("/runs", {**body, "prompt": "twice"}, **{"Idempotency-Key": "order-1"})
    assert (other.status, other.problem) == (422, "refused")


def test_the_commands_of_a_run_do_not_work_in_the_directory_of_the_server(console: Console) -> None:
    output = ended(console, submitted(console, "work", "!"))["output"]
    where = Path(output.removesuffix(" !"))
    assert where != Path.cwd()
    assert console.stack.home in where.parents


@pytest.mark.parametrize("agent", ["/etc", "../agents/asking", "a/b", ".", "..", ".hidden", "", "a\\b", "x" * 500])
def test_the_path_of_a_folder_is_no_agent(console: Console, agent: str) -> None:
    answer = console.post("/runs", {"agent": agent})
    assert (answer.status, answer.problem) == (422, "invalid-request")
    assert [each["field"] for each in answer.data["errors"]] == ["body.agent"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"agent": "work", "promt": "x"}, "body.promt"),
        ({"agent": "work", "max_tokens": "5"}, "body.max_tokens"),
        ({"agent": "work", "prompt": 5}, "body.prompt"),
        ({}, "body.agent"),
        ([], "body"),
    ],
)
def test_a_wrong_field_is_refused_with_its_name(console: Console, body: Any, field: str) -> None:
    answer = console.post("/runs", body)
    assert (answer.status, answer.problem) == (422, "invalid-request")
    assert [each["field"] for each in answer.data["errors"]] == [field]


def test_what_is_no_json_is_a_bad_request(console: Console) -> None:
    headers = {"Content-Type": "application/json"}
    answer = console.request("POST", "/runs", headers=headers, raw=b'{"agent": ')
    assert (answer.status, answer.problem) == (400, "bad-request")


def test_an_agent_that_is_unknown_or_wrong_is_refused(console: Console) -> None:
    answer = console.post("/runs", {"agent": "wrok"})
    assert (answer.status, answer.problem) == (404, "not-found")
    answer = console.post("/runs", {"agent": "broken"})
    assert (answer.status, answer.problem) == (422, "invalid-agent")
    assert any(problem["line"] for problem in answer.data["problems"])


def test_agents_are_listed_and_shown(console: Console) -> None:
    kinds = {agent["name"]: agent["kind"] for agent in console.get("/agents").data}
    assert kinds.items() >= {"asking": "graph", "broken": "broken"}.items()
    assert console.get("/agents/asking").data["kind"] == "graph"
    source = console.get("/agents/asking/source").data
    assert (source["file"], source["text"], source["findings"]) == ("graph.yaml", ASKING, [])
    assert console.get("/agents/broken/source").data["findings"]
    assert console.get("/agents/asking/structure").data["nodes"]
    assert console.get("/agents/nobody").problem == "not-found"


def test_drawings_are_svg_that_can_run_nothing(console: Console) -> None:
    run = submitted(console, "work")
    ended(console, run)
    for path in ("/agents/asking/drawing", f"/runs/{run}/drawing"):
        answer = console.get(path)
        assert (answer.status, answer.headers["Content-Type"]) == (200, "image/svg+xml")
        assert answer.body.startswith(b"<svg")
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]


def test_runs_are_listed_in_pages_without_a_gap(console: Console) -> None:
    key = {"Content-Type": "application/x-ndjson"}
    rows = b"".join(json.dumps({"prompt": str(number)}).encode() + b"\n" for number in range(30))
    batch = console.request("POST", "/batches?agent=work", headers=key, raw=rows).data["id"]
    wait_until(lambda: console.get(f"/batches/{batch}").data["batch"]["state"] == "done", "the batch is done")
    seen: list[str] = []
    after = ""
    while True:
        page = console.get(f"/runs?limit=7&agent=work&status=completed{after}").data
        seen += [run["id"] for run in page["items"]]
        if page["after"] is None:
            break
        after = f"&after={page['after']}"
    with console.stack.client() as client:
        known = [run.id for run in client.runs(500, {"completed"}, agents=["work"])]
    assert seen == known
    assert len(seen) >= 30
    assert console.get("/runs?after=x").problem == "refused"


def test_a_run_is_paused_resumed_and_cancelled(console: Console) -> None:
    run = submitted(console, "asking")
    asked(console, run)
    assert console.post(f"/runs/{run}/pause", {"reason": "lunch"}).status == 202
    holds = wait_until(lambda: console.get(f"/runs/{run}").data["run"]["holds"], "it is paused")
    assert (holds[0]["reason"], holds[0]["by"]) == ("lunch", "anonymous@127.0.0.1 (api)")
    assert console.post(f"/runs/{run}/resume").status == 202
    wait_until(lambda: not console.get(f"/runs/{run}").data["run"]["holds"], "it goes on")
    assert console.post(f"/runs/{run}/cancel").status == 202
    assert ended(console, run)["run"]["status"] == "cancelled"
    answer = console.post(f"/runs/{run}/cancel")
    assert (answer.status, answer.problem) == (422, "refused")


def test_a_failed_run_is_retried_skipped_forked_and_compared(console: Console) -> None:
    run = submitted(console, "failing")
    assert ended(console, run)["run"]["status"] == "failed"
    assert console.post(f"/runs/{run}/retry").status == 202
    wait_until(lambda: console.get(f"/runs/{run}").data["run"]["retries"] == 1, "it is retried")
    assert ended(console, run)["run"]["status"] == "failed"
    fork = console.post(f"/runs/{run}/fork", {"at": 0, "state": {"greeting": "given"}})
    assert fork.status == 201, fork.body
    assert ended(console, fork.data["id"])["output"] == "given"
    compared = console.get(f"/runs/{run}/compare/{fork.data['id']}").data
    assert "status" in compared["changed"]
    skipped = console.post(f"/runs/{run}/skip", {"node": "fail", "value": {"greeting": "skipped"}})
    assert skipped.status == 200, skipped.body
    wait_until(lambda: console.get(f"/runs/{run}").data["output"] == "skipped", "it has gone on")


def test_rows_are_uploaded_as_they_come_and_begin_meanwhile(console: Console) -> None:
    go_on = threading.Event()

    def pieces() -> Iterator[bytes]:
        for number in range(60):  # more than the first chunk
            yield json.dumps({"prompt": str(number), "id": f"k{number}"}).encode()[:9]
            yield json.dumps({"prompt": str(number), "id": f"k{number}"}).encode()[9:] + b"\n"
        assert go_on.wait(60), "rows have begun"
        yield b'not json\n{"prompt": 5}\n{"prompt": "last", "id": "last"}'

    answers: list[Answer] = []
    headers = {"Content-Type": "application/x-ndjson"}

    def upload() -> None:
        path = "/batches?agent=work&id=upload-1&key=id&name=monday"
        answers.append(console.request("POST", path, headers=headers, raw=pieces()))

    thread = threading.Thread(target=upload)
    thread.start()
    wait_until(lambda: (console.get("/batches/upload-1").data.get("batch") or {}).get("completed"), "rows have ended")
    go_on.set()
    thread.join(60)
    (answer,) = answers
    assert answer.status == 201, answer.body
    assert {name: answer.data[name] for name in ("id", "added", "known", "bad")} == {
        "id": "upload-1", "added": 61, "known": 0, "bad": 2
    }  # fmt: skip
    assert [bad["place"] for bad in answer.data["bad_rows"]] == ["rows:61:1", "rows:62"]
    wait_until(lambda: console.get("/batches/monday").data["batch"]["state"] == "done", "it is done")
    lines = console.get("/batches/upload-1/results").body.decode().splitlines()
    results = [json.loads(line) for line in lines]
    assert [result["key"] for result in results] == [*(f"k{number}" for number in range(60)), "last"]
    assert results[60]["output"].endswith(" last")
    rest = console.get(f"/batches/upload-1/results?start={results[59]['position']}").body.decode().splitlines()
    assert [json.loads(line)["key"] for line in rest] == ["last"]
    again = console.request("POST", "/batches?agent=work&id=upload-1&key=id", headers=headers, raw=b'{"id": "last"}\n')
    assert again.data["bad_rows"][0]["message"].endswith("with other contents")


def test_a_batch_of_csv_is_steered_and_its_errors_are_grouped(console: Console) -> None:
    headers = {"Content-Type": "text/csv"}
    answer = console.request("POST", "/batches?agent=failing&parallel=1", headers=headers, raw=b"prompt\na\nb\n")
    batch = answer.data["id"]
    wait_until(lambda: console.get(f"/batches/{batch}").data["batch"]["failed"] == 2, "both have failed")
    assert [(group["node"], group["count"]) for group in console.get(f"/batches/{batch}/errors").data] == [("fail", 2)]
    assert console.post(f"/batches/{batch}/parallel", {"parallel": 7}).data["batch"]["plan"]["parallel"] == 7
    assert console.post(f"/batches/{batch}/retry-failed").data == {"rows": 2}
    wait_until(lambda: console.get(f"/batches/{batch}").data["batch"]["failed"] == 2, "both have failed again")
    assert console.post(f"/batches/{batch}/cancel").data == {"cancelled": False}
    assert batch in [each["batch"]["id"] for each in console.get("/batches").data]
    waiting = console.request("POST", "/batches?agent=asking&parallel=1", headers=headers, raw=b"prompt\na\nb\n").data[
        "id"
    ]
    assert console.post(f"/batches/{waiting}/pause").status == 200
    assert console.get(f"/batches/{waiting}").data["batch"]["state"] == "paused"
    assert console.post(f"/batches/{waiting}/resume").data["batch"]["state"] == "running"
    assert console.post(f"/batches/{waiting}/cancel").data == {"cancelled": True}
    wrong = console.request("POST", "/batches?agent=work", headers={"Content-Type": "text/html"}, raw=b"x")
    assert (wrong.status, wrong.problem) == (415, "unsupported-media-type")
    assert console.get("/batches/nothing-like-it").problem == "not-found"


def test_threads_sessions_signals_cache_limits_and_the_fleet(console: Console) -> None:
    run = submitted(console, "work", "hi", thread="ann")
    ended(console, run)
    assert console.get("/threads/work/ann").data["run"] == run
    assert [thread["name"] for thread in console.get("/threads?agent=work").data["items"]] == ["ann"]
    assert [each["id"] for each in console.get("/threads/work/ann/runs").data] == [run]
    assert console.request("DELETE", "/threads/work/ann").status == 204
    assert console.request("DELETE", "/threads/work/ann").problem == "not-found"
    assert console.get("/threads/work/ann/runs").problem == "not-found"
    assert console.get("/sessions?agent=work").data == {"items": [], "after": None}
    assert console.get("/sessions/work/nobody").problem == "not-found"
    receipt = console.post("/signals", {"name": "paid/1", "data": {"sum": 5}, "id": "s1"}).data
    assert (receipt["is_new"], receipt["reached"]) == (True, 0)
    assert console.post("/signals", {"name": "paid/1", "id": "s1"}).data["is_new"] is False
    assert console.get("/signals").data[0]["name"] == "paid/1"
    assert console.get("/cache").data == []
    assert console.request("DELETE", "/cache").data == {"removed": 0}
    assert console.request("DELETE", "/cache?node=x").problem == "refused"
    assert console.get("/limits").data == []
    assert {queue["name"]: queue["workers"] for queue in console.get("/queues").data}["scripts"] == 1
    assert [worker["name"].partition("@")[0] for worker in console.get("/workers").data] == ["worker"]


def test_the_deployment_is_paused_and_resumed(console: Console) -> None:
    assert console.get("/deployment/hold").data == {"held": None}
    try:
        assert console.post("/deployment/pause", {"reason": "incident"}).status == 202
        held = console.get("/deployment/hold").data["held"]
        assert (held["reason"], held["by"]) == ("incident", "anonymous@127.0.0.1 (api)")
    finally:
        assert console.post("/deployment/resume").status == 202
    assert console.get("/deployment/hold").data == {"held": None}


@pytest.mark.parametrize(
    "path", ["", "/history", "/state", "/trace", "/tree", "/lineage", "/late-results", "/drawing", "/gates"]
)
def test_a_run_that_does_not_exist_is_not_found(console: Console, path: str) -> None:
    for run in ("x" * 12, "zzzzzz", "short", "a%20b", "%00"):
        answer = console.get(f"/runs/{run}{path}")
        assert (answer.status, answer.problem) == (404, "not-found"), answer.body

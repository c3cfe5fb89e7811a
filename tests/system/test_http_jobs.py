"""Jobs over HTTP and on the command line: counted, submitted, carried out by a scheduler, stopped; by namespace."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from sleipnir import Client
from sleipnir.access.records import EVERY
from sleipnir.errors import JobNotFound, UsageError
from tests.console import Console, console_of
from tests.processes import RedisServer, Stack, write_agent
from tests.waiting import wait_until

ASKS = """
name: asks
version: sleipnir/1
start: sure
state: {n: {type: int, default: 1}}
nodes:
  sure: {type: approval, question: "sure?", options: [yes, no], routes: {yes: done, no: done}, on_other: done}
  done: {type: end, output: "{{initial_prompt}} {{n}}"}
"""
BREAKS = """
name: breaks
version: sleipnir/1
start: work
nodes:
  work: {type: script, script: work.sh, next: done}
  done: {type: end, output: mended}
"""


@pytest.fixture(scope="module")
def stack(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    home = tmp_path_factory.mktemp("jobs")
    write_agent(home / "agents" / "asks", ASKS)
    write_agent(home / "agents" / "breaks", BREAKS, **{"work_sh": "exit 3"})
    with Stack(redis_server, home, key_prefix="httpjobs", agents_dir=home / "agents") as found:
        yield found


@pytest.fixture(scope="module")
def tokens(stack: Stack) -> dict[str, str]:
    users = {
        "operator": {"default": "operator"},
        "looker": {"default": "operator", EVERY: "viewer"},
        "all": {EVERY: "admin"},
    }
    with stack.client() as client:
        for name, roles in users.items():
            client.access.add_user(name, None, roles)
        return {name: client.access.create_token(name).text for name in users}


@pytest.fixture(scope="module")
def console(stack: Stack, tokens: dict[str, str]) -> Iterator[Console]:
    stack.start_scheduler()
    stack.start_worker()
    with console_of(stack) as running:
        yield running


def me(tokens: dict[str, str], name: str = "operator") -> dict[str, str]:
    return {"Authorization": f"Bearer {tokens[name]}"}


def test_a_job_is_counted_submitted_repeated_and_undone(console: Console, stack: Stack, tokens: dict[str, str]) -> None:
    with stack.client() as client:
        runs = [client.submit("asks", "x", tags={"set": "one"}) for _ in range(3)]
        wait_until(lambda: all(run.status == "waiting" for run in runs), "all ask")
    asked = {"action": "cancel", "filter": {"tag": ["set=one"]}}
    seen = console.request("POST", "/jobs/preview", asked, me(tokens))
    assert (seen.status, seen.data["count"], seen.data["is_exact"]) == (200, 3, True)
    key = {"Idempotency-Key": "k1", **me(tokens)}
    made = console.request("POST", "/jobs", {**asked, "why": "wrong input", "delay_s": 3600}, key)
    assert (made.status, made.headers["Location"]) == (201, f"/api/v1/jobs/{made.data['id']}")
    again = console.request("POST", "/jobs", {**asked, "why": "wrong input", "delay_s": 3600}, key)
    assert again.data == made.data
    path = f"/jobs/{made.data['id']}"
    assert console.request("GET", path, None, me(tokens)).data["progress"]["state"] == "waiting"
    undone = console.request("POST", f"{path}/stop", {"why": "no"}, me(tokens))
    assert (undone.data["progress"]["state"], undone.data["progress"]["stopped_why"]) == ("stopped", "no")
    listed = console.request("GET", "/jobs", None, me(tokens))
    assert made.data["id"] in {job["id"] for job in listed.data["items"]}
    assert {run.status for run in runs} == {"waiting"}

    done = console.request("POST", "/jobs", {**asked, "delay_s": 0}, me(tokens)).data["id"]
    found = wait_until(lambda: ended(console, tokens, done), "it is done")
    assert (found["done"], found["refused"], found["left"]) == (3, 0, 0)
    for run in runs:
        assert run.wait(30).status == "cancelled"
    assert console.request("GET", f"/jobs/{done}/refusals", None, me(tokens)).data == []
    with stack.client() as client:
        entries = [
            (entry.what, entry.reason) for entry in client.access.audit() if entry.on == f"job {made.data['id']}"
        ]
    assert entries == [("job submitted", "wrong input"), ("job stopped", "no")]


def ended(console: Console, tokens: dict[str, str], job: str) -> dict[str, int] | None:
    progress: dict[str, int] = console.request("GET", f"/jobs/{job}", None, me(tokens, "all")).data["progress"]
    return progress if progress["state"] in ("done", "stopped") else None  # type: ignore[comparison-overlap]


def test_other_namespaces_are_not_touched(console: Console, stack: Stack, tokens: dict[str, str]) -> None:
    with stack.client() as client:
        theirs = client.submit("asks", "x", namespace="theirs", tags={"set": "two"})
        wait_until(lambda: theirs.status == "waiting", "it asks")
    for body in ({"filter": {"tag": ["set=two"]}}, {"runs": [theirs.id]}):
        seen = console.request("POST", "/jobs/preview", {"action": "cancel", **body}, me(tokens))
        assert (seen.status, seen.data["count"]) == (200, 0)
    everywhere = {"action": "cancel", "filter": {"namespace": "*"}}
    for who, status in (("operator", 200), ("looker", 403)):
        answer = console.request("POST", "/jobs/preview", everywhere, me(tokens, who))
        assert answer.status == status
    made = console.request(
        "POST", "/jobs", {"action": "pause", "filter": {"namespace": "theirs"}, "delay_s": 3600}, me(tokens, "all")
    )
    assert made.status == 201
    path = f"/jobs/{made.data['id']}"
    assert console.request("GET", path, None, me(tokens)).status == 404
    assert console.request("POST", f"{path}/stop", None, me(tokens, "looker")).status == 403
    assert console.request("GET", path, None, me(tokens, "looker")).status == 200
    assert console.request("POST", f"{path}/stop", None, me(tokens, "all")).status == 200
    assert theirs.status == "waiting"


def test_failed_runs_go_on_with_a_mended_definition(console: Console, stack: Stack, tokens: dict[str, str]) -> None:
    """A client over HTTP forks a group of failures onto the agent as it is now; each once, also if it is repeated."""
    with stack.client() as client:
        runs = [client.submit("breaks") for _ in range(3)]
        assert {run.wait(60).status for run in runs} == {"failed"}
        [group] = client.failures(agent="breaks")
    write_agent(Path(stack.settings.agents_dir or "") / "breaks", BREAKS, work_sh="echo '{}'")
    with Client(f"http://127.0.0.1:{console.port}", token=tokens["operator"]) as client:
        seen = client.jobs.preview("fork", fingerprint=group.fingerprint)
        assert seen.count == 3 and set(seen.runs) == {run.id for run in runs}
        with pytest.raises(UsageError, match="has no node 'nothing'"):
            client.jobs.submit("fork", fingerprint=group.fingerprint, agent="breaks", before="nothing")
        job = client.jobs.submit(
            "fork", fingerprint=group.fingerprint, agent="breaks", before="work", why="mended", delay_s=0
        )
        wait_until(lambda: client.jobs.get(job.id).is_over, "it is done")
        assert client.jobs.refusals(job.id) == []
        assert client.jobs.get(job.id).progress.done == 3
        assert job.id in {each.id for each in client.jobs.page()}
        with pytest.raises(JobNotFound):
            client.jobs.get("none")
    with stack.client() as client:
        forks = [info for info in client.runs(agents=["breaks"]) if info.forked_from is not None]
        assert sorted(info.forked_from or "" for info in forks) == sorted(run.id for run in runs)
        for info in forks:
            over = client.run(info.id).wait(30)
            assert over.status == "completed", over.error


def test_the_command_line_submits_shows_and_stops(stack: Stack, console: Console) -> None:
    with stack.client() as client:
        run = client.submit("asks", "x", tags={"set": "cli"})
        wait_until(lambda: run.status == "waiting", "it asks")
    count = stack.sleipnir("job", "submit", "cancel", "--tag", "set=cli", "--dry-run")
    assert count.stdout.strip() == "1"
    made = stack.sleipnir("job", "submit", "cancel", "--tag", "set=cli", "--delay", "3600", "--why", "tidy", "--json")
    job = json.loads(made.stdout)["id"]
    assert "tidy" in stack.sleipnir("job", "ls").stdout
    shown = stack.sleipnir("job", "show", job).stdout
    assert "cancel" in shown and "waiting" in shown
    assert json.loads(stack.sleipnir("job", "stop", job, "--json").stdout)["progress"]["state"] == "stopped"
    now = stack.sleipnir("job", "submit", "cancel", "--run", run.id, "--delay", "0").stdout.strip()
    assert run.wait(30).status == "cancelled"
    with stack.client() as client:
        wait_until(lambda: client.jobs.get(now).is_over, "it is done")
    shown = json.loads(stack.sleipnir("job", "show", now, "--json").stdout)
    assert (shown["progress"]["done"], shown["refusals"]) == (1, [])

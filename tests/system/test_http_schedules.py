"""Schedules over HTTP: added, listed in pages, looked at, changed, paused, run and removed; by role and namespace, and
in the audit."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from sleipnir.access.records import EVERY
from tests.console import Console, console_of
from tests.processes import RedisServer, Stack, write_agent

SAYS = """
name: says
version: sleipnir/1
start: done
state: {n: {type: int, default: 1}}
nodes:
  done: {type: end, output: "{{initial_prompt}} {{n}}"}
"""


@pytest.fixture(scope="module")
def stack(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    home = tmp_path_factory.mktemp("schedules")
    write_agent(home / "agents" / "says", SAYS)
    with Stack(redis_server, home, key_prefix="httpschedules", agents_dir=home / "agents") as found:
        yield found


@pytest.fixture(scope="module")
def tokens(stack: Stack) -> dict[str, str]:
    """Of an operator of the server's namespace, of one who may look everywhere besides, and of one who may do all."""
    users = {
        "operator": {"default": "operator"},
        "looker": {"default": "operator", EVERY: "viewer"},
        "all": {EVERY: "admin"},
    }
    with stack.client() as client:
        for name, roles in users.items():
            client.access.add_user(name, None, roles)
        return {name: f"Bearer {client.access.create_token(name).text}" for name in users}


@pytest.fixture(scope="module")
def console(stack: Stack, tokens: dict[str, str]) -> Iterator[Console]:
    stack.start_scheduler()
    with console_of(stack) as running:
        yield running


def test_a_schedule_is_added_looked_at_changed_fired_and_removed(
    console: Console, stack: Stack, tokens: dict[str, str]
) -> None:
    me = {"Authorization": tokens["operator"]}
    body = {"name": "report", "agent": "says", "prompt": "hi", "cron": "0 7 * * 1-5", "tz": "Europe/Berlin"}
    made = console.request("POST", "/schedules", {**body, "state": {"n": 3}, "tags": {"customer": "acme"}}, me)
    assert (made.status, made.headers["Location"]) == (201, "/api/v1/schedules/report")
    assert (made.data["schedule"]["plan"]["cron"], len(made.data["schedule"]["next"])) == ("0 7 * * 1-5", 5)
    again = console.request("POST", "/schedules", body, me)
    assert (again.status, again.problem) == (422, "refused")
    wrong = console.request("POST", "/schedules", {"name": "x", "agent": "says", "cron": "61 * * * *"}, me)
    assert (wrong.status, wrong.problem) == (422, "refused") and "minute" in wrong.data["detail"]

    fired = console.request("POST", "/schedules/report/run-now", None, me)
    assert fired.status == 201
    with stack.client() as client:
        run = client.run(fired.data["id"])
        assert run.wait(60).status == "completed" and run.output == "hi 3"
        assert run.info().tags == {"customer": "acme"}
    changed = console.request(
        "PATCH", "/schedules/report", {"cron": "0 8 * * *", "prompt": "ho", "reason": "later"}, me
    )
    assert (changed.status, changed.data["schedule"]["plan"]["cron"]) == (200, "0 8 * * *")
    assert changed.data["schedule"]["plan"]["tz"] == "Europe/Berlin"
    paused = console.request("POST", "/schedules/report/pause", {"reason": "the host moves"}, me)
    assert paused.data["schedule"]["state"] == "paused"
    assert console.request("POST", "/schedules/report/resume", None, me).data["schedule"]["state"] == "active"
    shown = console.get("/schedules/report", **me).data
    assert [(each["id"], each["status"]) for each in shown["runs"]] == [(run.id, "completed")]
    assert console.request("DELETE", "/schedules/report?reason=done", None, me).status == 204
    assert console.get("/schedules/report", **me).status == 404

    with stack.client() as client:
        entries = list(client.access.audit(on="schedule report"))
    assert [entry.what.removeprefix("schedule ") for entry in entries] == [
        "added", "fired", "changed", "paused", "resumed", "removed",
    ]  # fmt: skip
    assert {entry.by.partition("/")[0] for entry in entries} == {"operator"}
    by_what = {entry.what: entry for entry in entries}
    assert by_what["schedule changed"].before["cron"] == "0 7 * * 1-5"
    assert (by_what["schedule changed"].after["cron"], by_what["schedule changed"].reason) == ("0 8 * * *", "later")
    assert by_what["schedule paused"].reason == "the host moves"
    assert by_what["schedule fired"].after == {"run": run.id}


def test_schedules_are_listed_in_pages(console: Console, stack: Stack, tokens: dict[str, str]) -> None:
    names = [f"page-{number}" for number in range(5)]
    with stack.client() as client:
        for name in reversed(names):
            client.schedule(name, "says", every="1h")
        found: list[str] = []
        after = ""
        while True:
            page = console.get(f"/schedules?limit=2{after}", Authorization=tokens["operator"]).data
            found += [each["name"] for each in page["items"]]
            assert len(page["items"]) <= 2
            if page["after"] is None:
                break
            after = f"&after={page['after']}"
        assert found == names
        for name in names:
            client.open_schedule(name).remove()


def test_a_schedule_of_another_namespace_is_not_there(console: Console, stack: Stack, tokens: dict[str, str]) -> None:
    with stack.client() as client:
        client.schedule("foreign", "says", every="1h", namespace="other")
    requests = [
        ("GET", "", None), ("PATCH", "", {"every": "2h"}), ("POST", "/pause", None), ("POST", "/resume", None),
        ("POST", "/run-now", None), ("DELETE", "", None),
    ]  # fmt: skip
    for method, path, body in requests:
        answer = console.request(method, f"/schedules/foreign{path}", body, {"Authorization": tokens["operator"]})
        assert (answer.status, answer.problem) == (404, "not-found")
    # One who may look everywhere, and steer here only, looks and does not steer.
    for method, path, body in requests:
        answer = console.request(method, f"/schedules/foreign{path}", body, {"Authorization": tokens["looker"]})
        assert answer.status == (200 if method == "GET" else 403), method
    assert [each["name"] for each in console.get("/schedules", Authorization=tokens["operator"]).data["items"]] == []
    assert console.get("/schedules?namespace=other", Authorization=tokens["operator"]).status == 404
    for namespace in ("other", "*"):
        page = console.get(f"/schedules?namespace={namespace}", Authorization=tokens["looker"]).data
        assert [each["name"] for each in page["items"]] == ["foreign"]
    assert console.request("DELETE", "/schedules/foreign", None, {"Authorization": tokens["all"]}).status == 204


def test_a_run_of_another_namespace_is_not_steered_by_a_role_here(
    console: Console, stack: Stack, tokens: dict[str, str]
) -> None:
    with stack.client() as client:
        run = client.submit("says", namespace="other").id
    path = f"/runs/{run}/cancel"
    assert console.request("POST", path, None, {"Authorization": tokens["operator"]}).status == 404
    refused = console.request("POST", path, None, {"Authorization": tokens["looker"]})
    assert (refused.status, refused.problem) == (403, "forbidden")
    assert console.get(f"/runs/{run}", Authorization=tokens["looker"]).status == 200


def test_what_the_command_line_changes_is_in_the_audit(console: Console, stack: Stack) -> None:
    def sleipnir(*words: str) -> None:
        done = stack.sleipnir("schedule", *words)
        assert done.returncode == 0, done.stderr

    sleipnir("add", "typed", "says", "--every", "1h")
    sleipnir("edit", "typed", "--every", "2h", "--reason", "too often")
    sleipnir("rm", "typed", "--reason", "not needed")
    exported = stack.sleipnir("audit", "export", "--on", "schedule typed")
    entries = [json.loads(line) for line in exported.stdout.splitlines()]
    assert [(entry["what"], entry["reason"]) for entry in entries] == [
        ("schedule added", None), ("schedule changed", "too often"), ("schedule removed", "not needed"),
    ]  # fmt: skip
    assert all(entry["by"].endswith("(cli)") for entry in entries)
    assert (entries[1]["before"]["every_ms"], entries[1]["after"]["every_ms"]) == (3_600_000, 7_200_000)


def test_a_schedule_of_a_batch_is_added_fired_and_shown(console: Console, stack: Stack, tokens: dict[str, str]) -> None:
    me = {"Authorization": tokens["operator"]}
    batch = {"rows": [{"prompt": "x", "n": "7"}], "as_text": True, "priority": 5}
    body = {"name": "nightly", "agent": "says", "every": "1h", "tags": {"customer": "acme"}, "batch": batch}
    made = console.request("POST", "/schedules", body, me)
    assert made.status == 201, made.data
    assert made.data["schedule"]["plan"]["batch"] == {
        "rows": 1, "name": "nightly", "priority": 5, "parallel": None, "canary": None, "max_cost_usd": None,
        "max_tokens": None,
    }  # fmt: skip
    fired = console.request("POST", "/schedules/nightly/run-now", None, me)
    assert (fired.status, fired.headers["Location"]) == (201, f"/api/v1/batches/{fired.data['id']}")
    with stack.client() as client:
        assert client.open_batch(fired.data["id"]).info().tags == {"customer": "acme"}
    [shown] = console.get("/schedules/nightly", **me).data["runs"]
    assert (shown["id"], shown["status"]) == (fired.data["id"], None) and shown["batch"] is not None
    bad = {**body, "name": "bad", "batch": {"rows": [{"prompt": 7}]}}
    refused = console.request("POST", "/schedules", bad, me)
    assert refused.status in (400, 422) and "row 1" in refused.data["detail"]
    assert console.get("/schedules/bad", **me).status == 404
    assert console.request("DELETE", "/schedules/nightly", None, me).status == 204

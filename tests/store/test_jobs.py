"""Jobs on a real Redis: each run is asked once, whatever is repeated, disputed or stopped meanwhile."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from sleipnir.client.client import Client
from sleipnir.client.jobs import Jobs
from sleipnir.errors import JobNotFound, UsageError
from sleipnir.jobs.records import PAGE, JobInfo, JobPlan, filter_of
from sleipnir.runs.actor import Actor
from sleipnir.runs.run import RunSpec
from sleipnir.settings import Settings
from sleipnir.store.store import Store
from sleipnir_scheduler.services.deliveries import Deliveries
from sleipnir_scheduler.services.jobs import JobPieces
from tests.model_store import graph_of
from tests.store.test_advance import advance_of

ASKS = """
name: agent
start: ask
nodes:
  ask: {type: input, question: "{{initial_prompt}}?", next: e}
  e: {type: end, output: "{{v}}"}
"""
SPEC = RunSpec("agent", "d" * 64)
ME = Actor("ann", "desk", "api", "operator")
BY = "ann@desk (api)"


class World:
    """A scheduler without workers, and runs that each wait for an answer."""

    def __init__(self, store: Store, runs: int = 3, **spec: Any) -> None:
        self.store = store
        self.advance = advance_of(store, ASKS)
        graphs: Any = SimpleNamespace(get=lambda *_: graph_of(ASKS))
        self.deliveries = Deliveries(store.effects, graphs, max_state_bytes=1_000_000)
        self.settings = Settings(
            redis_url=store.url,
            broker_url=store._settings.broker_url,
            key_prefix=store.keys.prefix,
            partitions=store.keys.partitions,
        )
        self.pieces = JobPieces(store, self.settings)
        self.jobs = Jobs(store, self.settings, ME, lambda: None)  # type: ignore[arg-type, return-value]
        self.runs = [f"run{number:09d}" for number in range(runs)]
        for run in self.runs:
            store.runs.create(run, replace(SPEC, **spec), {"initial_prompt": "well"})
        self.go_on()

    def go_on(self) -> None:
        while self.advance.run_once() > 0 or self.deliveries.run_once(range(self.store.keys.partitions)) > 0:
            pass

    def step(self, pieces: JobPieces | None = None) -> int:
        return (pieces or self.pieces).run_once(range(self.store.keys.partitions))

    def carry_out(self) -> None:
        while self.store.jobs.unfinished():
            self.step()
        self.go_on()

    def statuses(self) -> set[str]:
        return {info.status for info in self.store.runs.find(self.runs) if info is not None}

    def requests(self) -> int:
        """The entries of all inboxes."""
        client, keys = self.store._client, self.store.keys
        return sum(client.xlen(keys.of_partition(number).inbox) for number in range(keys.partitions))


def counts(job: JobInfo) -> tuple[str, int, int, int]:
    return job.progress.state, job.progress.done, job.progress.left, job.progress.refused


def test_a_job_waits_and_then_cancels_all_runs_that_fit(store: Store) -> None:
    world = World(store, PAGE + 5)
    seen = world.jobs.preview("cancel", agents=["agent"])
    assert (seen.count, seen.is_exact, len(seen.runs), seen.by_status) == (PAGE + 5, True, 20, {"waiting": 20})
    job = world.jobs.submit("cancel", agents=["agent"], why="a bad day", delay_s=3600)
    assert (job.plan.expected, job.plan.why, job.plan.by) == (PAGE + 5, "a bad day", BY)
    assert counts(job) == ("waiting", 0, 0, 0)
    assert world.step() == 0 and world.statuses() == {"waiting"}
    world.jobs.stop(job.id)
    job = world.jobs.submit("cancel", agents=["agent"], delay_s=0)
    store.runs.create("later00000ab", SPEC, {"initial_prompt": "well"})
    world.carry_out()
    assert counts(world.jobs.get(job.id)) == ("done", PAGE + 5, 0, 0)
    assert world.statuses() == {"cancelled"}
    assert store.runs.info("later00000ab").status == "waiting", "it was submitted after the job"
    [change] = store.runs.info(world.runs[0]).changes
    assert (change.what, change.by) == ("cancelled", BY)


def test_a_job_that_is_stopped_before_it_begins_has_no_effect(store: Store) -> None:
    world = World(store)
    job = world.jobs.submit("pause", delay_s=3600)
    stopped = world.jobs.stop(job.id, "not these")
    assert counts(stopped) == ("stopped", 0, 0, 0)
    assert (stopped.progress.stopped_by, stopped.progress.stopped_why) == (BY, "not these")
    assert world.jobs.stop(job.id) == stopped, "again changes nothing"
    assert world.step() == 0 and store.jobs.unfinished() == 0 and world.statuses() == {"waiting"}


def test_a_piece_that_is_sent_twice_asks_each_run_once(store: Store) -> None:
    """A scheduler dies after it has sent the requests, and before it has counted them."""
    world = World(store)
    job = world.jobs.submit("cancel", delay_s=0)
    assert world.step() == 1
    stored = store.jobs.get(job.id)
    assert {target.run for target in stored.progress.page} == set(world.runs)
    assert world.pieces._requests.send(stored) == []
    assert world.requests() == 3
    assert world.step(JobPieces(store, world.settings)) == 1
    assert world.requests() == 3
    assert counts(world.jobs.get(job.id)) == ("done", 3, 0, 0)


def test_a_run_that_fails_again_is_not_retried_again_by_the_same_piece(store: Store) -> None:
    world = World(store)
    for run in world.runs:
        store._client.hset(store.keys.of_run(run).run, mapping={"status": "failed"})
    job = world.jobs.submit("retry", runs=world.runs, delay_s=0)
    world.step()
    stored = store.jobs.get(job.id)
    assert world.pieces._requests.send(stored) == []
    for run in world.runs:  # retried, and failed once more
        store._client.hdel(store.keys.of_run(run).run, "retrying")
    asked = world.requests()
    assert world.pieces._requests.send(stored) == [] and world.requests() == asked == 3


def test_two_schedulers_that_dispute_a_job_count_once(store: Store) -> None:
    world = World(store)
    job = world.jobs.submit("pause", why="too hot", delay_s=0)
    world.step()
    stored, other = store.jobs.get(job.id), JobPieces(store, world.settings)
    assert other._send(stored) is True
    assert world.pieces._send(stored) is False
    assert counts(world.jobs.get(job.id)) == ("done", 3, 0, 0)
    world.go_on()
    assert world.statuses() == {"paused"}
    assert [hold.reason for hold in store.runs.info(world.runs[0]).holds] == ["too hot"]


def test_a_job_that_is_stopped_in_a_piece_counts_what_it_has_asked(store: Store) -> None:
    world = World(store, PAGE + 5)
    job = world.jobs.submit("cancel", delay_s=0)
    world.step()
    stored = store.jobs.get(job.id)
    assert counts(world.jobs.stop(job.id, "enough"))[0] == "stopping"
    assert world.pieces._send(stored) is False, "its decision is based on the job before the stop"
    assert world.step() == 1
    assert counts(world.jobs.get(job.id)) == ("stopped", PAGE, 0, 0)
    world.go_on()
    infos = store.runs.find(world.runs)
    assert sum(info is not None and info.status == "cancelled" for info in infos) == PAGE


def test_runs_that_do_not_take_the_request_are_named_with_the_reason(store: Store) -> None:
    world = World(store)
    first, second, third = world.runs
    job = world.jobs.submit("cancel", runs=[first, second, "nosuchrun000", third], delay_s=0)
    world.step()
    store.runs.cancel(second)
    world.go_on()
    world.carry_out()
    assert counts(world.jobs.get(job.id)) == ("done", 2, 0, 2)
    why = {refusal.run: refusal.why for refusal in world.jobs.refusals(job.id)}
    assert why == {"nosuchrun000": "there is no such run", second: "it is cancelled"}


def test_runs_of_another_namespace_are_not_there(store: Store) -> None:
    world = World(store, namespace="theirs")
    with pytest.raises(UsageError, match="no run fits"):
        world.jobs.submit("cancel", runs=world.runs)
    with pytest.raises(UsageError, match="no run fits"):
        world.jobs.submit("cancel")
    job = world.jobs.submit("cancel", runs=world.runs, namespace="*", delay_s=0)
    world.carry_out()
    assert counts(world.jobs.get(job.id)) == ("done", 3, 0, 0)


def test_only_what_a_person_holds_is_resumed(store: Store) -> None:
    world = World(store)
    for run in world.runs[:2]:
        store.runs.pause(run, "bob", reason="lunch")
    world.go_on()
    job = world.jobs.submit("resume", delay_s=0)
    world.carry_out()
    assert counts(world.jobs.get(job.id)) == ("done", 2, 0, 0)
    assert world.statuses() == {"waiting"}


def test_a_rate_bounds_the_requests(store: Store) -> None:
    world = World(store, 9)
    job = world.jobs.submit("cancel", delay_s=0, rate=4)
    world.step()
    assert len(store.jobs.get(job.id).progress.page) == 4
    world.step()
    assert world.step() == 0, "the next piece is due a second later"
    assert counts(world.jobs.get(job.id)) == ("running", 4, 0, 0)


def test_the_same_request_is_the_same_job(store: Store) -> None:
    world = World(store)
    job = world.jobs.submit("cancel", delay_s=3600, request_id="r1")
    assert world.jobs.submit("cancel", delay_s=3600, request_id="r1") == job
    with pytest.raises(UsageError, match="something else"):
        world.jobs.submit("pause", request_id="r1")


def test_changes_are_in_the_audit(store: Store) -> None:
    world = World(store)
    job = world.jobs.submit("cancel", agents=["agent"], why="a bad day", delay_s=3600)
    world.jobs.stop(job.id, "no")
    with Client(world.settings, by=ME) as client:
        found = [entry for entry in client.access.audit() if entry.on == f"job {job.id}"]
    assert [(entry.what, entry.by, entry.reason) for entry in found] == [
        ("job submitted", BY, "a bad day"),
        ("job stopped", BY, "no"),
    ]
    assert (found[0].after["action"], found[0].after["expected"]) == ("cancel", 3)
    assert found[0].after["filter"]["agents"] == ["agent"]


def test_jobs_are_listed_newest_first_and_expire(store: Store) -> None:
    world = World(store)
    made = [world.jobs.submit("pause", delay_s=3600, request_id=str(number)).id for number in range(3)]
    page = world.jobs.page(500)
    assert {info.id for info in page} == set(made) and page.after is None
    assert [info.plan.at_ms for info in page] == sorted((info.plan.at_ms for info in page), reverse=True)
    assert list(world.jobs.page(500, namespace="theirs")) == []
    for job in made:
        world.jobs.stop(job)
        assert 0 < store._client.pttl(store.keys.of_job(job).job) <= store._retention_ms
        store._client.delete(store.keys.of_job(job).job)
    later_ms = store.now_ms() + 1
    assert sum(store.jobs.forget_expired(number, later_ms, 10) for number in range(store.keys.partitions)) == 3
    assert list(world.jobs.page(500)) == []


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"action": "delete"}, "is no action of a job"),
        ({"action": "retry", "status": ["running"]}, "no run of these statuses can retry"),
        ({"action": "cancel", "rate": 0}, "the rate of a job"),
        ({"action": "cancel", "timeout": 3}, "a timeout is for a job that pauses"),
        ({"action": "cancel", "before": "ask"}, "before: only a job that forks"),
        ({"action": "cancel", "fresh_children": True}, "fresh_children is for a job that retries"),
        ({"action": "cancel", "runs": ["x"], "agents": ["agent"]}, "not both"),
        ({"action": "cancel", "runs": []}, "1 to 1,000 runs"),
        ({"action": "cancel", "delay_s": -1}, "begins after"),
    ],
)
def test_what_no_job_is_is_refused(store: Store, given: dict[str, Any], match: str) -> None:
    world = World(store)
    with pytest.raises(UsageError, match=match):
        world.jobs.submit(**given)
    assert store.jobs.unfinished() == 0


def test_a_job_that_cannot_be_read_waits_and_the_others_go_on(store: Store) -> None:
    world = World(store)
    bad = world.jobs.submit("cancel", delay_s=0)
    good = world.jobs.submit("pause", delay_s=0)
    store._client.hset(store.keys.of_job(bad.id).job, "plan", "{")
    for _ in range(5):
        world.step()
    assert counts(world.jobs.get(good.id)) == ("done", 3, 0, 0)
    due = store.keys.of_partition(store.keys.of_job(bad.id).partition).jobs_due
    assert store._client.zscore(due, bad.id) > store.now_ms()
    listed = {info.id: info for info in world.jobs.page(10, namespace="*")}
    assert listed[bad.id].unreadable is not None


def test_a_job_that_is_not_there(store: Store) -> None:
    world = World(store, 0)
    for ask in (world.jobs.get, world.jobs.stop, world.jobs.refusals):
        with pytest.raises(JobNotFound, match="no job 'none'"):
            ask("none")


def test_a_plan_of_a_newer_release_keeps_what_this_one_knows() -> None:
    plan = JobPlan("cancel", "default", BY, 1, 2, filter={"agents": ["a"], "color": "red"})
    assert filter_of(plan.filter).agents == frozenset({"a"})

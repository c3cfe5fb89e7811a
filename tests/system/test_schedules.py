"""Schedules on real schedulers, workers and a real Redis: from the command line, from programs, and under kills."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from sleipnir.client.async_client import AsyncClient
from sleipnir.client.client import Client
from sleipnir.client.scheduled_rows import ScheduleRows
from sleipnir.errors import AgentNotFound, ScheduleNotFound, UsageError
from sleipnir.schedules.records import Overlap
from tests.processes import RedisServer, Stack, wait_until, write_agent

SAYS = """
name: says
version: sleipnir/1
start: done
state: {n: {type: int, default: 1}}
nodes:
  done: {type: end, output: "{{initial_prompt}} {{n}}"}
"""
TYPED = """
name: typed
version: sleipnir/1
start: done
state: {n: {type: int, default: 1}, id: string}
nodes:
  done: {type: end, output: "{{initial_prompt}} {{n}}"}
"""
ASKS = """
name: asks
version: sleipnir/1
start: ask
nodes:
  ask: {type: input, question: "who?", state_updates: {who: "{{input}}"}, next: done}
  done: {type: end, output: "{{who}}"}
"""


@pytest.fixture
def own_stack(redis_server: RedisServer, tmp_path: Path) -> Iterator[Stack]:
    write_agent(tmp_path / "agents" / "says", SAYS)
    write_agent(tmp_path / "agents" / "asks", ASKS)
    write_agent(tmp_path / "agents" / "typed", TYPED)
    fast = {"owner_ttl_s": 0.5, "agents_dir": tmp_path / "agents"}
    with Stack(redis_server, tmp_path / "home", key_prefix=f"sch-{tmp_path.name}", **fast) as stack:
        yield stack


def sleipnir(stack: Stack, *words: str) -> str:
    done = stack.sleipnir(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def times_of(client: Client, name: str) -> Counter[int]:
    """How many stored runs each fire has."""
    found = client.runs(10_000)
    specs = [client.store.runs.spec(info.id) for info in found]
    return Counter(spec.fired_ms for spec in specs if spec.schedule == name)


def test_a_person_adds_looks_at_changes_and_removes_a_schedule(own_stack: Stack) -> None:
    stack = own_stack
    stack.start_scheduler()
    assert sleipnir(stack, "schedule", "add", "hourly", "says", "hi", "--every", "1h", "--state", "n=3") == "hourly\n"
    cron = ("--cron", "0 7 * * 1-5", "--tz", "Europe/Berlin", "--overlap", "queue", "--jitter", "5m")
    added = json.loads(sleipnir(stack, "schedule", "add", "report", "asks", *cron, "--catch-up", "1d", "--json"))
    assert (added["plan"]["cron"], added["plan"]["catch_up_ms"], len(added["next"])) == ("0 7 * * 1-5", 86_400_000, 5)

    run = sleipnir(stack, "schedule", "run-now", "hourly").strip()
    with stack.client() as client:
        assert client.run(run).wait(60).status == "completed"
        assert client.run(run).output == "hi 3"
    assert "schedule  hourly" in sleipnir(stack, "show", run)
    assert json.loads(sleipnir(stack, "show", run, "--json"))["schedule"] == "hourly"
    table = sleipnir(stack, "schedule", "ls")
    assert "every 1h" in table and "0 7 * * 1-5 Europe/Berlin" in table and f"{run} completed" in table

    sleipnir(stack, "schedule", "edit", "hourly", "--prompt", "ho", "--state", "n=4", "--every", "2h")
    again = sleipnir(stack, "schedule", "run-now", "hourly").strip()
    with stack.client() as client:
        client.run(again).wait(60)
        assert client.run(again).output == "ho 4"
    shown = json.loads(sleipnir(stack, "schedule", "show", "hourly", "--json"))
    assert [each["id"] for each in shown["runs"]] == [again, run]
    assert {each["status"] for each in shown["runs"]} == {"completed"}
    assert shown["plan"]["every_ms"] == 7_200_000 and shown["origin"]["edited_by"]

    sleipnir(stack, "schedule", "pause", "hourly", "--reason", "the host moves")
    text = sleipnir(stack, "schedule", "show", "hourly")
    assert "the host moves" in text and "paused" in text and f"run {again} completed" in text
    sleipnir(stack, "schedule", "resume", "hourly")
    assert json.loads(sleipnir(stack, "schedule", "ls", "--json"))[0]["state"] == "active"
    sleipnir(stack, "schedule", "rm", "hourly")
    assert "hourly" not in sleipnir(stack, "schedule", "ls")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("add", "a/b", "says", "--every", "1h"), "cannot name a schedule"),
        (("add", "s", "says"), "--cron, --every or --at"),
        (("add", "s", "says", "--every", "1h", "--cron", "* * * * *"), "has one of"),
        (("add", "s", "says", "--every", "soon"), "not a duration"),
        (("add", "s", "says", "--cron", "61 * * * *"), "'minute'"),
        (("add", "s", "says", "--cron", "* * * * *", "--tz", "Mars"), "no time zone 'Mars'"),
        (("add", "s", "says", "--at", "2001-01-01T00:00"), "in the past"),
        (("add", "s", "nobody", "--every", "1h"), "nobody"),
        (("add", "s", "says", "--every", "1h", "--state", 'n="x"'), "n"),
        (("show", "nothing"), "no schedule 'nothing'"),
        (("rm", "nothing"), "no schedule 'nothing'"),
        (("edit", "nothing", "--every", "1h"), "no schedule 'nothing'"),
        (("edit", "nothing"), "name what to change"),
    ],
)
def test_what_cannot_be_is_refused_with_a_reason(
    stack: Stack, tmp_path: Path, words: tuple[str, ...], why: str
) -> None:
    write_agent(tmp_path / "says", SAYS)
    done = stack.sleipnir("--agents-dir", str(tmp_path), "schedule", *words)
    assert done.returncode == 2 and why in done.stderr and "Traceback" not in done.stderr
    with stack.client() as client:
        assert client.schedules() == []


def test_programs_do_the_same(own_stack: Stack, tmp_path: Path) -> None:
    own_stack.start_scheduler()

    async def use() -> list[str | None]:
        async with AsyncClient(own_stack.settings) as client:
            schedule = await client.schedule("nightly", "says", "hi", cron="0 3 * * *", tz="America/New_York")
            with pytest.raises(UsageError, match="there is a schedule"):
                await client.schedule("nightly", "says", every=5)
            run = await schedule.run_now()
            await run.wait(60)
            await schedule.pause("later")
            assert [info.state for info in await client.schedules()] == ["paused"]
            await schedule.edit(every="90s", overlap="allow")
            info = await schedule.info()
            assert (info.state, info.plan.every_ms, info.plan.cron, info.plan.overlap) == (
                "paused", 90_000, None, "allow",
            )  # fmt: skip
            await schedule.resume()
            assert [fire.outcome for fire in await schedule.fires()] == ["started"]
            assert [each.status for each in await schedule.runs()] == ["completed"]
            with pytest.raises(AgentNotFound):
                await schedule.edit(agent="nobody")
            output = await run.output()
            await (await client.open_schedule("nightly")).remove()
            with pytest.raises(ScheduleNotFound):
                await schedule.info()
            with pytest.raises(ScheduleNotFound):
                await schedule.run_now()
            return [output]

    assert asyncio.run(use()) == ["hi 1"]


def test_later_runs_get_the_definition_of_an_edit_and_no_other_change(own_stack: Stack, tmp_path: Path) -> None:
    own_stack.start_scheduler()
    with own_stack.client() as client:
        schedule = client.schedule("pinned", "says", "hi", every="1h")
        write_agent(tmp_path / "agents" / "says", SAYS.replace("}} {{", "}} new {{"))
        first = schedule.run_now()
        schedule.edit(agent="says")
        second = schedule.run_now()
        assert [run.wait(60).status for run in (first, second)] == ["completed", "completed"]
        assert (first.output, second.output) == ("hi 1", "hi new 1")


def test_shared_values_are_those_of_the_fire(own_stack: Stack, tmp_path: Path) -> None:
    own_stack.start_scheduler()
    write_agent(tmp_path / "agents" / "greets", SAYS.replace("name: says", "name: greets"))
    with own_stack.client() as client:
        client.set_shared_values("greets", {"tier": "tin"}, user="ann")
        schedule = client.schedule("greeting", "greets", "hi", every="1s", user="ann", state={"app:motto": "mine"})
        client.set_shared_values("greets", {"tier": "gold"}, user="ann")
        client.set_shared_values("greets", {"motto": "ours"})
        wait_until(schedule.runs, "it fires")
        now = schedule.run_now()
        schedule.remove()
        ids = {info.id for info in client.runs(100)}
        assert now.id in ids and len(ids) >= 2
        wait_until(lambda: all(client.run(run).info().is_final for run in ids), "all runs are over")
        states = [client.run(run).state() for run in ids]
        assert {(state["user:tier"], state["app:motto"]) for state in states} == {("gold", "mine")}


def test_each_fire_starts_one_run_while_schedulers_are_killed(own_stack: Stack) -> None:
    stack = own_stack
    with stack.client() as client:
        schedule = client.schedule("second", "says", "hi", every="1s", overlap="allow")
        stack.start_scheduler("first")
        alive = ["first"]
        for number in range(6):
            name = f"next-{number}"
            stack.start_scheduler(name)
            fires = schedule.info().progress.fires
            stack.kill(alive.pop())
            alive.append(name)
            wait_until(
                lambda fires=fires: schedule.info().progress.fires >= fires + 2,  # type: ignore[misc]
                f"the next scheduler fires\n{stack.log(name)}",
            )
        schedule.pause()
        info = schedule.info()
        wait_until(lambda: len(times_of(client, "second")) == info.progress.fires, "each fire is a run")
        fired = times_of(client, "second")
        assert set(fired.values()) == {1}
        first = info.plan.anchor_ms + 1_000
        assert sorted(fired) == list(range(first, first + 1_000 * len(fired), 1_000))
        assert (info.progress.missed, info.progress.skipped) == (0, 0)
        assert info.progress.last_ms == max(fired)


def test_a_run_that_waits_lets_later_fires_be_skipped_and_after_its_end_they_start(own_stack: Stack) -> None:
    own_stack.start_scheduler()
    with own_stack.client() as client:
        schedule = client.schedule("asking", "asks", every="1s")
        wait_until(lambda: schedule.info().progress.skipped >= 2, "later fires are skipped")
        [run] = client.runs(10)
        run_ = client.run(run.id)
        run_.answer("me")
        wait_until(lambda: schedule.info().progress.fires >= 2, "after its end the next one starts")
        schedule.remove()
        assert run_.wait(60).status == "completed"


def test_a_bundle_stays_as_long_as_a_schedule_needs_it(own_stack: Stack, tmp_path: Path) -> None:
    stack = own_stack
    stack.start_scheduler()
    with stack.client() as client:
        schedule = client.schedule("yearly", "says", "hi", cron="0 0 1 1 *")
        digest = client.store.schedules.definition("yearly").spec.bundle
        redis, keys = client.store._client, client.store.keys
        redis.zadd(keys.bundles, {digest: 1})  # as if it had been submitted long ago
        done = stack.sleipnir("gc")
        assert done.returncode == 0 and redis.exists(keys.bundle(digest)), done.stderr
        assert schedule.run_now().wait(60).status == "completed"


def batches_of(client: Client, name: str) -> list[str]:
    """The batches that a schedule has started, the oldest first."""
    return [info.id for info in reversed(client.batches(500)) if info.name == name]


def test_a_schedule_submits_a_batch_of_rows_that_are_read_once(own_stack: Stack, tmp_path: Path) -> None:
    stack = own_stack
    stack.start_scheduler()
    rows = tmp_path / "rows.csv"
    rows.write_text("id,prompt,n\na,one,1\nb,two,2\n")
    batch = ("--batch", str(rows), "--key", "id", "--parallel", "1", "--tag", "customer=acme", "--json")
    added = json.loads(sleipnir(stack, "schedule", "add", "nightly", "typed", "--cron", "0 2 * * *", *batch))
    assert added["plan"]["batch"] == {
        "rows": 2, "name": "nightly", "priority": 3, "parallel": 1, "canary": None, "max_cost_usd": None,
        "max_tokens": None,
    }  # fmt: skip
    rows.unlink()
    made = sleipnir(stack, "schedule", "run-now", "nightly").strip()
    with stack.client() as client:
        opened = client.open_batch(made)
        assert opened.wait(60).state == "done"
        assert [(result.key, result.output) for result in opened.results()] == [("a", "one 1"), ("b", "two 2")]
        spec = client.store.runs.spec(opened.run_id(0))
        assert (spec.schedule, spec.tags) == ("nightly", {"customer": "acme"})
        [shown] = client.open_schedule("nightly").runs()
        assert (shown.id, shown.status, shown.batch) == (made, None, "done")
        with pytest.raises(UsageError, match="starts batches"):
            client.open_schedule("nightly").run_now()
        with pytest.raises(UsageError, match="remove it, and add it again"):
            client.open_schedule("nightly").edit(agent="typed")
        [entry] = [each for each in client.access.audit(on="schedule nightly") if each.what == "schedule fired"]
        assert entry.after == {"batch": made}
    assert f"batch {made} done" in sleipnir(stack, "schedule", "show", "nightly")
    assert f"{made} done" in sleipnir(stack, "schedule", "ls")
    sleipnir(stack, "schedule", "edit", "nightly", "--cron", "0 3 * * *")
    sleipnir(stack, "schedule", "rm", "nightly")
    with stack.client() as client:
        assert list(client.store._client.scan_iter(match=f"{client.store.keys.prefix}:*:schedule:*")) == []


def test_a_row_that_cannot_run_refuses_the_schedule_and_nothing_is_kept(own_stack: Stack, tmp_path: Path) -> None:
    bad = tmp_path / "rows.jsonl"
    bad.write_text('{"prompt": "x", "n": 1}\n{"prompt": "y", "n": "many"}\n')
    for words, why in (
        (("--batch", str(bad)), "rows.jsonl:2"),
        (("a prompt", "--batch", str(bad)), "leave out PROMPT"),
        (("--key", "id"), "for the rows of --batch"),
    ):
        done = own_stack.sleipnir("schedule", "add", "s", "typed", "--every", "1h", *words)
        assert done.returncode == 2 and why in done.stderr and "Traceback" not in done.stderr, done.stderr
    with own_stack.client() as client:
        assert list(client.store._client.scan_iter(match=f"{client.store.keys.prefix}:*:schedule:*")) == []
        with pytest.raises(UsageError, match="at most 10,000"):
            client.schedule("s", "typed", every="1h", rows=ScheduleRows({"prompt": "x"} for _ in range(10_001)))
        assert list(client.store._client.scan_iter(match=f"{client.store.keys.prefix}:*:schedule:*")) == []


def test_each_fire_makes_one_whole_batch_while_schedulers_are_killed(own_stack: Stack) -> None:
    stack = own_stack
    with stack.client() as client:
        given = ScheduleRows([{"prompt": f"row {number}"} for number in range(60)])
        schedule = client.schedule("second", "says", every="1s", overlap="allow", rows=given)
        stack.start_scheduler("first")
        alive = ["first"]
        for number in range(4):
            name = f"next-{number}"
            stack.start_scheduler(name)
            fires = schedule.info().progress.fires
            stack.kill(alive.pop())
            alive.append(name)
            wait_until(
                lambda fires=fires: schedule.info().progress.fires >= fires + 2,  # type: ignore[misc]
                f"the next scheduler fires\n{stack.log(name)}",
            )
        schedule.pause()
        fires = schedule.info().progress.fires
        wait_until(lambda: len(batches_of(client, "second")) == fires, "each fire is a batch")
        made = batches_of(client, "second")
        assert set(made) == {fire.run for fire in schedule.fires() if fire.outcome == "started"}
        wait_until(lambda: {client.open_batch(batch).info().total for batch in made} == {60}, "each has all rows")
        fired = [client.store.batches.spec(batch).fired_ms for batch in made]
        first = schedule.info().plan.anchor_ms + 1_000
        assert sorted(fired) == list(range(first, first + 1_000 * fires, 1_000))


@pytest.mark.parametrize("overlap", ["skip", "queue", "cancel"])
def test_the_overlap_policy_holds_for_the_batch_as_a_whole(own_stack: Stack, overlap: Overlap) -> None:
    own_stack.start_scheduler()
    with own_stack.client() as client:
        given = ScheduleRows([{"prompt": "a"}, {"prompt": "b"}])
        schedule = client.schedule("asking", "asks", every="1s", overlap=overlap, rows=given)
        if overlap == "cancel":
            wait_until(lambda: schedule.info().progress.fires >= 2, "a second one starts")
            schedule.pause()
            first, *_ = batches_of(client, "asking")
            wait_until(lambda: client.open_batch(first).info().state == "cancelled", "the first one is cancelled")
            assert [change.what for change in client.open_batch(first).info().changes] == ["cancelled"]
            return
        if overlap == "skip":
            wait_until(lambda: schedule.info().progress.skipped >= 2, "later fires are skipped")
        else:
            wait_until(lambda: schedule.info().progress.waiting_ms is not None, "one waits")
        [batch] = batches_of(client, "asking")
        opened = client.open_batch(batch)
        wait_until(lambda: opened.info().active == 2, "both rows ask")
        answered(client, opened.run_id(0))
        wait_until(lambda: opened.info().completed == 1, "one row is over")
        assert schedule.info().progress.fires == 1
        answered(client, opened.run_id(1))
        wait_until(lambda: schedule.info().progress.fires >= 2, "after the end of all rows the next one starts")
        schedule.remove()


def answered(client: Client, run_id: str) -> None:
    run = client.run(run_id)
    wait_until(run.gates, "it asks")
    run.answer("me")

"""Die at every point: before and after each Lua script, each publication and each acknowledgement.

A case starts the process that comes to its point, sees it die there, and lets another go on. The run must end right,
with every step committed once and no key left over. A Lua script without a case fails the first test.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from ops.chaos import verdict
from sleipnir.batches.records import row_run_id
from sleipnir.client.client import Client, Run
from sleipnir.client.scheduled_rows import ScheduleRows
from sleipnir.errors import RunNotFound, ThreadBusy
from sleipnir.failpoints import VARIABLE
from sleipnir.knowledge.files import base_file, lease_name
from sleipnir.knowledge.order import BuildDone, Order, message_of
from sleipnir.knowledge.recipe import Recipe
from sleipnir.messages import ResultHeader, VisitCall
from sleipnir.runs.claims import Claim
from sleipnir.runs.transitions import AwaitSignal
from sleipnir.schedules.firing import begun
from sleipnir.schedules.records import fire_run_id
from sleipnir.store.keys import lines_of
from sleipnir.store.runs.requests import NO_FENCE
from sleipnir.store.scripts import run_in_order
from sleipnir.store.signals import PAGE
from sleipnir_workers.visits.live import LiveText
from tests import starter
from tests.processes import RedisServer, Stack, wait_until, write_agent

LUA = Path(verdict.__file__).parents[2] / "sleipnir" / "store" / "lua"

OF_SCHEDULERS = (
    "pulse", "own", "commit", "publish", "discard", "take_back", "fire_timers", "child_ended", "retry_child",
    "batch_admit", "batch_ended", "ask_slot", "free_slot", "tell_root", "park", "take_past", "copy_values",
    "begin_turn", "await_signal", "decline_signal", "leave_signal", "spread_signals",
    "pass_signal", "withdraw", "share_values", "schedule_write", "fire_of_rows", "sealed_rows", "job_write",
    "resume_run", "end_hold",
)  # fmt: skip
OF_SIGNALS = ("await_signal", "decline_signal", "leave_signal", "spread_signals", "pass_signal")
SCRIPT_OF = {
    "ask_slot": "slots", "free_slot": "slots", **dict.fromkeys(OF_SIGNALS, "signals"), "fire_of_rows": "batch_add",
    "sealed_rows": "batch_change",
}  # fmt: skip
"""Situations that are not called after their script."""
OF_WORKERS = ("claim", "heartbeat", "deliver", "hand_back", "ack")
OF_CLIENTS = {
    "submit": "create_run",
    "turn": "start_turn",
    "queued_turn": "queue_turn",
    "fork": "fork_run",
    "fork_turn": "fork_run",
    "rewind": "fork_run",
    "answer": "answer",
    "claim": "handle_gate",
    "assign": "handle_gate",
    "comment": "handle_gate",
    "cancel": "tell",
    "retry": "tell",
    "skip": "tell",
    "pause": "tell",
    "resume": "tell",
    "pause_all": "pause_all",
    "resume_all": "resume_all",
    "pause_namespace": "pause_all",
    "resume_namespace": "resume_part",
    "resume_part": "resume_part",
    "send_signal": "signals",
    "submit_batch": "batch_add",
    "seal_batch": "batch_change",
    "retry_batch": "batch_work",
}
ALONE = {
    "change_session",
    "drop_thread",
    "archived",
    "batch_forget",
    "dead_letter",
    "forget",
    "put_back",
    "list_run",
    "list_names",
}
"""One atomic change that nobody follows up (tests/store: test_sessions, test_threads, test_export_and_archive,
test_batches, test_effects, test_forgotten, test_run_lists, test_namespaces)."""
OF_WRITERS = ("add_pieces",)
OF_BUILDERS = ("build_lease",)
OF_CACHES = {"cache_take", "cache_put", "cache_lease", "cache_clear"}  # tests/store/test_cache.py
OF_ACCESS = {"change_access", "login_attempt"}  # tests/store/test_access.py
OF_STREAMS = {"stream_write"}  # tests/system/test_node_streams.py
OF_WEBHOOKS = {"webhook_add", "webhook_take", "webhook_tried"}  # tests/system/test_webhooks.py
OF_CLUSTERS = {"list_fork"}  # tests/system/test_redis_cluster.py
NO_SCRIPTS = {"publish", "ack"}
ONLY_READ = {"batch_cells", "count_entries", "first_due", "list_sizes", "newest_listed", "outline", "places"}
LIMITS = {"limit_take", "limit_release", "limit_renew", "limit_cool", "limit_change"}  # tests/store/test_limits.py

both_sides = pytest.mark.parametrize("side", ["before", "after"])


def test_every_lua_script_has_a_case() -> None:
    assert {
        file.stem for file in LUA.glob("*.lua")
    } - ONLY_READ - LIMITS - ALONE - OF_CACHES - OF_STREAMS - OF_ACCESS - OF_WEBHOOKS - OF_CLUSTERS == {
        *(SCRIPT_OF.get(point, point) for point in OF_SCHEDULERS),
        *OF_WORKERS,
        *OF_CLIENTS.values(),
        *OF_WRITERS,
        *OF_BUILDERS,
    } - NO_SCRIPTS


def dies(stack: Stack, name: str) -> None:
    """The process ends by the failpoint's SIGKILL, and by nothing else."""
    process = stack.processes.pop(name)
    wait_until(lambda: process.poll() is not None, f"{name} comes to its failpoint\n{stack.log(name)}")
    assert process.returncode == -signal.SIGKILL, stack.log(name)
    assert "fails on purpose" in stack.log(name)


def is_well(client: Client, run: Run, effects: Counter[str]) -> None:
    """The journal has no gap and no double, the state is its fold, and what ran is what the journal says."""
    steps = run.history()
    assert list(verdict.of_journal(client, run, steps)) == []
    assert list(verdict.of_effects(run, steps, effects, {})) == []


# Schedulers. The test itself plays the workers: it takes the task messages, claims and delivers.

TWO_STEPS = """
name: two
start: a
nodes:
  a: {type: script, script: a.sh, next: ask}
  ask: {type: approval, question: go on?, options: [yes], routes: {yes: done}, on_other: done}
  done: {type: end, output: "{{x}}"}
"""
PARENT = """
name: parent
start: call
nodes:
  call: {type: agent, agent: two, prompt: hi, state_updates: {x: "{{output}}"}, next: done}
  done: {type: end, output: "{{x}}"}
"""
PICKY = """
name: picky
start: ask
nodes:
  ask: {type: input, question: who?, validation: "len(input) > 1", next: done}
  done: {type: end, output: done}
"""
QUESTION = """
name: question
start: ask
settings: {timeout: 600}
nodes:
  ask: {type: approval, question: go on?, options: [yes], routes: {yes: done}, on_other: done}
  done: {type: end}
"""


SIGNALLED = """
name: signalled
version: sleipnir/1
start: pause
nodes:
  pause: {type: wait, event: paid, look_back: 1h, consume: HOW, state_updates: {x: "{{event.data}}"}, next: done}
  done: {type: end, output: "{{x}}"}
"""


class Deployment:
    """A stack of its own under a key prefix of its own, whose workers and users are played."""

    def __init__(self, stack: Stack, client: Client, folder: Path) -> None:
        self.stack, self.client, self.effects = stack, client, Counter[str]()
        self.two = write_agent(folder / "two", TWO_STEPS, a_sh="")
        self.question = write_agent(folder / "question", QUESTION)
        self.parent = write_agent(folder / "parent", PARENT)
        self.limited = write_agent(folder / "limited", TWO_STEPS + "concurrency: {limit: 1}\n", a_sh="")
        write_agent(folder / "picky", PICKY)
        self.strict = write_agent(folder / "strict", PARENT.replace("agent: two", "agent: picky"))
        queues = "version: sleipnir/1\nsession: {concurrent: queue}\n"
        self.queuing = write_agent(folder / "queuing", TWO_STEPS + queues, a_sh="")
        self.signalled = write_agent(folder / "signalled", SIGNALLED.replace("HOW", "all"))
        choosy = SIGNALLED.replace("HOW", "one, filter: event.data == 'done'")
        self.choosy = write_agent(folder / "choosy", choosy.replace("signalled", "choosy"))
        self.sure = write_agent(folder / "sure", SIGNALLED.replace("HOW", "one").replace("signalled", "sure"))
        shares = TWO_STEPS.replace("on_other: done", "on_other: done, state_updates: {'user:tier': gold}")
        self.sharing = write_agent(folder / "sharing", shares, a_sh="")
        self.redis = client.store._client
        self.part = client.store.keys.of_partition(0)
        self.repair: Callable[[], object] = lambda: None
        """What a person does after the scheduler has died."""

    def message(self) -> VisitCall | None:
        """What a Celery worker would get next from the queue."""
        lines = (self.client.store.keys.broker_prefix + line for line in lines_of("scripts"))
        text = next((text for line in lines if (text := self.client.store._broker.rpop(line))), None)
        return VisitCall.from_json(json.loads(json.loads(text)["body"])[0][0]) if text else None

    def claim(self, call: VisitCall, lease_ms: int = 60_000) -> str | None:
        """The token of the claim; None when it was refused."""
        token = uuid4().hex
        taken = self.client.store.visits.claim(call, worker="played", token=token, lease_ms=lease_ms, wanted=())
        if not isinstance(taken, Claim):
            return None
        self.effects[f"{call.run}/{call.seq}"] += 1
        return token

    def work(self) -> None:
        """Do what a worker would do now."""
        call = self.message()
        if call is not None and (token := self.claim(call)):
            header = ResultHeader(ok=True, keys=("x",), worker="played")
            self.client.store.visits.deliver(call, header, {"x": '"done"'}, worker="played", token=token)

    def go_on(self, run: Run) -> bool:
        """Do what a worker and a person would do now. True once the run is over."""
        self.work()
        for gate in run.gates():
            run.answer("yes", gate)
        with contextlib.suppress(RunNotFound):  # a row that is no run yet
            return run.info().is_final
        return False

    def with_a_scheduler(self, condition: Callable[[], object], description: str) -> None:
        """Let a healthy one work until it has done this; then it is killed."""
        self.stack.start_scheduler("first")
        wait_until(condition, f"{description}\n{self.stack.log('first')}")
        self.stack.kill("first")


def fresh_run(world: Deployment) -> Run:
    return world.client.submit(world.two)


def doubled_entry(world: Deployment) -> Run:
    run = world.client.submit(world.two)
    world.redis.xadd(world.part.inbox, {"t": "submitted", "run": run.id})
    return run


def lapsed_lease(world: Deployment) -> Run:
    run = world.client.submit(world.two)
    world.with_a_scheduler(lambda: run.info().visits, "the visit is queued")
    [visit] = run.info().visits
    bundle = world.client.store.runs.spec(run.id).bundle
    assert world.claim(VisitCall(run.id, visit.node, visit.seq, visit.attempt, "two", bundle), lease_ms=1)
    return run


def due_timer(world: Deployment) -> Run:
    run = world.client.submit(world.question)
    world.with_a_scheduler(run.gates, "the question is asked")
    [timer] = world.redis.zrange(world.part.timers, 0, -1)
    # As if ten minutes had passed. A real second passes on a busy machine while this scheduler is still there.
    world.redis.zincrby(world.part.timers, -600_000, timer)
    world.redis.hincrby(world.client.store.keys.of_run(run.id).run, "started_ms", -600_000)
    return run


def ending_child(world: Deployment) -> Run:
    run = world.client.submit(world.parent)
    world.with_a_scheduler(lambda: world.work() or run.gates(), "the child asks")
    [gate] = run.gates()
    run.answer("yes", gate)
    return run


def child_about_to_ask(world: Deployment) -> Run:
    """Its question is an event of the run at the top, too."""
    run = world.client.submit(world.parent)
    lines = [world.client.store.keys.broker_prefix + line for line in lines_of("scripts")]
    broker = world.client.store._broker
    world.with_a_scheduler(lambda: any(map(broker.llen, lines)), "the child's first visit is queued")
    world.work()
    return run


def child_to_go_on(world: Deployment) -> Run:
    run = world.client.submit(world.strict)

    def answered_badly() -> bool:
        for gate in run.gates():
            run.answer("n", gate)
        return run.info().is_final

    world.with_a_scheduler(answered_badly, "the child fails, and its parent")
    run.retry()
    return run


def waiting_row(world: Deployment) -> Run:
    batch = world.client.batch(world.two, [{"prompt": ""}])
    return Run(world.client.store, batch.run_id(0), world.client.settings)


def fire_that_is_due(world: Deployment) -> Run:
    """Of a schedule that fires once."""
    return Run(world.client.store, due_fire(world, None), world.client.settings)


def row_of_a_fire(world: Deployment) -> Run:
    """The only one of the batch of such a schedule."""
    batch = due_fire(world, ScheduleRows([{"prompt": "hi"}]))
    return Run(world.client.store, row_run_id(batch, 0), world.client.settings)


def due_fire(world: Deployment, rows: ScheduleRows | None) -> str:
    """What it will start."""
    schedule = world.client.schedule("once", world.two, at=str(datetime.now(UTC) + timedelta(hours=1)), rows=rows)
    stored = world.client.store.schedules.get("once")
    at_ms = world.client.now_ms()  # as if an hour had passed
    plan = replace(stored.plan, at_ms=at_ms)
    world.client.store.schedules.change(stored, plan, begun(plan, None, at_ms - 1), stored.origin)
    assert schedule.info().state == "active"
    return fire_run_id("once", stored.origin.token, at_ms)


def run_of_a_job(world: Deployment) -> Run:
    """A paused run that a job resumes."""
    run = world.client.submit(world.two)
    run.pause()
    world.with_a_scheduler(lambda: run.status == "paused", "it is paused")
    world.client.jobs.submit("resume", runs=[run.id], delay_s=0)
    return run


def held_run(world: Deployment) -> Run:
    """Its visit is queued, and its namespace is held."""
    run = world.client.submit(world.two)
    world.with_a_scheduler(lambda: run.info().visits, "the visit is queued")
    world.client.pause_all(namespace="default")
    while call := world.message():
        assert world.claim(call) is None
    return run


def held_run_that_a_rate_lets_go_on(world: Deployment) -> Run:
    run = held_run(world)
    world.client.resume_part(rate=100, namespace="default")
    return run


def run_of_a_namespace_that_is_resumed(world: Deployment) -> Run:
    run = held_run(world)
    assert world.client.resume_all(namespace="default")
    return run


def ending_row(world: Deployment) -> Run:
    run = waiting_row(world)
    world.with_a_scheduler(lambda: world.work() or run.gates(), "the row asks")
    run.answer("yes")
    return run


def run_that_cannot_be_read(world: Deployment) -> Run:
    run = world.client.submit(world.two)
    spec = world.client.store.keys.of_run(run.id).spec
    text = world.redis.get(spec)
    world.redis.set(spec, "{")
    world.repair = lambda: world.redis.set(spec, text)
    return run


def fork_to_begin(world: Deployment) -> Run:
    """It refers to the state of a run that is over."""
    source = world.client.submit(world.two)
    world.with_a_scheduler(lambda: world.go_on(source), "the source ends")
    return source.fork(before="ask")


def turn_to_begin(world: Deployment) -> Run:
    """It is queued, and the run before it is about to end."""
    first = world.client.submit(world.queuing, thread="talk")
    world.with_a_scheduler(lambda: world.work() or first.gates(), "the first run asks")
    queued = world.client.submit(world.queuing, thread="talk")
    first.answer("yes")
    return queued


def fork_of_an_earlier_step(world: Deployment) -> Run:
    """A value of the past that is long is in the journal of its source only."""
    source = world.client.submit(world.two, "long " * 100)
    world.with_a_scheduler(lambda: world.go_on(source), "the source ends")
    return source.fork(at=0)


def run_of_a_limited_agent(world: Deployment) -> Run:
    return world.client.submit(world.limited)


def ending_run_of_a_limited_agent(world: Deployment) -> Run:
    run = world.client.submit(world.limited)
    world.with_a_scheduler(lambda: world.work() or run.gates(), "the run asks")
    run.answer("yes")
    return run


def wait_to_register(world: Deployment) -> Run:
    """Its event is there already."""
    world.client.signal("paid", "done")
    return world.client.submit(world.signalled)


def waiting_for_an_event(world: Deployment, agent: Path) -> Run:
    run, keys = world.client.submit(agent), world.client.store.keys.of_signals("paid")
    world.with_a_scheduler(lambda: world.redis.exists(keys.every, keys.one), "the wait is registered")
    return run


def wait_with_its_event(world: Deployment) -> Run:
    run = waiting_for_an_event(world, world.signalled)
    assert world.client.signal("paid", "done").reached == 1
    return run


def wait_that_declines(world: Deployment) -> Run:
    run = waiting_for_an_event(world, world.choosy)
    assert world.client.signal("paid", "other").reached == 1
    assert world.client.signal("paid", "done").reached == 1
    return run


def wait_among_many(world: Deployment) -> Run:
    """The others are visits of runs that are gone."""
    signals = world.client.store.signals
    others = (AwaitSignal("paid", 1, 1, 0) for _ in range(2 * PAGE))
    commands = [signals.deliver(NO_FENCE, f"gone{number:08}", each) for number, each in enumerate(others)]
    run_in_order(world.redis, commands)
    run = waiting_for_an_event(world, world.signalled)
    assert world.client.signal("paid", "done").reached == PAGE
    return run


def parked_wait_with_an_old_offer(world: Deployment) -> Run:
    """The only wait: it takes the event after all when its run can be read."""
    run = waiting_for_an_event(world, world.sure)
    assert world.client.signal("paid", "done").reached == 1
    spec = world.client.store.keys.of_run(run.id).spec
    text = world.redis.get(spec)
    world.redis.set(spec, "{")
    world.with_a_scheduler(lambda: world.redis.xlen(world.part.inbox), "the offer arrives")
    [(_, offer)] = world.redis.xrange(world.part.inbox)
    world.redis.delete(world.part.inbox)
    world.redis.xadd(world.part.inbox, offer, "1-1")
    world.repair = lambda: world.redis.set(spec, text)
    return run


def run_of_a_user(world: Deployment) -> Run:
    return world.client.submit(world.sharing, user="ann")


SITUATIONS: dict[str, Callable[[Deployment], Run]] = {
    "pulse": fresh_run,
    "own": fresh_run,
    "commit": fresh_run,
    "publish": fresh_run,
    "discard": doubled_entry,
    "take_back": lapsed_lease,
    "fire_timers": due_timer,
    "child_ended": ending_child,
    "retry_child": child_to_go_on,
    "batch_admit": waiting_row,
    "batch_ended": ending_row,
    "ask_slot": run_of_a_limited_agent,
    "free_slot": ending_run_of_a_limited_agent,
    "tell_root": child_about_to_ask,
    "park": run_that_cannot_be_read,
    "take_past": fork_to_begin,
    "begin_turn": turn_to_begin,
    "copy_values": fork_of_an_earlier_step,
    "await_signal": wait_to_register,
    "decline_signal": wait_that_declines,
    "leave_signal": wait_with_its_event,
    "spread_signals": wait_among_many,
    "pass_signal": parked_wait_with_an_old_offer,
    "withdraw": parked_wait_with_an_old_offer,
    "share_values": run_of_a_user,
    "schedule_write": fire_that_is_due,
    "fire_of_rows": row_of_a_fire,
    "sealed_rows": row_of_a_fire,
    "job_write": run_of_a_job,
    "resume_run": held_run_that_a_rate_lets_go_on,
    "end_hold": run_of_a_namespace_that_is_resumed,
}


@pytest.fixture
def deployment(redis_server: RedisServer, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Deployment]:
    prefix = "fp-" + "-".join(map(str, request.node.callspec.params.values()))
    fast = {"partitions": 1, "owner_ttl_s": 0.5, "redispatch_after_s": 0.5, "agents_dir": tmp_path}
    with Stack(redis_server, tmp_path / "home", key_prefix=prefix, **fast) as stack, stack.client() as client:
        yield Deployment(stack, client, tmp_path)


@pytest.mark.conformance("SV-12")
@both_sides
@pytest.mark.parametrize("point", OF_SCHEDULERS)
def test_a_scheduler_dies_at_a_point_and_another_continues(deployment: Deployment, point: str, side: str) -> None:
    stack, client = deployment.stack, deployment.client
    run = SITUATIONS[point](deployment)
    stack.start_scheduler("victim", env={VARIABLE: f"{SCRIPT_OF.get(point, point)}.{side}=kill"})
    if point == "share_values":  # the last visit writes
        wait_until(lambda: deployment.go_on(run), "the run ends")
    dies(stack, "victim")
    deployment.repair()
    stack.start_scheduler("second")
    if point == "fire_timers":
        wait_until(lambda: run.info().is_final, "the deadline ends the run")
        assert (run.status, len(run.history())) == ("failed", 1)
    else:
        wait_until(lambda: deployment.go_on(run), f"the run ends\n{stack.log('second')}")
        assert (run.status, run.output) == ("completed", "done")
        nodes: dict[str, list[str | None]] = {
            "child_ended": ["call", "done"],
            "tell_root": ["call", "done"],
            "retry_child": ["call", None, "call", "done"],
            "take_past": ["ask", "done"],
            "job_write": [None, None, "a", "ask", "done"],  # the pause and its end
            **{of_signals: ["pause", "done"] for of_signals in (*OF_SIGNALS, "withdraw")},
        }
        assert [step.node for step in run.history()] == [None, *nodes.get(point, ["a", "ask", "done"])]
        for child in client.store.runs.children([run.id])[run.id]:
            assert client.run(child.id).info().retries == (point == "retry_child")
        if point == "share_values":
            wait_until(lambda: client.shared_values("sharing", "ann") == {"tier": "gold"}, "it is written back")
        batches = [client.open_batch(batch.id) for batch in client.batches()]
        wait_until(lambda: all(batch.info().state == "done" for batch in batches), "the batch knows of its end")
        assert [result.output for batch in batches for result in batch.results("done")] == ["done"] * len(batches)
    is_well(client, run, deployment.effects)
    if point == "resume_run":
        [held] = client.holds()
        assert held.resumed_runs == 1
        client.resume_all(namespace="default")
    wait_until(lambda: not client.holds(), "nothing is held")
    # What the victim has told may be told again after the end of the run, and is dropped then.
    wait_until(lambda: list(verdict.leaks(client, deployment.redis)) == [], "nothing is left")
    if point == "job_write":
        wait_until(lambda: all(job.is_over for job in client.jobs.page()), "the job is over")
        assert [(job.progress.done, job.progress.refused) for job in client.jobs.page()] == [(1, 0)]
    if point in ("schedule_write", "fire_of_rows", "sealed_rows"):
        [info] = client.schedules()
        assert (info.state, info.progress.fires, len(client.open_schedule("once").fires())) == ("over", 1, 1)


# Workers and clients share a scheduler: each worker's visits have a queue of their own.

SLOW_STEP = """
name: slow-step
start: a
nodes:
  a: {{type: script, script: a.sh, queue: {queue}, next: done}}
  done: {{type: end, output: "{{{{x}}}}"}}
"""
LONG_ENTRY = """
name: entry
start: ask
nodes:
  ask: {type: input, question: who?, validation: "len(input) > 1", state_updates: {who: "{{input}}"}, next: done}
  done: {type: end, output: "{{who}}"}
"""


@pytest.fixture(scope="module")
def shared(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    fast = {"lease_s": 1.0, "heartbeat_s": 0.2, "redispatch_after_s": 1.0, "drain_s": 0.1}
    with Stack(redis_server, tmp_path_factory.mktemp("failpoints"), key_prefix="fp", **fast) as stack:
        stack.start_scheduler()
        yield stack


@both_sides
@pytest.mark.parametrize("point", OF_WORKERS)
def test_a_worker_dies_at_a_point_and_another_continues(shared: Stack, tmp_path: Path, point: str, side: str) -> None:
    name, effects = f"{point}-{side}", tmp_path / "effects"
    first_s = 60 if point == "hand_back" else 0.5
    step = f"[ -e {effects} ] || FIRST=1; echo $GRAPH_VISIT >> {effects}; [ -z $FIRST ] || sleep {first_s}\n"
    step += """echo '{"x": "done"}'\n"""
    agent = write_agent(tmp_path / "agent", SLOW_STEP.format(queue=name), a_sh=step)
    shared.start_worker(f"{name}-1", name, pool="solo", env={VARIABLE: f"{point}.{side}=kill"}, ready=False)
    with shared.client() as client:
        run = client.submit(agent)
        if point == "hand_back":
            wait_until(effects.exists, "the script runs")
            shared.signal(f"{name}-1", signal.SIGTERM)
        dies(shared, f"{name}-1")
        shared.start_worker(f"{name}-2", name, pool="solo", ready=False)
        assert run.wait(60).status == "completed", shared.log(f"{name}-2")
        shared.kill(f"{name}-2")
        assert run.output == "done"
        assert [step.node for step in run.history()] == [None, "a", "done"]
        is_well(client, run, Counter(effects.read_text().split()))


SAYS_HALF = """
import sys
from sleipnir import Client
from sleipnir_workers.visits.live import LiveText
with LiveText(Client().store).open(sys.argv[1], "ask", 1, 1) as writer:
    writer.write("half")
"""


@both_sides
@pytest.mark.parametrize("point", OF_WRITERS)
def test_a_writer_of_model_text_dies_at_a_failpoint_and_the_next_attempt_starts_again(
    shared: Stack, tmp_path: Path, point: str, side: str
) -> None:
    env = shared.environment() | {VARIABLE: f"{point}.{side}=kill"}
    with shared.client() as client:
        run = client.submit(write_agent(tmp_path / "agent", LONG_ENTRY))
        wait_until(run.gates, "it asks")
        done = starter.run([sys.executable, "-c", SAYS_HALF, run.id], env)
        assert done.returncode == -signal.SIGKILL, done.stderr
        with LiveText(client.store).open(run.id, "ask", 1, 2) as writer:
            writer.write("whole")
        run.answer("me")
        said = [(e.data["attempt"], e.data["text"]) for e in run.stream() if e.type == "text" and e.data["text"]]
        assert said == [*([(1, "half")] if side == "after" else []), (2, "whole")]
        is_well(client, run, Counter())


@both_sides
@pytest.mark.parametrize("point", OF_BUILDERS)
def test_a_builder_dies_at_a_point_and_the_next_one_builds(
    shared: Stack, tmp_path: Path, point: str, side: str
) -> None:
    agent = write_agent(tmp_path / "agent", LONG_ENTRY, docs__a_md="Of eight legs.")
    order = Order("build", "agent", "kb", str(agent), recipe=Recipe(["docs"], None))
    command = [sys.executable, "-m", "sleipnir_workers.knowledge"]
    done = starter.run(command, shared.environment() | {VARIABLE: f"{point}.{side}=kill"}, text=order.line())
    assert (done.returncode, base_file(agent, "kb").exists()) == (-signal.SIGKILL, False)
    done = starter.run(command, shared.environment(), text=order.line())
    assert isinstance(message_of(done.stdout.splitlines()[-1]), BuildDone), done.stderr
    with shared.client() as client:
        assert client.store.knowledge.building(lease_name(agent, "kb")) is None


class Caller:
    """A client process that dies in one call, and a client that asks again where nothing was done."""

    def __init__(self, stack: Stack, client: Client, agent: Path, point: str) -> None:
        self.stack, self.client, self.agent, self.point = stack, client, agent, point

    def dies_in(self, call: str, run: Run | None = None) -> None:
        code = f"import sys; from sleipnir import Client; client = Client(); {call}"
        command = [sys.executable, "-c", code, str(self.agent), run.id if run else ""]
        done = starter.run(command, self.stack.environment() | {VARIABLE: f"{self.point}=kill"})
        assert done.returncode == -signal.SIGKILL, done.stderr

    def asks_again(self, call: Callable[[], object]) -> None:
        """What was done before the death need not be done again; what was not must be."""
        if self.point.endswith(".before"):
            call()

    def asked(self) -> Run:
        """A run that asks its question."""
        run = self.client.submit(self.agent)
        wait_until(run.gates, "it asks")
        return run


def submit(caller: Caller) -> Run:
    caller.dies_in("client.submit(sys.argv[1])")
    caller.asks_again(lambda: caller.client.submit(caller.agent))
    [accepted] = [info.id for info in caller.client.runs() if info.agent == caller.agent.name]
    return caller.client.run(accepted)


def turn(caller: Caller) -> Run:
    """The second run of a thread."""
    first = caller.client.submit(caller.agent, thread="talk")
    wait_until(first.gates, "it asks")
    first.answer("you")
    wait_until(lambda: first.info().is_final, "the first run is over")
    caller.dies_in("client.submit(sys.argv[1], thread='talk')")
    caller.asks_again(lambda: caller.client.submit(caller.agent, thread="talk"))
    with pytest.raises(ThreadBusy):
        caller.client.submit(caller.agent, thread="talk")
    [second, before] = caller.client.thread_runs(caller.agent.name, "talk")
    assert (before.id, second.turn, second.previous) == (first.id, 2, first.id)
    assert caller.client.run(second.id).state_at(0)["who"] == "you"
    return caller.client.run(second.id)


def queued_turn(caller: Caller) -> Run:
    """The second run of a thread, which waits for the first one."""
    write_agent(caller.agent, LONG_ENTRY + "version: sleipnir/1\nsession: {concurrent: queue}\n")
    first = caller.client.submit(caller.agent, thread="talk")
    wait_until(first.gates, "it asks")
    caller.dies_in("client.submit(sys.argv[1], thread='talk')")
    caller.asks_again(lambda: caller.client.submit(caller.agent, thread="talk"))
    [second, before] = caller.client.thread_runs(caller.agent.name, "talk")
    assert (before.id, second.turn, second.previous, second.is_queued) == (first.id, 2, first.id, True)
    first.answer("you")
    return caller.client.run(second.id)


def fork(caller: Caller) -> Run:
    source = caller.asked()
    caller.dies_in("client.run(sys.argv[2]).fork()", source)
    caller.asks_again(source.fork)
    [made] = [info for info in caller.client.runs() if info.agent == caller.agent.name and info.id != source.id]
    assert made.forked_from == source.id
    source.cancel()
    return caller.client.run(made.id)


def fork_turn(caller: Caller) -> Run:
    """A fork that begins a thread."""
    source = caller.asked()
    caller.dies_in("client.run(sys.argv[2]).fork(thread='talk')", source)
    caller.asks_again(lambda: source.fork(thread="talk"))
    with pytest.raises(ThreadBusy):
        source.fork(thread="talk")
    [made] = caller.client.thread_runs(caller.agent.name, "talk")
    assert (made.forked_from, made.turn) == (source.id, 1)
    source.cancel()
    return caller.client.run(made.id)


def rewind(caller: Caller) -> Run:
    source = caller.asked()
    caller.dies_in("client.run(sys.argv[2]).rewind(at=0)", source)
    caller.asks_again(lambda: source.rewind(at=0))
    wait_until(lambda: source.status == "cancelled", "the cancellation is requested with the fork")
    [made] = source.forks().forks
    return caller.client.run(made.id)


def answer(caller: Caller) -> Run:
    run = caller.asked()
    caller.dies_in("client.run(sys.argv[2]).answer('me')", run)
    caller.asks_again(lambda: run.answer("me"))
    return run


def claim(caller: Caller) -> Run:
    run = caller.asked()
    caller.dies_in("client.gate_inbox.claim(client.run(sys.argv[2]).gates()[0])", run)
    [gate] = run.gates()
    caller.client.gate_inbox.claim(gate, take_over=True)
    [gate] = run.gates()
    assert gate.handling.holder(caller.client.now_ms()) == caller.client.actor.user
    entries = [each for each in caller.client.access.audit() if each.on == f"run {run.id}"]
    assert [each.what for each in entries] == ["question claimed"]
    return run


def assign(caller: Caller) -> Run:
    run = caller.asked()
    caller.dies_in("client.gate_inbox.assign(client.run(sys.argv[2]).gates()[0], 'eve')", run)
    [gate] = run.gates()
    caller.client.gate_inbox.assign(gate, "eve")
    [gate] = run.gates()
    assert gate.handling.assigned is not None and gate.handling.assigned.person == "eve"
    entries = [each for each in caller.client.access.audit() if each.on == f"run {run.id}"]
    assert [each.what for each in entries] == ["question assigned"]
    return run


def comment(caller: Caller) -> Run:
    run = caller.asked()
    caller.dies_in("client.gate_inbox.comment(client.run(sys.argv[2]).gates()[0], 'wait')", run)
    [gate] = run.gates()
    caller.client.gate_inbox.comment(gate, "wait")
    wait_until(lambda: [step.kind for step in run.history() if step.by] == ["commented"], "it is in the journal once")
    return run


def cancel(caller: Caller) -> Run:
    run = caller.asked()
    caller.dies_in("client.run(sys.argv[2]).cancel()", run)
    caller.asks_again(run.cancel)
    return run


def retry(caller: Caller) -> Run:
    run = caller.asked()
    run.answer("x")
    wait_until(lambda: run.status == "failed", "one letter is too short")
    caller.dies_in("client.run(sys.argv[2]).retry()", run)
    caller.asks_again(run.retry)
    return run


def skip(caller: Caller) -> Run:
    run = caller.asked()
    caller.dies_in("client.run(sys.argv[2]).skip('ask', 'me')", run)
    caller.asks_again(lambda: run.skip("ask", "me"))
    return run


def pause(caller: Caller) -> Run:
    run = caller.asked()
    caller.dies_in("client.run(sys.argv[2]).pause('me')", run)
    caller.asks_again(lambda: run.pause("me"))
    wait_until(lambda: run.status == "paused", "it is held")
    run.resume()
    return run


def resume(caller: Caller) -> Run:
    run = caller.asked()
    run.pause("me")
    wait_until(lambda: run.status == "paused", "it is held")
    caller.dies_in("client.run(sys.argv[2]).resume()", run)
    caller.asks_again(run.resume)
    wait_until(lambda: run.status == "waiting", "it goes on")
    return run


def pause_all(caller: Caller) -> Run:
    run = caller.asked()
    caller.dies_in("client.pause_all('me')")
    caller.client.pause_all("me")  # of a batch, nothing or a part may have been done
    assert caller.client.held() is not None
    caller.client.resume_all()
    return run


def pause_namespace(caller: Caller) -> Run:
    run = caller.asked()
    caller.dies_in("client.pause_all(namespace='default')")
    caller.client.pause_all(namespace="default")  # of a batch, nothing or a part may have been done
    assert [held.scope for held in caller.client.holds()] == ["default"]
    caller.client.resume_all(namespace="default")
    wait_until(lambda: not caller.client.holds(), "the hold has ended")
    return run


def resume_namespace(caller: Caller) -> Run:
    run = caller.asked()
    caller.client.pause_all(namespace="default")
    caller.dies_in("client.resume_all(namespace='default')")
    caller.client.resume_all(namespace="default")  # of a batch, nothing or a part may have been done
    wait_until(lambda: not caller.client.holds(), "the hold has ended")
    return run


def resume_part(caller: Caller) -> Run:
    run = caller.asked()
    caller.client.pause_all("me")
    caller.dies_in("client.resume_part(agents=['entry'], rate=2)")
    held = caller.client.resume_part(agents=["entry"], rate=2)
    assert held.resumption is not None and (held.resumption.agents, held.resumption.rate) == (("entry",), 2)
    caller.client.resume_all()
    assert caller.client.holds() == []
    return run


def resume_all(caller: Caller) -> Run:
    run = caller.asked()
    caller.client.pause_all("me")
    caller.dies_in("client.resume_all()")
    caller.client.resume_all()  # of a batch, nothing or a part may have been done
    assert caller.client.held() is None
    return run


def send_signal(caller: Caller) -> Run:
    """Sent again, with its id, it is the same event."""
    waits = LONG_ENTRY.replace("name: entry\nstart: ask", "name: entry\nversion: sleipnir/1\nstart: pause")
    waits = waits.replace("nodes:\n", f"nodes:\n  pause: {{type: wait, event: '{caller.point}', next: ask}}\n")
    run = caller.client.submit(write_agent(caller.agent.parent / "waiting", waits))
    keys = caller.client.store.keys.of_signals(caller.point)
    wait_until(lambda: caller.client.store._client.exists(keys.every), "it waits")
    caller.dies_in(f"client.signal('{caller.point}', id='e')")
    caller.client.signal(caller.point, id="e")
    assert len([each for each in caller.client.signals() if each.name == caller.point]) == 1
    return run


def submit_batch(caller: Caller) -> Run:
    caller.dies_in("client.batch(sys.argv[1], [{'prompt': ''}], id=sys.argv[1].rpartition('/')[2])")
    batch = caller.client.batch(caller.agent, [{"prompt": ""}], id=caller.agent.name)
    assert batch.info().total == 1
    wait_until(lambda: batch.info().active, "its row is a run")
    return Run(caller.client.store, batch.run_id(0), caller.client.settings)


seal_batch = submit_batch  # which dies later, when the row is there


def retry_batch(caller: Caller) -> Run:
    batch = caller.client.batch(caller.agent, [{"prompt": ""}], id=caller.agent.name)
    run = Run(caller.client.store, batch.run_id(0), caller.client.settings)
    wait_until(lambda: batch.info().active and run.gates(), "its row asks")
    run.answer("x")
    wait_until(lambda: batch.info().state == "done", "one letter is too short")
    caller.dies_in("client.open_batch(sys.argv[1].rpartition('/')[2]).retry_failed()")
    caller.asks_again(batch.retry_failed)
    return run


CALLS: dict[str, Callable[[Caller], Run]] = {
    call.__name__: call
    for call in (
        submit,
        turn,
        queued_turn,
        fork,
        fork_turn,
        rewind,
        answer,
        claim,
        assign,
        comment,
        cancel,
        retry,
        skip,
        pause,
        resume,
        pause_all,
        resume_all,
        pause_namespace,
        resume_namespace,
        resume_part,
        send_signal,
        submit_batch,
        retry_batch,
    )
} | {"seal_batch": seal_batch}


@both_sides
@pytest.mark.parametrize("call", OF_CLIENTS)
def test_a_client_dies_at_a_point_and_asks_again(shared: Stack, tmp_path: Path, call: str, side: str) -> None:
    agent = write_agent(tmp_path / f"{call}-{side}", LONG_ENTRY)
    with shared.client() as client:
        run = CALLS[call](Caller(shared, client, agent, f"{OF_CLIENTS[call]}.{side}"))
        if call not in ("answer", "cancel", "skip"):
            wait_until(run.gates, "it asks")
            run.answer("me")
        wait_until(lambda: run.info().is_final, "the run is over")
        assert (run.status, run.output) == (("cancelled", None) if call == "cancel" else ("completed", "me"))
        is_well(client, run, Counter())
        batches = [client.open_batch(batch.id) for batch in client.batches() if batch.agent == agent.name]
        wait_until(lambda: all(batch.info().state == "done" for batch in batches), "the batch knows of its end")

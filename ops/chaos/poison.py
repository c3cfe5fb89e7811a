"""The poison drill: unexpected changes under load, with a report for each guarantee.

    python ops/chaos/poison.py [--runs 200] [--seed 7] [--only poison,mixed] [--previous REV] [--kinds loki]

Random graphs (graphs.py) run without faults first, then in one drill after the other, each on servers and processes of
its own:

poison   before, during and after the load, unreadable inbox entries, effects, messages, records and bundles are planted
disk     a worker's home is on a small tmpfs that is full, free, and full again
outage   Redis is frozen, and killed and started again, for longer than a lease
restore  an old append-only file is put back under running processes
promote  a replica that lacks the last second is promoted
clock    the clock of Redis is stepped forward and back by more than a lease
mixed    four workers and a scheduler of another revision (--previous) run beside four workers and a scheduler of this;
         with --fast two and two

No worker is killed, so no visit may be executed again while Redis remembers it. Only data that Redis lost is in the
section "lost by Redis, as documented". Exits with 1 if a guarantee was violated. A drill that cannot run here (no right
to mount, no libfaketime, no repository) is reported as skipped.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from ops.chaos import graphs, releases, servers, verdict  # noqa: E402
from ops.chaos.plants import NAME, Plants  # noqa: E402
from ops.chaos.robot import STALL_S, Robot  # noqa: E402
from ops.chaos.run import (  # noqa: E402
    QUEUES,
    RUNS_PER_GRAPH,
    SCHEDULERS,
    WORKERS,
    Chaos,
    draw,
    keep_evidence,
    retried,
    settled,
)
from ops.chaos.verdict import Wrong  # noqa: E402
from sleipnir.client.client import Client  # noqa: E402
from sleipnir.errors import SleipnirError  # noqa: E402
from sleipnir.store.connect import connect  # noqa: E402
from tests.processes import RedisServer  # noqa: E402

PROMISES: Mapping[str, tuple[str, ...]] = {
    "1. every accepted run ends, or reports what it waits for": ("lost", "stuck", "unreported"),
    "2. a committed visit is never lost, and never run again": ("double", "state"),
    "3. a visit is executed again only if its worker died": ("again", "effect"),
    "   and every run ends as it does without faults": ("differs",),
    "6. what Redis acknowledged survives": ("forgotten",),
    "   and nothing is left over": ("leak", "dead"),
}
"""By the kinds of Wrong that break them. 4 (waiting holds no worker) and 5 (a run keeps its definition) are not checked
here."""

_ENDED_TASK = re.compile(r"Task \S+\[([^\]]+)\] (succeeded|raised)")

PROGRESS_S = 0.05
AFTERWARDS_S = 1.0  # a worker starts what it claimed before Redis went back
DISK_MB = 4
FAST_LEASE_S = 4.0  # longer than a busy machine keeps a heartbeat waiting


class Skipped(Exception):
    """A drill cannot run here. The text is the reason."""


class DrillRobot(Robot):
    """A robot that checks its runs again after Redis went back in time. `lost` are the runs that Redis lost. It forks
    none: the source of a fork may be lost, and the states of its steps with it."""

    forks_runs = False

    def __init__(self, client: Client, agents: Sequence[Path], chance: random.Random, **options: Any) -> None:
        super().__init__(client, agents, chance, **options)
        self.at_once = max(3, len(agents) // 6)  # so that runs are submitted all the time
        self.accepted_ms: dict[str, int] = {}
        self.lost: dict[str, int] = {}
        self.failures: Counter[str] = Counter()
        self.went_back = threading.Event()

    @property
    def share(self) -> float:
        """The share of the load that has ended."""
        return len(self.ended) / max(1, len(self._agents))

    def _adopt(self, run_id: str, agent: str) -> None:
        if not agent.startswith(NAME):
            self.accepted_ms.setdefault(run_id, servers.now_ms())
            super()._adopt(run_id, agent)

    def _has_work(self) -> bool:
        return self.went_back.is_set() or super()._has_work()

    def _round(self) -> bool:
        if self.went_back.is_set():
            self._look_again()
        try:
            return super()._round()
        except SleipnirError:
            raise  # Redis is away
        except Exception as error:
            self.failures[f"{type(error).__name__}: {error}"] += 1
            return False

    def _look_again(self) -> None:
        with self._client.store.errors():
            infos = self._client.store.runs.find(self.run_ids)
        for run_id, info in zip(self.run_ids, infos, strict=True):
            if info is None:
                self.lost.setdefault(run_id, self.accepted_ms[run_id])
            if info is None or not info.is_final:
                self.ended.pop(run_id, None)
            (self._live.discard if info is None else self._live.add)(run_id)
            if info is None or info.status != "paused":
                self._paused.pop(run_id, None)
            else:
                self._paused.setdefault(run_id, 0.0)
            self._retries.pop(run_id, None)
            self._retried_ms.pop(run_id, None)
        self.went_back.clear()


@dataclass
class Forgotten:
    """The lost part of the past: all that Redis acknowledged from `since_ms` on. `first` and `last` bound the lines of
    the file of effects that were written meanwhile; `until_ms` is when leases that it remembered have lapsed. `held`
    are the visits (`run/seq`) that workers had just then, which may begin to execute after it."""

    since_ms: int
    first: int
    last: int
    until_ms: int
    held: Sequence[str]


@dataclass
class Report:
    """The result of one drill."""

    name: str
    wrongs: list[Wrong] = field(default_factory=list)
    documented: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)


class Drill:
    """One drill: `strike` is called in the main thread while the robot works, as processes die with the thread that
    has started them."""

    name: ClassVar[str]
    poisoned = True

    def __init__(self, options: argparse.Namespace, folder: Path, effects: Path, chance: random.Random) -> None:
        self.options, self.folder, self.effects, self.chance = options, folder, effects, chance
        self.forgotten: Forgotten | None = None
        self.chaos = Chaos(folder, chance, fast=options.fast, redis=self.server(), **self.settings())
        self.report = Report(self.name)

    def server(self) -> RedisServer:
        return RedisServer()

    def settings(self) -> dict[str, Any]:
        return {"lease_s": FAST_LEASE_S, "heartbeat_s": 1.0} if self.options.fast else {}

    @property
    def lease_s(self) -> float:
        return self.chaos.stack.settings.lease_s

    def start(self) -> None:
        self.chaos.start()

    def strike(self, robot: DrillRobot) -> None:
        """What this drill does while the load runs."""

    def away_s(self) -> float:
        """How long Redis is away: longer than a lease, at most a minute."""
        return self.chance.uniform(self.lease_s + 1, self.lease_s + 3 if self.options.fast else 60)

    def wait_for(self, robot: DrillRobot, share: float) -> None:
        """Wait until this share of the load has ended, or the drill stops."""
        pause = threading.Event()
        while robot.share < share and not self.chaos.stop.is_set():
            pause.wait(PROGRESS_S)

    def say(self, text: str) -> None:
        print(f"\n  {self.name}: {text}", file=sys.stderr)

    def end(self) -> None:
        self.chaos.stack.stop()
        self.chaos.redis.stop()

    # The verdict

    def run(self, plan: Sequence[Path], quiet: verdict.Endings) -> Report:
        try:
            self.start()
            with self.chaos.stack.client() as client:
                self._run(client, plan, quiet)
        except Skipped:
            raise
        except Exception:
            self.report.wrongs.append(Wrong("stuck", f"the drill could not go on: {traceback.format_exc()}"))
            self.say(f"evidence: {keep_evidence(self.chaos, self.report.wrongs)}")
        finally:
            self.chaos.stop.set()
            self.end()
        return self.report

    def _run(self, client: Client, plan: Sequence[Path], quiet: verdict.Endings) -> None:
        started = time.monotonic()
        robot = DrillRobot(client, plan, random.Random(self.chance.random()))
        plants = Plants(client, self.folder / "victims", QUEUES[0], self.chance, self.options.corpus)
        if self.poisoned:
            plants.plant()
        working = threading.Thread(target=self._work, args=(robot,))
        working.start()
        if self.poisoned:
            self.wait_for(robot, 0.1)
            self.chaos._try(plants.plant)
        self.strike(robot)
        working.join()
        if robot.went_back.is_set():  # only after the whole load had ended: some of it has not ended any more
            robot.work()
        if robot.stalled:
            self.say(f"nothing moved for {STALL_S:g} s; left: {robot.left()[:10]}")
        if self.poisoned:
            plants.plant()
        after = DrillRobot(client, plan[:3], random.Random(self.chance.random()), known=robot.run_ids, gentle=True)
        after.work()  # may be asked about effects too: Redis may have come back a moment ago
        robot.run_agains += after.run_agains
        runs = [run for run in [*robot.run_ids, *after.run_ids] if run not in robot.lost]
        self.report.wrongs += retried(lambda: list(plants.wrongs()))
        plants.close()
        self.report.wrongs += settled(lambda: self._wrongs(client, runs, robot, quiet))
        self.report.wrongs += self._dead()
        for failure, times in robot.failures.items():
            self.report.wrongs.append(Wrong("unreported", f"a client failed {times} times: {failure}"))
        self._documented(client, robot)
        infos = client.store.runs.infos(runs)
        self.report.facts |= {
            "runs": len(infos),
            "visits": sum(info.step for info in infos),
            "ended": dict(Counter(info.status for info in infos)),
            "victims": plants.count,
            "lost_by_redis": len(robot.lost),
            "took_s": round(time.monotonic() - started),
        }
        if self.report.wrongs:
            self.say(f"evidence: {keep_evidence(self.chaos, self.report.wrongs)}")

    def _work(self, robot: DrillRobot) -> None:
        try:
            robot.work()
        finally:
            self.chaos.stop.set()

    def _wrongs(self, client: Client, runs: Sequence[str], robot: DrillRobot, quiet: verdict.Endings) -> list[Wrong]:
        redis = connect(self.chaos.redis.url)
        forgotten = self._forgotten(client, runs)
        violations = verdict.wrongs(client, runs, self.effects, redis, robot.run_agains, quiet, forgotten)
        redis.close()
        since_ms = None if self.forgotten is None else self.forgotten.since_ms
        for run, accepted_ms in robot.lost.items():
            if since_ms is None or accepted_ms < since_ms:
                violations.append(Wrong("forgotten", f"{run}: accepted at {accepted_ms}, and gone"))
        return [*violations, *(Wrong("again", text) for _, text in self._again(client, runs, documented=False))]

    def _again(self, client: Client, runs: Sequence[str], *, documented: bool) -> Iterator[tuple[str, str]]:
        """Visits that were executed again because a lease lapsed, although their workers lived. `documented`: only
        those whose outcome Redis lost. An attempt whose claim Redis has taken without an answer, as it was frozen, was
        not executed."""
        executed = self._executed()
        for run in runs:
            for event in client.store.runs.events(run, "0"):
                task = f"{run}:{event.data.get('node')}:{event.data.get('seq')}:{event.data.get('attempt')}"
                if event.type == "worker_lost" and task in executed:
                    gone = self.forgotten
                    is_documented = gone is not None and gone.since_ms <= event.at_ms <= gone.until_ms
                    if is_documented == documented:
                        yield run, f"{run}: visit {event.data.get('seq')} lost its worker, which lives: {event.data}"

    def _executed(self) -> set[str]:
        """The tasks that have come to an end on a worker, by its log, but for those whose claim was refused. One that
        raised has been executed if its script has left its line: the claim may have raised, or the delivery."""
        lines = (line for log in self.chaos.stack.home.glob("worker-*.log") for line in log.read_text().splitlines())
        ends = (_ENDED_TASK.search(line) for line in lines if "void: {'refused'" not in line)
        acted = set(self.effects.read_text().splitlines()) if self.effects.exists() else set()
        return {end[1] for end in ends if end and (end[2] == "succeeded" or _place_of(end[1]) in acted)}

    def _forgotten(self, client: Client, runs: Sequence[str]) -> Counter[str]:
        """Executions by visit that belong to the lost part of the past. Excludes visits of nodes with `effect: once`
        that Redis still had: a person is asked before they are executed again."""
        if self.forgotten is None:
            return Counter()
        lines = self.effects.read_text().splitlines()
        executions = Counter(lines[self.forgotten.first : self.forgotten.last]) + Counter(self.forgotten.held)
        for run in runs:
            for event in client.store.runs.events(run, "0"):
                is_old = event.type == "visit_opened" and event.at_ms < self.forgotten.since_ms
                if is_old and event.data["node"].startswith("once"):
                    del executions[f"{run}/{event.data['seq']}"]
        return executions

    def _dead(self) -> list[Wrong]:
        """This drill kills no schedulers or workers."""
        return [
            Wrong("dead", f"{name} ended with {process.returncode}: {self.chaos.stack.log(name)[-300:]!r}")
            for name, process in self.chaos.stack.processes.items()
            if process.poll() is not None
        ]

    def _documented(self, client: Client, robot: DrillRobot) -> None:
        if self.forgotten is None:
            return
        runs = [run for run in robot.run_ids if run not in robot.lost]
        lines = self.effects.read_text().splitlines()
        counts = Counter(lines)
        meanwhile = {line for line in lines[self.forgotten.first : self.forgotten.last]}
        kept = {line for line in meanwhile if line.partition("/")[0] in set(runs)}
        repeated = [line for line in kept if counts[line] > 1]
        again = list(self._again(client, runs, documented=True))
        self.report.documented += [
            f"{len(robot.lost)} runs that were accepted after Redis' copy was made: {sorted(robot.lost)[:10]}",
            f"{len(kept)} executions of scripts after it, of which {len(repeated)} visits were executed again",
            f"{len(again)} visits whose lease in the copy lapsed",
        ]

    def line_count(self) -> int:
        return len(self.effects.read_text().splitlines()) if self.effects.exists() else 0


class Poison(Drill):
    name = "poison"

    def strike(self, robot: DrillRobot) -> None:
        pass


class Disk(Drill):
    name = "disk"
    poisoned = False

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._disk = servers.SmallDisk(self.folder / "small", DISK_MB)

    def start(self) -> None:
        if self._disk.__enter__().folder is None:
            raise Skipped("no tmpfs can be mounted here (root can)")
        self.chaos.start()
        self._disk.fill()
        environment = {"SLEIPNIR_HOME": str(self._disk.folder)}
        self.chaos.stack.start_worker(
            "worker-full", ",".join(QUEUES), pool="threads", concurrency=4, ready=False, env=environment
        )

    def strike(self, robot: DrillRobot) -> None:
        self.wait_for(robot, 0.4)
        self._disk.free()
        self.wait_for(robot, 0.7)
        self._disk.fill()

    def end(self) -> None:
        super().end()
        self._disk.__exit__()


class Outage(Drill):
    name = "outage"
    poisoned = False

    def strike(self, robot: DrillRobot) -> None:
        for share, away in ((0.2, servers.stop_for), (0.6, servers.away_for)):
            self.wait_for(robot, share)
            seconds = self.away_s()
            self.say(f"Redis is {'frozen' if away is servers.stop_for else 'killed'} for {seconds:.0f} s")
            away(self.chaos.redis, seconds)


class Restore(Drill):
    name = "restore"
    poisoned = False

    def strike(self, robot: DrillRobot) -> None:
        self.wait_for(robot, 0.25)
        since_ms, first = servers.now_ms(), self.line_count()
        servers.copy_append_only_file(self.chaos.redis, self.folder / "backup")
        self.wait_for(robot, 0.5)
        self.say(f"a copy of {(servers.now_ms() - since_ms) / 1000:.0f} s ago is put back")
        held = self.held()
        servers.put_back(self.chaos.redis, self.folder / "backup")
        self.went_back(robot, since_ms, first, held)

    def held(self) -> list[str]:
        """The visits that workers have."""
        redis, keys = servers.admin(self.chaos.redis), self.chaos._keys()
        leases = [redis.zrange(keys.of_partition(number).leases, 0, -1) for number in range(keys.partitions)]
        redis.close()
        return [member.rpartition("/")[0] for members in leases for member in members]

    def went_back(self, robot: DrillRobot, since_ms: int, first: int, held: Sequence[str]) -> None:
        time.sleep(AFTERWARDS_S)
        # Redis has lost the executions since the copy; a lease of the copy lapses after the pause of one more lease.
        until_ms = servers.now_ms() + int(5 * self.lease_s * 1000)
        self.forgotten = Forgotten(since_ms, first, self.line_count(), until_ms, held)
        robot.went_back.set()


class Promote(Restore):
    name = "promote"

    def server(self) -> RedisServer:
        return servers.Replicated()

    def strike(self, robot: DrillRobot) -> None:
        assert isinstance(self.chaos.redis, servers.Replicated)
        self.wait_for(robot, 0.3)
        self.chaos.redis.is_followed()
        since_ms, first = servers.now_ms() - 1000, self.line_count()  # unreplicated data is lost too
        self.chaos.redis.cut_off()
        time.sleep(self.chance.uniform(1.0, 2.0))
        self.say("a replica that lacks the last writes is promoted")
        held = self.held()
        self.chaos.redis.promote()
        self.went_back(robot, since_ms, first, held)


class Clock(Drill):
    name = "clock"
    poisoned = False

    def server(self) -> RedisServer:
        library = servers.faketime()
        if library is None or servers.why_no_clock():
            raise Skipped(servers.why_no_clock())
        return servers.Stepped(library)

    def strike(self, robot: DrillRobot) -> None:
        assert isinstance(self.chaos.redis, servers.Stepped)
        most_s = int(2 * self.lease_s)  # shorter than the time that nodes of these graphs have
        for share, seconds in ((0.2, most_s), (0.5, -most_s), (0.8, -most_s)):
            self.wait_for(robot, share)
            self.say(f"the clock of Redis is stepped by {seconds} s")
            self.chaos.redis.step(seconds)


class Mixed(Drill):
    name = "mixed"
    poisoned = False

    def start(self) -> None:
        try:
            self._other = releases.unpack(self.options.previous, self.folder / "other")
        except releases.NoRelease as error:
            raise Skipped(str(error)) from None
        self.say(f"beside processes of {self._other.revision}: {self._other.subject}")
        workers = range(2 if self.options.fast else 4)
        for name, environment in (("new", {}), ("old", self._other.environment)):
            self.chaos.stack.start_scheduler(f"scheduler-{name}", env=environment)
            for number in workers:
                self.chaos.stack.start_worker(
                    f"worker-{name}-{number}", ",".join(QUEUES), pool="threads", concurrency=2, ready=False,
                    env=environment,
                )  # fmt: skip
        for number in workers:
            for name in ("new", "old"):
                self.chaos.stack.wait_for_worker(f"worker-{name}-{number}", 180)

    def strike(self, robot: DrillRobot) -> None:
        """Each scheduler owns all partitions for a while."""
        for share, name in ((0.25, "new"), (0.5, "old"), (0.75, "new")):
            self.wait_for(robot, share)
            self.say(f"the scheduler of the {name} release is stopped and started")
            self.chaos.stack.processes[f"scheduler-{name}"].send_signal(signal.SIGTERM)
            self.chaos.stack.processes.pop(f"scheduler-{name}").wait(60)
            environment = self._other.environment if name == "old" else {}
            self.chaos.stack.start_scheduler(f"scheduler-{name}", env=environment)

    def _documented(self, client: Client, robot: DrillRobot) -> None:
        claims = Counter(
            event.data["worker"].partition("@")[0]
            for run in robot.run_ids
            for event in client.store.runs.events(run, "0")
            if event.type == "visit_started"
        )
        both = {
            name: sum(count for worker, count in claims.items() if f"-{name}-" in worker) for name in ("old", "new")
        }
        self.report.facts |= {"claims": both, "beside": f"{self._other.revision} {self._other.subject}"}
        if not all(both.values()):
            self.report.wrongs.append(Wrong("stuck", f"workers of one release took nothing: {both}"))


DRILLS: Mapping[str, type[Drill]] = {
    drill.name: drill for drill in (Poison, Disk, Outage, Restore, Promote, Clock, Mixed)
}


class Peace(Drill):
    """Each graph once without faults: the expected outcomes."""

    name = "peace"

    def start(self) -> None:
        if self.options.fast:
            self.chaos.schedulers, self.chaos.workers = SCHEDULERS[:1], WORKERS[:1]
        self.chaos.start()

    def endings(self, agents: Sequence[Path]) -> verdict.Endings:
        try:
            self.start()
            with self.chaos.stack.client() as client:
                calm = Robot(client, agents, random.Random(self.chance.random()), gentle=True)
                calm.work()
                if calm.stalled:
                    raise SystemExit(f"without faults, nothing moved for {STALL_S:g} s; left: {calm.left()[:10]}")
                return verdict.endings(client, calm.run_ids)
        finally:
            self.end()


def _place_of(task: str) -> str:
    """The line that the script of a visit writes: `run/seq`, made of the task `run:node:seq:attempt`."""
    run, *_, seq, _ = task.split(":")
    return f"{run}/{seq}"


def campaign(options: argparse.Namespace, folder: Path) -> int:
    """Runs all drills. Returns the number of violated guarantees."""
    chance = random.Random(options.seed)
    names = [name for name in DRILLS if name in options.only]
    runs_per_drill = -(-options.runs // len(names))
    effects = folder / "effects.txt"
    effects.touch()
    count = options.graphs or max(5, -(-runs_per_drill // RUNS_PER_GRAPH))
    agents = draw(folder / "agents", chance, count, effects, options.kinds)
    settled_ones = [agent for agent in agents if graphs.kind_of(agent.name) in graphs.KINDS]
    peace = Peace(options, _made(folder / "peace"), effects, random.Random(chance.random()))
    quiet = peace.endings(settled_ones)
    reports, skipped = [], {}
    for name in names:
        print(f"{name}:", file=sys.stderr)
        plan = [agents[number % len(agents)] for number in range(runs_per_drill)]
        try:
            drill = DRILLS[name](options, _made(folder / name), effects, random.Random(chance.random()))
            reports.append(drill.run(plan, quiet))
        except Skipped as reason:
            skipped[name] = str(reason)
    return tell(options, reports, skipped)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def tell(options: argparse.Namespace, reports: Sequence[Report], skipped: Mapping[str, str]) -> int:
    """Print the report. Returns the number of violated guarantees."""
    broken = Counter(wrong.kind for report in reports for wrong in report.wrongs)
    if options.json:
        facts = {
            report.name: report.facts | {"broken": dict(Counter(w.kind for w in report.wrongs))} for report in reports
        }
        print(json.dumps({"seed": options.seed, "drills": facts, "skipped": dict(skipped)}))
    else:
        print(f"seed {options.seed}")
        for report in reports:
            print(f"  {report.name}: {report.facts}")
        for name, reason in skipped.items():
            print(f"  {name}: SKIPPED: {reason}")
        for promise, kinds in PROMISES.items():
            counts = ", ".join(f"{broken[kind]} {kind}" for kind in kinds)
            print(f"{'BROKEN' if any(broken[kind] for kind in kinds) else 'held  '}  {promise}: {counts}")
        print("lost by Redis, as documented:")
        lines = [f"  {report.name}: {line}" for report in reports for line in report.documented]
        print("\n".join(lines) or "  nothing")
    for report in reports:
        for wrong in report.wrongs[:50]:
            print(f"  {report.name}: {wrong.kind}: {wrong.text}", file=sys.stderr)
    return sum(broken.values())


def names_of_drills(text: str) -> list[str]:
    names = text.split(",")
    if unknown := sorted(set(names) - DRILLS.keys()):
        raise argparse.ArgumentTypeError(f"no drill is called {', '.join(unknown)}; there are {', '.join(DRILLS)}")
    return names


def kinds_of_graphs(text: str) -> tuple[str, ...]:
    kinds = tuple(text.split(","))
    if unknown := sorted(set(kinds) - set(graphs.KINDS)):
        raise argparse.ArgumentTypeError(
            f"no graphs are called {', '.join(unknown)}; there are {', '.join(graphs.KINDS)}"
        )
    return kinds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200, help="in all drills together (default 200)")
    parser.add_argument("--graphs", type=int, help="how many graphs (default: a tenth of the runs of a drill)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10_000), help="default: drawn")
    parser.add_argument("--only", type=names_of_drills, default=list(DRILLS), metavar="DRILL,...")
    parser.add_argument("--previous", default="HEAD~1", metavar="REV", help="the other revision (default HEAD~1)")
    parser.add_argument(
        "--kinds", type=kinds_of_graphs, metavar="KIND,...",
        help="loki, bsp, dag: only such graphs; loki for a --previous that does not know sleipnir/1 (default: all, "
        "and wild ones)",
    )  # fmt: skip
    parser.add_argument("--corpus", type=float, default=1.0, help="share of the corpus planted each time (default 1)")
    parser.add_argument(
        "--fast", action="store_true", help=f"leases of {FAST_LEASE_S:g} s, fewer workers: for a short campaign"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="slp-chaos-") as folder:
        sys.exit(min(1, campaign(options, Path(folder))))


if __name__ == "__main__":
    main()

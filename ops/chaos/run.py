"""Run random graphs on a real stack while it is being killed: `python ops/chaos/run.py --runs 2000 --seed 7`.

First each graph with one possible outcome runs once without faults. Then all of them run under fire, about ten times
each. Two schedulers, three workers, a worker for models and a redis-server with an append-only file, with default
settings; the model is a scripted server (models.py), which is not killed. Every few seconds one of them is killed
(SIGKILL) and started again, or frozen (SIGSTOP) longer than its lease and thawed, or a queue's messages are lost.
With `--nodes` the state is on a Redis Cluster: nodes are killed one by one, and slots move between them; with
`--replicas 1` nodes also fail over to their replicas, and lose what these have not received (failovers.py). Meanwhile
all connections are cut now and then, old messages are sent again, and a robot submits (some runs with breakpoints or
overrides), forks, updates, answers, pauses, resumes, cancels and retries. Afterwards verdict.py reads every journal,
and figures.py how long each gap was. Prints one line of figures with the seed; exits with 1 when a promise was
broken, or when nothing moved for two minutes: then it says where logs and evidence are.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from ops.chaos import clusters, failovers, figures, graphs, models, verdict, wild  # noqa: E402
from ops.chaos.replays import Replays  # noqa: E402
from ops.chaos.robot import STALL_S, Robot  # noqa: E402
from sleipnir.client.client import Client  # noqa: E402
from sleipnir.settings import Settings  # noqa: E402
from sleipnir.store import layout  # noqa: E402
from sleipnir.store.cluster import slot_of  # noqa: E402
from sleipnir.store.connect import connect  # noqa: E402
from sleipnir.store.keys import Keys  # noqa: E402
from sleipnir.testing import ModelServer  # noqa: E402
from tests.processes import FAST, RedisServer, Stack  # noqa: E402
from tests.redis_cluster import ServerCluster  # noqa: E402
from tests.waiting import wait_until  # noqa: E402

SCHEDULERS = ("scheduler-1", "scheduler-2")
WORKERS = ("worker-1", "worker-2", "worker-3")
QUEUES = ("scripts", "functions")
MODEL_WORKER = "models-1"
DROP_EVERY_S = 1.0
MOVED_AT_ONCE = 4  # partitions
RUNS_PER_GRAPH = 10
WILD = 5  # one graph in so many is one of wild.py

T = TypeVar("T")


class Chaos:
    """The blows of one campaign. The seed decides what is drawn; the timing of the operating system still differs."""

    schedulers: Sequence[str] = SCHEDULERS
    workers: Sequence[str] = WORKERS

    def __init__(
        self,
        folder: Path,
        chance: random.Random,
        *,
        every_s: float = 0,
        drops: int = 0,
        fast: bool,
        redis: RedisServer | ServerCluster | None = None,
        model: ModelServer | None = None,
        **settings: Any,
    ) -> None:
        """With a `model` there is a worker that asks it."""
        self.folder, self.chance, self.every_s, self.drops = folder, chance, every_s, drops
        self.redis = redis or RedisServer()
        self.broker_url = self.redis.addresses.get("broker_url", self.redis.url)
        names = FAST if fast else {name: getattr(Settings, name) for name in FAST}
        self.model, self.queues = model, QUEUES
        if model is not None:
            self.workers, self.queues = (*self.workers, MODEL_WORKER), (*QUEUES, models.QUEUE)
        self.stack = Stack(self.redis, folder / "home", **(dict(names) | {"log_level": "info"} | settings))
        self.counts: Counter[str] = Counter()
        self.blows = figures.Blows()
        self.losses = failovers.Losses()
        self.went_back: Callable[[frozenset[str]], object] = lambda names: None
        """Called with the names of what a fail-over has changed."""
        self.stop = threading.Event()
        self._frozen: dict[str, float] = {}
        self._admin = connect(self.redis.url, retries=0, socket_timeout=1)
        self._broker = connect(self.broker_url, retries=0, socket_timeout=1)

    def start(self) -> None:
        for name in self.schedulers:
            self.stack.start_scheduler(name)
        for name in self.workers:
            self.start_worker(name)

    def strike(self) -> None:
        """Causes faults until it is stopped. In the main thread: processes die with the thread that started them."""
        blows = [self.kill_worker, self.kill_worker, self.kill_scheduler, self.freeze, self.kill_redis]
        blows += [self.lose_messages, *self.blows_to_cluster()]
        while not self.stop.wait(self.every_s):
            self.thaw()
            blow = self.chance.choice(blows)
            self.counts[blow.__name__] += 1
            self._try(blow)
        self.thaw(all_of_them=True)  # what comes afterwards is done in peace, and one worker alone asks the model

    def blows_to_cluster(self) -> Sequence[Callable[[], None]]:
        """The faults that one Redis does not have."""
        if not isinstance(self.redis, ServerCluster):
            return ()
        has_replicas = len(self.redis.primaries()) < len(self.redis.nodes)
        return (self.move_slots, *[self.fail_over] * (2 if has_replicas else 0))

    def kill_worker(self) -> None:
        name = self.chance.choice(self.workers)
        at_ms = self._now_ms()
        self.blows.outages.append((at_ms, name))
        self.stack.kill(name)
        self._try(lambda: self.blows.visits.extend((at_ms, *held) for held in self._held_by(name)))
        self.start_worker(name)

    def kill_scheduler(self) -> None:
        name = self.chance.choice(self.schedulers)
        instance = f"{socket.gethostname()}:{self.stack.processes[name].pid}:"
        at_ms, owned = self._now_ms(), self._try(lambda: self._owned_by(instance))
        self.stack.kill(name)
        if owned:
            self.blows.schedulers.append((at_ms, owned))
        self.stack.start_scheduler(name)

    def freeze(self) -> None:
        """Longer than any lease: others take over, and the frozen one wakes up in a world that went on."""
        if self._frozen:
            return
        name = self.chance.choice([*self.workers, *self.schedulers])
        self.blows.outages.append((self._now_ms(), name))
        self.stack.signal(name, signal.SIGSTOP)
        self._frozen[name] = time.monotonic() + self.stack.settings.lease_s * 1.7

    def thaw(self, *, all_of_them: bool = False) -> None:
        for name in [name for name, until in self._frozen.items() if all_of_them or until < time.monotonic()]:
            del self._frozen[name]
            self.stack.signal(name, signal.SIGCONT)

    def kill_redis(self) -> None:
        """Of a cluster one node."""
        server = self.chance.choice(self.redis.primaries()) if isinstance(self.redis, ServerCluster) else self.redis
        server.kill()
        server.start()

    def move_slots(self) -> None:
        """Some partitions of a cluster move to another node, while their runs go on."""
        cluster, keys = self._whole_cluster(), self._keys()
        for partition in self.partitions_to_move():
            inbox = keys.of_partition(partition).inbox
            source = cluster.primary_of(inbox)
            target = self.chance.choice([node for node in cluster.primaries() if node is not source])
            cluster.move_slot(slot_of(inbox), source, target)

    def partitions_to_move(self) -> Sequence[int]:
        return self.chance.sample(range(self._keys().partitions), MOVED_AT_ONCE)

    def fail_over(self) -> None:
        """A node of a cluster dies, and its replica goes on without what it has not received."""
        if (loss := failovers.fail_over(self._whole_cluster(), self.chance)) is not None:
            self.losses.all.append(loss)
            self.went_back(loss.names)

    def _whole_cluster(self) -> ServerCluster:
        """A node that was just started refuses commands for two seconds: what takes several would stop halfway."""
        assert isinstance(self.redis, ServerCluster)
        wait_until(self.redis.is_whole, "the cluster serves all slots", 60)
        return self.redis

    def lose_messages(self) -> None:
        self.blows.outages.append((self._now_ms(), figures.MESSAGES))
        queue = self.chance.choice(self.queues)
        self._broker.delete(f"{self.stack.settings.key_prefix}:broker:{queue}")

    def drop_connections(self) -> None:
        """Cuts all connections repeatedly."""
        while self.counts["connection_drops"] < self.drops and not self.stop.wait(DROP_EVERY_S):
            self._try(self._drop_once)

    def _drop_once(self) -> None:
        at_ms, urls = self._now_ms(), {self.broker_url, self.redis.url}
        if isinstance(self.redis, ServerCluster):
            urls = {self.broker_url, *(f"redis://{node.address}" for node in self.redis.nodes)}
        for url in urls:
            admin = connect(url, retries=0, socket_timeout=1)
            admin.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            admin.execute_command("CLIENT", "KILL", "TYPE", "pubsub", "SKIPME", "yes")
            admin.close()
        self.counts["connection_drops"] += 1
        self.blows.drops.append((at_ms, frozenset(self.workers) - self._frozen.keys()))

    def _held_by(self, worker: str) -> list[tuple[str, int, int]]:
        """The visits that a killed worker had claimed and not delivered."""
        keys, visits = self._keys(), []
        for partition in range(keys.partitions):
            for name in self._admin.zrange(keys.of_partition(partition).leases, 0, -1):
                run, seq, attempt = name.rsplit("/", 2)
                claim = json.loads(self._admin.hget(keys.of_run(run).claims, seq) or "{}")
                owned = claim.get("worker", "").startswith(f"{worker}@") and claim.get("attempt") == int(attempt)
                if owned and not claim.get("lost") and not claim.get("delivered"):
                    visits.append((run, int(seq), int(attempt)))
        return visits

    def _owned_by(self, instance: str) -> frozenset[int]:
        """The partitions of the instance whose name begins so; a random part follows."""
        keys = self._keys()
        owners = {p: self._admin.hget(keys.of_partition(p).owner, "instance") for p in range(keys.partitions)}
        return frozenset(partition for partition, owner in owners.items() if owner and owner.startswith(instance))

    def _keys(self) -> Keys:
        return self.stack.keys

    def _now_ms(self) -> int:
        """Redis' clock, which is this machine's."""
        return int(time.time() * 1000)

    def _try(self, call: Callable[[], T]) -> T | None:
        """Redis may be away while something is done to it or read from it."""
        try:
            return call()
        except Exception as error:
            print(f"\n  {call.__name__}: {error}", file=sys.stderr)
            return None

    def start_worker(self, name: str) -> None:
        env = self.model.env() if self.model is not None and name == MODEL_WORKER else None
        queues = ",".join(QUEUES) if env is None else models.QUEUE
        self.stack.start_worker(name, queues, pool="threads", concurrency=4, env=env, ready=False)


def campaign(options: argparse.Namespace, folder: Path) -> int:
    """The whole of it. Returns how many promises were broken."""
    chance = random.Random(options.seed)
    model, effects, folder_of_agents = models.server(), folder / "effects.txt", folder / "agents"
    chaos = Chaos(
        folder,
        chance,
        every_s=options.kill_every,
        drops=options.drops,
        fast=options.fast,
        redis=clusters.servers(options),
        partitions=options.partitions,
        model=model,
        agents_dir=folder_of_agents,
    )
    agents = draw(folder_of_agents, chance, options.graphs or -(-options.runs // RUNS_PER_GRAPH), effects, others=True)
    started = time.monotonic()
    model.start()
    try:
        chaos.start()
        with chaos.stack.client() as client:
            settled_ones = [agent for agent in agents if graphs.kind_of(agent.name) in graphs.KINDS]
            calm = Robot(client, settled_ones, random.Random(chance.random()), gentle=True)
            calm.work()
            if calm.stalled:
                print(f"without faults, nothing moved for {STALL_S:g} s; left: {calm.left()[:10]}", file=sys.stderr)
            quiet = verdict.endings(client, calm.run_ids)
            plan = [agents[number % len(agents)] for number in range(options.runs)]
            robot = Robot(client, plan, random.Random(chance.random()), known=calm.run_ids)
            chaos.went_back = robot.went_back
            replays = Replays(
                chaos.redis.url,
                chaos.broker_url,
                client.store.keys,
                random.Random(chance.random()),
                options.duplicates,
                chaos.queues,
            )

            def work() -> None:
                try:
                    robot.work()
                finally:
                    chaos.stop.set()

            under_fire(chaos, work, lambda: replays.run(chaos.stop))
            if chaos.losses.all and not robot.stalled:
                robot.finish()
                chaos.losses.wait_for_runs(client)
            if robot.stalled:
                print(f"nothing moved for {STALL_S:g} s; left: {robot.left()[:10]}", file=sys.stderr)
            again = Robot(client, [], random.Random(0), known=[*calm.run_ids, *robot.run_ids], gentle=True)
            repeated = again.fork_again(robot.special_forks())
            again.work()
            explained = list[verdict.Wrong]()

            def look() -> list[verdict.Wrong]:
                broken, explained[:] = judge(client, calm, robot, effects, chaos, quiet, repeated)
                return broken

            violations = settled(look)
            facts = retried(lambda: measure(client, robot, replays, chaos, quiet))
            facts["lost_by_redis"] = chaos.losses.facts(all_run_ids(client, calm, robot), explained)
        facts = {"seed": options.seed, "kill_every_s": options.kill_every} | facts
        facts["broken"] = dict(Counter(wrong.kind for wrong in violations))
        facts["took_s"] = round(time.monotonic() - started)
        print(json.dumps(facts) if options.json else in_words(facts))
        for wrong in explained[:50]:
            print(f"  lost by Redis: {wrong.kind}: {wrong.text}", file=sys.stderr)
        for wrong in violations[:50]:
            print(f"  {wrong.kind}: {wrong.text}", file=sys.stderr)
        if violations:
            print(f"  evidence: {keep_evidence(chaos, violations)}", file=sys.stderr)
        return len(violations)
    finally:
        chaos.stack.stop()
        chaos.redis.stop()
        model.stop()


def under_fire(chaos: Chaos, *work: Callable[[], None]) -> None:
    """Cause faults while this is done, until `chaos.stop` is set."""
    threads = [threading.Thread(target=target) for target in (*work, chaos.drop_connections)]
    for thread in threads:
        thread.start()
    chaos.strike()
    for thread in threads:
        thread.join()


def draw(
    folder: Path,
    chance: random.Random,
    count: int,
    effects: Path,
    kinds: Sequence[str] | None = None,
    *,
    others: bool = False,
) -> list[Path]:
    """This many agent folders: of these kinds; None: of all kinds, and wild ones. `others` as in graphs.write."""
    agents = []
    for number in range(count):
        if number % WILD == WILD - 1 and kinds is None:
            agents.append(wild.write(folder / f"wild-{number}", chance.getrandbits(32), effects))
        else:
            among = kinds or graphs.KINDS
            kind = among[(number - number // WILD) % len(among)]
            agents.append(graphs.write(folder / f"{kind}-{number}", chance.getrandbits(32), effects, others=others))
    return agents


def judge(
    client: Client,
    calm: Robot,
    robot: Robot,
    effects: Path,
    chaos: Chaos,
    quiet: verdict.Endings,
    repeated: Mapping[str, str],
) -> tuple[list[verdict.Wrong], list[verdict.Wrong]]:
    """The broken promises, and what the losses of fail-overs explain."""
    redis = connect(chaos.redis.url)
    infos = list(client.runs(10**6, among=10**6, children=True))
    run_ids = all_run_ids(client, calm, robot)
    forgotten = chaos.losses.forgotten(effects.read_text().split() if effects.exists() else ())
    violations = verdict.wrongs(client, run_ids, effects, redis, robot.run_agains, quiet, forgotten, repeated)
    redis.close()
    for info in client.store.runs.find(list(robot.ended)):
        if info is not None and robot.ended[info.id] != (info.status, info.step):
            violations.append(
                verdict.Wrong("state", f"{info.id}: changed after its end, from {robot.ended[info.id]}: {info}")
            )
    return chaos.losses.sort(violations, infos, run_ids)


def all_run_ids(client: Client, calm: Robot, robot: Robot) -> list[str]:
    """The runs that were accepted, and the child runs that are there."""
    children = [info.id for info in client.runs(10**6, among=10**6, children=True) if info.parent is not None]
    return [*calm.run_ids, *robot.run_ids, *children]


def measure(client: Client, robot: Robot, replays: Replays, chaos: Chaos, quiet: verdict.Endings) -> dict[str, Any]:
    infos = [info for info in client.store.runs.find(robot.run_ids) if info is not None]
    signs = figures.read(client, [info.id for info in infos])
    recovery = {
        "visit": figures.of_visits(chaos.blows, signs),
        "scheduler": figures.of_schedulers(chaos.blows, signs),
        "drop": figures.of_drops(chaos.blows, signs),
    }
    return {
        "runs": len(infos),
        "visits": sum(info.step for info in infos),
        "ended": dict(Counter(info.status for info in infos)),
        "blows": dict(chaos.counts),
        "robot": dict(robot.did),
        "recovery_s": {
            name: {"count": len(gaps)} | {f"p{share}": figures.percentile(gaps, share / 100) for share in (50, 99, 100)}
            for name, gaps in recovery.items()
        },
        "duplicates": replays.sent,
        "graphs": len(quiet),
        "compared": sum(info.agent in quiet and info.status != "cancelled" for info in infos),
    }


def in_words(facts: dict[str, Any]) -> str:
    broken, recovery = facts["broken"], facts["recovery_s"]
    lost, double, stuck = (broken.get(kind, 0) for kind in ("lost", "double", "stuck"))
    others = sum(broken.values()) - lost - double - stuck

    def gap(name: str) -> str:
        return f"p99 {recovery[name]['p99']} s, at most {recovery[name]['p100']} s ({recovery[name]['count']} times)"

    return (
        f"seed {facts['seed']}: {facts['runs']:,} random runs ({facts['visits']:,} visits), a kill every "
        f"{facts['kill_every_s']:g} s: {lost} lost, {double} double commits, {stuck} stuck, {others} other broken "
        f"promises; recovery of a killed worker's visit {gap('visit')}; of a scheduler {gap('scheduler')}; "
        f"{facts['blows'].get('connection_drops', 0)} connection drops, all consumers back {gap('drop')}; "
        f"{facts['duplicates']:,} duplicated or late messages, {broken.get('state', 0)} changes of state; "
        f"{facts['compared']:,} runs of {facts['graphs']} graphs compared with runs without faults, "
        f"{broken.get('differs', 0)} ended in another way; "
        f"{_losses_in_words(facts['lost_by_redis'])}"
        f"{facts['ended']}, blows {facts['blows']}, robot {facts['robot']}, {facts['took_s']} s"
    )


def _losses_in_words(lost: Mapping[str, Any]) -> str:
    if not lost["fail_overs"]:
        return ""
    explained = ", ".join(f"{count} {kind}" for kind, count in lost["explained"].items()) or "nothing"
    return (
        f"{lost['fail_overs']} fail-overs, of which {lost['losing']} lost writes to {lost['keys']:,} keys and of "
        f"{lost['runs']:,} runs, which explains what is not counted above: {explained}; "
    )


def keep_evidence(chaos: Chaos, violations: list[verdict.Wrong]) -> Path:
    """Keep logs, violations and the data of Redis in a folder that the end of the campaign does not delete."""
    folder = Path(tempfile.mkdtemp(prefix="chaos-evidence-"))
    shutil.copytree(chaos.stack.home, folder / "logs", ignore=shutil.ignore_patterns("bundles", "unpacked"))
    for log in chaos.redis.folder.glob("**/redis.log"):
        shutil.copy(log, folder / "logs" / f"{log.parent.name}-redis.log")
    (folder / "wrong.txt").write_text("\n".join(f"{wrong.kind}: {wrong.text}" for wrong in violations))
    redis, lines = connect(chaos.redis.url), []
    for key in sorted(redis.scan_iter(count=1000)):
        match redis.type(key):
            case "zset":
                lines.append(f"{key}: {redis.zrange(key, 0, 50, withscores=True)}")
            case "stream":
                lines.append(f"{key}: {redis.xlen(key)} entries, first {redis.xrange(key, count=3)}")
            case "hash" if ":run:" not in key or any(wrong.text.split(":")[0] in key for wrong in violations):
                lines.append(f"{key}: {redis.hgetall(key)}"[:5000])
            case "list":
                is_named = any(wrong.text.split(":")[0] in key for wrong in violations)
                elements = redis.lrange(key, 0, -1) if is_named else []
                lines.append(f"{key}: {redis.llen(key)} messages {elements}"[:20_000])
    (folder / "keys.txt").write_text("\n".join(lines))
    (folder / "blows.json").write_text(json.dumps(asdict(chaos.blows), default=list))
    return folder


def settled(look: Callable[[], list[T]]) -> list[T]:
    """The last replays may still be on their way through an inbox when the verdict begins."""
    for _ in range(20):
        violations = retried(look)
        if not violations:
            break
        threading.Event().wait(1)
    return violations


def retried(call: Callable[[], T]) -> T:
    """The last blow may still be felt."""
    for _ in range(100):
        try:
            return call()
        except Exception:
            threading.Event().wait(0.2)
    return call()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--graphs", type=int, help="how many graphs (default: a tenth of the runs)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10_000), help="default: drawn")
    parser.add_argument("--kill-every", type=float, default=2.0, metavar="S", help="seconds between blows (default 2)")
    parser.add_argument("--drops", type=int, default=200, help="cuts of all connections, at most (default 200)")
    parser.add_argument("--duplicates", type=int, default=1000, help="old messages sent again, at most (default 1000)")
    parser.add_argument("--fast", action="store_true", help="leases of 2 s, for a short campaign")
    clusters.add_options(parser, partitions=layout.DEFAULT, replicas=True)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="slp-chaos-") as folder:
        sys.exit(min(1, campaign(options, Path(folder))))


if __name__ == "__main__":
    main()

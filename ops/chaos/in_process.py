"""Run random graphs in this process and on a real stack, and compare how they end:
`python ops/chaos/in_process.py --graphs 1000 --seed 7`.

The graphs are those of graphs.py that can end in one way only. Nothing is killed: what differs is a difference between
the store in memory and the one in Redis, or between their drivers. Prints one line of figures with the seed; exits with
1 if a graph ended in two ways.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from ops.chaos import graphs, models, verdict  # noqa: E402
from ops.chaos.robot import STALL_S, Robot  # noqa: E402
from ops.chaos.run import draw  # noqa: E402
from sleipnir.runs.run import RUN_AGAIN  # noqa: E402
from sleipnir.settings import Settings  # noqa: E402
from sleipnir.testing import ModelServer  # noqa: E402
from sleipnir_inprocess.agent_run import AgentRun  # noqa: E402
from tests.processes import RedisServer, Stack  # noqa: E402

AT_ONCE = 40


def on_redis(
    agents: Sequence[Path], folder: Path, chance: random.Random, model: ModelServer
) -> dict[str, verdict.Ending]:
    """How the agents' runs end on a scheduler and workers."""
    redis = RedisServer()
    try:
        with Stack(redis, folder / "home", log_level="warning", agents_dir=folder / "agents") as stack:
            stack.start_scheduler()
            stack.start_worker("models", models.QUEUE, concurrency=4, env=model.env())
            for name in ("worker-1", "worker-2"):
                stack.start_worker(name, concurrency=4)
            with stack.client() as client:
                robot = Robot(client, agents, chance, gentle=True)
                robot.at_once = AT_ONCE
                robot.work()
                if robot.stalled:
                    raise SystemExit(f"nothing moved for {STALL_S:g} s; left: {robot.left()[:10]}")
                return verdict.endings(client, robot.run_ids)
    finally:
        redis.stop()


def in_process(agent: Path, settings: Settings) -> verdict.Ending:
    """How the agent's run ends here, with the same answers and retries."""
    run, retries = AgentRun(agent, "go", settings=settings, **models.overrides(agent)), graphs.RETRIES
    while True:
        for _ in run.steps():
            pass
        if gates := run.gates():
            for gate in gates:
                run.answer(RUN_AGAIN if gate.kind == "effect" else graphs.answer(agent.name, gate.node), gate)
        elif run.status == "failed" and retries:
            retries -= 1
            run.retry()
        else:
            break
    steps = [step for step, _ in run.record.values.journal]
    state = {key: value for key, value in run.state().items() if key not in verdict.ERRORS}
    ended = verdict.ended_visits(run.status, steps, lambda step: step.is_checkpoint)
    return verdict.Ending(run.status, state, run.output, ended)


def differences(agents: Sequence[Path], folder: Path, chance: random.Random) -> Iterator[str]:
    """The graphs that end in two ways, and the first differences of each."""
    with models.server() as model:
        fleet = on_redis(agents, folder, chance, model)
        os.environ.update(model.env())
        yield from different(agents, fleet, Settings(home=folder / "in-process", agents_dir=folder / "agents"))


def different(agents: Sequence[Path], fleet: verdict.Endings, settings: Settings) -> Iterator[str]:
    for agent in agents:
        ending, other = in_process(agent, settings), fleet[agent.name]
        if graphs.kind_of(agent.name) == "dag" and ending.status == other.status == "failed":
            continue  # what else of a dag has run when it fails depends on time
        if found := "; ".join(ending.differences(other)):
            yield f"{agent.name}: {found}"


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    ask.add_argument("--graphs", type=int, default=200, help="how many graphs are drawn")
    ask.add_argument("--seed", type=int, default=0)
    options = ask.parse_args()
    began, chance = time.monotonic(), random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="sleipnir-in-process-") as name:
        folder = Path(name)
        agents = draw(folder / "agents", chance, options.graphs, folder / "effects.txt", graphs.KINDS, others=True)
        found = list(differences(agents, folder, chance))
    for line in found[:50]:
        print(f"  {line}", file=sys.stderr)
    facts = {"seed": options.seed, "graphs": options.graphs, "differ": len(found)}
    print(json.dumps(facts | {"took_s": round(time.monotonic() - began)}))
    sys.exit(bool(found))


if __name__ == "__main__":
    main()

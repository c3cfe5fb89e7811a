"""Run a parent with many child runs while everything is killed: `python ops/chaos/children.py --children 50`.

The parent is a map of an agent node, whose functions give a child its first values and make the item's result of its
end; each child works in two steps and leaves a mark in each. Two schedulers, four
workers and a redis-server with an append-only file; every few seconds one of the seven is killed (SIGKILL) and started
again. Halfway a second parent of the same kind is cancelled. Afterwards:

* the parent's result is the one that it has without faults, in order;
* each item has one child run, which completed, and there are no other runs;
* a step of a child was repeated at most as often as a worker with it died;
* all children of the cancelled parent have ended, without leases or messages.

Prints one line of figures with the seed; exits with 1 if a guarantee was violated, or it did not end in time.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from ops.chaos import kills  # noqa: E402
from ops.chaos.run import retried, settled  # noqa: E402
from ops.chaos.verdict import Wrong, leaks  # noqa: E402
from sleipnir.client.client import Client, Run  # noqa: E402
from sleipnir.store.connect import connect  # noqa: E402
from tests.processes import wait_until, write_agent  # noqa: E402

CANCELLED_WITHIN_S = 10.0  # beside kills of everything

PARENT = """
name: parent
version: sleipnir/1
start: each
initial_state: {{items: {items}}}
nodes:
  each: {{type: map, over: "{{{{items}}}}", as: item, branch: one, collect_into: all, max_concurrency: {count},
         next: e}}
  one: {{type: agent, agent: worker, input: {{from: item}}, timeout: 3000, map_in: "maps.py:into",
         map_out: "maps.py:out"}}
  e: {{type: end, output: "{{{{all}}}}"}}
"""
MAPS = """
def into(state):
    return {"base": len(state["item"])}


def out(state, child):
    return {"output": [child["output"], child["state"]["steps"], child["state"]["base"]]}
"""
CHILD = """
name: worker
start: first
nodes:
  first: {type: function, call: "work.py:step", next: second}
  second: {type: function, call: "work.py:step", next: e}
  e: {type: end, output: "{{initial_prompt}}: {{steps}}"}
"""
CODE = """
import time
from pathlib import Path



def step(state):
    steps = int(state.get("steps", 0)) + 1
    name, folder = state["initial_prompt"].split("@")
    with (Path(folder) / f"{name}.{steps}").open("a") as file:
        file.write("x")
    time.sleep(WORK_S)
    return {"steps": steps}
"""


class Fleet(kills.Fleet):
    """The processes of this campaign."""

    workers = ("worker-1", "worker-2", "worker-3", "worker-4")

    def launch_worker(self, name: str) -> None:
        self.stack.start_worker(name, "functions", concurrency=4, ready=False)


def campaign(options: argparse.Namespace, folder: Path) -> int:
    """Runs the campaign. Returns the number of violated guarantees."""
    agents = folder / "agents"
    chaos = Fleet(folder, options, agents_dir=agents)
    marks, others = folder / "marks", folder / "others"
    write_agent(agents / "worker", CHILD, work_py=CODE.replace("WORK_S", str(options.work)))
    runs: dict[str, Run] = {}
    took_s: dict[str, float] = {}
    try:
        with chaos.stack.client() as client:
            chaos.start()
            for name, where in (("parent", marks), ("cancelled", others)):
                where.mkdir()
                items = json.dumps([f"i{number}@{where}" for number in range(options.children)])
                graph = PARENT.format(items=items, count=options.children)
                runs[name] = client.submit(write_agent(agents / name, graph, maps_py=MAPS))
            begun = time.monotonic()

            def wait() -> None:
                wait_until(lambda: has_children(client, runs["cancelled"], options.children), "children", 120)
                at_s = time.monotonic()
                retried(runs["cancelled"].cancel)
                wait_until(lambda: all_over(client, runs["cancelled"]), "all of the cancelled are over", 120)
                took_s["cancel"] = time.monotonic() - at_s
                wait_until(lambda: kills.is_over(runs["parent"]), "the parent is over", options.limit)
                took_s["parent"] = time.monotonic() - begun

            chaos.under_fire(wait)
            violations = settled(lambda: list(wrongs(client, runs, options, chaos, marks)))
            if not took_s.get("cancel", 0) <= CANCELLED_WITHIN_S:
                violations.append(Wrong("stuck", f"the cancelled runs were over after {took_s['cancel']:.1f} s"))
            print(in_words(options, chaos, took_s, marks, violations))
        return kills.report(chaos, violations)
    finally:
        chaos.end()


def has_children(client: Client, run: Run, count: int) -> bool:
    try:
        return len(client.store.runs.children([run.id])[run.id]) == count
    except Exception:
        return False


def children_of(client: Client, run: Run) -> list[str]:
    return [child.id for child in client.store.runs.children([run.id])[run.id]]


def all_over(client: Client, run: Run) -> bool:
    try:
        infos = client.store.runs.find([run.id, *children_of(client, run)])
        return all(info is None or info.is_final for info in infos)
    except Exception:
        return False  # Redis is away


def wrongs(
    client: Client, runs: Mapping[str, Run], options: argparse.Namespace, chaos: Fleet, marks: Path
) -> Iterator[Wrong]:
    parent = runs["parent"]
    items = [f"i{n}@{marks}" for n in range(options.children)]
    expected = json.dumps([[f"{item}: 2", 2, len(item)] for item in items], separators=(",", ":"))
    if parent.output != expected:
        yield Wrong("differs", f"{parent.id}: {parent.status} {parent.error}: {parent.output!r}")
    if not all_over(client, runs["cancelled"]):
        yield Wrong("stuck", f"{runs['cancelled'].id}: children of the cancelled run go on")
    of_all: list[str] = []
    for run in runs.values():
        children = children_of(client, run)
        of_all += children
        if len(children) != options.children:
            yield Wrong("double", f"{run.id}: has {len(children)} children")
    for child in children_of(client, parent):
        run = client.run(child)
        if run.status != "completed":
            yield Wrong("differs", f"{child}: {run.status} {run.error}")
        name = str(run.state()["initial_prompt"]).split("@")[0]
        steps = [step for step in run.history() if step.kind == "function"]
        for number, step in enumerate(steps, start=1):
            times, most = len((marks / f"{name}.{number}").read_text()), 1 + chaos.deaths(run, step)
            if not 1 <= times <= most:
                yield Wrong("effect", f"{child}: step {number} ran {times} times, at most {most}")
    strangers = {info.id for info in client.runs(10_000, children=True)} - {*of_all, *(run.id for run in runs.values())}
    for stranger in strangers:
        yield Wrong("double", f"{stranger}: an unexpected run")
    redis = connect(chaos.redis.url)
    yield from leaks(client, redis)
    redis.close()


def in_words(
    options: argparse.Namespace, chaos: Fleet, took_s: Mapping[str, float], marks: Path, violations: list[Wrong]
) -> str:
    broken = Counter(wrong.kind for wrong in violations)
    left = [len(file.read_text()) for file in marks.iterdir()]
    return (
        f"seed {options.seed}: two parents with {options.children} children each, {chaos.faults()}: "
        f"{broken['differs']} other results, "
        f"{broken['double']} children too many or too few, {broken['effect']} repeated without a death, "
        f"{broken['stuck']} stuck, {broken['leak']} keys left over; {sum(left)} steps, {sum(left) - len(left)} of them "
        f"repeated; the cancelled parent and its children were over after {took_s.get('cancel', -1):.1f} s, "
        f"the other one took {took_s.get('parent', -1):.0f} s"
    )


def main() -> None:
    parser = kills.parser(__doc__)
    parser.add_argument("--children", type=int, default=50, help="of each parent (default 50)")
    parser.add_argument("--work", type=float, default=2.0, metavar="S", help="how long a step takes (default 2)")
    kills.main(campaign, parser.parse_args())


if __name__ == "__main__":
    main()

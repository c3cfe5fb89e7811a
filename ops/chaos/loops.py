"""Run loops of turns and tools while their processes are killed: `python ops/chaos/loops.py --loops 4 --turns 40`.

Each loop is one llm node whose model asks for three tools in every turn. Two llm workers, two script workers, a
scheduler and a redis-server with an append-only file; every few seconds one of the six is killed (SIGKILL) and started
again (kills.py). The model is the scripted server, which is not killed; it numbers its answers, so that a check can
tell which answer was used, and for which one the tools ran. Afterwards every journal and every mark that a tool left is
read:

* the text is the same as without faults, and no call of a tool has failed;
* each turn and each call is in the journal once;
* one answer of each turn was used, by all that followed;
* a model call was repeated, and a tool ran again, at most as often as a worker with it died, and each tool ran.

Prints one line of figures with the seed; exits with 1 if a guarantee was violated, or a loop did not end in time.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from ops.chaos import kills  # noqa: E402
from ops.chaos.run import settled  # noqa: E402
from ops.chaos.verdict import Wrong, leaks  # noqa: E402
from sleipnir.client.client import Client, Run, StepInfo  # noqa: E402
from sleipnir.store.connect import connect  # noqa: E402
from sleipnir.testing import Call, ModelServer, Reply, Request  # noqa: E402
from tests.processes import wait_until, write_agent  # noqa: E402

TOOLS = 3
ANSWER_S, TOOL_S = 0.3, 0.2  # long enough that a blow now and then strikes in the middle

GRAPH = """
name: loop
start: ask
nodes:
  ask: {type: llm, model: "openai:gpt-test", prompt: "[conversation {{initial_prompt}}] Go on.", tools: [mark],
        max_iterations: 1000, state_updates: {said: "{{output}}"}, next: e}
  e: {type: end, output: "{{said}}"}
"""
CODE = f"""
import os
import time
from pathlib import Path


def mark(turn: int, number: int, answer: int):
    \"\"\"Leave a mark.\"\"\"
    with (Path(os.environ["GRAPH_CALLER_DIR"]) / f"{{turn}}.{{number}}").open("a") as file:
        file.write(f"{{answer}}\\n")
    time.sleep({TOOL_S})
    return {{"turn": turn, "number": number, "answer": answer}}
"""


class Model:
    """The model: it answers `turns` turns with calls and one without. It checks that each turn before was answered, and
    notes which of its answers the conversation goes on from: `used`, by conversation and turn."""

    def __init__(self, turns: int) -> None:
        self._turns = turns
        self._numbers = count(1)
        self.used: dict[tuple[str, int], set[int]] = {}

    def __call__(self, request: Request) -> Reply:
        conversation, turn, answer = str(request.conversation), request.turn, next(self._numbers)
        if turn > 1:
            results = [json.loads(result.text) for result in request.tool_results]
            answered = [(result["turn"], result["number"]) for result in results]
            assert answered == [(turn - 1, number) for number in range(TOOLS)], results
            self.used.setdefault((conversation, turn - 1), set()).update(result["answer"] for result in results)
        if turn > self._turns:
            return Reply(f"{turn}.", delay_s=ANSWER_S)
        calls = [Call("mark", {"turn": turn, "number": number, "answer": answer}) for number in range(TOOLS)]
        return Reply(f"{turn} ", calls=calls, delay_s=ANSWER_S)

    def text(self) -> str:
        """The final text of the node."""
        return "\n".join([*(f"{turn} " for turn in range(1, self._turns + 1)), f"{self._turns + 1}."])


class Fleet(kills.Fleet):
    """The processes of this campaign."""

    schedulers = ("scheduler",)
    workers = ("models-1", "models-2", "tools-1", "tools-2")
    model: ModelServer

    def launch_worker(self, name: str) -> None:
        if name.startswith("models"):
            self.stack.start_worker(name, "llm", concurrency=4, env=self.model.env(), ready=False)
        else:
            self.stack.start_worker(name, "scripts", concurrency=6, ready=False)


def campaign(options: argparse.Namespace, folder: Path) -> int:
    """Runs the campaign. Returns the number of violated guarantees."""
    chaos = Fleet(folder, options)
    agent = write_agent(folder / "loop", GRAPH, tools_py=CODE)
    model, started, runs = Model(options.turns), time.monotonic(), dict[str, Run]()
    try:
        with ModelServer(model) as chaos.model, chaos.stack.client() as client:
            chaos.start()
            for number in range(options.loops):
                marks = folder / f"c{number}"
                marks.mkdir()
                runs[marks.name] = client.submit(agent, marks.name, caller_dir=marks)

            def wait() -> None:
                wait_until(lambda: all(map(kills.is_over, runs.values())), "all loops are over", options.limit)

            chaos.under_fire(wait)
            took_s = time.monotonic() - started
            violations = settled(lambda: list(wrongs(client, runs, model, chaos, folder)))
            print(in_words(facts(options, runs, chaos, folder) | {"took_s": round(took_s)}, violations))
        return kills.report(chaos, violations)
    finally:
        chaos.end()


def wrongs(client: Client, runs: Mapping[str, Run], model: Model, chaos: Fleet, folder: Path) -> Iterator[Wrong]:
    for conversation, run in runs.items():
        info = run.info()
        if not info.is_final:
            yield Wrong("stuck", f"{run.id}: {info.status}: {[visit.reason for visit in info.visits]}")
            continue
        if info.status != "completed" or run.output != model.text():
            yield Wrong("differs", f"{run.id}: {info.status} {info.error}: {run.output!r}")
        steps = {(step.part.turn + 1, step.part.call): step for step in run.history() if step.part is not None}
        yield from of_journal(run, steps, model)
        yield from of_model(run, conversation, steps, model, chaos)
        yield from of_marks(run, conversation, steps, model, chaos, marks_in(folder / conversation))
    redis = connect(chaos.redis.url)
    yield from leaks(client, redis)
    redis.close()


Steps = Mapping[tuple[int, int | None], StepInfo]
"""The journal's entry by turn, from 1, and call."""


def of_journal(run: Run, steps: Steps, model: Model) -> Iterator[Wrong]:
    expected = len(model.text().splitlines())
    wanted = {(turn, call): 1 for turn in range(1, expected) for call in (None, *range(TOOLS))} | {(expected, None): 1}
    places = Counter((step.part.turn + 1, step.part.call) for step in run.history() if step.part is not None)
    for place in sorted(wanted.keys() | places.keys(), key=str):
        if places[place] != wanted.get(place, 0):
            yield Wrong("double", f"{run.id}: turn and call {place} are in the journal {places[place]} times")
    for place, step in steps.items():
        if not step.ok:
            yield Wrong("differs", f"{run.id}: turn and call {place} failed: {step.error}")


def of_model(run: Run, conversation: str, steps: Steps, model: Model, chaos: Fleet) -> Iterator[Wrong]:
    """For each turn that the model answered: how often, and which answer was used."""
    answered = chaos.model.counts().get(conversation, {})
    for (turn, call), step in steps.items():
        if call is not None:
            continue
        most = 1 + chaos.deaths(run, step)
        if not 1 <= answered.get(turn, 0) <= most:
            yield Wrong("effect", f"{run.id}: turn {turn} was answered {answered.get(turn, 0)} times, at most {most}")
        if len(used := model.used.get((conversation, turn), {0})) != 1:
            yield Wrong("double", f"{run.id}: of turn {turn} the answers {used} were used")


def of_marks(
    run: Run, conversation: str, steps: Steps, model: Model, chaos: Fleet, marks: Mapping[str, list[str]]
) -> Iterator[Wrong]:
    """Each call wrote a line for the answer that was used, and more than one only if its worker died meanwhile."""
    for (turn, call), step in steps.items():
        if call is None:
            continue
        left, most = marks.get(f"{turn}.{call}", []), 1 + chaos.deaths(run, step)
        if not 1 <= len(left) <= most:
            yield Wrong("effect", f"{run.id}: call {call} of turn {turn} ran {len(left)} times, at most {most}")
        if not set(map(int, left)) <= model.used.get((conversation, turn), set()):
            yield Wrong("double", f"{run.id}: call {call} of turn {turn} ran for the answers {left}")


def marks_in(folder: Path) -> dict[str, list[str]]:
    """The numbers of the answers for which each call ran, by the call."""
    return {file.name: file.read_text().split() for file in folder.iterdir()}


def facts(options: argparse.Namespace, runs: Mapping[str, Run], chaos: Fleet, folder: Path) -> dict[str, Any]:
    answered = [times for turns in chaos.model.counts().values() for times in turns.values()]
    marks = [len(left) for conversation in runs for left in marks_in(folder / conversation).values()]
    steps = [step for run in runs.values() for step in run.history() if step.part is not None]
    held = Counter((run, seq) for _, run, seq, _ in chaos.blows.visits)
    lost = {(run.id, step.seq): step.attempt - 1 for run in runs.values() for step in run.history() if step.part}
    return {
        "seed": options.seed,
        "loops": len(runs),
        "turns": options.turns,
        "faults": chaos.faults(),
        "entries": len(steps),
        "answers": sum(answered),
        "repeated_answers": sum(times - 1 for times in answered),
        "most_repeated": max([sum(t - 1 for t in turns.values()) for turns in chaos.model.counts().values()]),
        "marks": sum(marks),
        "repeated_marks": sum(times - 1 for times in marks),
        "held": sum(held.values()),
        "lapsed": sum(max(0, attempts - held[place]) for place, attempts in lost.items()),  # type: ignore[index]
    }


def in_words(facts: Mapping[str, Any], violations: list[Wrong]) -> str:
    broken = Counter(wrong.kind for wrong in violations)
    return (
        f"seed {facts['seed']}: {facts['loops']} loops of {facts['turns']} turns with {TOOLS} tools each, "
        f"{facts['faults']}: "
        f"{broken['differs']} other texts or failed calls, {broken['double']} journaled or used twice, "
        f"{broken['effect']} repeated without a death, {broken['stuck']} stuck, {broken['leak']} keys left over; "
        f"{facts['entries']} entries; {facts['answers']} model calls, {facts['repeated_answers']} of them repeated "
        f"(at most {facts['most_repeated']} in one loop); {facts['marks']} marks, {facts['repeated_marks']} of them "
        f"repeated; killed workers held {facts['held']} visits, {facts['lapsed']} more lost their lease; "
        f"{facts['took_s']} s"
    )


def main() -> None:
    parser = kills.parser(__doc__)
    parser.add_argument("--loops", type=int, default=4)
    parser.add_argument("--turns", type=int, default=40, help="of each loop that ask for tools (default 40)")
    kills.main(campaign, parser.parse_args())


if __name__ == "__main__":
    main()

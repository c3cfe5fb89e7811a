"""What a second worker of one kind adds: rows per second of a batch, of models and of scripts.

One scheduler, one llm worker and one script worker of eight slots each, then a second llm worker beside them, then a
second script worker instead. Rows are of one node: a call of a scripted model that answers after half a second, or a
script that sleeps for 0.6 s. Rows therefore wait for a slot, not for a core. The rate is that of the middle of a batch,
in which all slots are busy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from ops.bench.engine import START_S, Stack, finish, fleet, worker_command, write_agent
from ops.bench.figures import BenchFailed, Values
from ops.bench.model_server import model_server
from ops.bench.processes import processes
from tests.waiting import wait_until

SLOTS = 8
ANSWER_S, SLEEP_S = 0.5, 0.6  # starting a script takes 25 ms of a core: shorter ones would measure that
SCRIPT = {"default": {"text": "ok", "delay_s": ANSWER_S}}
LIMIT_S = 300

MODELS = """
name: asks
model: openai:gpt-test
start: ask
nodes:
  ask: {type: llm, prompt: 'Say a word.', next: e}
  e: {type: end}
"""
SCRIPTS = """
name: sleeps
start: sleep
nodes:
  sleep: {type: script, script: sleep.sh, next: e}
  e: {type: end}
"""


def measure(lasts_s: float) -> Values:
    """Each batch lasts about so long."""
    models = worker_command("llm", "threads", "models-1", SLOTS)
    scripts = worker_command("scripts", "threads", "scripts-1", SLOTS)
    with (
        model_server(SCRIPT) as server,
        fleet({"models": [models], "scripts": [scripts]}, **server.env) as engine,
    ):
        asks = write_agent(engine.home / "asks", MODELS)
        sleeps = write_agent(engine.home / "sleeps", SCRIPTS, "sleep.sh", f"sleep {SLEEP_S}\necho '{{}}'\n")
        finish([engine.client.submit(agent) for agent in (asks, sleeps)], engine.client)
        rows = int(SLOTS / ANSWER_S * lasts_s), int(SLOTS / SLEEP_S * lasts_s)
        one_model, one_script = rate(engine, asks, rows[0]), rate(engine, sleeps, rows[1])
        with one_more(engine, worker_command("llm", "threads", "models-2", SLOTS), asks, server.env):
            two_models = rate(engine, asks, 2 * rows[0])
        with one_more(engine, worker_command("scripts", "threads", "scripts-2", SLOTS), sleeps, {}):
            two_scripts = rate(engine, sleeps, 2 * rows[1])
    return {
        "scale_models_ratio": two_models / one_model,
        "scale_models_one_per_s": one_model,
        "scale_models_two_per_s": two_models,
        "scale_scripts_ratio": two_scripts / one_script,
        "scale_scripts_one_per_s": one_script,
        "scale_scripts_two_per_s": two_scripts,
    }


@contextmanager
def one_more(engine: Stack, command: Sequence[str], agent: Path, env: dict[str, str]) -> Iterator[None]:
    """Another worker, which has made a first visit of `agent`, or might have."""
    name = command[command.index("-n") + 1].split("@")[0]
    folder = engine.home / name
    folder.mkdir()
    with processes({name: [command]}, {**engine.client.settings.to_env(), **env}, folder):
        wait_until(lambda: len(engine.client.health().workers) == 3, f"{name} is up", START_S)
        finish([engine.client.submit(agent) for _ in range(4 * SLOTS)], engine.client)
        yield
    wait_until(lambda: len(engine.client.health().workers) == 2, f"{name} is gone", START_S)


def rate(engine: Stack, agent: Path, rows: int) -> float:
    """Rows per second from the end of the first fifth to that of the fourth, by Redis' clock."""
    batch = engine.client.batch(agent, ({"prompt": str(row)} for row in range(rows)))
    ends: dict[int, int] = {}

    def is_over() -> bool:
        info = batch.info()
        ends.setdefault(info.ended, info.now_ms)
        if info.failed:
            raise BenchFailed(f"a row failed: {batch.errors()[0].message}")
        return info.is_over

    wait_until(is_over, f"{rows} rows of {agent.name} are over", LIMIT_S)
    return middle_rate(ends, rows)


def middle_rate(ends: Mapping[int, int], rows: int) -> float:
    """`ends` says when (ms) so many rows were over."""
    middle = [ended for ended in sorted(ends) if rows / 5 <= ended <= rows * 4 / 5]
    if len(middle) < 2:
        raise BenchFailed("the batch ended before it could be measured")
    return (middle[-1] - middle[0]) * 1000 / (ends[middle[-1]] - ends[middle[0]])

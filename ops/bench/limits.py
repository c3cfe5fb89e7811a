"""Limits of models through the whole system, on real processes: `python ops/bench/limits.py`; about four minutes.

The rate: a limit of calls a minute, four llm worker processes, and more runs than it lets through, all submitted at
once. Counted by the model server's clock: the calls of the worst 60 seconds, over all possible starts of such a window,
and how much of the rate was used. Beside it what waiting costs: visits put off per call, and the CPU of the processes
meanwhile.

The slots: a limit of calls at once. As many calls as it allows are under way when all workers are killed; afterwards
every run must end on new workers, and no slot may be held.

Exit status 1 when a window was exceeded, less than 95 % of the rate was used, or a slot was not free.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from ops.bench.engine import Stack, cpu_s, finish, fleet, worker_command, write_agent  # noqa: E402
from ops.bench.figures import Values  # noqa: E402
from ops.bench.model_server import Server, model_server  # noqa: E402
from ops.bench.processes import Groups, processes, workspace  # noqa: E402
from sleipnir.models.limits import Limit  # noqa: E402
from tests.waiting import wait_until  # noqa: E402

WORKERS, THREADS = 4, 25
RATE_THREADS = 8  # enough for the rate; more would only queue for a core between the grant and the call
PATTERN = "openai:*"
WINDOW_S = 60.0
LATENCY_S = 0.2
ENOUGH = 0.95
SPARE_MINUTES = 1  # so many minutes' runs more than are measured: a whole minute may go out at once in the beginning
ANSWERS = {"default": {"text": "ok", "delay_s": LATENCY_S}}
HANGS = {"default": {"text": "ok", "hang": True}}


def rate(per_minute: int, minutes: float) -> Values:
    """The worst window and the use of a limit over `minutes`, and what it costs."""
    limit = Limit(PATTERN, requests_per_minute=per_minute)
    with model_server(ANSWERS) as server, limited(limit, server, RATE_THREADS) as engine:
        agent = asking_agent(engine.home)
        before = cpu_s(engine)
        runs = [engine.client.submit(agent) for _ in range(int(per_minute * (minutes + SPARE_MINUTES)))]
        submitted = cpu_s(engine)
        wait_until(server.arrivals_s, "the first call")
        first_s = server.arrivals_s()[0]
        time.sleep(max(0.0, first_s + minutes * 60 - time.time()))
        after = cpu_s(engine)
        arrivals_s = [at_s for at_s in server.arrivals_s() if at_s < first_s + minutes * 60]
        put_off = sum(event.type == "visit_put_off" for run in runs for event in run.events(follow=False))
    calls = len(arrivals_s)
    used = {f"cpu_{group}_s": after[group] - before[group] for group in engine.pids}
    return {
        "calls": calls,
        "worst_window": worst_window(arrivals_s),
        "share": calls / (per_minute * minutes),
        "put_off": put_off,
        "put_off_per_call": put_off / max(1, calls),
        "cpu_scheduler_us": (after["scheduler"] - submitted["scheduler"]) / (calls + put_off) * 1e6,
        **used,
    }


def slots(holders: int) -> Values:
    """Kill the workers of `holders` calls that are under way, and see all runs end on new ones."""
    limit = Limit(PATTERN, max_parallel=holders)
    with model_server(HANGS) as server, limited(limit, server, THREADS) as engine:
        agent = asking_agent(engine.home)
        runs = [engine.client.submit(agent) for _ in range(holders)]

        def held() -> int:
            return len(engine.client.store.limiter.in_use(limit).slots)

        wait_until(lambda: held() == holders, f"{holders} slots are held", 120)
        for pid in engine.pids["models"]:
            os.kill(pid, signal.SIGKILL)
        killed_s = time.monotonic()
        wait_until(lambda: held() == 0, "all slots are free", 120)
        free_after_s = time.monotonic() - killed_s
        server.post("release")
        with new_workers(engine, limit, server):
            finish(runs, engine.client)
            left = held()
    return {
        "holders_killed": holders,
        "slots_left": left,
        "slots_free_after_s": free_after_s,
        "runs_completed": len(runs),
    }


@contextmanager
def limited(limit: Limit, server: Server, threads: int) -> Iterator[Stack]:
    """A fleet of llm workers that keep `limit`."""
    with workspace() as folder, fleet(workers("models", threads), **environment_of(limit, folder, server)) as engine:
        yield engine


@contextmanager
def new_workers(engine: Stack, limit: Limit, server: Server) -> Iterator[None]:
    """Start as many llm workers as were killed, under new names."""
    settings = engine.client.settings.to_env()
    env = {**settings, **environment_of(limit, engine.home, server)}
    with processes(workers("again", THREADS), env, engine.home):
        yield


def workers(name: str, threads: int) -> Groups:
    return {"models": [worker_command("llm", "threads", f"{name}-{number}", threads) for number in range(WORKERS)]}


def environment_of(limit: Limit, folder: Path, server: Server) -> dict[str, str]:
    bounds = {"requests_per_minute": limit.requests_per_minute, "max_parallel": limit.max_parallel}
    file = folder / "limits.yaml"
    file.write_text(json.dumps({"models": {limit.pattern: {k: v for k, v in bounds.items() if v is not None}}}))
    return {**server.env, "SLEIPNIR_LIMITS": str(file)}


def worst_window(arrivals_s: Sequence[float]) -> int:
    """The most calls in any WINDOW_S; `arrivals_s` are sorted."""
    return max(bisect_left(arrivals_s, at_s + WINDOW_S) - number for number, at_s in enumerate(arrivals_s))


def asking_agent(home: Path) -> Path:
    graph = """\
name: ask
model: openai:gpt-test
start: ask
nodes:
  ask: {type: llm, prompt: 'Say a word.', next: done}
  done: {type: end}
"""
    return write_agent(home / "ask", graph)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--per-minute", type=int, default=600)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--holders", type=int, default=100, help=f"at most {WORKERS * THREADS}")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    values = {**rate(options.per_minute, options.minutes), **slots(options.holders)}
    print(json.dumps(values) if options.json else in_words(values, options.per_minute, options.minutes))
    kept = values["worst_window"] <= options.per_minute and values["share"] >= ENOUGH and values["slots_left"] == 0
    sys.exit(0 if kept else 1)


def in_words(values: Values, per_minute: int, minutes: float) -> str:
    return (
        f"{per_minute} calls a minute, {WORKERS} llm workers, {minutes:g} minutes: {values['calls']:,} calls, "
        f"{values['worst_window']} in the worst minute, {values['share']:.1%} of the rate used; visits put off "
        f"{values['put_off']:,} times ({values['put_off_per_call']:.1f} per call), "
        f"{values['cpu_scheduler_us']:.0f} us of the scheduler for each visit that came or was put off; CPU of the "
        f"scheduler {values['cpu_scheduler_s']:.1f} s, of Redis {values['cpu_redis_s']:.1f} s, of the workers "
        f"{values['cpu_models_s']:.1f} s\n"
        f"{values['holders_killed']} killed holders: {values['slots_left']} slots held in the end, all free after "
        f"{values['slots_free_after_s']:.1f} s; {values['runs_completed']} runs completed on new workers"
    )


if __name__ == "__main__":
    main()

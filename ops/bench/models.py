"""Models at work: how many calls one llm worker process has under way, and what the turns and tools of loops cost.

The model is the scripted server, a process of its own. Calls: 64 threads, and an answer half a second after each
question, so 128 calls per second are possible; beside it the same number of threads that call litellm and do nothing
else. The rate is by the server's clock, over the time in which all threads are busy. Loops: 64 at once, whose model
answers at once and asks for three Python tools in every turn; the tools do nothing.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from ops.bench.cpu_time import tree_s
from ops.bench.engine import cpu_s, finish, fleet, worker_command, write_agent
from ops.bench.fans import resident_mb
from ops.bench.figures import BenchFailed, Values
from ops.bench.model_server import model_server
from ops.bench.processes import PYTHON, environment, last_line

THREADS = 64
LATENCY_S = 0.5
POSSIBLE_PER_S = THREADS / LATENCY_S
ANSWER = "word" * 40
"""160 characters, which a stream brings in 20 pieces."""
SCRIPT = {"default": {"text": ANSWER, "delay_s": LATENCY_S}}

NODES = 10  # of a run; the runs are so many that no thread waits for a run's next node
LOOPS, TOOLS = 64, 3
TOOL_THREADS = 4

PEER = Path(__file__).with_name("litellm_peer.py")


def calls(count: int) -> Values:
    """One llm worker, with and without streaming, and litellm alone, `count` calls each."""
    plain, streamed = worker(count, stream=False), worker(count, stream=True)
    alone, alone_streamed = peer(count, stream=False), peer(count, stream=True)
    return {
        "model_share": plain["per_s"] / POSSIBLE_PER_S,
        "model_calls_per_s": plain["per_s"],
        "model_call_us": plain["us"],
        "model_ratio": plain["per_s"] / alone["per_s"],
        "stream_share": streamed["per_s"] / POSSIBLE_PER_S,
        "stream_calls_per_s": streamed["per_s"],
        "stream_call_us": streamed["us"],
        "stream_ratio": streamed["per_s"] / alone_streamed["per_s"],
        "model_worker_mb": max(plain["mb"], streamed["mb"]),
        "litellm_calls_per_s": alone["per_s"],
        "litellm_call_us": alone["us"],
        "litellm_stream_calls_per_s": alone_streamed["per_s"],
        "litellm_stream_call_us": alone_streamed["us"],
        "litellm_mb": max(alone["mb"], alone_streamed["mb"]),
    }


def worker(count: int, *, stream: bool) -> Values:
    """Calls per second of one worker process, its CPU per call, and its memory afterwards."""
    command = worker_command("llm", "threads", "models", THREADS)
    env = {"SLEIPNIR_STREAM": str(int(stream))}
    with model_server(SCRIPT) as server, fleet({"models": [command]}, **server.env, **env) as engine:
        agent = asking_agent(engine.home)
        finish([engine.client.submit(agent)], engine.client)  # the first call of a process makes its HTTP client
        begun_s, before = time.time(), cpu_s(engine)
        finish([engine.client.submit(agent) for _ in range(count // NODES)], engine.client)
        after = cpu_s(engine)
        [pid] = engine.pids["models"]
        return {
            "per_s": rate([at_s for at_s in server.arrivals_s() if at_s >= begun_s]),
            "us": (after["models"] - before["models"]) / count * 1e6,
            "mb": resident_mb(pid),
        }


def peer(count: int, *, stream: bool) -> Values:
    """The same of a process whose threads call litellm in a loop."""
    with model_server(SCRIPT) as server:
        command = [PYTHON, str(PEER), str(count), str(THREADS), *(["--stream"] if stream else [])]
        process = subprocess.Popen(
            command, env=environment(server.env), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        try:
            assert process.stdin is not None and process.stdout is not None and process.stderr is not None
            if process.stdout.readline() != "ready\n":
                raise BenchFailed(f"litellm alone: {last_line(process.stderr.read())}")
            begun_s, before_s = time.time(), tree_s([process.pid])
            process.stdin.write("go\n")
            process.stdin.flush()
            if process.stdout.readline() != "done\n":
                raise BenchFailed(f"litellm alone: {last_line(process.stderr.read())}")
            return {
                "per_s": rate([at_s for at_s in server.arrivals_s() if at_s >= begun_s]),
                "us": (tree_s([process.pid]) - before_s) / count * 1e6,
                "mb": resident_mb(process.pid),
            }
        finally:
            process.kill()
            process.communicate()


def rate(arrivals_s: Sequence[float]) -> float:
    """Calls per second from the second call of the first thread to the last calls: all threads are busy meanwhile."""
    first, last = arrivals_s[THREADS], arrivals_s[-THREADS]
    return (len(arrivals_s) - 2 * THREADS) / (last - first)


def loops(turns: int) -> Values:
    """Loops of `turns` turns with tools: turns per second, and CPU per call of a tool, by process."""
    groups = {
        "models": [worker_command("llm", "threads", "models", THREADS)],
        "tools": [worker_command("scripts", "threads", "tools", TOOL_THREADS)],
    }
    with model_server(loop_script(turns)) as server, fleet(groups, **server.env) as engine:
        agent = looping_agent(engine.home)
        finish([engine.client.submit(agent)], engine.client)
        before, started = cpu_s(engine), time.perf_counter()
        runs = [engine.client.submit(agent) for _ in range(LOOPS)]
        finish(runs, engine.client)
        took_s, after = time.perf_counter() - started, cpu_s(engine)
        for run in runs:
            failed = [step.error for step in run.history() if not step.ok]
            if failed:
                raise BenchFailed(f"a step of a loop failed: {failed[0]}")
    made = LOOPS * turns * TOOLS
    profile = {f"loop_{group}_us": (after[group] - before[group]) / made * 1e6 for group in after}
    return {"loop_turns_per_s": LOOPS * (turns + 1) / took_s, "loop_call_us": sum(profile.values()), **profile}


def asking_agent(home: Path) -> Path:
    nodes = "\n".join(f"  n{i}: {{type: llm, prompt: 'Say a word.', next: n{i + 1}}}" for i in range(NODES))
    graph = f"name: ask\nmodel: openai:gpt-test\nstart: n0\nnodes:\n{nodes}\n  n{NODES}: {{type: end}}\n"
    return write_agent(home / "ask", graph)


def looping_agent(home: Path) -> Path:
    graph = """\
name: loop
model: openai:gpt-test
start: ask
nodes:
  ask: {type: llm, prompt: 'Go on.', tools: [none], max_iterations: 1000, next: done}
  done: {type: end}
"""
    code = 'def none(turn: int, number: int):\n    """Do nothing."""\n    return {}\n'
    return write_agent(home / "loop", graph, "tools.py", code)


def loop_script(turns: int) -> str:
    return f"""\
from sleipnir.testing import Call, Reply


def answer(request):
    turn = request.turn
    if turn > {turns}:
        return "done"
    return Reply(calls=[Call("none", {{"turn": turn, "number": number}}) for number in range({TOOLS})])
"""

#!/usr/bin/env python3
"""Random requests to the HTTP API, made by Schemathesis from docs/openapi.json: `make fuzz-api`.

    python ops/fuzz_api.py [--cases 10000] [--seed 7]

A server with a scheduler, a worker and runs in many states gets requests of which some fit the document and others do
not: wrong types, missing and unknown fields, other methods, NUL bytes, surrogates, huge numbers, deep JSON. No answer
may be a server error, and each must have a status, a media type and a body that the document allows.
Rounds with other seeds follow until there were enough cases.

Prints the seed and the number of cases; exit code 1 if a request failed, with how to send it again.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.console import Console, console_of  # noqa: E402
from tests.processes import CALM, RedisServer, Stack, wait_until, write_agent  # noqa: E402

ASKING = """
name: asking
version: sleipnir/1
start: sure
nodes:
  sure: {type: approval, question: "sure?", options: [yes, no], routes: {yes: done, no: done}, on_other: done}
  done: {type: end, output: "{{initial_prompt}}"}
"""
FAILING = """
name: failing
version: sleipnir/1
start: work
nodes:
  work: {type: script, script: work.sh, next: done}
  done: {type: end, output: done}
"""
CHECKS: Final = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance",
    "response_headers_conformance", "unsupported_method", "allow_header_conformance",
)  # fmt: skip
PHASES: Final = "examples,coverage,fuzzing,stateful"
KNOWN: Final = 0.6  # of the ids in requests; the others are random texts
ROUND_S: Final = 1_800.0
_CASES = re.compile(r"(\d+) generated")


def stored(console: Console) -> Mapping[str, Sequence[str]]:
    """Runs, questions, a batch, a thread and signals for requests to find; values of parameters by their names."""
    runs = [submitted(console, "asking", thread=f"thread-{number}") for number in range(8)]
    runs += [submitted(console, "failing") for _ in range(3)]
    gates = wait_until(lambda: found if len(found := asked(console, runs)) == 8 else None, "all ask")
    for gate in gates[:3]:
        assert console.post(f"/gates/{gate['run']}/{gate['seq']}/answer", {"answer": "yes"}).status == 200
    assert console.post(f"/runs/{runs[4]}/cancel").status == 202
    rows = b'{"prompt": "a"}\n{"prompt": "b"}\n'
    batch = console.request(
        "POST", "/batches?agent=asking&name=some", raw=rows, headers={"Content-Type": "application/x-ndjson"}
    ).data["id"]
    assert console.post("/signals", {"name": "paid", "id": "1"}).status == 200
    wait_until(lambda: console.get("/runs/count?status=failed").data["count"] >= 3, "they have failed")
    return {
        "run_id": runs, "other_id": runs, "batch_id": [batch, "some"], "agent": ["asking", "failing", "nobody"],
        "gate": sorted({f"{gate['seq']}.{gate['attempt']}" for gate in gates} | {"1", "2"}),
        "thread": [f"thread-{number}" for number in range(8)],
    }  # fmt: skip


def asked(console: Console, runs: Sequence[str]) -> list[Any]:
    """The open questions of these runs."""
    return [gate for gate in console.get("/gates?limit=500").data["items"] if gate["run"] in runs]


def submitted(console: Console, agent: str, **more: Any) -> str:
    answer = console.post("/runs", {"agent": agent, "prompt": "x", **more})
    assert answer.status == 201, answer.body
    return str(answer.data["id"])


def configuration(known: Mapping[str, Sequence[str]]) -> str:
    """The settings of Schemathesis, as TOML. A stream of events is read for its first ones only."""
    lines = ["max-stream-events = 3", "request-timeout = 60.0", ""]
    for name, values in known.items():
        lines += [f"[dictionaries.{name}]", f"values = {json.dumps(list(values))}", ""]
    lines += ["[parameters]"]
    lines += [f"{name} = {{dictionary = {json.dumps(name)}, probability = {KNOWN}}}" for name in known]
    return "\n".join([*lines, ""])


def command(config: Path, url: str, seed: int, examples: int, phases: str = PHASES) -> list[str]:
    """Schemathesis on the document that is checked in."""
    program = Path(sys.executable).with_name("schemathesis")
    return [
        str(program), "--config-file", str(config), "run", str(ROOT / "docs" / "openapi.json"), "--url", url,
        "--checks", ",".join(CHECKS), "--phases", phases, "--seed", str(seed), "--max-examples", str(examples),
        "--continue-on-failure", "--generation-database", "none", "--workers", "2", "--warnings", "off", "--no-color",
    ]  # fmt: skip


def one_round(console: Console, folder: Path, seed: int, examples: int, phases: str = PHASES) -> tuple[bool, int, str]:
    """Whether all answers were right, how many cases there were, and what the tool printed."""
    config = folder / "schemathesis.toml"
    config.write_text(configuration(stored_once(console, folder)))
    done = subprocess.run(
        command(config, f"http://127.0.0.1:{console.port}", seed, examples, phases),
        cwd=folder, capture_output=True, text=True, timeout=ROUND_S, env={**os.environ, "COLUMNS": "160"},
    )  # fmt: skip
    count = _CASES.search(done.stdout)
    return done.returncode == 0, int(count[1].replace(",", "")) if count else 0, done.stdout + done.stderr


def stored_once(console: Console, folder: Path) -> Mapping[str, Sequence[str]]:
    """What `stored` has made, at the first call for this folder."""
    file = folder / "known.json"
    if not file.exists():
        file.write_text(json.dumps(stored(console)))
    known: Mapping[str, Sequence[str]] = json.loads(file.read_text())
    return known


def open_stack(redis: RedisServer, folder: Path, **more: Any) -> Stack:
    """A stack with the agents of this drill."""
    agents = folder / "agents"
    write_agent(agents / "asking", ASKING)
    write_agent(agents / "failing", FAILING, work_sh="exit 3\n")
    settings: dict[str, Any] = {**CALM, "log_level": "info", "log_format": "json", "agents_dir": agents, **more}
    return Stack(redis, folder / "home", **settings)


def main() -> int:
    """Rounds until there were enough cases, or one has failed."""
    parser = argparse.ArgumentParser(description="Random requests to the HTTP API.")
    parser.add_argument("--cases", type=int, default=10_000, help="at least so many (default: 10,000)")
    parser.add_argument("--examples", type=int, default=60, help="per operation and round (default: 60)")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--phases", default=PHASES)
    options = parser.parse_args()
    redis, began, cases, seed = RedisServer(), time.monotonic(), 0, options.seed
    try:
        with tempfile.TemporaryDirectory(prefix="fuzz-") as name, open_stack(redis, Path(name)) as stack:
            stack.start_scheduler()
            stack.start_worker()
            with console_of(stack) as console:
                while cases < options.cases:
                    is_right, count, text = one_round(console, Path(name), seed, options.examples, options.phases)
                    cases += count
                    print(f"seed {seed}: {count:,} cases", flush=True)
                    if not is_right or count == 0:
                        print(text)
                        print(stack.log("console")[-4_000:])
                        return 1
                    seed += 1
    finally:
        redis.stop()
    print(
        f"{cases:,} cases with seeds {options.seed} to {seed - 1} in {time.monotonic() - began:.0f} s: no server error"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

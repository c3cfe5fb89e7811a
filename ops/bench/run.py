"""How fast and how costly the engine is, beside its peers, in one run on one machine: `make bench`.

Every round measures everything once; a ratio compares two figures of the same round, and the engine is measured before
and after the peers. Printed are medians over the rounds. docs/performance.md says what each figure means.

Exit status: 0 even where a target is missed, which the table says; 1 when something that should run did not.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from ops.bench import (  # noqa: E402
    batches,
    clusters,
    console_pages,
    costs,
    disk,
    emitting,
    engine,
    fans,
    figures,
    http_api,
    knowledge,
    million,
    models,
    peers,
    postgres,
    report,
    scaling,
    scripts,
    task_events,
    wide,
    wide_batches,
)
from ops.bench.figures import BenchFailed, NotMeasured, Values  # noqa: E402
from ops.bench.peers import PEERS, Peer, Shape  # noqa: E402

LATEST = ROOT / ".build" / "bench" / "latest.json"
PAGE = ROOT / "docs" / "performance.md"
SUBJECTS = (
    "engine",
    "disk",
    "celery",
    "langgraph",
    "memory",
    "dbos",
    "costs",
    "maps",
    "wide",
    "batches",
    "scaling",
    "cluster",
    "million",
    "http",
    "console",
    "models",
    "knowledge",
    "python",
)


@dataclass(frozen=True)
class Effort:
    """The size of each load."""

    rounds: int
    runs: int
    hops: int
    tasks: int
    peer_runs: int
    trial_runs: int
    trials: int
    repeats: int
    waiting_runs: int
    beside: int
    wide_rows: int
    open_batches: int
    scaling_s: float
    many_runs: int
    model_calls: int
    turns: int
    chunks: int
    questions: int


FULL = Effort(
    rounds=5, runs=1000, hops=30, tasks=8000, peer_runs=300, trial_runs=50, trials=2, repeats=4, waiting_runs=1000,
    beside=200, scaling_s=20, many_runs=1_000_000, model_calls=1920, turns=10, chunks=100_000, questions=1000,
    wide_rows=400_000, open_batches=1000,
)  # fmt: skip
QUICK = Effort(
    rounds=1, runs=300, hops=10, tasks=3000, peer_runs=60, trial_runs=30, trials=1, repeats=2, waiting_runs=200,
    beside=50, scaling_s=8, many_runs=20_000, model_calls=1280, turns=5, chunks=100_000, questions=1000,
    wide_rows=100_000, open_batches=1000,
)  # fmt: skip


LEAST_RUNS = 1_000


@dataclass(frozen=True)
class Measurement:
    """One step of a round. `names` are the figures that are missing when it fails."""

    what: str
    names: Sequence[str]
    call: Callable[[], Values]


ENGINE = (
    "visits_per_s", "hop_p50_ms", "hop_p99_ms", "hop_batch_p50_ms", "hop_batch_p99_ms",
    "redis_sent_per_visit", "redis_inside_per_visit",
    "cpu_visit_us", "cpu_redis_us", "cpu_scheduler_us", "cpu_workers_us", "cpu_client_us",
)  # fmt: skip
EVENTS = ("visits_per_s_no_events", "events_share", "events_us", "events_heard_share")
ALWAYS = ("visits_per_s_fsync_always",)
DISK = ("fsync_ms",)
MEMORY = ("ratio_langgraph_memory", "memory_per_s", "langgraph_memory_per_s")
CELERY = ("celery_tasks_per_s", "celery_chain_per_s")
STATE = ("large_state_ratio",)
EMITTING = ("emit_function_ratio", "emit_function_per_s", "emit_script_ratio", "emit_script_per_s")
LENGTH = ("thousandth_visit_ratio",)
WAITING = ("waiting_run_bytes", "waiting_run_memory_bytes")
MAP = ("map_ratio", "map_items_per_s", "map_chain_per_s", "map_item_ratio", "map_item_us", "map_item_few_us")
JOIN = ("join_s",)
COMMANDS = (
    "wide_visit_us", "wide_redis_ms", "wide_hop_p99_ms", "wide_hop_p50_ms", "wide_step_visit_us", "wide_step_redis_ms",
)  # fmt: skip
MILLION_ITEMS = (
    "million_map_open_ms", "million_map_open_redis_ms", "million_map_collect_s", "million_map_round_ms",
    "million_map_collect_redis_ms",
)  # fmt: skip
DELTA = ("delta_redis_ms", "delta_s")
ACCEPTING = ("batch_accept_s", "batch_first_node_s", "batch_submit_mb")
BEHIND = ("batch_wait_p99_ms", "batch_wait_p50_ms", "batch_rows_per_s")
WIDE = (
    "batch_retry_s", "batch_retry_longest_ms", "batch_cancel_s", "batch_cancel_longest_ms",
    "batch_idle_us", "batch_idle_redis_us", "batch_all_ms", "batch_all_redis_ms",
)  # fmt: skip
SHARING = ("batch_equal_off", "batch_three_off")
SCALING = ("scale_models_ratio", "scale_scripts_ratio")
CLUSTER = (
    "cluster_scheduler_ratio", "cluster_commands_off", "cluster_commands", "cluster_redis_us", "cluster_one_redis_us",
    "cluster_broker_us", "cluster_scheduler_us", "cluster_workers_us", "cluster_visits_per_s",
    "cluster_one_visits_per_s", "cluster_idle_redis_us", "cluster_idle_scheduler_us", "cluster_row_us",
    "cluster_row_scheduler_us",
)  # fmt: skip
MILLION = (
    "million_waiting_bytes", "million_over_bytes", "million_ps_ms", "million_ps_all_ms", "million_batch_ls_ms",
    "million_ps_command_ms", "million_batch_ls_command_ms", "million_advance_share",
)  # fmt: skip
HTTP = ("http_submit_p99_ms", "http_submit_us", "sse_late_p99_ms")
CONSOLE = (
    "console_byte_ms", "console_paint_ms", "console_long_run_ms", "console_long_run_byte_ms", "console_page_mb",
    "console_server_mb",
)  # fmt: skip
MODELS = ("model_share", "stream_share", "model_worker_mb", "litellm_calls_per_s")
LOOPS = ("loop_turns_per_s", "loop_call_us")
KNOWLEDGE = (
    "knowledge_small_hybrid_p50_ms", "knowledge_large_hybrid_p50_ms", "knowledge_large_rss_mb", "knowledge_together_mb",
)  # fmt: skip
FOUND = (
    "knowledge_hybrid_recall_ratio", "knowledge_keyword_recall_ratio", "knowledge_hybrid_mrr_ratio",
    "knowledge_keyword_mrr_ratio",
)  # fmt: skip
WARM = ("warm_script_ratio",)
TOOL_CALLS = ("tool_bash_ms", "tool_bare_bash_ms", "tool_python_ms")
COLD = ("cold_run_s",)
START_UP = ("start_up_ratio", "import_ratio")


@dataclass
class Bench:
    """One call of the command: its options, its results, and the figures that could not be measured, with reasons."""

    subjects: Sequence[str]
    effort: Effort
    server: postgres.Server | None = None
    shapes: dict[Peer, Shape] = field(default_factory=dict)
    rounds: list[Values] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)
    """Why a figure cannot be measured on this machine. It is not tried again."""
    failed: dict[str, str] = field(default_factory=dict)
    """What went wrong with a figure, the last time. The next round tries again."""

    def run(self) -> None:
        with self._postgres():
            for peer in self._peers():
                self._choose_shape(peer)
            for number in range(1, self.effort.rounds + 1):
                self.rounds.append(figures.with_ratios(self._round(f"round {number}/{self.effort.rounds}")))

    @contextlib.contextmanager
    def _postgres(self) -> Iterator[None]:
        wanted = [peer for peer in self._peers() if peer.store == "postgres"]
        with contextlib.ExitStack() as open_until_the_end:
            if wanted:
                with self._noting(*(peer.figure for peer in wanted)):
                    peers.peer_python()  # without it there is nothing to start a server for
                    self.server = open_until_the_end.enter_context(postgres.server())
            yield

    def _choose_shape(self, peer: Peer) -> None:
        if peer.figure in self.absent:
            return
        with self._noting(peer.figure), progress(f"best shape of {peer.name}, {peer.store}") as say:
            self.shapes[peer] = peer.best_shape(self.effort.trial_runs, self.effort.trials, self.server)
            say(f"{self.shapes[peer]} (processes x threads)")

    def _round(self, label: str) -> Values:
        values = Values()
        for step in self._measurements(values):
            if all(name in self.absent for name in step.names):
                continue
            with self._noting(*step.names), progress(f"{label}  {step.what}") as say:
                measured = step.call()
                values.update(measured)
                say(shown(measured))
        return values

    def _measurements(self, values: Values) -> Iterator[Measurement]:
        """What a round consists of, in order; `values` is what it has found so far."""
        effort, asked = self.effort, self.subjects
        if "engine" in asked:
            yield Measurement("engine", ENGINE, lambda: engine.measure(effort.runs, effort.hops))
            yield Measurement("task events", EVENTS, lambda: task_events.measure(effort.runs))
        if "disk" in asked:
            yield Measurement("disk", DISK, disk.fsync)
            yield Measurement("engine, appendfsync always", ALWAYS, self._with_fsync)
        if "celery" in asked:
            yield Measurement("Celery", CELERY, lambda: peers.celery(effort.tasks, effort.tasks // 2))
        if "memory" in asked:
            yield Measurement("a chain in one process", MEMORY, lambda: peers.chain_in_process(effort.peer_runs, 3))
        for peer, shape in self.shapes.items():
            yield Measurement(f"{peer.name}, {peer.store}", (peer.figure,), partial(self._peer, peer, shape))
        if "visits_per_s" in values and any(peer in values for _, peer in figures.RATIOS.values()):
            yield Measurement("engine again", ("visits_per_s",), lambda: self._once_more(values))
        if "costs" in asked:
            yield Measurement("10 MB of state", STATE, lambda: costs.large_state(2 * effort.repeats))
            yield Measurement("1,000th visit", LENGTH, lambda: costs.thousandth_visit(effort.repeats))
            yield Measurement("nodes that emit", EMITTING, lambda: emitting.measure(effort.repeats))
            yield Measurement("waiting runs", WAITING, lambda: costs.waiting_run(effort.waiting_runs))
        if "maps" in asked:
            yield Measurement("a map of 10,000 items", MAP, fans.measure)
            yield Measurement("a join of 1,000 branches", JOIN, fans.join)
        if "wide" in asked:
            yield Measurement("10,000 commands at once", COMMANDS, wide.commands)
            yield Measurement("a map of 1,000,000 items", MILLION_ITEMS, lambda: wide.million(1_000_000))
            yield Measurement("a delta of 11 MB", DELTA, wide.delta)
        if "batches" in asked:
            yield Measurement("accepting rows", ACCEPTING, batches.accepting)
            yield Measurement("runs beside a batch", BEHIND, lambda: batches.waiting_behind(effort.beside))
            yield Measurement("shares of batches", SHARING, batches.sharing)
            rows = partial(wide_batches.measure, effort.wide_rows, effort.open_batches)
            yield Measurement("very many rows, and batches", WIDE, rows)
        if "scaling" in asked:
            yield Measurement("a second worker", SCALING, lambda: scaling.measure(effort.scaling_s))
        if "cluster" in asked:
            yield Measurement("state on a Redis Cluster", CLUSTER, lambda: clusters.measure(effort.runs))
        if "million" in asked and not self.rounds:  # once: filling takes minutes
            yield Measurement("very many runs", MILLION, lambda: million.measure(effort.many_runs, effort.runs))
        if "http" in asked:
            yield Measurement("the HTTP API beside the engine's load", HTTP, http_api.measure)
        if "console" in asked and not self.rounds:  # once: filling takes minutes
            yield Measurement("pages of the console", CONSOLE, lambda: console_pages.measure(effort.many_runs))
        if "models" in asked:
            yield Measurement("calls of models", MODELS, lambda: models.calls(effort.model_calls))
            yield Measurement("loops of turns and tools", LOOPS, lambda: models.loops(effort.turns))
        if "knowledge" in asked:
            yield Measurement("searches of knowledge bases", KNOWLEDGE, lambda: knowledge.costs(effort.chunks))
            yield Measurement("what searches find", FOUND, lambda: knowledge.quality(effort.questions))
        if "python" in asked:
            yield Measurement("warm Python scripts", WARM, scripts.warm)
            yield Measurement("calls of tools", TOOL_CALLS, scripts.tool_calls)
            yield Measurement("cold `sleipnir run`", COLD, scripts.cold)
            yield Measurement("start of `sleipnir ps`", START_UP, scripts.start_up)

    def _with_fsync(self) -> Values:
        return {"visits_per_s_fsync_always": engine.throughput(self.effort.runs // 3, appendfsync="always")}

    def _peer(self, peer: Peer, shape: Shape) -> Values:
        return peer.measure(self.effort.peer_runs, shape, self.server)

    def _once_more(self, values: Values) -> Values:
        """The machine may have become faster or slower while the peers ran: the engine's figure is the mean."""
        return {"visits_per_s": statistics.mean([values["visits_per_s"], engine.throughput(self.effort.runs)])}

    @contextlib.contextmanager
    def _noting(self, *names: str) -> Iterator[None]:
        """A failure of these figures is recorded, and the benchmark continues with the others."""
        try:
            yield
        except NotMeasured as reason:
            self.absent |= dict.fromkeys(names, str(reason))
        except Exception as error:
            message = (
                str(error) if isinstance(error, BenchFailed | AssertionError) else f"{type(error).__name__}: {error}"
            )
            self.failed |= dict.fromkeys(names, " ".join(message.split()))  # one line of the table

    def content(self) -> dict[str, Any]:
        """The content of the JSON file."""
        values = figures.medians(self.rounds)
        reasons = figures.with_ratio_reasons({**self.absent, **self.failed})
        return {
            "machine": report.machine(),
            "shapes": {peer.figure: str(shape) for peer, shape in self.shapes.items()},
            "figures": values,
            "missed": figures.missed(values),
            "not_measured": {name: why for name, why in reasons.items() if name not in values},
            "failed": self.failed,
            "effort": asdict(self.effort),
            "rounds": self.rounds,
        }

    def _peers(self) -> list[Peer]:
        return [peer for peer in PEERS if peer.name in self.subjects]


def shown(values: Values) -> str:
    """The first figures of a measurement, for the progress line."""
    return ", ".join(f"{name} {value:,.4g}" for name, value in list(values.items())[:2])


@contextlib.contextmanager
def progress(what: str) -> Iterator[Callable[[str], None]]:
    """Print a line to stderr when a step has ended, on a terminal also during the step. The text of the step is its
    result, if it has one."""
    results = ["not measured"]
    if sys.stderr.isatty():
        print(f"{what} ...", end="", file=sys.stderr, flush=True)
    started = time.monotonic()
    try:
        yield lambda text: results.append(text)
    finally:
        start = "\r\033[K" if sys.stderr.isatty() else ""
        print(f"{start}{what}: {results[-1]} ({time.monotonic() - started:.0f} s)", file=sys.stderr, flush=True)


def main() -> None:
    options = from_arguments()
    bench = Bench(options.only, options.effort)
    bench.run()
    content = bench.content()
    text = report.text_of(content)
    print(text)
    for file in filter(None, (LATEST, options.json)):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(content, indent=2) + "\n")
    if options.docs:
        PAGE.write_text(report.refreshed(PAGE.read_text(), text))
    sys.exit(1 if bench.failed else 0)


def from_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", metavar="SUBJECT,...", type=subjects, default=SUBJECTS, help=f"of {', '.join(SUBJECTS)}"
    )
    parser.add_argument("--rounds", type=int, help=f"default {FULL.rounds}, with --quick {QUICK.rounds}")
    parser.add_argument("--quick", action="store_true", help="one round of small loads: a look, not a measurement")
    parser.add_argument(
        "--runs",
        type=int,
        metavar="N",
        help=f"of the subjects million and console: default {FULL.many_runs:,}, with --quick {QUICK.many_runs:,}",
    )
    parser.add_argument(
        "--json", type=Path, help=f"also write the results to this file (always: {LATEST.relative_to(ROOT)})"
    )
    parser.add_argument("--docs", action="store_true", help=f"put the table into {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    if options.rounds is not None and options.rounds < 1:
        parser.error("--rounds must be at least 1")
    if options.runs is not None and options.runs < LEAST_RUNS:
        parser.error(f"--runs must be at least {LEAST_RUNS:,}")
    effort = QUICK if options.quick else FULL
    options.effort = replace(effort, rounds=options.rounds or effort.rounds, many_runs=options.runs or effort.many_runs)
    return options


def subjects(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if unknown := sorted(set(names) - set(SUBJECTS)):
        raise argparse.ArgumentTypeError(f"no subject is called {', '.join(unknown)}")
    return names


if __name__ == "__main__":
    main()

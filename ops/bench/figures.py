"""The figures of the bench: their names, units and targets, how a value is judged, and the table. Pure.

A subject (engine.py, peers.py, costs.py, ...) returns values by the names below. A figure that a subject could not
measure has no value but a reason.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

Values = dict[str, float]


class NotMeasured(Exception):
    """The measured program is not installed on this machine, and is optional. The text is the reason that the table
    gives."""


class BenchFailed(Exception):
    """Something that should run did not. The bench measures the other figures and exits with 1."""


@dataclass(frozen=True)
class Figure:
    """One line of the table. With neither bound it is information. `digits` after the decimal point."""

    name: str
    what: str
    unit: str = ""
    at_least: float | None = None
    at_most: float | None = None
    digits: int = 0

    @property
    def target(self) -> str:
        if self.at_least is not None:
            return f">= {self.at_least:g}"
        return "" if self.at_most is None else f"<= {self.at_most:g}"

    def verdict(self, value: float) -> str:
        """The verdict uses the exact value, not the rounded one of the table."""
        if self.at_least is None and self.at_most is None:
            return ""
        too_low = self.at_least is not None and value < self.at_least
        too_high = self.at_most is not None and value > self.at_most
        return "MISSED" if too_low or too_high else "reached"


@dataclass(frozen=True)
class Section:
    title: str
    figures: tuple[Figure, ...]


def _ratio(name: str, what: str, at_least: float | None = None) -> Figure:
    return Figure(name, f"  engine / {what}", "x", at_least=at_least, digits=2)


SECTIONS: tuple[Section, ...] = (
    Section(
        "Throughput",
        (
            Figure("visits_per_s", "engine: visits", "/s"),
            Figure("visits_per_s_no_events", "engine, no task events", "/s"),
            Figure("events_share", "  with events / without", "x", at_least=0.85, digits=2),
            Figure("events_us", "  CPU of the events of a visit", "us"),
            Figure("events_heard_share", "  with a Flower on the same cores / without", "x", digits=2),
            Figure("visits_per_s_fsync_always", "engine, appendfsync always", "/s"),
            Figure("fsync_ms", "disk: a durable write of 4 kB", "ms", digits=2),
            Figure("celery_tasks_per_s", "Celery: bare tasks", "/s"),
            _ratio("ratio_celery_tasks", "Celery tasks", 2.5),
            Figure("celery_chain_per_s", "Celery: steps of chains", "/s"),
            _ratio("ratio_celery_chain", "Celery chain", 3.5),
            Figure("langgraph_postgres_per_s", "LangGraph, PostgreSQL: nodes", "/s"),
            _ratio("ratio_langgraph_postgres", "LangGraph, PostgreSQL", 3),
            _ratio("ratio_always_langgraph_postgres", "the same, appendfsync always", 1.3),
            Figure("langgraph_sqlite_per_s", "LangGraph, SQLite: nodes", "/s"),
            _ratio("ratio_langgraph_sqlite", "LangGraph, SQLite"),
            Figure("dbos_postgres_per_s", "DBOS, PostgreSQL: steps", "/s"),
            _ratio("ratio_dbos_postgres", "DBOS, PostgreSQL", 4),
            Figure("dbos_sqlite_per_s", "DBOS, SQLite: steps", "/s"),
            _ratio("ratio_dbos_sqlite", "DBOS, SQLite"),
        ),
    ),
    Section(
        "A chain of ten nodes in one process",
        (
            Figure("memory_per_s", "graph in Python, InMemorySaver: nodes", "/s"),
            Figure("langgraph_memory_per_s", "LangGraph, InMemorySaver: nodes", "/s"),
            Figure("ratio_langgraph_memory", "  ours / LangGraph", "x", at_least=3, digits=2),
        ),
    ),
    Section(
        "Latency",
        (
            Figure("hop_p50_ms", "hop between two nodes, p50", "ms", at_most=5, digits=1),
            Figure("hop_p99_ms", "hop between two nodes, p99", "ms", at_most=25, digits=1),
            Figure("hop_batch_p50_ms", "  while a batch runs, p50", "ms", at_most=5, digits=1),
            Figure("hop_batch_p99_ms", "  while a batch runs, p99", "ms", at_most=25, digits=1),
        ),
    ),
    Section(
        "What a visit costs",
        (
            Figure("redis_sent_per_visit", "Redis commands sent", "", at_most=12, digits=2),
            Figure("redis_inside_per_visit", "Redis calls inside our scripts", "", digits=2),
            Figure("cpu_visit_us", "CPU of all processes together", "us"),
            Figure("cpu_redis_us", "  Redis", "us"),
            Figure("cpu_scheduler_us", "  the scheduler", "us"),
            Figure("cpu_workers_us", "  the workers", "us"),
            Figure("cpu_client_us", "  the client that submits", "us"),
        ),
    ),
    Section(
        "CPU of a peer's step, servers included",
        (
            Figure("cpu_celery_tasks_us", "Celery: bare task", "us"),
            Figure("cpu_ratio_celery_tasks", "  a visit of the engine / that", "x", at_most=0.47, digits=2),
            Figure("cpu_celery_chain_us", "Celery: step of a chain", "us"),
            Figure("cpu_langgraph_postgres_us", "LangGraph, PostgreSQL", "us"),
            Figure("cpu_langgraph_sqlite_us", "LangGraph, SQLite", "us"),
            Figure("cpu_dbos_postgres_us", "DBOS, PostgreSQL", "us"),
            Figure("cpu_dbos_sqlite_us", "DBOS, SQLite", "us"),
        ),
    ),
    Section(
        "What must not grow",
        (
            Figure("large_state_ratio", "one key of 10 MB of state, against 1 kB", "x", at_most=1.2, digits=2),
            Figure("reader_small_ms", "  visit, 1 kB of state", "ms", digits=1),
            Figure("reader_value_ms", "  visit, 10 MB in one value", "ms", digits=1),
            Figure("reader_keys_ms", "  visit, 10 MB in 3,000 keys", "ms", digits=1),
            Figure("thousandth_visit_ratio", "a run's 1,000th visit, against its 10th", "x", at_most=1.1, digits=2),
            Figure("emit_function_ratio", "a function that emits 10,000 times a second", "x", at_most=1.1, digits=2),
            Figure("emit_function_per_s", "  emissions", "/s"),
            Figure("emit_script_ratio", "a script that does so", "x", at_most=1.1, digits=2),
            Figure("emit_script_per_s", "  emissions", "/s"),
            Figure("waiting_run_bytes", "a waiting run: its keys", "B", at_most=4000),
            Figure("waiting_run_memory_bytes", "a waiting run: growth of Redis", "B"),
        ),
    ),
    Section(
        "Maps and joins",
        (
            Figure("map_ratio", "items of a 10,000-item map, against visits of chains", "x", at_least=0.8, digits=2),
            Figure("map_items_per_s", "  items", "/s"),
            Figure("map_chain_per_s", "  visits of chains, in the same stack", "/s"),
            Figure("map_item_ratio", "CPU of an item among 10,000, against 100", "x", at_most=1.15, digits=2),
            Figure("map_item_us", "  among 10,000", "us"),
            Figure("map_item_few_us", "  among 100", "us"),
            Figure("map_queue_most", "messages in the queue, at most"),
            Figure("map_scheduler_mb", "growth of the scheduler meanwhile", "MB", digits=1),
            Figure("join_s", "1,000 branches and their join, which fires once", "s", digits=1),
        ),
    ),
    Section(
        "Very wide runs",
        (
            Figure("wide_visit_us", "10,000 commands at once: scheduler CPU per visit", "us", at_most=1000),
            Figure("wide_redis_ms", "  longest call of Redis", "ms", at_most=20, digits=1),
            Figure("wide_hop_p99_ms", "  another run's hop meanwhile, p99", "ms", at_most=50, digits=1),
            Figure("wide_hop_p50_ms", "  p50", "ms", digits=1),
            Figure("wide_step_visit_us", "as one super-step: scheduler CPU per visit", "us", at_most=1000),
            Figure("wide_step_redis_ms", "  longest call of Redis", "ms", digits=1),
            Figure("million_map_open_ms", "a map of 1,000,000 items opens", "ms"),
            Figure("million_map_open_redis_ms", "  longest call of Redis", "ms", at_most=20, digits=1),
            Figure("million_map_collect_s", "  and is collected", "s", digits=2),
            Figure("million_map_round_ms", "  longest round of the scheduler", "ms"),
            Figure("million_map_collect_redis_ms", "  longest call of Redis", "ms", at_most=20, digits=1),
            Figure("delta_redis_ms", "a delta of 11 MB: longest call of Redis", "ms", at_most=20, digits=1),
            Figure("delta_s", "  the run that writes and reads it", "s", digits=2),
        ),
    ),
    Section(
        "Batches: rows of two nodes, two workers",
        (
            Figure("batch_accept_s", "10,000 rows accepted", "s", at_most=2, digits=2),
            Figure("batch_first_node_s", "  until the first node begins", "s", at_most=1, digits=2),
            Figure("batch_submit_mb", "memory of submitting 200,000 rows", "MB", at_most=150),
            Figure("batch_wait_p99_ms", "50,000 rows wait: another run's first node, p99", "ms", at_most=1000),
            Figure("batch_wait_p50_ms", "  p50", "ms"),
            Figure("batch_rows_per_s", "  rows meanwhile", "/s"),
            Figure("batch_equal_off", "batches of equal priority: off by", "x", at_most=0.10, digits=3),
            Figure("batch_three_off", "  of priorities 3 and 1: off by", "x", at_most=0.15, digits=3),
            Figure("batch_retry_s", "400,000 failed rows retried", "s", digits=1),
            Figure("batch_retry_longest_ms", "  longest call of Redis", "ms", at_most=20, digits=1),
            Figure("batch_cancel_s", "  and cancelled", "s", digits=2),
            Figure("batch_cancel_longest_ms", "  longest call of Redis", "ms", at_most=20, digits=1),
            Figure("batch_idle_us", "1,000 open batches, none changes: CPU of a look", "us", at_most=1000),
            Figure("batch_idle_redis_us", "  Redis", "us", at_most=100),
            Figure("batch_all_ms", "  a look at all, every 5 s: CPU", "ms", digits=1),
            Figure("batch_all_redis_ms", "  Redis", "ms", digits=2),
        ),
    ),
    Section(
        "A second worker beside the first: rows of one node, eight slots in each worker",
        (
            Figure("scale_models_ratio", "models that answer after 0.5 s", "x", at_least=1.8, digits=2),
            Figure("scale_models_one_per_s", "  rows, one llm worker", "/s", digits=1),
            Figure("scale_models_two_per_s", "  rows, two", "/s", digits=1),
            Figure("scale_scripts_ratio", "scripts that sleep for 0.6 s", "x", at_least=1.8, digits=2),
            Figure("scale_scripts_one_per_s", "  rows, one script worker", "/s", digits=1),
            Figure("scale_scripts_two_per_s", "  rows, two", "/s", digits=1),
        ),
    ),
    Section(
        "State on a Redis Cluster of three nodes, against one Redis; 256 partitions, and a Redis as broker",
        (
            Figure("cluster_commands_off", "commands of a node, off a third by at most", "x", at_most=0.15, digits=3),
            Figure("cluster_commands", "  commands of a node per visit, those inside scripts too", digits=1),
            Figure(
                "cluster_scheduler_ratio", "scheduler CPU per visit, against one Redis", "x", at_most=1.15, digits=2
            ),
            Figure("cluster_scheduler_us", "  the scheduler", "us"),
            Figure("cluster_redis_us", "  the three nodes together", "us"),
            Figure("cluster_one_redis_us", "  one Redis, without the broker", "us"),
            Figure("cluster_broker_us", "  the broker", "us"),
            Figure("cluster_workers_us", "  the workers", "us"),
            Figure("cluster_visits_per_s", "  visits on the same cores", "/s"),
            Figure("cluster_one_visits_per_s", "  visits with one Redis", "/s"),
            Figure("cluster_idle_redis_us", "  per second without visits: the three nodes together", "us"),
            Figure("cluster_idle_scheduler_us", "  per second without visits: the scheduler", "us"),
            Figure("cluster_row_us", "  a row of a batch: its node, beyond the others", "us"),
            Figure("cluster_row_scheduler_us", "  the scheduler, beyond the row's visits", "us"),
        ),
    ),
    Section(
        "Very many runs in Redis: half of them wait for an answer, the newer half is over",
        (
            Figure("million_runs", "runs"),
            Figure("million_waiting_bytes", "  memory of one that waits", "B", at_most=4000),
            Figure("million_over_bytes", "  of one that is over", "B"),
            Figure("million_ps_ms", "ps, none of the newest 10,000 to be listed", "ms", at_most=200),
            Figure("million_ps_slowest_ms", "  the slowest of 20", "ms"),
            Figure("million_ps_all_ms", "ps --all, the newest 50", "ms", at_most=200),
            Figure("million_ps_all_slowest_ms", "  the slowest of 20", "ms"),
            Figure("million_batch_ls_ms", "batch ls, the newest 50 of 60", "ms", at_most=200),
            Figure("million_batch_ls_slowest_ms", "  the slowest of 20", "ms"),
            Figure("million_ps_command_ms", "the command `sleipnir ps`", "ms"),
            Figure("million_batch_ls_command_ms", "  `sleipnir batch ls`", "ms"),
            Figure("million_start_ms", "  `sleipnir --version`, without Redis", "ms"),
            Figure("million_advance_share", "visits, against an empty Redis", "x", at_least=0.9, digits=2),
            Figure("million_visits_per_s", "  with them", "/s"),
            Figure("million_empty_visits_per_s", "  without", "/s"),
            Figure("million_slow_commands", "commands that took Redis over 5 ms"),
        ),
    ),
    Section(
        "The HTTP API: one server, beside a batch that takes all of the machine",
        (
            Figure("http_submit_p99_ms", "200 submissions/s: answered, p99", "ms", at_most=100),
            Figure("http_submit_p50_ms", "  p50", "ms"),
            Figure("http_submit_us", "  CPU of the server per submission", "us"),
            Figure("http_submit_visits_per_s", "  visits of the batch meanwhile", "/s"),
            Figure("sse_late_p99_ms", "1,000 listeners: an event is late, p99", "ms", at_most=250),
            Figure("sse_late_p50_ms", "  p50", "ms"),
            Figure("sse_late_most_ms", "  the latest", "ms"),
            Figure("sse_visits_per_s", "  visits of the batch meanwhile", "/s"),
        ),
    ),
    Section(
        "The console among very many runs: one server, a user who is logged in, pages in Chromium",
        (
            Figure("console_runs", "runs"),
            Figure("console_pages", "pages"),
            Figure("console_byte_ms", "first byte of the slowest page", "ms", at_most=300),
            Figure("console_byte_median_ms", "  of half of them", "ms"),
            Figure("console_paint_ms", "first paint of the slowest page", "ms", at_most=1000),
            Figure("console_paint_median_ms", "  of half of them", "ms"),
            Figure("console_long_run_ms", "a run of 5,003 visits opens, for the first time", "ms", at_most=2000),
            Figure("console_long_run_byte_ms", "  first byte", "ms", at_most=300),
            Figure("console_long_run_again_ms", "  again", "ms"),
            Figure("console_page_mb", "a page open for 8 hours of events: memory", "MB", at_most=150),
            Figure("console_page_first_mb", "  after a tenth of them", "MB"),
            Figure("console_page_half_mb", "  after half of them", "MB"),
            Figure("console_page_heap_mb", "  heap of JavaScript in the end", "MB", digits=1),
            Figure("console_page_nodes", "  DOM nodes in the end"),
            Figure("console_page_events", "  events"),
            Figure("console_server_mb", "200 open pages: memory of the server", "MB", at_most=300),
            Figure("console_server_growth_mb", "  growth by them", "MB"),
            Figure("console_open_asked_per_s", "  pages answered", "/s"),
        ),
    ),
    Section(
        "Models: one llm worker process of 64 threads, an answer 0.5 s after each call",
        (
            Figure("model_share", "calls, of 128 a second that are possible", "x", at_least=0.9, digits=2),
            Figure("model_calls_per_s", "  calls", "/s", digits=1),
            Figure("model_call_us", "  CPU of the worker per call", "us"),
            Figure("model_ratio", "  engine / litellm alone", "x", digits=2),
            Figure("stream_share", "streamed calls, of 128 a second", "x", at_least=0.9, digits=2),
            Figure("stream_calls_per_s", "  calls", "/s", digits=1),
            Figure("stream_call_us", "  CPU of the worker per call", "us"),
            Figure("stream_ratio", "  engine / litellm alone", "x", digits=2),
            Figure("model_worker_mb", "memory of the worker", "MB", at_most=350),
            Figure("litellm_calls_per_s", "litellm alone, 64 threads: calls", "/s", digits=1),
            Figure("litellm_call_us", "  CPU per call", "us"),
            Figure("litellm_stream_calls_per_s", "  streamed calls", "/s", digits=1),
            Figure("litellm_stream_call_us", "  CPU per streamed call", "us"),
            Figure("litellm_mb", "  memory", "MB"),
        ),
    ),
    Section(
        "Models with tools: 64 loops at once, three Python tools that do nothing in each turn",
        (
            Figure("loop_turns_per_s", "turns", "/s", digits=1),
            Figure("loop_call_us", "CPU of all processes per call of a tool", "us"),
            Figure("loop_redis_us", "  Redis", "us"),
            Figure("loop_scheduler_us", "  the scheduler", "us"),
            Figure("loop_models_us", "  the llm worker, for a third of a turn", "us"),
            Figure("loop_tools_us", "  the script worker and its tools", "us"),
            Figure("loop_client_us", "  the client", "us"),
        ),
    ),
    Section(
        "Knowledge bases: chunks of 1,000 bytes, vectors of 384 dimensions, searched by both, on one core",
        (
            Figure("knowledge_small_hybrid_p50_ms", "5,000 chunks: a search, p50", "ms", at_most=10, digits=1),
            Figure("knowledge_small_hybrid_p99_ms", "  p99", "ms", digits=1),
            Figure("knowledge_small_hybrid_per_s", "  searches", "/s"),
            Figure("knowledge_small_index_s", "  writing the index", "s", digits=1),
            Figure("knowledge_small_index_mb", "  its size", "MB"),
            Figure("knowledge_large_hybrid_p50_ms", "100,000 chunks: a search, p50", "ms", at_most=40, digits=1),
            Figure("knowledge_large_hybrid_p99_ms", "  p99", "ms", digits=1),
            Figure("knowledge_large_hybrid_per_s", "  searches", "/s"),
            Figure("knowledge_large_keyword_p50_ms", "  by keywords alone, p50", "ms", digits=1),
            Figure("knowledge_bm25s_ms", "  bm25s, p50", "ms", digits=1),
            Figure("knowledge_large_rss_mb", "  memory of the process", "MB", at_most=250),
            Figure("knowledge_together_mb", "  memory of four processes together", "MB"),
            Figure("knowledge_together_per_s", "  searches of the four", "/s"),
            Figure("knowledge_large_index_s", "  writing the index", "s", digits=1),
            Figure("knowledge_large_index_mb", "  its size", "MB"),
            Figure("knowledge_file_mb", "  the base itself, as a file", "MB"),
            Figure("knowledge_file_read_s", "  reading that file", "s", digits=1),
            Figure("knowledge_chunks", "documentation on this machine: chunks"),
            Figure("knowledge_split_s", "  splitting it", "s", digits=1),
        ),
    ),
    Section(
        "What a search finds of that documentation, its headings as questions",
        (
            Figure("knowledge_questions", "questions"),
            Figure("knowledge_keyword_recall", "recall@5, keywords", digits=3),
            Figure("knowledge_vector_recall", "  vectors (a hash, no model)", digits=3),
            Figure("knowledge_hybrid_recall", "  both", digits=3),
            Figure("knowledge_bm25s_recall", "  bm25s", digits=3),
            Figure("knowledge_hybrid_recall_ratio", "  both / the better of the two", "x", at_least=1, digits=3),
            Figure("knowledge_keyword_recall_ratio", "  keywords / bm25s", "x", at_least=1, digits=3),
            Figure("knowledge_keyword_mrr", "mean reciprocal rank, keywords", digits=3),
            Figure("knowledge_vector_mrr", "  vectors (a hash, no model)", digits=3),
            Figure("knowledge_hybrid_mrr", "  both", digits=3),
            Figure("knowledge_bm25s_mrr", "  bm25s", digits=3),
            Figure("knowledge_hybrid_mrr_ratio", "  both / the better of the two", "x", at_least=1, digits=3),
            Figure("knowledge_keyword_mrr_ratio", "  keywords / bm25s", "x", at_least=1, digits=3),
        ),
    ),
    Section(
        "Scripts and the command line",
        (
            Figure("warm_script_ratio", "warm script, against starting python3", "x", at_most=0.35, digits=2),
            Figure("warm_script_ms", "  warm script", "ms", digits=1),
            Figure("cold_python_ms", "  python3", "ms", digits=1),
            Figure("tool_bash_ms", "CPU of a call of a bash tool", "ms", at_most=5, digits=1),
            Figure("tool_bare_bash_ms", "  `bash -c :` under the same isolation", "ms", digits=1),
            Figure("tool_python_ms", "CPU of a call of a Python tool", "ms", at_most=6, digits=1),
            Figure("cold_run_s", "cold `sleipnir run` of three scripts", "s", at_most=3, digits=2),
            Figure("cold_run_cpu_s", "  CPU of all its processes", "s", digits=2),
            Figure("start_up_ratio", "`sleipnir ps` and its like / importing redis-py", "x", at_most=2.2, digits=2),
            Figure("start_up_ps_ms", "  `sleipnir ps`", "ms"),
            Figure("start_up_redis_ms", '  `python -c "import redis"`', "ms"),
            Figure("import_ratio", "importing StateGraph / importing redis-py", "x", at_most=0.5, digits=2),
            Figure("import_sleipnir_ms", "  `import sleipnir`", "ms"),
            Figure("import_state_graph_ms", "  `from sleipnir import StateGraph`", "ms"),
        ),
    ),
)

FIGURES: Mapping[str, Figure] = {figure.name: figure for section in SECTIONS for figure in section.figures}

RATIOS: Mapping[str, tuple[str, str]] = {
    "ratio_celery_tasks": ("visits_per_s", "celery_tasks_per_s"),
    "ratio_celery_chain": ("visits_per_s", "celery_chain_per_s"),
    "ratio_langgraph_postgres": ("visits_per_s", "langgraph_postgres_per_s"),
    "ratio_always_langgraph_postgres": ("visits_per_s_fsync_always", "langgraph_postgres_per_s"),
    "ratio_langgraph_sqlite": ("visits_per_s", "langgraph_sqlite_per_s"),
    "ratio_dbos_postgres": ("visits_per_s", "dbos_postgres_per_s"),
    "ratio_dbos_sqlite": ("visits_per_s", "dbos_sqlite_per_s"),
    "cpu_ratio_celery_tasks": ("cpu_visit_us", "cpu_celery_tasks_us"),
}
"""The figure of the engine and that of a peer which a ratio divides, by the name of the ratio."""


def with_ratios(values: Mapping[str, float]) -> Values:
    """The values of one round and the ratios within it, as far as both sides were measured."""
    ratios = {name: values[ours] / values[peer] for name, (ours, peer) in RATIOS.items() if {ours, peer} <= set(values)}
    return {**values, **ratios}


def with_ratio_reasons(reasons: Mapping[str, str]) -> dict[str, str]:
    """The reasons, also for the ratios to the peers that were not measured: the targets are on those."""
    return {**reasons, **{name: reasons[peer] for name, (_, peer) in RATIOS.items() if peer in reasons}}


def medians(rounds: Sequence[Mapping[str, float]]) -> Values:
    """Of each figure, over the rounds that have it."""
    names = dict.fromkeys(name for values in rounds for name in values)
    return {name: statistics.median([values[name] for values in rounds if name in values]) for name in names}


def table(values: Mapping[str, float], reasons: Mapping[str, str]) -> str:
    """Sections of figure, value, target and verdict. A figure that is in neither argument was not asked for."""
    blocks = []
    for section in SECTIONS:
        rows = [row for figure in section.figures if (row := _row(figure, values, reasons))]
        if rows:
            blocks.append("\n".join([section.title, *(f"  {line}" for line in _aligned(rows))]))
    return "\n\n".join(blocks)


def missed(values: Mapping[str, float]) -> list[str]:
    """The figures that do not reach their target."""
    known = [figure for figure in FIGURES.values() if figure.name in values]
    return [figure.what.strip() for figure in known if figure.verdict(values[figure.name]) == "MISSED"]


Row = tuple[str, str, str, str, str]


def _row(figure: Figure, values: Mapping[str, float], reasons: Mapping[str, str]) -> Row | None:
    if figure.name in values:
        value = values[figure.name]
        return (figure.what, f"{value:,.{figure.digits}f}", figure.unit, figure.target, figure.verdict(value))
    if figure.name in reasons:
        return (figure.what, "-", "", figure.target, f"not measured: {reasons[figure.name]}")
    return None


def _aligned(rows: Sequence[Row]) -> Iterable[str]:
    for what, value, unit, target, verdict in rows:
        yield f"{what:<42}{value:>10} {unit:<3} {target:>8}  {verdict}".rstrip()

"""What schedulers say over HTTP of a fleet that works, and what the alerts and dashboards ask for."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from sleipnir.testing import ModelServer
from tests import promql
from tests.processes import RedisServer, Stack, wait_until, write_agent

WORK = """
name: work
version: sleipnir/1
start: a
nodes:
  a: {type: script, script: a.sh, cache: true, next: cheap}
  cheap: {type: llm, model: "openai:gpt-4o-mini", prompt: "hi", next: odd}
  odd: {type: llm, model: "openai:gpt-nobody-knows", prompt: "hi", next: sure}
  sure: {type: approval, question: "sure?", options: [yes, no], routes: {yes: e, no: e}, on_other: e}
  e: {type: end, output: done}
"""
LIMITS = "models: {'openai:*': {requests_per_minute: 600, max_parallel: 9}}\n"

SHORT = "name: short\nstart: e\nnodes:\n  e: {type: end, output: done}\n"
OPS = Path(__file__).parents[2] / "ops"

pytestmark = pytest.mark.timeout(300)  # its worker imports litellm, which takes long on a busy machine

Found = dict[tuple[str, ...], float]


class Scrape:
    """What one instance says."""

    def __init__(self, port: int) -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as response:
            self.text = response.read().decode()
        self.families: dict[str, Metric] = {f.name: f for f in text_string_to_metric_families(self.text)}

    def values(self, name: str, *labels: str) -> Found:
        """Samples of this name by the values of these labels."""
        samples = [s for family in self.families.values() for s in family.samples if s.name == name]
        return {tuple(sample.labels[label] for label in labels): sample.value for sample in samples}

    def value(self, name: str) -> float:
        return self.values(name)[()]


def port_of(stack: Stack, name: str = "scheduler") -> int:
    pattern = re.compile(r'"port": (\d+), "event": "metrics are served"|metrics are served.*"port": (\d+)')
    found = wait_until(lambda: pattern.search(stack.log(name)), f"{name} serves metrics")
    return int(found[1] or found[2])


@pytest.fixture(scope="module")
def watched(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stack, Scrape]]:
    """A fleet that has run an agent up to a question to a person, and what it said then."""
    folder = tmp_path_factory.mktemp("metrics")
    (folder / "limits.yaml").write_text(LIMITS)
    agent = write_agent(folder / "work", WORK, a_sh="echo '{}'\n")
    settings = {"key_prefix": "metrics", "metrics_port": 0, "limits": folder / "limits.yaml", "log_format": "json"}
    with ModelServer(["hello", "hello"]) as server, Stack(redis_server, folder / "home", **settings) as stack:
        stack.start_scheduler()
        stack.start_worker("worker", "scripts,functions,llm", env=server.env(), ready=False)
        with stack.client() as client:
            assert client.submit(write_agent(folder / "short", SHORT)).wait(60).status == "completed"
            run = client.submit(agent)
            wait_until(lambda: run.info().status == "waiting", "the person is asked", 240)
            stack.wait_for_worker("worker", 60)
            yield stack, Scrape(port_of(stack))


def test_what_a_run_did_is_counted(watched: tuple[Stack, Scrape]) -> None:
    _, scrape = watched
    assert scrape.values("sleipnir_runs_started_total", "agent") == {("work",): 1, ("short",): 1}
    visits = scrape.values("sleipnir_visits_total", "type", "role", "outcome")
    assert visits == {("script", "node", "ok"): 1, ("llm", "node", "ok"): 2, ("end", "node", "ok"): 1}
    assert scrape.values("sleipnir_cache_visits_total", "agent", "outcome") == {("work", "miss"): 1}
    hops = scrape.values("sleipnir_hop_seconds_count", "hop")
    assert hops == {("accept",): 2, ("queue",): 3, ("execute",): 3, ("commit",): 3}
    assert scrape.values("sleipnir_queue_wait_seconds_count", "queue") == {("scripts",): 1, ("llm",): 2}
    times = scrape.values("sleipnir_hop_seconds_sum", "hop")
    assert all(0 <= seconds < 10_000 for seconds in times.values()), "seconds of one clock, not milliseconds of two"
    assert times[("execute",)] > 0, "what takes less than a millisecond adds nothing"


def test_what_models_were_asked_is_counted_by_model(watched: tuple[Stack, Scrape]) -> None:
    _, scrape = watched
    cheap, odd = ("openai:gpt-4o-mini",), ("openai:gpt-nobody-knows",)
    assert scrape.values("sleipnir_model_calls_total", "model") == {cheap: 1, odd: 1}
    assert scrape.values("sleipnir_model_unpriced_calls_total", "model") == {odd: 1}
    assert scrape.values("sleipnir_model_cost_usd_total", "model")[cheap] > 0
    assert scrape.values("sleipnir_model_tokens_total", "model", "direction")[(*cheap, "output")] > 0
    assert scrape.values("sleipnir_limit_used", "limit", "kind")["openai:*", "requests"] == 2
    assert scrape.values("sleipnir_limit_bound", "limit", "kind") == {
        ("openai:*", "requests"): 600, ("openai:*", "parallel"): 9
    }  # fmt: skip


def test_current_values_are_exported(watched: tuple[Stack, Scrape]) -> None:
    _, scrape = watched
    assert scrape.values("sleipnir_runs", "state") == {("unfinished",): 1, ("finished",): 1}
    assert scrape.value("sleipnir_gates_open") == 1
    assert 0 <= scrape.value("sleipnir_gate_oldest_seconds") < 10_000
    assert scrape.value("sleipnir_partitions_owned") == 16
    assert scrape.value("sleipnir_redis_up") == 1
    assert scrape.value("sleipnir_redis_memory_used_bytes") > 10**5
    assert scrape.value("sleipnir_redis_aof_ok") == 1
    assert scrape.values("sleipnir_workers", "queue")[("llm",)] == 1
    assert scrape.values("sleipnir_worker_slots", "queue")[("llm",)] == 2
    gauges = ("visits_queued", "visits_leased", "broker_messages", "queue_oldest_seconds")
    for name in (f"sleipnir_{gauge}" for gauge in gauges):
        assert scrape.values(name, "queue")[("llm",)] == 0, "a queue that is empty is said to be"


def test_every_metric_has_a_help_that_is_a_sentence_and_no_metric_names_a_run(watched: tuple[Stack, Scrape]) -> None:
    _, scrape = watched
    mine = [family for name, family in scrape.families.items() if name.startswith("sleipnir_")]
    assert len(mine) > 40
    for family in mine:
        assert family.documentation.strip(), family.name
        for sample in family.samples:
            assert not {"run", "visit", "id", "instance", "job"} & sample.labels.keys(), family.name
        if family.name.endswith("_seconds"):
            assert "econds" in family.documentation, family.name


def test_alerts_dashboards_and_scalers_ask_for_metrics_and_labels_that_there_are(watched: tuple[Stack, Scrape]) -> None:
    _, scrape = watched
    known = {"up": {"job", "instance"}}
    for family in scrape.families.values():
        for sample in family.samples:
            known.setdefault(sample.name, {"job", "instance"}).update(sample.labels)
    rules = promql.of_rules(OPS / "prometheus" / "alerts.yml")
    panels = promql.of_dashboard(OPS / "grafana" / "dashboards" / "sleipnir.json")
    scalers = promql.of_scalers(OPS / "deploy" / "k8s" / "keda.yaml")
    assert len(rules) > 15 and len(panels) >= 50 and len(scalers) >= 8
    asked = [*rules, *panels, *scalers]
    problems = [problem for expr, shown in asked for problem in promql.problems(expr, shown, known)]
    assert problems == []


def test_the_page_of_metrics_has_every_metric_with_its_type_and_labels(watched: tuple[Stack, Scrape]) -> None:
    _, scrape = watched
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    rows = dict(re.findall(r"^\| `(sleipnir_\w+)` \| (.*)$", page, re.MULTILINE))
    said = {}
    for family in scrape.families.values():
        if family.name.startswith("sleipnir_"):
            labels = {label for sample in family.samples for label in sample.labels} - {"le"}
            said[family.name + ("_total" if family.type == "counter" else "")] = (family.type, labels)
    assert rows.keys() == said.keys()
    for name, (kind, labels) in said.items():
        cells = [cell.strip() for cell in rows[name].split("|")]
        assert (cells[0], set(re.findall(r"`(\w+)`", cells[1]))) == (kind, labels), name


def test_health_reports_that_all_services_run(watched: tuple[Stack, Scrape]) -> None:
    stack, _ = watched
    with urllib.request.urlopen(f"http://127.0.0.1:{port_of(stack)}/health", timeout=30) as response:
        facts = json.load(response)
    assert (facts["status"], facts["redis"], facts["partitions"]) == ("ok", True, 16)


def test_counts_of_two_instances_add_up_and_shared_values_are_exported_once(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    agent = write_agent(tmp_path / "ask", WORK.replace("start: a", "start: sure"), a_sh="")
    settings = {"key_prefix": "metrics-two", "metrics_port": 0, "log_format": "json"}
    with Stack(redis_server, tmp_path / "home", **settings) as stack, stack.client() as client:
        for name in ("one", "two"):
            stack.start_scheduler(name)
        ports = [port_of(stack, name) for name in ("one", "two")]
        for _ in range(5):
            client.submit(agent)

        def both() -> list[Scrape] | None:
            scrapes = [Scrape(port) for port in ports]
            started = sum(sum(s.values("sleipnir_runs_started_total", "agent").values()) for s in scrapes)
            gates = sum(s.value("sleipnir_gates_open") for s in scrapes)
            owned = sum(s.value("sleipnir_partitions_owned") for s in scrapes)
            return scrapes if (started, gates, owned) == (5, 5, 16) else None

        scrapes = wait_until(both, "all runs are counted, and all partitions are owned", every_s=1.0)
        assert sum(scrape.values("sleipnir_runs", "state")[("unfinished",)] for scrape in scrapes) == 5
        assert sum("sleipnir_redis_memory_used_bytes" in scrape.text for scrape in scrapes) == 1


def test_without_redis_counts_and_the_outage_are_exported(tmp_path: Path) -> None:
    redis = RedisServer()
    try:
        with Stack(redis, tmp_path / "home", metrics_port=0, log_format="json") as stack:
            stack.start_scheduler()
            port = port_of(stack)
            wait_until(lambda: Scrape(port).value("sleipnir_partitions_owned") == 16, "it has started", every_s=0.3)
            redis.kill()
            scrape = wait_until(
                lambda: (found := Scrape(port)).value("sleipnir_redis_up") == 0 and found, "it is away", every_s=0.3
            )
            assert scrape.value("sleipnir_leases_expired_total") == 0
            assert not scrape.values("sleipnir_gates_open")
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=30) as response:
                assert json.load(response)["status"] == "ok", "a restart would not bring Redis back"
            redis.start()
            wait_until(lambda: Scrape(port).value("sleipnir_redis_up") == 1, "Redis is back", every_s=0.3)
    finally:
        redis.stop()


def test_no_port_is_opened_unasked(stack: Stack) -> None:
    assert "metrics are served" not in stack.log("scheduler")

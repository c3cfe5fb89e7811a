"""Alert rules and dashboard as files. That the metrics they ask for exist is a system test (test_metrics.py)."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml

from tests import promql

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "ops" / "prometheus" / "alerts.yml"
DASHBOARD = ROOT / "ops" / "grafana" / "dashboards" / "sleipnir.json"


def anchors(page: Path) -> set[str]:
    """Of its headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_what_is_asked_of_prometheus_is_read_right() -> None:
    expr = (
        'sum by (queue) (rate(a_total{x=~"q{}",y!="1"}[5m])) / on (queue) group_left (z) max(b > 0.5) unless c and up'
    )
    metrics, grouped = promql.asked(expr)
    assert metrics == {"a_total": {"x", "y"}, "b": set(), "c": set(), "up": set()}
    assert grouped == {"queue", "z"}
    known = {"a_total": {"x", "queue"}, "b": {"z"}, "up": set()}
    assert promql.problems(expr, "{{ $labels.other }}", known) == [
        f"{expr}: a_total has no ['y']", f"{expr}: no metric c", f"{expr}: nothing in it has ['other']"
    ]  # fmt: skip


HAPPENED = re.compile(r"(sum by \(\w+\) )?\(increase\(\w+_total\[\d+m\]\)\) > 0")
"""What a counter has counted at all within some minutes."""


def test_each_alert_waits_reports_how_bad_it_is_and_names_what_to_do() -> None:
    """It waits by `for`, so that a moment alerts nobody. One that says that something has happened within some minutes
    need not: what has happened is true for as long as that."""
    found = promql.rules(ALERTS)
    assert len({rule["alert"] for rule in found}) == len(found)
    sections = anchors(ROOT / "docs" / "operations.md")
    for rule in found:
        assert re.fullmatch(r"Sleipnir[A-Z]\w+", rule["alert"])
        assert re.fullmatch(r"\d+[mh]", rule.get("for", "")) or HAPPENED.fullmatch(rule["expr"]), rule["alert"]
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}, rule["alert"]
        assert rule["annotations"]["summary"].endswith("."), rule["alert"]
        page, _, section = rule["annotations"]["runbook_url"].partition("#")
        assert page == "{{ $externalLabels.sleipnir_docs }}/operations.md"
        assert section in sections, rule["alert"]


def test_every_alert_is_named_in_its_runbook() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    assert [rule["alert"] for rule in promql.rules(ALERTS) if f"`{rule['alert']}`" not in page] == []


def test_the_rules_are_those_of_the_prometheus_configuration() -> None:
    config = yaml.safe_load((ALERTS.parent / "prometheus.yml").read_text())
    assert config["rule_files"] == [ALERTS.name]
    assert "sleipnir_docs" in config["global"]["external_labels"]  # which links to runbooks begin with
    assert [job["job_name"] for job in config["scrape_configs"]] == ["sleipnir-scheduler"]


def test_the_dashboard_can_be_provisioned() -> None:
    board = json.loads(DASHBOARD.read_text())
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    [source] = [each for each in board["templating"]["list"] if each["type"] == "datasource"]
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        if panel["type"] != "row":
            assert panel["targets"] and panel["fieldConfig"]["defaults"]["unit"], panel["title"]
            assert panel["datasource"]["uid"] == f"${{{source['name']}}}"
    provisioning = DASHBOARD.parents[1] / "provisioning"
    assert yaml.safe_load((provisioning / "dashboards" / "sleipnir.yaml").read_text())["providers"]
    [datasource] = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())["datasources"]
    assert datasource["type"] == source["query"] == "prometheus"

"""compose.yaml and the Dockerfiles say what the command line does, and keep secrets where they are needed."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from sleipnir.cli.services import scheduler_command, worker_command
from sleipnir.settings import Settings

ROOT = Path(__file__).parents[2]
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
WORKERS = {"worker-scripts": "scripts", "worker-functions": "functions", "worker-llm": "llm", "worker-rag": "rag"}


def command(service: str) -> list[str]:
    return [str(part) for part in SERVICES[service]["command"]]


def option(argv: list[str], name: str) -> str:
    return argv[argv.index(name) + 1]


@pytest.mark.parametrize(("service", "queue"), WORKERS.items())
def test_a_worker_service_runs_what_sleipnir_worker_runs(service: str, queue: str) -> None:
    ours = command(service)
    told = worker_command(queue, int(option(ours, "-c")), option(ours, "-P"), None, "info")
    without_level = [part for part in told if part not in ("--loglevel", "INFO")]
    assert ours == ["python", *without_level[1:]]


def test_the_scheduler_service_runs_what_sleipnir_scheduler_runs() -> None:
    assert [sys.executable, *command("scheduler")[1:]] == scheduler_command()


def test_only_workers_that_ask_models_know_api_keys_and_one_of_them_installs_a_model_library() -> None:
    knows = {name for name, service in SERVICES.items() if any("API" in key for key in service.get("environment", {}))}
    installs = {name for name, service in SERVICES.items() if _extras(service) == "llm"}
    assert knows == {"worker-llm", "worker-rag"}
    assert installs == {"worker-llm"}


def test_every_setting_in_compose_exists() -> None:
    names = {name for service in SERVICES.values() for name in service.get("environment", {})}
    ours = {name.removeprefix("SLEIPNIR_").lower() for name in names if name.startswith("SLEIPNIR_")}
    assert ours <= set(Settings.model_fields)
    assert "redis_url" in ours


def test_redis_is_durable_and_evicts_nothing() -> None:
    argv = command("redis")
    assert option(argv, "--appendonly") == "yes"
    assert option(argv, "--appendfsync") == "everysec"
    assert option(argv, "--maxmemory-policy") == "noeviction"


def test_nothing_is_published_beyond_this_machine() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_flower_asks_for_a_password_and_does_not_switch_events_on_everywhere() -> None:
    assert "--enable_events=False" in command("flower")
    assert str(SERVICES["flower"]["environment"]["FLOWER_BASIC_AUTH"]).startswith("${FLOWER_BASIC_AUTH:?")


@pytest.mark.parametrize("file", ["scheduler/Dockerfile", "workers/Dockerfile"])
def test_an_image_runs_as_its_own_user_and_says_when_it_is_unhealthy(file: str) -> None:
    text = (ROOT / file).read_text()
    final_stage = text[text.rindex("\nFROM ") :]
    assert re.search(r"^USER sleipnir$", final_stage, re.MULTILINE)
    assert "HEALTHCHECK" in final_stage


@pytest.mark.parametrize("file", ["scheduler/Dockerfile", "workers/Dockerfile"])
def test_what_an_image_copies_is_let_through_by_dockerignore(file: str) -> None:
    let_through = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = re.findall(r"^COPY (?!--)(.+) \S+$", (ROOT / file).read_text(), re.MULTILINE)
    sources = {source for line in copied for source in line.split()}
    assert sources <= let_through
    assert all((ROOT / source).exists() for source in sources)


def _extras(service: dict[str, Any]) -> str:
    return str(service.get("build", {}).get("args", {}).get("EXTRAS", ""))

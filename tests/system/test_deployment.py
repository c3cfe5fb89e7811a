"""compose.yaml as local processes: each service's exact command and environment, only host names and ports replaced.

The demo runs through them with a scripted model server; Flower shows it; a planted key is found nowhere.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from sleipnir import launch
from sleipnir.client import Client
from sleipnir.settings import Settings
from sleipnir.store.connect import connect
from sleipnir.supervisor import find_server
from sleipnir.testing import ModelServer
from tests.processes import wait_for_redis, wait_until

ROOT = Path(__file__).parents[2]
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
KEY = "sk-planted-4f1d2c"
PLANTED = (KEY, "sk-planted-in-the-secrets-file", "sk-planted-in-the-config")
CONFIG = """\
clients:
  - {type: openai-compatible, name: ours, api_base: "URL", api_key: "{{OURS}}", models: [{name: gpt-test}]}
  - {type: openai-compatible, name: theirs, api_base: "http://127.0.0.1:9/v1", api_key: sk-planted-in-the-config}
"""
AUTH = "ops:flower-pass"
DIAGNOSIS = {
    "cause": "Redis ran out of memory.",
    "confidence": "high",
    "evidence": ["OOM command not allowed"],
    "next_steps": ["Raise maxmemory", "Add TTLs"],
}


@dataclass
class Deployment:
    """The services of compose.yaml, running here."""

    server: ModelServer
    folder: Path
    redis_url: str
    flower_url: str

    def client(self) -> Client:
        return Client(Settings(redis_url=self.redis_url, home=self.folder / "client"))

    def flower(self, path: str) -> Any:
        request = urllib.request.Request(f"{self.flower_url}{path}")
        request.add_header("Authorization", "Basic " + base64.b64encode(AUTH.encode()).decode())
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)

    def logs(self) -> str:
        return "".join(file.read_text(errors="replace") for file in self.folder.glob("*.log"))


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


@contextmanager
def deployed(folder: Path, server: ModelServer) -> Iterator[Deployment]:
    redis_port, flower_port = _free_port(), _free_port()
    known = {"SLEIPNIR_MODEL": "ours:gpt-test", "OPENAI_API_KEY": KEY}
    _configure(folder, server.url)
    replaced = {
        "redis:6379": f"127.0.0.1:{redis_port}",
        "--address=0.0.0.0": "--address=127.0.0.1",
        "--port=5555": f"--port={flower_port}",
    }
    running: list[subprocess.Popen[bytes]] = []
    try:
        for name, service in SERVICES.items():
            command = [_replace(str(part), replaced) for part in service["command"]]
            if name == "redis":
                own = ["--port", str(redis_port), "--bind", "127.0.0.1", "--dir", str(folder)]
                command = [str(find_server()), *command[1:], *own]
            if command[0] == "python":
                command[0] = sys.executable
            environment = _environment(service.get("environment", {}), replaced, known)
            running.append(_start(name, command, environment, folder))
            if name == "redis":
                wait_for_redis(f"redis://127.0.0.1:{redis_port}/0")
        yield Deployment(server, folder, f"redis://127.0.0.1:{redis_port}/0", f"http://127.0.0.1:{flower_port}")
    finally:
        for process in reversed(running):
            process.terminate()
        for process in reversed(running):
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _configure(folder: Path, model_url: str) -> None:
    """Clients and secrets where a worker looks for them, which is in the home of its user."""
    place = folder / "worker-llm" / ".config" / "loki"
    place.mkdir(parents=True)
    (place / "config.yaml").write_text(CONFIG.replace("URL", model_url))
    (place / "secrets.env").write_text("OURS=sk-planted-in-the-secrets-file\n")
    (place / "secrets.env").chmod(0o600)


def _environment(
    declared: Mapping[str, str | None], replaced: Mapping[str, str], known: Mapping[str, str]
) -> dict[str, str]:
    """A name without a value is taken from outside, as compose does; an image's own PATH and HOME stay."""
    values = {name: known.get(name) if value is None else str(value) for name, value in declared.items()}
    if "FLOWER_BASIC_AUTH" in values:
        values["FLOWER_BASIC_AUTH"] = AUTH
    found = {name: _replace(value, replaced) for name, value in values.items() if value is not None}
    return {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ} | found


def _replace(text: str, replaced: Mapping[str, str]) -> str:
    for old, new in replaced.items():
        text = text.replace(old, new)
    return text


def _start(name: str, command: list[str], env: Mapping[str, str], folder: Path) -> subprocess.Popen[bytes]:
    home = folder / name
    home.mkdir(exist_ok=True)
    own = {"SLEIPNIR_HOME": str(home)} if name != "redis" else {}  # every container has a disk of its own
    if name == "worker-llm":
        own["HOME"] = str(home)
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            launch.command(command), env={**env, **own}, cwd=home, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("compose")
    with ModelServer(lambda request: json.dumps(DIAGNOSIS)) as server, deployed(folder, server) as running:
        with running.client() as client:
            wait_until(lambda: len(client.health().workers) == 3, "three workers are up", timeout_s=60)
        wait_until(lambda: len(_workers_in(running)) == 3, "Flower sees three workers", timeout_s=60)
        yield running


def _workers_in(running: Deployment) -> dict[str, Any]:
    try:
        return {name: 1 for name, alive in running.flower("/api/workers?status=true").items() if alive}
    except (urllib.error.URLError, ConnectionError):
        return {}


@pytest.fixture(scope="module")
def demo_run(deployment: Deployment) -> str:
    """The demo, run through the deployment to its end."""
    with deployment.client() as client:
        run = client.submit("log-triage", "server.log", caller_dir=ROOT / "agents" / "log-triage")
        wait_until(run.gates, "the report waits for approval", timeout_s=60)
        run.answer("yes")
        info = run.wait(30)
        assert info.status == "completed", info.error
        assert run.output is not None
        assert "Redis ran out of memory." in run.output
        assert info.usage.calls == 1
        assert info.usage.input_tokens > 0
        return run.id


def test_the_demo_runs_through_the_services_and_each_visit_on_its_own_worker(
    deployment: Deployment, demo_run: str
) -> None:
    with deployment.client() as client:
        workers = {step.node: step.worker.split("@")[0] for step in client.run(demo_run).history() if step.worker}
    assert workers["read_log"] == "scripts"
    assert workers["diagnose"] == "llm"


def test_a_visit_is_readable_in_flower(deployment: Deployment, demo_run: str) -> None:
    def found() -> dict[str, Any]:
        tasks = deployment.flower("/api/tasks?limit=100")
        return {uuid: task for uuid, task in tasks.items() if uuid.startswith(demo_run) and task["state"] == "SUCCESS"}

    tasks = wait_until(lambda: found() if len(found()) >= 3 else None, "Flower has the run's visits")
    assert tasks is not None
    first = tasks[f"{demo_run}:read_log:1:1"]
    assert first["name"] == "log-triage.read_log"
    assert first["args"] == f"run={demo_run} node=read_log visit=1 attempt=1"
    assert first["root_id"] == demo_run
    assert "'next': 'diagnose'" in first["result"]
    assert "'summary'" in first["result"], "the keys written are shown"
    shown = json.dumps(tasks)
    assert "out of memory" not in shown, "no state value is shown"


def test_a_planted_key_is_in_no_store_log_task_or_journal(deployment: Deployment, demo_run: str) -> None:
    client = connect(deployment.redis_url, decode=False)
    stored = b"".join(name + (client.dump(name) or b"") for name in client.scan_iter(count=1000))
    values = [json.dumps(item) for item in _everything_about(deployment, demo_run)]
    texts = (*values, deployment.logs(), json.dumps(deployment.flower("/api/tasks?limit=1000")))
    for key in PLANTED:
        assert key.encode() not in stored
        assert all(key not in text for text in texts)
    used = {request.authorization for request in deployment.server.requests}
    assert used == {"Bearer sk-planted-in-the-secrets-file"}


def _everything_about(deployment: Deployment, run_id: str) -> Iterator[Any]:
    with deployment.client() as client:
        run = client.run(run_id)
        yield run.state()
        yield [str(step) for step in run.history()]
        yield [dict(event.data) for event in run.events(follow=False)]
        yield str(run.info())


def test_flower_asks_for_a_password(deployment: Deployment) -> None:
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"{deployment.flower_url}/api/workers", timeout=10)


def test_no_service_but_the_llm_worker_loads_litellm(deployment: Deployment, demo_run: str) -> None:
    loaded = {
        name: _maps_litellm(pid)
        for name in ("scheduler", "worker-scripts", "worker-functions", "worker-llm")
        for pid in [_pid_of(deployment.folder / name)]
    }
    assert loaded == {"scheduler": False, "worker-scripts": False, "worker-functions": False, "worker-llm": True}


def _pid_of(home: Path) -> int:
    """The process whose SLEIPNIR_HOME is this service's."""
    wanted = f"SLEIPNIR_HOME={home}\0".encode()
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                if wanted in (process / "environ").read_bytes() + b"\0":
                    return int(process.name)
            except OSError:
                continue
    raise AssertionError(f"no process of {home}")


def _maps_litellm(pid: int) -> bool:
    """litellm imports tiktoken, which maps its compiled library; nothing else of ours does."""
    return "_tiktoken" in Path(f"/proc/{pid}/maps").read_text()

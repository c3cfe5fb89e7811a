"""compose.yaml as local processes: each service's exact command and environment, only places and ports replaced.

Runs and a batch go through them, with a scripted model server; Flower shows them; the health checks are those of the
images; Redis refuses nothing that is needed; a planted key is found nowhere. What Kubernetes and systemd start is the
same (tests/unit/test_deployment_files.py).
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sleipnir.client.client import Client
from sleipnir.local import launch
from sleipnir.settings import Settings
from sleipnir.store.connect import connect
from sleipnir.testing import ModelServer
from tests.deployments import ROOT, Service, of_compose, stages
from tests.processes import wait_for_redis, wait_until, write_agent
from tests.secured import ADMIN, FILES, PASSWORD, free_port, redis_environment
from tests.tls import make_certificates

pytestmark = pytest.mark.timeout(600)  # eight processes start cold at once

KEY = "sk-planted-4f1d2c"
PLANTED = (KEY, "sk-planted-in-the-secrets-file", "sk-planted-in-the-config", PASSWORD)
CONFIG = """\
clients:
  - {type: openai-compatible, name: mine, api_base: "URL", api_key: "{{MINE}}", models: [{name: gpt-test}]}
  - {type: openai-compatible, name: theirs, api_base: "http://127.0.0.1:9/v1", api_key: sk-planted-in-the-config}
"""
AUTH = "ops:flower-pass"
ROWS = 8
KNOWN = {
    "REDIS_PASSWORD": PASSWORD,
    "FLOWER_BASIC_AUTH": AUTH,
    "GRAFANA_PASSWORD": "unused",
    "SLEIPNIR_MODEL": "mine:gpt-test",
    "OPENAI_API_KEY": KEY,
}
SERVICES = of_compose(KNOWN)
NOT_MINE = {"prometheus", "grafana"}
WORKERS = sorted(name for name in SERVICES if name.startswith("worker-"))
DIAGNOSIS = {
    "cause": "Redis ran out of memory.",
    "confidence": "high",
    "evidence": ["OOM command not allowed"],
    "next_steps": ["Raise maxmemory", "Add TTLs"],
}
STEPS = """
name: steps
start: script
nodes:
  script: {type: script, script: scripts/s.sh, next: function}
  function: {type: function, call: "f.py:f", next: done}
  done: {type: end, output: "{{initial_prompt}}: {{made}}"}
"""
LOOK = """
name: look
start: look
nodes:
  look: {type: rag, documents: [stones], query: "{{initial_prompt}}", embedding_model: none, top_k: 1,
         state_updates: {found: "{{output.context}}"}, next: done}
  done: {type: end, output: "{{found}}"}
"""


@dataclass
class Deployment:
    """The services of compose.yaml, running here. `replaced` is what is elsewhere here than in containers."""

    server: ModelServer
    folder: Path
    redis_port: int
    flower_url: str
    console_port: int
    replaced: Mapping[str, str]

    @property
    def redis_url(self) -> str:
        return f"redis://sleipnir:{PASSWORD}@127.0.0.1:{self.redis_port}/0"

    def client(self) -> Client:
        return Client(Settings(redis_url=self.redis_url, home=self.folder / "client"))

    def flower(self, path: str) -> Any:
        request = urllib.request.Request(f"{self.flower_url}{path}")
        request.add_header("Authorization", "Basic " + base64.b64encode(AUTH.encode()).decode())
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def logs(self) -> str:
        return "".join(file.read_text(errors="replace") for file in self.folder.glob("*.log"))

    def execute(self, service: str, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """`docker compose exec SERVICE COMMAND...`, or `run`: in the service's environment, to its end."""
        return subprocess.run(
            _here(command, self.replaced), env=_environment(SERVICES[service], self.replaced), cwd=self.folder,
            capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL,
        )  # fmt: skip


@contextmanager
def deployed(folder: Path, server: ModelServer) -> Iterator[Deployment]:
    redis_port, flower_port, console_port = free_port(), free_port(), free_port()
    _configure(folder, server.url)
    _certify(folder / "tls")
    shutil.copytree(FILES, folder / "redis-files")
    with (folder / "redis-files" / "users.acl").open("a") as users:
        users.write(ADMIN)
    replaced = {
        "redis:6379": f"127.0.0.1:{redis_port}",
        "0.0.0.0": "127.0.0.1",
        "5555": str(flower_port),
        "8470": str(console_port),
        "/etc/sleipnir/tls": str(folder / "tls"),
        "/etc/sleipnir/webhooks": str(folder / "webhook-keys"),
        "/opt/sleipnir/console_healthcheck.py": str(ROOT / "ops" / "console_healthcheck.py"),
        "/etc/sleipnir-redis": str(folder / "redis-files"),
        "/etc/sleipnir/flowerconfig.py": str(ROOT / "ops" / "flower" / "flowerconfig.py"),
        "/opt/sleipnir/healthcheck.py": str(ROOT / "ops" / "healthcheck.py"),
        "/knowledge": str(folder / "knowledge"),
        "/agents": str(folder / "agents"),
        "/data": str(folder),
    }
    running: list[subprocess.Popen[bytes]] = []
    try:
        for name, service in SERVICES.items():
            if name in NOT_MINE or "profiles" in service.raw:
                continue
            for number in range(service.raw["deploy"].get("replicas", 1)):
                running.append(_start(name, number, service, replaced, folder, redis_port))
            if name == "redis":
                wait_for_redis(f"redis://sleipnir:{PASSWORD}@127.0.0.1:{redis_port}/0")
        here = Deployment(server, folder, redis_port, f"http://127.0.0.1:{flower_port}", console_port, replaced)
        done = here.execute("sleipnir", ["sleipnir", "users", "add", "ann", "--role", "operator", "--no-password"])
        assert done.returncode == 0, done.stderr
        running.append(_start("console", 0, SERVICES["console"], replaced, folder, redis_port))
        running.append(_start("webhooks", 0, SERVICES["webhooks"], replaced, folder, redis_port))
        yield here
    finally:
        for process in reversed(running):
            process.terminate()
        for process in reversed(running):
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _here(command: Sequence[str], replaced: Mapping[str, str]) -> list[str]:
    words = [_replace(word, replaced) for word in command]
    programs = {"python": [sys.executable], "sleipnir": [sys.executable, "-m", "sleipnir"]}
    return [*programs.get(words[0], words[:1]), *words[1:]]


def _configure(folder: Path, model_url: str) -> None:
    """Clients and secrets where a worker looks for them, which is in the home of its user."""
    place = folder / "worker-llm" / ".config" / "loki"
    place.mkdir(parents=True)
    (place / "config.yaml").write_text(CONFIG.replace("URL", model_url))
    (place / "secrets.env").write_text("MINE=sk-planted-in-the-secrets-file\n")
    (place / "secrets.env").chmod(0o600)


def _certify(folder: Path) -> None:
    folder.mkdir()
    made = make_certificates(folder)
    made.certificate.rename(folder / "tls.crt")
    made.key.rename(folder / "tls.key")


def _environment(service: Service, replaced: Mapping[str, str]) -> dict[str, str]:
    """What the file says, and of an image PATH and HOME."""
    found = {name: _replace(value, replaced) for name, value in service.environment.items()}
    if "SLEIPNIR_METRICS_PORT" in found:
        found["SLEIPNIR_METRICS_PORT"] = "0"  # two of them share this machine's ports
    if host := service.environment.get("SLEIPNIR_CONSOLE_HOST"):
        found["SLEIPNIR_CONSOLE_HOST"] = host  # it must know that others can reach it
    return {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "PYTHONPATH") if name in os.environ} | found


def _replace(text: str, replaced: Mapping[str, str]) -> str:
    for old, new in replaced.items():
        text = text.replace(old, new)
    return text


def _start(
    name: str, number: int, service: Service, replaced: Mapping[str, str], folder: Path, redis_port: int
) -> subprocess.Popen[bytes]:
    home = folder / (name if number == 0 else f"{name}-{number}")
    home.mkdir(exist_ok=True)
    command, env = _here(service.command, replaced), _environment(service, replaced)
    if name == "redis":
        command += ["--port", str(redis_port), "--bind", "127.0.0.1"]
        env |= redis_environment(folder)
    else:
        env["SLEIPNIR_HOME"] = str(home)  # every container has a disk of its own
        env["PYTHONPROFILEIMPORTTIME"] = "1"
    if name == "worker-llm":
        env["HOME"] = str(home)
    with (folder / f"{home.name}.log").open("wb") as log:
        return subprocess.Popen(
            launch.command(command), env=env, cwd=home, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("compose")
    with ModelServer(lambda request: json.dumps(DIAGNOSIS)) as server, deployed(folder, server) as running:
        with running.client() as client:
            wait_until(lambda: len(client.health().workers) == len(WORKERS), "all workers are up", timeout_s=240)
            wait_until(lambda: len(client.health().schedulers) == 2, "both schedulers are up", timeout_s=120)
        wait_until(lambda: len(_workers_in(running)) == len(WORKERS), "Flower sees all workers", timeout_s=120)
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
        info = run.wait(60)
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
    assert first["args"] == f"run={demo_run} node=read_log visit=1 attempt=1 agent=log-triage"
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


@pytest.fixture(scope="module")
def batch(deployment: Deployment) -> tuple[str, list[Any]]:
    """The id of a batch, and its results: from and into files, by the command line of compose.yaml."""
    agent = {
        "scripts__s_sh": "echo '{\"made\": 1}'\n",
        "f_py": "def f(state):\n    return {'made': state['made'] + 1}\n",
    }
    write_agent(deployment.folder / "agents" / "steps", STEPS, **agent)
    (deployment.folder / "rows.csv").write_text("id,prompt\n" + "".join(f"k{row},row {row}\n" for row in range(ROWS)))
    submit = "sleipnir batch submit steps rows.csv --key id --name nightly"
    submitted = deployment.execute("sleipnir", submit.split())
    assert submitted.returncode == 0, submitted.stderr
    fetched = deployment.execute(
        "sleipnir", ["sleipnir", "batch", "results", "nightly", "--follow", "-o", "results.jsonl"]
    )
    assert fetched.returncode == 0, fetched.stderr
    lines = (deployment.folder / "results.jsonl").read_text().splitlines()
    return submitted.stdout.strip(), [json.loads(line) for line in lines]


def test_a_batch_goes_through_the_services_from_its_rows_to_its_results(
    deployment: Deployment, batch: tuple[str, list[Any]]
) -> None:
    batch_id, results = batch
    assert [(each["key"], each["status"], each["output"]) for each in results] == [
        (f"k{row}", "completed", f"row {row}: 2") for row in range(ROWS)
    ]
    with deployment.client() as client:
        workers = {step.worker.split("@")[0] for step in client.run(results[0]["run"]).history() if step.worker}
    assert workers == {"scripts", "functions"}

    def found() -> bool:
        tasks = deployment.flower("/api/tasks?limit=1000").values()
        return sum(f"batch={batch_id}" in (task["args"] or "") for task in tasks) == 2 * len(results)

    wait_until(found, "Flower has the visits of all rows")


def test_a_run_looks_into_documents_on_the_worker_that_shares_its_base(deployment: Deployment) -> None:
    """The base is built by the command line of compose.yaml, and found by the rag worker in the folder they share."""
    stones = write_agent(deployment.folder / "agents" / "look", LOOK) / "stones"
    stones.mkdir()
    (stones / "granite.md").write_text("# Granite\n\nGranite is a coarse rock of quartz.\n")
    (stones / "basalt.md").write_text("# Basalt\n\nBasalt flows out of volcanoes.\n")
    (cli,) = SERVICES["sleipnir"].command[:1]
    built = deployment.execute("sleipnir", [cli, "kb", "build", "look"])
    assert built.returncode == 0, built.stderr
    found = deployment.execute("sleipnir", [cli, "run", "look", "volcanoes"])
    assert found.returncode == 0, found.stderr
    assert "Basalt flows out of volcanoes." in found.stdout


def _asked(deployment: Deployment, path: str, token: str = "", body: Any = None) -> Any:
    """The answer of the console of compose.yaml, by TLS."""
    request = urllib.request.Request(f"https://localhost:{deployment.console_port}/api/v1{path}")
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    if body is not None:
        request.data = json.dumps(body).encode()
        request.add_header("Content-Type", "application/json")
    context = ssl.create_default_context(cafile=str(deployment.folder / "tls" / "ca.pem"))
    with urllib.request.urlopen(request, timeout=60, context=context) as answer:
        return json.load(answer)


def _is_ready(deployment: Deployment) -> bool:
    try:
        return bool(_asked(deployment, "/health/ready")["status"] == "ok")
    except OSError:
        return False


def test_a_run_is_submitted_to_the_console_by_tls_with_a_token_alone(deployment: Deployment) -> None:
    wait_until(lambda: _is_ready(deployment), "the console is up", timeout_s=120)
    write_agent(
        deployment.folder / "agents" / "greet",
        "name: greet\nnodes: {done: {type: end, output: hi}}\nstart: done\n",
    )
    words = "sleipnir tokens create ann --role operator --namespace default --days 1 --label ci"
    created = deployment.execute("sleipnir", words.split())
    assert created.returncode == 0, created.stderr
    with pytest.raises(urllib.error.HTTPError, match="401"):
        _asked(deployment, "/runs", body={"agent": "greet"})
    token = created.stdout.strip()
    submitted = _asked(deployment, "/runs", token, {"agent": "greet", "prompt": "hello"})
    with deployment.client() as client:
        assert client.run(submitted["id"]).wait(60).status == "completed"
    assert _asked(deployment, "/health", token)["version"]


@pytest.mark.parametrize("service", ["scheduler", *WORKERS, "console"])
def test_the_health_check_of_an_image_finds_its_service_healthy(deployment: Deployment, service: str) -> None:
    file = ROOT / SERVICES[service].raw["build"]["dockerfile"]
    (check,) = re.findall(
        r"HEALTHCHECK .*\\\n\s+CMD (\[.*\])", stages(file)[SERVICES[service].raw["build"].get("target", "")]
    )
    if service == "console":
        wait_until(lambda: _is_ready(deployment), "the console is up", timeout_s=120)
    done = deployment.execute(service, json.loads(check))
    assert done.returncode == 0, done.stderr
    assert "healthy: " in done.stdout or f"consumes {service.removeprefix('worker-')}" in done.stdout


def test_the_health_check_of_the_console_notices_that_it_does_not_answer(deployment: Deployment) -> None:
    elsewhere = Deployment(
        deployment.server, deployment.folder, deployment.redis_port, deployment.flower_url, deployment.console_port,
        {**deployment.replaced, "8470": str(free_port())},
    )  # fmt: skip
    done = elsewhere.execute("console", ["python", "/opt/sleipnir/console_healthcheck.py"])
    assert done.returncode == 1
    assert "does not answer" in done.stderr


def test_the_health_check_of_the_sender_of_webhooks_goes_by_what_it_announces(deployment: Deployment) -> None:
    kind, *check = SERVICES["webhooks"].raw["healthcheck"]["test"]
    assert kind == "CMD"
    with deployment.client() as client:
        wait_until(client.webhooks.senders, "the sender of webhooks has announced itself", timeout_s=120)
    done = deployment.execute("webhooks", check)
    assert done.returncode == 0, done.stderr
    assert "healthy: " in done.stdout
    done = deployment.execute("webhooks", [*check[:-1], "nothing"])
    assert done.returncode == 1
    assert "nothing that this checks" in done.stderr


def test_the_command_line_adds_webhooks_with_the_key_of_the_sender(deployment: Deployment) -> None:
    added = deployment.execute(
        "sleipnir", ["sleipnir", "webhooks", "add", "x", "https://a.example", "--on", "batch_done"]
    )
    assert added.returncode == 0, added.stderr
    assert added.stdout.startswith("whsec_")
    with deployment.client() as client:
        wait_until(client.webhooks.senders, "the sender of webhooks has announced itself", timeout_s=120)
    done = deployment.execute("sleipnir", SERVICES["sleipnir"].command)
    assert "webhooks: 1; " in done.stdout, done.stdout


def test_the_health_check_of_flower_finds_it_healthy(deployment: Deployment) -> None:
    kind, *check = SERVICES["flower"].raw["healthcheck"]["test"]
    assert kind == "CMD"
    done = deployment.execute("flower", check)
    assert done.returncode == 0, done.stderr


def test_doctor_is_content_with_the_deployment(deployment: Deployment) -> None:
    done = deployment.execute("sleipnir", SERVICES["sleipnir"].command)
    assert done.returncode == 0, done.stdout
    assert "broker: redis://sleipnir:***@" in done.stdout


def test_redis_refused_nothing(deployment: Deployment, demo_run: str, batch: tuple[str, list[Any]]) -> None:
    admin: Any = connect(f"redis://admin:all@127.0.0.1:{deployment.redis_port}/0")
    refused = [(entry["reason"], entry["object"]) for entry in admin.acl_log()]
    assert [each for each in refused if not each[1].startswith("client")] == []


def test_flower_asks_for_a_password(deployment: Deployment) -> None:
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"{deployment.flower_url}/api/workers", timeout=60)


def test_no_service_but_the_llm_worker_loads_litellm(deployment: Deployment, demo_run: str) -> None:
    services = ("scheduler", "worker-scripts", "worker-functions", "worker-rag", "worker-llm")
    loaded = {name: _has_imported_litellm(deployment.folder / f"{name}.log") for name in services}
    assert loaded == {name: name == "worker-llm" for name in loaded}


def _has_imported_litellm(log: Path) -> bool:
    """By what Python says of its imports. No process lets others look at its memory."""
    imported = set(re.findall(r"^import time:.*\| +([\w.]+)$", log.read_text(errors="replace"), re.MULTILINE))
    assert "sleipnir" in imported
    return "litellm" in imported

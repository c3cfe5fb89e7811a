"""Compose, Kubernetes, systemd and the Dockerfiles say what the command line does, the same everywhere, and keep
secrets where they are needed. tests/system/test_deployment.py starts what they say."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from sleipnir.cli.fleet.doctor import SECURE
from sleipnir.cli.fleet.services import console_command, scheduler_command, sender_command, worker_command
from sleipnir.settings import Settings
from sleipnir_console.main import STOP_S
from tests.deployments import (
    COMPOSE,
    CREDENTIALS,
    K8S,
    ROOT,
    SYSTEMD,
    Service,
    container,
    generated_files,
    manifests,
    of_compose,
    of_kubernetes,
    of_systemd,
    pod,
    stages,
    workloads,
)  # fmt: skip

KNOWN = {"REDIS_PASSWORD": "r3dis", "FLOWER_BASIC_AUTH": "ops:fl0wer", "GRAFANA_PASSWORD": "gr4fana"}
SERVICES = of_compose(KNOWN)
PODS = of_kubernetes({("sleipnir-redis", "password"): "r3dis", ("sleipnir-flower", "users"): "ops:fl0wer"})
UNITS = of_systemd("r3dis")
QUEUES = {"worker-scripts": "scripts", "worker-functions": "functions", "worker-llm": "llm", "worker-rag": "rag"}
ENGINE = ["scheduler", *QUEUES]
OURS = [*ENGINE, "console", "webhooks"]
"""What reads our settings."""
FILES_OF_KEYS = {"SLEIPNIR_CONSOLE_TLS_KEY", "SLEIPNIR_WEBHOOK_KEY"}
"""Settings that name the place of a file."""
HANDBACK_S = 8.0
"""What a worker needs after its grace period, by docs/operations.md."""
DOCKERFILES = [ROOT / folder / "Dockerfile" for folder in ("scheduler", "workers", "console")]


def option(argv: tuple[str, ...], name: str) -> str:
    return argv[argv.index(name) + 1]


@pytest.mark.parametrize(("service", "queue"), QUEUES.items())
def test_a_worker_service_runs_what_sleipnir_worker_runs(service: str, queue: str) -> None:
    mine = SERVICES[service].command
    told = worker_command(queue, int(option(mine, "-c")), option(mine, "-P"), queue, "info")
    without_level = [part for part in told if part not in ("--loglevel", "INFO")]
    assert list(mine) == ["python", *without_level[1:]]


def test_the_scheduler_service_runs_what_sleipnir_scheduler_runs() -> None:
    assert [sys.executable, *SERVICES["scheduler"].command[1:]] == scheduler_command()


def test_the_console_service_runs_what_sleipnir_console_runs_and_lets_others_in_by_tls() -> None:
    assert [sys.executable, *SERVICES["console"].command[1:]] == console_command()
    for services in (SERVICES, PODS, UNITS):
        settings = Settings.from_env(services["console"].environment)
        assert (settings.console_host, settings.console_port) == ("0.0.0.0", 8470)
        assert settings.console_tls_cert is not None
        assert settings.console_tls_key is not None
        folder = settings.console_tls_cert.parent
        assert settings.console_tls_key == folder / "tls.key"
        assert str(folder) in (mounts("console")["./certificates"], CREDENTIALS)
    (tls,) = (each for each in pod(workloads()["console"])["volumes"] if each["name"] == "tls")
    assert tls["secret"]["secretName"] == "sleipnir-console-tls"
    (mount,) = (each for each in container(workloads()["console"])["volumeMounts"] if each["name"] == tls["name"])
    assert (mount["mountPath"], mount["readOnly"]) == (mounts("console")["./certificates"], True)
    assert UNITS["console"].raw["LoadCredential"] == [
        f"{name}:/etc/sleipnir/{name}" for name in ("tls.crt", "tls.key", "webhook.key")
    ]


def test_the_sender_of_webhooks_runs_what_the_command_runs_and_shares_its_key_with_who_adds_webhooks() -> None:
    assert [sys.executable, *SERVICES["webhooks"].command[1:]] == sender_command()
    assert UNITS["webhooks"].raw["LoadCredential"] == ["webhook.key:/etc/sleipnir/webhook.key"]
    for services, names in ((SERVICES, ["webhooks", "console", "sleipnir"]), (PODS, ["webhooks", "console"]),
                            (UNITS, ["webhooks", "console"])):  # fmt: skip
        files = {Settings.from_env(services[name].environment).webhook_key for name in names}
        assert len(files) == 1
        (file,) = files
        assert file is not None
        assert (file.name, str(file.parent)) in [("webhook.key", mounts("webhooks")["./webhook-keys"]),
                                                 ("webhook.key", CREDENTIALS)]  # fmt: skip
    for name in ("webhooks", "console"):
        (key,) = (each for each in pod(workloads()[name])["volumes"] if "webhook-key" in json.dumps(each))
        assert key["secret"]["secretName"] == "sleipnir-webhook-key"
        (mount,) = (m for m in container(workloads()[name])["volumeMounts"] if m["name"] == key["name"])
        assert (mount["mountPath"], mount["readOnly"]) == (mounts("webhooks")["./webhook-keys"], True)
    for services in (SERVICES, PODS, UNITS):
        grace = services["webhooks"].grace_s
        assert grace is not None
        assert grace >= Settings.from_env(services["webhooks"].environment).webhook_timeout_s + 10, "tries are ended"


def test_the_console_has_the_time_in_which_requests_end() -> None:
    for services in (SERVICES, PODS, UNITS):
        grace = services["console"].grace_s
        assert grace is not None
        assert grace >= STOP_S + 5
    (word, wait_s) = container(workloads()["console"])["lifecycle"]["preStop"]["exec"]["command"]
    assert word == "sleep"
    assert float(wait_s) + STOP_S + 5 <= PODS["console"].grace_s, "preStop is part of it"


def test_only_the_controller_of_the_ingress_reaches_the_console_of_a_cluster() -> None:
    (policy,) = (m["spec"] for m in manifests() if m["kind"] == "NetworkPolicy" and m["metadata"]["name"] == "console")
    assert policy["podSelector"] == workloads()["console"]["spec"]["selector"]
    ((sender,),) = (rule["from"] for rule in policy["ingress"])
    assert sender.keys() == {"namespaceSelector"}
    ports = [port["containerPort"] for port in container(workloads()["console"])["ports"]]
    assert [rule["ports"] for rule in policy["ingress"]] == [[{"port": port} for port in ports]] == [[{"port": 8470}]]


@pytest.mark.parametrize("name", [*OURS, "redis", "flower"])
def test_kubernetes_runs_what_compose_runs(name: str) -> None:
    assert PODS[name].command == SERVICES[name].command
    told = {key: value for key, value in SERVICES[name].environment.items() if key != "REDIS_PASSWORD"}
    assert {key: value for key, value in PODS[name].environment.items() if key != "REDIS_PASSWORD"} == told


@pytest.mark.parametrize("name", OURS)
def test_systemd_runs_what_compose_runs(name: str) -> None:
    assert UNITS[name].command == SERVICES[name].command
    address = SERVICES[name].environment["SLEIPNIR_REDIS_URL"].replace("redis:6379", "127.0.0.1:6379")
    assert UNITS[name].environment["SLEIPNIR_REDIS_URL"] == address


@pytest.mark.parametrize("name", OURS)
def test_every_setting_exists_and_its_value_is_one(name: str) -> None:
    for services in (SERVICES, PODS, UNITS):
        settings = Settings.from_env(services[name].environment)
        assert settings.redis_url is not None
        assert ":r3dis@" in settings.redis_url


@pytest.mark.parametrize("name", QUEUES)
def test_a_worker_is_given_the_time_that_its_drain_takes(name: str) -> None:
    for services in (SERVICES, PODS, UNITS):
        grace = services[name].grace_s
        assert grace is not None
        assert grace >= Settings.from_env(services[name].environment).drain_s + HANDBACK_S


def test_api_keys_are_known_where_models_are_asked_and_model_libraries_are_where_they_are_used() -> None:
    def knows(service: Service) -> bool:
        return any("API" in key for key in service.raw.get("environment") or {})

    assert {name for name, service in SERVICES.items() if knows(service)} == {"worker-llm", "worker-rag", "sleipnir"}
    keys = [name for name, workload in workloads().items() if "sleipnir-model-keys" in json.dumps(workload)]
    assert keys == ["worker-llm", "worker-rag"]
    assert {name: extras for name in SERVICES if (extras := _extras(name))} == {
        "worker-llm": "llm", "worker-rag": "rag", "sleipnir": "rag,console", "flower": "flower"
    }  # fmt: skip


def _extras(service: str) -> str:
    return str(SERVICES[service].raw.get("build", {}).get("args", {}).get("EXTRAS", ""))


def test_no_secret_is_in_a_file() -> None:
    for service in SERVICES.values():
        for name, value in (service.raw.get("environment") or {}).items():
            if re.search("PASSWORD|AUTH|KEY", name) and name not in FILES_OF_KEYS:
                assert value is None or re.fullmatch(r"\$\{\w+:\?[^}]+\}", value), name
        assert not any(secret in word for word in service.command for secret in KNOWN.values())
    texts = [file.read_text() for file in [*K8S.glob("*"), *SYSTEMD.glob("*"), ROOT / "compose.yaml"]]
    urls = [url for text in texts for url in re.findall(r"redis://\S+@", text)]
    assert urls
    assert all(re.search(r":(\$\{REDIS_PASSWORD:\?|\$\(REDIS_PASSWORD\)@|PASSWORD@)", url) for url in urls)
    assert not any(document["kind"] == "Secret" for document in manifests())


def test_redis_is_durable_and_evicts_nothing_and_has_its_users_alone() -> None:
    folder = ROOT / "ops" / "deploy" / "redis"
    lines = (folder / "redis.conf").read_text().splitlines()
    assert {"appendonly yes", "appendfsync everysec", "maxmemory-policy noeviction"} <= set(lines)
    assert "user default off" in (folder / "users.acl").read_text().splitlines()


def _bytes(text: str) -> int:
    number, unit = re.fullmatch(r"(\d+)\s*([kmg])[ib]*", text.lower()).groups()  # type: ignore[union-attr]
    return int(number) * {"k": 2**10, "m": 2**20, "g": 2**30}[unit]


def test_redis_meets_its_own_bound_before_that_of_its_container() -> None:
    """S9 of the second review: without maxmemory the kernel killed it."""
    conf = (ROOT / "ops" / "deploy" / "redis" / "redis.conf").read_text()
    (bound,) = re.findall(r"^maxmemory (\S+)$", conf, re.MULTILINE)
    limits = [
        SERVICES["redis"].raw["deploy"]["resources"]["limits"]["memory"],
        container(workloads()["redis"])["resources"]["limits"]["memory"],
    ]
    assert all(2 * _bytes(bound) <= _bytes(limit) for limit in limits), "a rewrite of the file copies what is written"


def test_the_pinned_redis_has_the_security_fixes() -> None:
    """S9 of the second review."""
    images = {SERVICES["redis"].raw["image"], container(workloads()["redis"])["image"]}
    ((major, minor, patch),) = {tuple(map(int, re.findall(r"\d+", image)[:3])) for image in images}
    assert patch >= SECURE["redis"][major, minor]


def test_scripts_have_a_bound_on_processes_and_write_only_where_they_should() -> None:
    """S12 of the second review."""
    for name in [*OURS, "redis", "flower"]:
        raw = SERVICES[name].raw
        assert raw["deploy"]["resources"]["limits"]["pids"] <= 500, name
        assert raw["read_only"] is True, name
    for name in QUEUES:
        assert "/var/lib/sleipnir" in mounts(name).values(), "unpacked agents are not kept in memory"
    assert int(UNITS["worker-scripts"].raw["TasksMax"][0]) <= 500


def test_scripts_reach_neither_the_cluster_nor_metadata_of_a_cloud_nor_prometheus() -> None:
    """S12 of the second review."""
    policies = [m["spec"] for m in manifests() if m["kind"] == "NetworkPolicy"]
    (scripts,) = (policy for policy in policies if "Egress" in policy["policyTypes"])
    (chosen,) = scripts["podSelector"]["matchExpressions"]
    assert chosen["values"] == ["worker-scripts", "worker-functions"]
    (internet,) = (to["ipBlock"] for rule in scripts["egress"] for to in rule["to"] if "ipBlock" in to)
    assert {"10.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16"} <= set(internet["except"])
    assert SERVICES["prometheus"].raw["networks"] == SERVICES["grafana"].raw["networks"] == ["watch"]
    assert {name for name in ENGINE if "watch" in SERVICES[name].raw.get("networks", [])} == {"scheduler"}


def test_nothing_is_published_beyond_this_machine() -> None:
    ports = [port for service in SERVICES.values() for port in service.raw.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_flower_asks_for_a_password_and_uses_our_configuration() -> None:
    (conf,) = (part.removeprefix("--conf=") for part in SERVICES["flower"].command if part.startswith("--conf="))
    (volume,) = SERVICES["flower"].raw["volumes"]
    assert volume == f"./ops/flower/flowerconfig.py:{conf}:ro"
    assert (ROOT / "ops/flower/flowerconfig.py").is_file()
    assert str(SERVICES["flower"].raw["environment"]["FLOWER_BASIC_AUTH"]).startswith("${FLOWER_BASIC_AUTH:?")


@pytest.mark.parametrize("name", ENGINE)
def test_a_service_of_compose_can_be_scaled(name: str) -> None:
    raw = SERVICES[name].raw
    assert not {"container_name", "ports", "hostname"} & raw.keys()
    if name != "scheduler":
        assert option(SERVICES[name].command, "-n").endswith("@%h"), "each container has a host name of its own"


def test_compose_starts_two_schedulers_and_limits_what_each_service_takes() -> None:
    assert SERVICES["scheduler"].raw["deploy"]["replicas"] == 2
    for name, service in SERVICES.items():
        if name != "sleipnir":
            assert service.raw["deploy"]["resources"]["limits"]["memory"], name
            assert service.raw["restart"] == "unless-stopped"
        assert service.raw["cap_drop"] == ["ALL"]


def mounts(service: str) -> dict[str, str]:
    """Where the sources of volumes of a service of compose are in its container."""
    volumes = [volume.split(":") for volume in SERVICES[service].raw.get("volumes", [])]
    return {source: place for source, place, *_ in volumes}


def test_what_compose_mounts_is_in_the_tree_or_declared() -> None:
    used = {source for name in SERVICES for source in mounts(name)}
    assert {name for name in used if not name.startswith(".")} == set(COMPOSE["volumes"])
    missing = {name for name in used if name.startswith(".") and not (ROOT / name).exists()} | {
        "./knowledge",
        "./certificates",
        "./webhook-keys",
    }
    assert missing == {"./knowledge", "./certificates", "./webhook-keys"}, "which their users make"
    assert {"/knowledge/", "/certificates/", "/webhook-keys/"} <= set((ROOT / ".gitignore").read_text().splitlines())
    for file in ("compose.yaml", "docs/deployment.md"):
        assert "mkdir knowledge" in (ROOT / file).read_text()


def test_bases_are_shared_with_who_builds_them() -> None:
    for name in ("worker-rag", "sleipnir"):
        place = SERVICES[name].environment["SLEIPNIR_KNOWLEDGE"]
        assert f"./knowledge:{place}" in [volume.removesuffix(":ro") for volume in SERVICES[name].raw["volumes"]]


def test_what_compose_builds_has_the_names_that_kubernetes_uses_and_writes_bounded_logs() -> None:
    """Finding U17 of the second review."""
    built = {name: service.raw["image"] for name, service in SERVICES.items() if "build" in service.raw}
    assert {image.partition(":")[2] for image in built.values()} == {"${SLEIPNIR_TAG:-latest}"}
    for name in built.keys() & PODS.keys():
        pod = container(workloads()[name])["image"]
        assert pod.partition(":")[0] == built[name].partition(":")[0]
    assert [name for name, service in SERVICES.items() if "max-size" not in service.raw["logging"]["options"]] == []


def test_flower_s_configuration_is_in_the_wheel() -> None:
    """Finding U17 of the second review."""
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["force-include"]["ops/flower/flowerconfig.py"] == "sleipnir/flowerconfig.py"


def test_no_text_names_a_package_that_is_on_no_index() -> None:
    """Finding U17 of the second review."""
    files = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
    files += [
        file for folder in ("sleipnir", "scheduler", "workers", "agents") for file in ROOT.glob(f"{folder}/**/*.py")
    ]
    assert [str(file) for file in files if re.search(r"install '?sleipnir\b", file.read_text())] == []


def test_images_are_pinned() -> None:
    images = [service.raw["image"] for service in SERVICES.values() if "build" not in service.raw]
    images += [container(workloads()["redis"])["image"]]
    for file in DOCKERFILES:
        images += [image for image in re.findall(r"^FROM (\S+)", file.read_text(), re.MULTILINE) if ":" in image]
    assert len(images) >= 8
    assert [image for image in images if not re.search(r":v?\d+\.\d+\.\d+", image)] == []


@pytest.mark.parametrize("file", DOCKERFILES, ids=str)
def test_an_image_runs_as_its_own_user_and_reports_when_it_is_unhealthy(file: Path) -> None:
    built = stages(file)
    assert len(built) > 1, "what is needed to build is not in what runs"
    for name in built.keys() - {"build", "node"}:
        users = re.findall(r"^USER (\S+)$", built[name], re.MULTILINE)
        assert users[-1] == "sleipnir"
        assert "HEALTHCHECK" in built[name]


def test_the_image_for_scripts_has_what_scripts_are_written_in() -> None:
    assert SERVICES["worker-scripts"].raw["build"]["target"] == "scripts"
    text = stages(DOCKERFILES[1])["scripts"]
    assert all(f"/usr/local/bin/{program}" in text for program in ("node", "npx", "tsx"))
    assert "/usr/local/bin/node" not in stages(DOCKERFILES[1])[""]


@pytest.mark.parametrize("file", DOCKERFILES, ids=str)
def test_what_an_image_copies_is_let_through_by_dockerignore(file: Path) -> None:
    let_through = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = re.findall(r"^COPY (?!--)(.+) \S+$", file.read_text(), re.MULTILINE)
    sources = {source for line in copied for source in line.split()}
    assert sources <= let_through
    assert all((ROOT / source).exists() for source in sources)


@pytest.mark.parametrize("file", DOCKERFILES, ids=str)
def test_an_image_is_built_from_all_that_is_in_the_wheel(file: Path) -> None:
    """Without one of them hatch builds no wheel, or one in which it is missing."""
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = [*wheel["packages"], *wheel["force-include"]]
    copied = re.findall(r"^COPY (?!--)(.+) \S+$", file.read_text(), re.MULTILINE)
    sources = [Path(source) for line in copied for source in line.split()]
    assert [part for part in needed if not any(Path(part).is_relative_to(source) for source in sources)] == []


def test_pods_are_probed_as_containers_of_compose_are() -> None:
    for name, file in {"scheduler": DOCKERFILES[0], **dict.fromkeys(QUEUES, DOCKERFILES[1])}.items():
        (check,) = re.findall(r"HEALTHCHECK .*\\\n\s+CMD (\[.*\])", stages(file)[""])
        probe = container(workloads()[name])["livenessProbe"]
        assert probe["exec"]["command"] == json.loads(check)
        assert probe["timeoutSeconds"] >= 10
    probe = container(workloads()["webhooks"])["livenessProbe"]
    assert ["CMD", *probe["exec"]["command"]] == SERVICES["webhooks"].raw["healthcheck"]["test"]
    assert probe["timeoutSeconds"] >= 10
    probed = [container(workloads()["console"])[probe]["httpGet"] for probe in ("livenessProbe", "readinessProbe")]
    assert [each["path"] for each in probed] == ["/api/v1/health/live", "/api/v1/health/ready"]
    assert {(each["port"], each["scheme"]) for each in probed} == {("https", "HTTPS")}
    for probe in ("livenessProbe", "readinessProbe"):
        asked = container(workloads()["flower"])[probe]["httpGet"]
        (port,) = (each for each in container(workloads()["flower"])["ports"] if each["name"] == asked["port"])
        assert f":{port['containerPort']}{asked['path']}" in SERVICES["flower"].raw["healthcheck"]["test"][-1]
    ready = container(workloads()["redis"])["readinessProbe"]["exec"]["command"]
    assert ready[-1] == SERVICES["redis"].raw["healthcheck"]["test"][-1]


@pytest.mark.parametrize("name", [*OURS, "redis", "flower"])
def test_pods_have_no_more_rights_than_they_need(name: str) -> None:
    workload = workloads()[name]
    assert pod(workload)["securityContext"]["runAsNonRoot"] is True
    assert pod(workload)["automountServiceAccountToken"] is False
    rights = container(workload)["securityContext"]
    assert rights["capabilities"] == {"drop": ["ALL"]}
    assert (rights["allowPrivilegeEscalation"], rights["readOnlyRootFilesystem"]) == (False, True)
    if name != "redis":
        assert pod(workload)["enableServiceLinks"] is False, "Services set SLEIPNIR_X_PORT and FLOWER_PORT"
    assert container(workload)["resources"]["limits"]["memory"]


@pytest.mark.parametrize("name", [*OURS, "redis", "flower"])
def test_what_a_pod_mounts_is_there(name: str) -> None:
    workload = workloads()[name]
    claimed = [each["metadata"]["name"] for each in workload["spec"].get("volumeClaimTemplates", [])]
    volumes = {volume["name"] for volume in pod(workload)["volumes"]} | set(claimed)
    assert {mount["name"] for mount in container(workload)["volumeMounts"]} == volumes
    claims = {m["metadata"]["name"] for m in manifests() if m["kind"] == "PersistentVolumeClaim"}
    for volume in pod(workload)["volumes"]:
        if "persistentVolumeClaim" in volume:
            assert volume["persistentVolumeClaim"]["claimName"] in claims
        if "configMap" in volume:
            assert volume["configMap"]["name"] in generated_files()


def test_files_that_pods_read_are_those_that_compose_mounts() -> None:
    for name, folder in {"redis": "/etc/sleipnir-redis", "flower": "/etc/sleipnir"}.items():
        (volume,) = (each for each in pod(workloads()[name])["volumes"] if "configMap" in each)
        (mount,) = (each for each in container(workloads()[name])["volumeMounts"] if each["name"] == volume["name"])
        assert mount["mountPath"] == folder
        used = [word for word in PODS[name].command if folder in word]
        files = generated_files()[volume["configMap"]["name"]]
        assert [Path(word).name in {file.name for file in files} for word in used] == [True]
        (source,) = (bound for bound, place in mounts(name).items() if place.startswith(folder))
        assert all(file.is_relative_to((ROOT / source).resolve()) for file in files)


def test_each_service_of_kubernetes_may_lose_one_pod_at_a_time() -> None:
    budgets = {m["metadata"]["name"]: m["spec"] for m in manifests() if m["kind"] == "PodDisruptionBudget"}
    assert budgets.keys() == set(OURS)
    for name, spec in budgets.items():
        assert spec["selector"] == workloads()[name]["spec"]["selector"]
        labels = workloads()[name]["spec"]["template"]["metadata"]["labels"]
        assert spec["selector"]["matchLabels"].items() <= labels.items()


def test_keda_scales_each_worker_by_the_visits_of_its_queue() -> None:
    scaled = {m["spec"]["scaleTargetRef"]["name"]: m["spec"] for m in manifests() if m["kind"] == "ScaledObject"}
    assert scaled.keys() == set(QUEUES)
    for name, spec in scaled.items():
        assert "replicas" not in workloads()[name]["spec"], "two would set them"
        (visits, age) = spec["triggers"]
        gauges = re.findall(r'(\w+)\{queue="(\w+)"\}', visits["metadata"]["query"])
        assert gauges == [("sleipnir_visits_queued", QUEUES[name]), ("sleipnir_visits_leased", QUEUES[name])]
        assert visits["metadata"]["threshold"] == option(SERVICES[name].command, "-c")
        gauges = re.findall(r'(\w+)\{queue="(\w+)"\}', age["metadata"]["query"])
        assert gauges == [("sleipnir_queue_oldest_seconds", QUEUES[name])]
        assert age["metricType"] == "Value", "an age is not shared between the workers"


def closed(schema: Any) -> Any:
    """The schema without room for names that it does not have: kubectl refuses them, KEDA would ignore them."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    bounds = {"additionalProperties": False} if "properties" in schema else {}
    return {name: closed(value) for name, value in schema.items()} | bounds


def test_keda_accepts_its_scalers() -> None:
    accepted = closed(yaml.safe_load((ROOT / "tests" / "fixtures" / "keda.yaml").read_text()))
    scalers = [m for m in manifests() if m["apiVersion"] == "keda.sh/v1alpha1"]
    assert {each["kind"] for each in scalers} == {"ScaledObject"}
    for each in scalers:
        jsonschema.validate(each, accepted["ScaledObject"])
        assert each["spec"]["minReplicaCount"] <= each["spec"]["maxReplicaCount"]
        for trigger in each["spec"]["triggers"]:
            assert trigger["type"] == "prometheus"
            jsonschema.validate(trigger["metadata"], accepted["prometheus"])
            float(trigger["metadata"]["threshold"])
    wrong = scalers[0] | {"spec": {**scalers[0]["spec"], "minReplicas": 1}}
    with pytest.raises(jsonschema.ValidationError, match="minReplicas"):
        jsonschema.validate(wrong, accepted["ScaledObject"])


def test_every_manifest_is_applied() -> None:
    listed: list[str] = yaml.safe_load((K8S / "kustomization.yaml").read_text())["resources"]
    own = {name for name in listed if not name.startswith("../")}
    assert {file.name for file in K8S.glob("*.yaml")} - {"kustomization.yaml"} == own
    images = {image["name"] for image in yaml.safe_load((K8S / "kustomization.yaml").read_text())["images"]}
    assert images == {container(workloads()[name])["image"].partition(":")[0] for name in [*OURS, "flower"]}


@pytest.mark.parametrize("kind", ["scheduler", "worker", "console", "webhooks"])
def test_units_are_confined_and_keep_what_they_write_apart(kind: str) -> None:
    raw: Any = UNITS["worker-llm" if kind == "worker" else kind].raw
    confined = {"NoNewPrivileges": "yes", "ProtectSystem": "strict", "PrivateTmp": "yes", "CapabilityBoundingSet": ""}
    lasting = {"Restart": "always", "StartLimitIntervalSec": "0"}
    user = "sleipnir-llm" if kind == "worker" else f"sleipnir-{kind}"
    for name, value in {"User": user, "ProtectProc": "invisible", **confined, **lasting}.items():
        assert raw[name] == [value]
    (home,) = (entry.partition("=")[2] for entry in raw["Environment"] if entry.startswith("SLEIPNIR_HOME"))
    kept = [f"/var/lib/{folder}" for folder in raw["StateDirectory"][0].split()]
    assert home in kept
    if kind == "worker":
        assert raw["KillMode"] == ["mixed"], "SIGTERM is not for the scripts that it runs"
        shared = UNITS["worker-llm"].environment["SLEIPNIR_KNOWLEDGE"]
        assert raw["ReadWritePaths"] == [f"-{shared}"]
        assert f"d {shared} 2770 sleipnir-rag sleipnir" in (SYSTEMD / "sleipnir.tmpfiles").read_text()


def test_each_unit_has_a_user_of_its_own_that_is_declared() -> None:
    """Finding S3."""
    users = [unit.raw["User"][0] for unit in UNITS.values()]
    assert len(set(users)) == len(users)
    declared = (SYSTEMD / "sleipnir.sysusers").read_text()
    assert [user for user in users if f"u {user} - " not in declared or f"m {user} sleipnir" not in declared] == []

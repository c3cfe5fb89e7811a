"""What compose.yaml, ops/deploy/k8s and ops/deploy/systemd start: for each service its exact command and environment.

Secrets have the values of `known`. A command begins with `python` or `sh`, whatever the place of the interpreter is.
"""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
K8S, SYSTEMD = ROOT / "ops" / "deploy" / "k8s", ROOT / "ops" / "deploy" / "systemd"
PYTHON_OF_UNITS = "/opt/sleipnir/bin/python"
CREDENTIALS = "/run/credentials/unit"
"""Where systemd puts the files of LoadCredential."""


@dataclass(frozen=True)
class Service:
    """`raw` is what the file says of it. `grace_s`: how long it may take to stop; None: the engine's default."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    grace_s: float | None
    raw: Mapping[str, Any] = field(repr=False, default_factory=dict)


def of_compose(known: Mapping[str, str]) -> dict[str, Service]:
    """Names without a value are taken from `known`, or left out, as compose does with .env."""
    found = {}
    for name, raw in COMPOSE["services"].items():
        declared = {key: known.get(key) if value is None else str(value) for key, value in _variables(raw).items()}
        environment = {key: _filled(value, known) for key, value in declared.items() if value is not None}
        command = tuple(map(str, [*raw.get("entrypoint", []), *raw.get("command", [])]))
        grace = raw.get("stop_grace_period")
        found[name] = Service(command, environment, float(grace.removesuffix("s")) if grace else None, raw)
    return found


def _variables(raw: Mapping[str, Any]) -> dict[str, Any]:
    return dict(raw.get("environment") or {})


def _filled(value: str, known: Mapping[str, str]) -> str:
    """`${NAME:?what to do}`, the only form that we use: no default, and a message if it is missing."""
    return re.sub(r"\$\{(\w+):\?[^}]+\}", lambda match: known[match[1]], value)


@cache
def manifests() -> list[dict[str, Any]]:
    """All that the kustomization applies, but what is generated."""
    listed = yaml.safe_load((K8S / "kustomization.yaml").read_text())["resources"]
    files = [K8S / name for name in listed if name.endswith(".yaml")]
    return [document for file in files for document in yaml.safe_load_all(file.read_text())]


@cache
def generated_files() -> dict[str, list[Path]]:
    """The files of the config maps that the kustomization generates, by name."""
    found: dict[str, list[Path]] = {}
    for name in yaml.safe_load((K8S / "kustomization.yaml").read_text())["resources"]:
        if (K8S / name).is_dir():
            listed = yaml.safe_load((K8S / name / "kustomization.yaml").read_text())
            for each in listed["configMapGenerator"]:
                assert listed["generatorOptions"] == {"disableNameSuffixHash": True}, "pods know it by its name"
                found[each["name"]] = [(K8S / name / file).resolve(strict=True) for file in each["files"]]
    return found


def workloads() -> dict[str, dict[str, Any]]:
    return {m["metadata"]["name"]: m for m in manifests() if m["kind"] in ("Deployment", "StatefulSet")}


def pod(workload: Mapping[str, Any]) -> dict[str, Any]:
    return dict(workload["spec"]["template"]["spec"])


def container(workload: Mapping[str, Any]) -> dict[str, Any]:
    (only,) = pod(workload)["containers"]
    return dict(only)


def of_kubernetes(secrets: Mapping[tuple[str, str], str]) -> dict[str, Service]:
    """`secrets` by name and key."""
    found = {}
    for name, workload in workloads().items():
        environment: dict[str, str] = {}
        for entry in container(workload).get("env", []):
            if "value" in entry:
                value = re.sub(r"\$\((\w+)\)", lambda match, so_far=environment: so_far[match[1]], entry["value"])
            else:
                reference = entry["valueFrom"]["secretKeyRef"]
                value = secrets[reference["name"], reference["key"]]
            environment[entry["name"]] = value
        grace = float(pod(workload).get("terminationGracePeriodSeconds", 30))
        found[name] = Service(tuple(map(str, container(workload)["command"])), environment, grace, workload)
    return found


def of_systemd(password: str) -> dict[str, Service]:
    """The scheduler, the sender of webhooks, the HTTP API, and a worker for each queue that has an environment file."""
    instances = [("scheduler", "1"), ("webhooks", "1"), ("console", "8470")]
    instances += [("worker", file.stem.removeprefix("worker-")) for file in sorted(SYSTEMD.glob("worker-*.env"))]
    return dict(_unit(kind, instance, password) for kind, instance in instances)


def _unit(kind: str, instance: str, password: str) -> tuple[str, Service]:
    options: dict[str, list[str]] = defaultdict(list)
    for line in (SYSTEMD / f"sleipnir-{kind}@.service").read_text().splitlines():
        if line and not line.startswith(("#", "[")):
            name, _, value = line.partition("=")
            value = value.replace("%%", "\0").replace("%i", instance).replace("%d", CREDENTIALS)
            options[name].append(value.replace("\0", "%"))
    variables = dict(entry.split("=", 1) for entry in options["Environment"])
    for file in options["EnvironmentFile"]:
        variables |= dict(_entries((SYSTEMD / Path(file).name).read_text().replace("PASSWORD", password)))
    (start,) = options["ExecStart"]
    command = [re.sub(r"\$\{(\w+)\}", lambda match: variables[match[1]], word) for word in shlex.split(start)]
    assert command[0] == PYTHON_OF_UNITS
    (grace,) = options["TimeoutStopSec"]
    name = f"{kind}-{instance}" if kind == "worker" else kind
    return name, Service(("python", *command[1:]), variables, float(grace), options)


def _entries(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.partition("=")
            yield name, value


def stages(dockerfile: Path) -> dict[str, str]:
    """Each stage of a Dockerfile, with what it inherits from earlier ones; the last one is also under ''."""
    found: dict[str, str] = {}
    for part in re.split(r"^(?=FROM )", dockerfile.read_text(), flags=re.MULTILINE)[1:]:
        image, name = re.match(r"FROM (\S+)(?: AS (\S+))?", part).groups()  # type: ignore[union-attr]
        text = found.get(image, "") + part
        found |= {name: text, "": text} if name else {"": text}
    return found

"""`doctor`: checks everything that a run needs, and suggests how to fix problems.

Rules. One function per check; each returns findings and raises nothing, so one problem hides no other. `fail`: runs
cannot work. `warn`: some will not, or will be lost in a crash. A finding that is not ok has a hint.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from sleipnir.cli import exit_codes
from sleipnir.cli.options import GlobalOptions, pass_options
from sleipnir.cli.terminal.render import STATUS_STYLE, print_json, print_table, size
from sleipnir.cli.terminal.terminal import wants_colour
from sleipnir.errors import ConfigError, SleipnirError
from sleipnir.runs.plain_text import duration, printable

if TYPE_CHECKING:
    from sleipnir.runs.views import Health
    from sleipnir.settings import Settings


@dataclass(frozen=True)
class Finding:
    """One line of the report. `hint` says what to do; empty if it is ok."""

    level: Literal["ok", "warn", "fail"]
    subject: str
    text: str
    hint: str = ""


Findings = Iterator[Finding]

LITTLE_ROOM, LITTLE_ROOM_BYTES = 0.05, 10**9
"""Below this free space `doctor` warns."""

MEMORY_FULL = 0.8
"""Of `maxmemory`."""


@click.command()
@click.option("--json", "as_data", is_flag=True, help="Print a JSON list.")
@click.option("--settings", "only_settings", is_flag=True, help="Print every setting, its value and its meaning.")
@click.option(
    "--after-restore",
    is_flag=True,
    help="Declare that Redis was restored from a backup: visits with `effect: once` then ask.",
)
@pass_options
def doctor(options: GlobalOptions, as_data: bool, only_settings: bool, after_restore: bool) -> int:
    """Check this installation: Python, settings, disk, Redis, broker, schedulers, workers, archive, model key.

    Exit code 1 if something that every run needs does not work.
    """
    if only_settings:
        _print_settings(options.settings(), as_data=as_data)
        return exit_codes.COMPLETED
    if after_restore:
        _begin_generation(options, as_data=as_data)
        return exit_codes.COMPLETED
    findings = []
    for finding in examine(options):
        findings.append(finding)
        if not as_data:
            _print(finding)
    if as_data:
        print_json(findings)
    failed = any(finding.level == "fail" for finding in findings)
    return exit_codes.FAILED if failed else exit_codes.COMPLETED


def _begin_generation(options: GlobalOptions, *, as_data: bool) -> None:
    """Begins a new generation, as schedulers do when they detect a restore. Idempotent."""
    from sleipnir.store.generations import gap_ms

    with options.connected(workers=False) as client:
        settings = client.settings
        began = client.store.generations.restored(
            lease_ms=int(settings.lease_s * 1000), gap_ms=gap_ms(settings.lease_s, settings.heartbeat_s)
        )
    if as_data:
        print_json({"generation": began.id, "why": began.why, "since_ms": began.since_ms})
        return
    click.echo(f"generation {began.id} begins:")
    click.echo("  visits of nodes with `effect: once` that were queued before now ask a person before they run")
    click.echo("  schedulers read all runs again; commits that were planned on the earlier state are refused")
    click.echo(f"  no visit is redelivered for {settings.lease_s:g} s; live workers keep their visits")


def examine(options: GlobalOptions) -> Findings:
    """All findings, in the order of dependencies."""
    yield from look_at_python()
    yield from look_at_interpreters()
    try:
        settings = options.settings()
    except ConfigError as wrong:
        yield Finding("fail", "settings", str(wrong), "`sleipnir doctor --settings` lists them once this one is right")
        return
    yield Finding("ok", "settings", f"{len(settings.given)} set, the others have their defaults")
    yield from look_at_home(settings.home)
    yield from look_at_room("disk", settings.home)
    yield from look_at_archive(settings.archive)
    yield from look_at_model(settings.model)
    yield from look_at_knowledge(settings)
    if settings.redis_url is None:
        yield from look_at_embedded(settings)
    else:
        yield from look_at_redis(settings)


def look_at_python() -> Findings:
    """The Python version and the platform."""
    system = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    if sys.platform == "linux":
        yield Finding("ok", "python", system)
        return
    yield Finding(
        "warn", "python", system, "outside Linux, scripts can outlive a worker that is killed; use Linux in production"
    )


def look_at_interpreters() -> Findings:
    """The programs that run script nodes."""
    for program, kind in (("bash", ".sh"), ("python3", ".py")):
        path = shutil.which(program)
        if path is None:
            yield Finding("warn", program, "not on PATH", f"script nodes with {kind} files fail; install {program}")
        else:
            yield Finding("ok", program, path)
    if shutil.which("node") and shutil.which("npx"):
        yield Finding("ok", "node", "node and npx are on PATH")
    else:
        yield Finding(
            "warn", "node", "node or npx is not on PATH", "only .ts scripts need them; install Node.js for those"
        )


def look_at_home(home: Path) -> Findings:
    """Whether the directory of the private stack and the bundle cache is writable; it is created if missing."""
    try:
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=home):
            pass
    except OSError as error:
        yield Finding("fail", "home", f"{home}: {error.strerror}", "choose a directory of yours with SLEIPNIR_HOME")
        return
    yield Finding("ok", "home", f"{home} is writable")


def look_at_room(subject: str, folder: Path) -> Findings:
    """Whether the disk has free space. No finding for a missing folder, which other checks report."""
    try:
        disk = shutil.disk_usage(folder)
    except OSError:
        return
    text = f"{size(disk.free)} of {size(disk.total)} free for {folder}"
    if disk.free < LITTLE_ROOM * disk.total or disk.free < LITTLE_ROOM_BYTES:
        hint = "free disk space: `sleipnir gc` removes unused data; a full disk stops Redis, workers and the archive"
        yield Finding("warn", subject, text, hint)
    else:
        yield Finding("ok", subject, text)


def look_at_archive(archive: Path | None) -> Findings:
    """Whether finished runs can be archived on this machine; schedulers report on theirs separately."""
    if archive is None:
        return
    try:
        archive.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=archive):
            pass
    except OSError as error:
        hint = "runs that expire are lost, unless the schedulers can write to the folder: correct SLEIPNIR_ARCHIVE"
        yield Finding("warn", "archive", f"{archive}: {error.strerror}", hint)
        return
    yield Finding("ok", "archive", f"{archive} is writable")
    yield from look_at_room("archive disk", archive)


def look_at_model(model: str | None) -> Findings:
    """Whether llm nodes that name no model have one, and a key for it here."""
    if model is None:
        hint = "llm nodes that name no model fail: set SLEIPNIR_MODEL=provider:model and the provider's key"
        yield Finding("warn", "model", "SLEIPNIR_MODEL is not set", hint)
        return
    client = model.partition(":")[0].upper().replace("-", "_")
    names = [f"{name}_{suffix}" for name in _names_of(client) for suffix in ("API_KEY", "API_BASE")]
    present = [name for name in names if os.environ.get(name)]
    if present:
        yield Finding("ok", "model", f"{model}, {' and '.join(present)} set")
    else:
        hint = f"set {names[0]} where the llm workers run (here, if that is `sleipnir run` or `sleipnir up`)"
        yield Finding("warn", "model", f"{model}, but none of {', '.join(names)} is set here", hint)


OF_RAG = ("lxml_html_clean", "mammoth", "markdownify", "numpy", "openpyxl", "pypdfium2", "Stemmer", "trafilatura",
          "urllib3", "usearch")  # fmt: skip
"""The modules of the extra `rag`."""


def look_at_knowledge(settings: Settings) -> Findings:
    """Whether bases of rag nodes can be built and searched here, and where they are shared."""
    missing = [name for name in OF_RAG if find_spec(name) is None]
    if missing:
        hint = "knowledge bases are neither built nor searched here without: pip install '.[rag]' in a checkout"
        yield Finding("warn", "knowledge", f"the extra `rag` is not complete; missing: {', '.join(missing)}", hint)
    yield from _look_at_index_store(settings)


def _look_at_index_store(settings: Settings) -> Findings:
    from sleipnir.knowledge.files import index_store_name

    index_store = index_store_name(settings)
    if index_store.startswith("s3://"):
        if find_spec("boto3") is None:
            hint = "workers and builders that reach S3 need the extra `s3`: pip install '.[s3]' in a checkout"
            yield Finding("warn", "shelf", f"{index_store}, but boto3 is missing", hint)
        else:
            yield Finding("ok", "shelf", f"knowledge bases are shared at {index_store} (not tried from here)")
        return
    try:
        Path(index_store).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=index_store):
            pass
    except OSError as error:
        hint = "no knowledge base is shared with workers: set SLEIPNIR_KNOWLEDGE to a folder that they can access"
        yield Finding("warn", "shelf", f"{index_store}: {error.strerror}", hint)
        return
    whose = ", which workers of this machine can access" if settings.knowledge is None else ""
    yield Finding("ok", "shelf", f"knowledge bases are shared in {index_store}{whose}; it is writable")


_ALIASES = ({"ANTHROPIC", "CLAUDE"}, {"GOOGLE", "GEMINI"}, {"AZURE", "AZURE_OPENAI"}, {"VERTEX", "VERTEXAI"})


def _names_of(client: str) -> list[str]:
    """The name as given, then the other name of the same provider (spec 10.2)."""
    same = next((names for names in _ALIASES if client in names), {client})
    return [client, *sorted(same - {client})]


def look_at_embedded(settings: Settings) -> Findings:
    """The private stack: whether it can be started, and its state if it runs. Starts nothing."""
    from sleipnir.local.home import Home
    from sleipnir.local.supervisor import embedded_server, find_server

    try:
        server = find_server()
        old = ", which gets no security fixes; a server on PATH takes precedence" if server == embedded_server() else ""
        yield Finding("ok", "redis-server", f"{server}{old}, for the private stack (SLEIPNIR_REDIS_URL is not set)")
    except ConfigError as missing:
        yield Finding("fail", "redis-server", str(missing))
        return
    home = Home(settings.home.absolute())
    if home.running() is None:
        yield Finding("ok", "stack", f"none runs in {home.root}; `sleipnir run` and `sleipnir up` start it")
        return
    yield from look_at_redis(settings.replaced(redis_url=home.redis_url), private=True)


def look_at_redis(settings: Settings, *, private: bool = False) -> Findings:
    """Store, broker and fleet behind the settings' Redis URL; `private`: only this user reaches it."""
    from sleipnir.store.address import safe_url
    from sleipnir.store.store import Store

    url = safe_url(settings.redis_url or "")
    try:
        tolerant = settings.replaced(allow_eviction=True)  # what else is wrong is reported too
        with Store.open(tolerant, client_name="sleipnir-doctor", may_create=False) as store, store.errors():
            health, partitions = store.health(), store.keys.partitions
            webhooks, senders = store.access.webhook_count(), store.webhooks.senders()
    except SleipnirError as failure:
        hint = f"start Redis at {url}, or correct SLEIPNIR_REDIS_URL"
        if "refuses to write" in str(failure):
            hint = "free space on its disk, or raise its `maxmemory`; runs stop until then, and continue automatically"
        yield Finding("fail", "redis", str(failure), hint)
        return
    nodes = f", {health.nodes} nodes" if health.nodes else ""
    yield Finding("ok", "redis", f"{url} answers, version {version_of(health)}{nodes}")
    yield Finding("ok", "partitions", f"{partitions}, fixed at the first start of the deployment")
    yield from look_at_version(health, private=private)
    yield from look_at_generation(health)
    yield from look_at_durability(health)
    yield from look_at_memory(health, private=private)
    yield from look_at_broker(settings)
    yield from look_at_fleet(health)
    yield from look_at_webhooks(webhooks, senders)
    yield from look_at_agreement(health)
    yield from look_at_archiving(health)
    yield from look_at_what_was_set_aside(health)


def look_at_generation(health: Health) -> Findings:
    """The start of the current generation of Redis, and its cause."""
    if (generation := health.generation) is None:
        return
    text = f"{duration(health.now_ms - generation.since_ms)} old; it began when {generation.meaning}"
    if generation.is_steady:
        yield Finding("ok", "generation", text)
        return
    hint = "nothing to do: live workers renew their leases, and visits of dead ones are redelivered after that"
    wait_s = (generation.steady_ms - generation.now_ms + 999) // 1000
    yield Finding("warn", "generation", f"{text}; no visit is redelivered for {wait_s} s", hint)


SECURE = {
    "redis": {(6, 2): 23, (7, 2): 15, (7, 4): 10, (8, 2): 8, (8, 4): 5, (8, 6): 5, (8, 8): 1},
    "valkey": {(7, 2): 14, (8, 0): 10, (8, 1): 9, (9, 0): 5, (9, 1): 1},
}
"""The first patch of each series without a known vulnerability that lets a script take over the server
(docs/redis-servers.md)."""


def version_of(health: Health) -> str:
    return f"{health.version} (Valkey {health.valkey})" if health.valkey else health.version


def look_at_version(health: Health, *, private: bool = False) -> Findings:
    """Whether users who may run scripts in this Redis can take it over. No finding for an unknown series, or for a
    private Redis, whose only user owns it."""
    kind, text = ("valkey", health.valkey) if health.valkey else ("redis", health.version)
    major, minor, patch = ([int(part) for part in re.findall(r"\d+", text)] + [0, 0, 0])[:3]
    wanted = SECURE[kind].get((major, minor))
    if private or wanted is None or patch >= wanted:
        return
    hint = (
        "anyone with its password may take over the server (CVE-2025-49844 and later): upgrade to "
        f"{major}.{minor}.{wanted}, unless your distribution has fixed its package without changing this number"
    )
    yield Finding("warn", "redis version", f"{kind} {text} lacks security fixes", hint)


def look_at_durability(health: Health) -> Findings:
    """Whether Redis keeps acknowledged data after a crash and when its memory is full."""
    if health.appendonly:
        yield Finding("ok", "appendonly", "on: what Redis acknowledged survives its crash")
    else:
        hint = "a restart of Redis loses runs: set `appendonly yes` and `appendfsync everysec`"
        yield Finding("warn", "appendonly", "off", hint)
    if health.maxmemory_policy == "noeviction":
        yield Finding("ok", "maxmemory", "noeviction")
    else:
        hint = (
            "a full Redis would delete parts of live runs, so nothing starts with it: "
            "`redis-cli CONFIG SET maxmemory-policy noeviction`, and in its configuration"
        )
        yield Finding("fail", "maxmemory", health.maxmemory_policy, hint)


def look_at_memory(health: Health, *, private: bool = False) -> Findings:
    """Whether Redis has free memory and can write to its disk."""
    if not health.persists:
        hint = "its last write or snapshot failed: check its log and its disk; `INFO persistence` says which"
        yield Finding("fail", "persistence", "Redis cannot write to its disk", hint)
    used = size(health.used_memory)
    if not health.maxmemory:
        hint = "when memory runs out the kernel kills it: set `maxmemory` to half of what its machine or container has"
        yield Finding("ok" if private else "warn", "memory", f"{used} used, no maxmemory", "" if private else hint)
        return
    text = f"{used} of {size(health.maxmemory)} used"
    if health.used_memory > MEMORY_FULL * health.maxmemory:
        hint = "a full Redis refuses commits: raise `maxmemory`, shorten SLEIPNIR_RETENTION_S, or submit less"
        yield Finding("warn", "memory", text, hint)
    else:
        yield Finding("ok", "memory", text)


def look_at_agreement(health: Health) -> Findings:
    """Whether the schedulers have the same settings. Two deployments with one key prefix in one Redis are one: each
    runs the other's visits, with other settings."""
    digests: dict[str, set[str]] = {}
    for shared in health.settings.values():
        for name, digest in shared.items():
            digests.setdefault(name, set()).add(digest)
    if different := sorted(name for name, versions in digests.items() if len(versions) > 1):
        hint = (
            "give all processes of a deployment the same values, and each deployment a SLEIPNIR_KEY_PREFIX of its own"
        )
        text = f"schedulers of one deployment have different values: {', '.join(different)}"
        yield Finding("warn", "settings of schedulers", text, hint)


def look_at_what_was_set_aside(health: Health) -> Findings:
    """What no scheduler could read, plan or deliver."""
    if health.parked:
        hint = "`sleipnir ps` and `sleipnir show RUN` give the reasons: finish an upgrade, restore a record or a bundle"
        first = next(iter(health.parked_reasons), None)
        yield Finding("warn", "parked", f"{health.parked} runs are parked" + (f"; {first}" if first else ""), hint)
    if health.dead_letters:
        hint = "`sleipnir dead-letters ls` shows why; fix the cause, then `sleipnir dead-letters redeliver --all`"
        yield Finding("warn", "dead letters", f"{health.dead_letters} effects cannot be delivered", hint)
    if dropped := sum(worker.dropped for worker in health.workers):
        hint = "their logs have each reason once; check for other programs that write to the broker, or a newer release"
        yield Finding("warn", "messages", f"workers have dropped {dropped} messages that they cannot read", hint)


def look_at_archiving(health: Health) -> Findings:
    """The reports of the schedulers on their archive."""
    for name, archive in sorted(health.archives.items()):
        lost = f"; {archive.lost} runs have expired without" if archive.lost else ""
        if archive.error is not None:
            hint = "runs still expire and are then lost: make the folder writable, or free disk space"
            yield Finding("fail", "archiving", f"{name} cannot write: {archive.error}{lost}", hint)
        elif lost:
            hint = "they are lost; see the log of that scheduler, whose restart clears this count"
            yield Finding("warn", "archiving", f"{name} writes again to {archive.folder}{lost}", hint)
        else:
            written = f"{archive.written} runs since its start"
            yield Finding("ok", "archiving", f"{name} writes to {archive.folder}, {written}")


def look_at_broker(settings: Settings) -> Findings:
    """Whether Celery's broker accepts a connection; it may be another server than the store."""
    from kombu import Connection

    from sleipnir.store.address import celery_broker, masked, safe_url

    url = settings.broker or ""
    try:
        broker = celery_broker(url)
        with Connection(
            broker.url, connect_timeout=3, transport_options=dict(broker.options), ssl=broker.ssl or False
        ) as connection:
            connection.ensure_connection(max_retries=1, interval_start=0.1, timeout=5)
    except Exception as error:  # each transport has its own errors
        why = masked(str(error))
        yield Finding("fail", "broker", f"{safe_url(url)}: {why}", "start the broker, or correct SLEIPNIR_BROKER_URL")
        return
    yield Finding("ok", "broker", f"{safe_url(url)} takes connections")


def look_at_fleet(health: Health) -> Findings:
    """The schedulers, the workers, and whether each queue with waiting visits has a worker."""
    if health.schedulers:
        yield Finding("ok", "schedulers", ", ".join(health.schedulers))
    else:
        yield Finding(
            "fail", "schedulers", "none was active recently", "no run advances without one: `sleipnir scheduler`"
        )
    served = {queue for worker in health.workers for queue in (*worker.queues, *worker.stopped)}
    for queue in sorted({*health.queues, *served}):
        yield _look_at_queue(queue, health)


def look_at_webhooks(count: int, senders: Sequence[str]) -> Findings:
    """Whether the webhooks that there are have a process that sends them. No finding without webhooks."""
    if not count:
        return
    if senders:
        yield Finding("ok", "webhooks", f"{count}; {', '.join(senders)} sends them")
        return
    hint = "deliveries wait, and are lost when too many do: `sleipnir webhooks send` starts a sender"
    yield Finding("warn", "webhooks", f"{count}; no process that sends them was active recently", hint)


def _look_at_queue(queue: str, health: Health) -> Finding:
    waiting = health.queues.get(queue, 0)
    workers = [worker.name for worker in health.workers if queue in worker.queues]
    stopped = [f"{worker.name} ({worker.stopped[queue]})" for worker in health.workers if queue in worker.stopped]
    if stopped:
        text = f"{waiting} waiting; {', '.join(workers) or 'no worker'} takes it; stopped: {'; '.join(stopped)}"
        hint = "fix that machine (disk, memory, limits of processes and files); the worker tries again automatically"
        return Finding("warn" if workers else "fail", f"queue {queue}", text, hint)
    if workers:
        return Finding("ok", f"queue {queue}", f"{waiting} waiting; {', '.join(workers)}")
    hint = f"`sleipnir worker -Q {queue}` starts a worker for it"
    return Finding("warn", f"queue {queue}", f"{waiting} waiting; no worker was active recently", hint)


def _print(finding: Finding) -> None:
    level = f"{finding.level:<5}"
    if wants_colour(sys.stdout):
        level = click.style(level, fg=STATUS_STYLE[finding.level])
    click.echo(f"{level} {finding.subject}: {printable(finding.text)}")
    if finding.hint:
        click.echo(f"      -> {printable(finding.hint)}")


def _print_settings(settings: Settings, *, as_data: bool) -> None:
    from sleipnir.settings import PREFIX
    from sleipnir.store.address import safe_url

    meanings = _meanings()
    rows = []
    for name in settings.names():
        value = getattr(settings, name)
        shown = "" if value is None else safe_url(value) if name.endswith("_url") else str(value)
        if name in settings.secret_settings():
            shown = "(set)" if value else ""
        rows.append((PREFIX + name.upper(), shown, meanings.get(name, "")))
    if as_data:
        print_json([{"name": name, "value": value or None, "meaning": meaning} for name, value, meaning in rows])
    else:
        print_table(("setting", "value", "meaning"), rows)


def _meanings() -> dict[str, str]:
    """The docstring of each field of Settings, read from its source."""
    import ast
    import inspect

    from sleipnir.settings import Settings

    body = ast.parse(inspect.getsource(Settings)).body[0]
    assert isinstance(body, ast.ClassDef)
    meanings: dict[str, str] = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
            meanings[field.target.id] = " ".join(ast.literal_eval(below.value).split())
    return meanings

"""Every setting with its unit, its default and its meaning. No other module reads SLEIPNIR_* from the environment,
except failpoints.py, for tests.

An unknown SLEIPNIR_ name stops the process: a misspelt setting that is silently ignored causes an outage later. Every
command reads them first, so this module does not use pydantic, whose import takes as long as redis-py's.
"""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, TypeAlias

from sleipnir import failpoints
from sleipnir.errors import ConfigError
from sleipnir.graph.duration import seconds

PREFIX = "SLEIPNIR_"
SECONDS_MOST = 10 * 365 * 24 * 3600  # in ms, and added to a moment, it is still a number that Lua holds exactly
BYTES_MOST = 2**50
COUNT_MOST = 2**31
SHARED = ("lease_s", "redispatch_after_s", "max_redeliveries", "owner_ttl_s", "retention_s", "batch_window")
"""Settings that affect decisions of schedulers, in addition to the broker. A scheduler with a different value conflicts
with the others."""
SHOWN = 200  # characters of a value that is refused

OF_CLUSTERS = ("redis-cluster", "rediss-cluster")
"""The schemes of addresses of a Redis Cluster."""

NAMESPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")

MOST_BUNDLE_FILES = 10_000
MOST_UNPACKED_BYTES = 256 * 2**20

FLAGS = {
    **dict.fromkeys(("1", "true", "yes", "on", "t", "y"), True),
    **dict.fromkeys(("0", "false", "no", "off", "f", "n"), False),
}

Reader: TypeAlias = Callable[[Any], Any]
"""Converts a text of the environment, or a value, into the setting's type. Raises ValueError."""


def _setting(default: Any, read: Reader) -> Any:
    return field(default=default, metadata={"read": read})


def _secret_setting(read: Reader) -> Any:
    """A setting that is shown nowhere and passed to no other process."""
    return field(default=None, repr=False, metadata={"read": read, "secret": True})


def _text(given: Any) -> str:
    if not isinstance(given, str):
        raise ValueError("must be a text")
    return given


def _flag(given: Any) -> bool:
    flag = given if isinstance(given, bool) else FLAGS.get(str(given).strip().lower())
    if flag is None:
        raise ValueError("must be 1 or 0")
    return flag


def _one_of(*choices: str) -> Reader:
    def read(given: Any) -> str:
        if given not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}")
        return str(given)

    return read


def _whole(least: int, most: int | None = None) -> Reader:
    def read(given: Any) -> int:
        try:
            number = int(given)
        except (ValueError, TypeError, OverflowError):
            number = None
        if number is None or isinstance(given, bool) or (isinstance(given, float) and number != given):
            raise ValueError("must be a whole number")
        if number < least or (most is not None and number > most):
            raise ValueError(f"must be {least:,} or more" if most is None else f"must be from {least:,} to {most:,}")
        return number

    return read


def _seconds(given: Any, *, may_be_zero: bool = False) -> float:
    """A number, or a text with a unit: `30s`, `5m`, `500ms`."""
    try:
        number = float(seconds(given))  # type: ignore[arg-type]  # what is no number raises
    except (ValueError, TypeError, OverflowError):
        number = math.nan
    if isinstance(given, bool) or not math.isfinite(number):
        raise ValueError("must be a number of seconds, or a duration such as 500ms, 30s, 5m or 2h")
    if number < 0 or number > SECONDS_MOST or (number == 0 and not may_be_zero):
        least = "0 or more" if may_be_zero else "more than 0"
        raise ValueError(f"must be {least}, and at most {SECONDS_MOST:,} seconds")
    return number


def _seconds_or_zero(given: Any) -> float:
    return _seconds(given, may_be_zero=True)


def _amount(given: Any) -> float:
    try:
        number = float(given)
    except (ValueError, TypeError, OverflowError):
        number = math.nan
    if isinstance(given, bool) or not math.isfinite(number) or number <= 0:
        raise ValueError("must be an amount in USD of more than 0")
    return number


def _namespace(given: Any) -> str:
    if not isinstance(given, str) or not NAMESPACE.fullmatch(given):
        raise ValueError("must be 1 to 63 letters, digits, '.', '_' and '-', a letter or a digit first")
    return given


def _absolute(given: Any) -> Path:
    return Path(given).absolute()


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Read once at start with `Settings.from_env()`. Raises ConfigError for an invalid value."""

    home: Path = _setting(None, Path)  # see __post_init__
    """The directory of the embedded stack, the bundle cache and the user's agents."""
    agents_dir: Path | None = _setting(None, Path)
    """Searched first for agents."""
    redis_url: str | None = _setting(None, _text)
    """The store. Unset: the embedded stack under `home`."""
    broker_url: str | None = _setting(None, _text)
    """Celery's broker. Unset: the same Redis as the store, unless that is a cluster."""
    allow_eviction: bool = _setting(False, _flag)
    """A Redis with a `maxmemory-policy` other than noeviction is accepted; when full, it deletes parts of live runs."""
    key_prefix: str = _setting("slp", _text)
    """First part of every key; several deployments may share one Redis."""
    partitions: int | None = _setting(None, _whole(1, 4096))
    """From 16 to 4,096, fixed at the first start of a deployment: another number refuses to start. Unset: the
    deployment's own, and 256 for a new one, or 16 in the private Redis of one machine."""
    model: str | None = _setting(None, _text)
    """Model for llm nodes when neither node nor graph names one, as `provider:model`."""
    secrets: Path | None = _setting(None, Path)
    """File of NAME=VALUE lines with keys of model providers, read by llm workers, and with secrets that agent variables
    name, read by script workers; closed to other users. Unset: `secrets.env` in Loki's configuration directory, if
    there is one."""
    secret_names: str = _setting("", _text)
    """Variables of a worker's environment, NAME,NAME, that agent variables may name as `{{NAME}}`, in addition to its
    secrets file."""
    plugins: str = _setting("", _text)
    """The plugins that run in every worker, NAME,NAME, in this order: entry points of the group `sleipnir.plugins`
    (docs/plugins.md)."""
    record: Path | None = _setting(None, _absolute)
    """llm workers record the models' answers in this folder (sleipnir/testing/tape.py)."""
    replay: Path | None = _setting(None, _absolute)
    """llm workers answer from the recording in this folder and call no model."""
    namespace: str = _setting("default", _namespace)
    """Runs that are submitted from here are in this namespace, and lists show those of it."""
    strict: bool = _setting(False, _flag)
    """Runs that are submitted from here fail at every failed visit: one that no fallback, retry or `on_error` node
    handles."""
    stream: bool = _setting(True, _flag)
    """Text of models is streamed (`watch`, `Client.stream`); 0: answers arrive in one piece."""
    limits: Path | None = _setting(None, Path)
    """The file with the model limits of the deployment (docs/limits.md). Unset: `limits.yaml` in Loki's configuration
    directory, if there is one."""
    warm_llm: bool = _setting(True, _flag)
    """An llm worker imports litellm (2 s) at its start; otherwise the first visit waits for it."""
    warm_python: bool = _setting(True, _flag)
    """Scripts and tools are forked from a ready process, those in Python from a ready python3 (Linux)."""
    lease_s: float = _setting(15.0, _seconds)
    """A claimed visit without a heartbeat for this time is given to another worker. Three heartbeats."""
    heartbeat_s: float = _setting(5.0, _seconds)
    """How often a worker renews the leases of its visits, and checks for cancels."""
    drain_s: float = _setting(20.0, _seconds_or_zero)
    """Grace period of a stopping worker for its running visits, before it hands them back. Stopping takes up to 8 s
    more, so the default fits Kubernetes' 30 s."""
    worker_nice: int = _setting(10, _whole(0, 19))
    """The nice value of workers, and of their scripts and tools: the scheduler and Redis on the same cores come first.
    0: they are equal."""
    task_events: bool = _setting(True, _flag)
    """Workers report each visit to Flower, and only while a program receives these events."""
    redispatch_after_s: float = _setting(10.0, _seconds)
    """A visit queued this long without a claim is published again if its message has left the queue; then at growing
    intervals, up to an hour. On a broker that does not report its queues: after an hour, then eight."""
    max_redeliveries: int = _setting(3, _whole(0, COUNT_MOST))
    """A visit that lost more leases than this fails with WorkerLost."""
    batch_window: int = _setting(0, _whole(0, COUNT_MOST))
    """Rows of batches become runs while the fleet has fewer pending visits than this. 0: four for each slot of the live
    workers, at least 16."""
    once_wait_replicas: int = _setting(0, _whole(0))
    """The number of Redis replicas that must have the claim of a node with `effect: once` before its work begins. 0:
    none."""
    ack_wait_replicas: int = _setting(0, _whole(0))
    """The number of Redis replicas that must have a run or a batch, or an answer to a question, before the call that
    submits or answers returns. 0: none."""
    owner_ttl_s: float = _setting(3.0, _seconds)
    """A scheduler without a sign of life for this time loses its partitions."""
    retention_s: float = _setting(7 * 24 * 3600.0, _seconds)
    """How long a finished run is kept. Unfinished runs never expire."""
    work_retention_s: float = _setting(24 * 3600.0, _seconds_or_zero)
    """How long a worker's machine keeps the scratch folder of an ended run. Empty ones, and those on a full disk, are
    removed immediately."""
    archive: Path | None = _setting(None, _absolute)
    """Schedulers write finished runs into this folder before they expire (docs/operations.md). Unset: they do not."""
    archive_gzip: bool = _setting(False, _flag)
    """The files of the archive are compressed."""
    archive_file_bytes: int = _setting(100 * 2**20, _whole(1, BYTES_MOST))
    """The size at which a new archive file is started."""
    bundle_cache_bytes: int = _setting(2 * 2**30, _whole(1, BYTES_MOST))
    """The maximum size of a machine's cache of unpacked agent folders, the most recently used."""
    max_prompt_bytes: int = _setting(4 * 2**20, _whole(1, BYTES_MOST))
    """A larger prompt is refused at submit."""
    max_bundle_bytes: int = _setting(16 * 2**20, _whole(1, BYTES_MOST))
    """A larger agent folder (compressed) is refused at submit."""
    max_unpacked_bytes: int = _setting(MOST_UNPACKED_BYTES, _whole(1, BYTES_MOST))
    """An agent folder with more bytes is refused at submit, by schedulers and by workers: set the same value
    everywhere."""
    max_journal_steps: int = _setting(5_000_000, _whole(1))
    """A run whose journal reaches this number of steps fails, because an endless loop would fill Redis. A step takes
    300 bytes plus its writes."""
    max_session_messages: int = _setting(10_000, _whole(1))
    """A session keeps at most this number of messages, the newest; older turns are dropped whole."""
    max_output_bytes: int = _setting(16 * 2**20, _whole(1, BYTES_MOST))
    """A script whose stdout, or a node whose delta, is larger fails."""
    tool_timeout_s: float | None = _setting(None, _seconds)
    """A tool call that runs longer is killed, and the model gets an error. Unset: 120 s in sleipnir/1; in 1.0
    COYOTE_TOOL_TIMEOUT (0: no limit), else 1800 s, as with Coyote."""
    mcp_queue: str = _setting("llm", _text)
    """The queue of workers that call MCP servers; they need mcp.json, and the secrets it names."""
    max_tool_result_bytes: int = _setting(256 * 1024, _whole(1, BYTES_MOST))
    """A larger result of a tool call is truncated for the model, with a note of the removed amount."""
    compression_threshold: int = _setting(4000, _whole(1, COUNT_MOST))
    """A session with this number of tokens (an estimate) is replaced by a summary; an agent's own
    `compression_threshold` takes precedence."""
    cache_entry_bytes: int = _setting(2**20, _whole(1, BYTES_MOST))
    """A result of a node with a `cache` that is larger is not kept."""
    cache_node_bytes: int = _setting(256 * 2**20, _whole(1, BYTES_MOST))
    """The maximum size of the cached results of one node; those that expire first make room."""
    cache_retention_s: float = _setting(30 * 24 * 3600.0, _seconds)
    """How long a cached result is kept at most, also without a `ttl`."""
    daily_budget_usd: float | None = _setting(None, _amount)
    """What all runs of a namespace may cost in a day (UTC), for the overview of the console: nothing is held because of
    it. Unset: no figure is compared."""
    gate_overdue_s: float = _setting(24 * 3600.0, _seconds)
    """Questions to people that have been open for longer are overdue."""
    audit_retention_s: float = _setting(365 * 24 * 3600.0, _seconds)
    """How long an entry of the audit is kept."""
    webhook_key: Path | None = _setting(None, _absolute)
    """File with the keys from which the secrets of webhooks are derived (docs/webhooks.md), closed to other users.
    Unset: `<home>/webhook.key`, which is made at the first use."""
    webhook_networks: str = _setting("", _text)
    """Addresses and networks, with commas between, that webhooks may go to although they are not public."""
    remote_networks: str = _setting("", _text)
    """Addresses and networks, with commas between, where remote agents (docs/a2a.md) may be although they are not
    public."""
    webhook_timeout_s: float = _setting(15.0, _seconds)
    """A receiver of a webhook that takes longer to answer is tried again."""
    webhook_retry_s: float = _setting(3 * 24 * 3600.0, _seconds)
    """For how long a delivery is tried."""
    webhook_retention_s: float = _setting(7 * 24 * 3600.0, _seconds)
    """How long a delivery that is over is kept."""
    hook_secrets: Path | None = _setting(None, _absolute)
    """Folder with a file for each hook whose sender has chosen the secret, closed to other users. Unset:
    `<home>/hooks`."""
    knowledge: str | None = _setting(None, _text)
    """Where knowledge bases are shared with all workers: a folder that they can all access, or `s3://bucket/prefix`.
    Unset: `<home>/knowledge`, which only workers of this machine can access."""
    knowledge_cache_bytes: int = _setting(10 * 2**30, _whole(1, BYTES_MOST))
    """The maximum size of a worker's cache of data from S3, the most recently used."""
    max_document_bytes: int = _setting(64 * 2**20, _whole(1, BYTES_MOST))
    """A larger document is not loaded into a knowledge base."""
    document_s: float = _setting(60.0, _seconds)
    """A document that takes longer to read is not loaded."""
    crawl_pages: int = _setting(500, _whole(1, COUNT_MOST))
    """A crawl (`https://...**`) stops after this number of pages,"""
    crawl_depth: int = _setting(8, _whole(0, COUNT_MOST))
    """this number of links away from the first page,"""
    crawl_bytes: int = _setting(200 * 2**20, _whole(1, BYTES_MOST))
    """this number of bytes,"""
    crawl_s: float = _setting(600.0, _seconds)
    """and this time."""
    private_urls: bool = _setting(False, _flag)
    """Documents may be fetched from addresses of private networks and of this machine."""
    metrics_port: int | None = _setting(None, _whole(0, 65535))
    """A scheduler answers /metrics and /health on this port (docs/metrics.md); 0: on any free port, which its log
    names. Unset: it opens no port."""
    metrics_host: str = _setting("127.0.0.1", _text)
    """The address that it listens on; 0.0.0.0 or :: for all. Anyone who can reach it can read the metrics."""
    console_host: str = _setting("127.0.0.1", _text)
    """The address on which the HTTP API listens (docs/http-api.md). One that others can reach needs users, and TLS or
    proxies."""
    console_port: int = _setting(8470, _whole(0, 65535))
    """Its port; 0: any free one, which its log names."""
    console_tls_cert: Path | None = _setting(None, _absolute)
    """The certificate of the HTTP API, with its chain, in PEM."""
    console_tls_key: Path | None = _setting(None, _absolute)
    """Its private key."""
    console_proxies: str = _setting("", _text)
    """Addresses and networks, with commas between, of proxies before the HTTP API, which have TLS: their
    `X-Forwarded-For` counts."""
    console_user_header: str = _setting("", _text)
    """The header in which these proxies name the user, whom they have authenticated. Empty: they name none."""
    console_url: str = _setting("", _text)
    """The address under which browsers reach the HTTP API, such as https://sleipnir.example.com: login providers send
    them back there."""
    oidc_issuer: str = _setting("", _text)
    """The issuer of a login provider with OpenID Connect (docs/users.md). Empty: users log in with passwords alone."""
    oidc_client: str = _setting("", _text)
    """The id under which the provider knows the HTTP API."""
    oidc_secret: Path | None = _setting(None, _absolute)
    """The file with the secret of that client, closed to other users."""
    oidc_roles: str = _setting("", _text)
    """What groups of the provider may do: GROUP=ROLE@NAMESPACE, with semicolons between."""
    oidc_groups: str = _setting("groups", _text)
    """The claim with the groups of a user."""
    oidc_user: str = _setting("preferred_username", _text)
    """The claim with the name of a user."""
    oidc_scopes: str = _setting("openid profile email", _text)
    """What the provider is asked for."""
    oidc_name: str = _setting("", _text)
    """The provider's name on the login page. Empty: the host of the issuer."""
    oidc_login_s: float = _setting(28_800.0, _seconds)
    """A login through the provider ends after this time at the latest: then the groups are asked for again."""
    console_body_bytes: int = _setting(32 * 2**20, _whole(1024, BYTES_MOST))
    """A larger body of a request is refused. The rows of a batch are read in pieces, and have no such limit."""
    token: str | None = _secret_setting(_text)
    """The access token of clients of the HTTP API. It is passed to no other process."""
    token_file: Path | None = _setting(None, _absolute)
    """A file with the token; SLEIPNIR_TOKEN comes first."""
    ca_file: Path | None = _setting(None, _absolute)
    """The certificates of the authority of the HTTP API, in PEM. Unset: those of the system."""
    log_level: Literal["trace", "debug", "info", "warning", "error"] = _setting(
        "info", _one_of("trace", "debug", "info", "warning", "error")
    )
    """What services log. debug adds entries and routes, trace the full state, which may contain secrets."""
    log_format: Literal["auto", "json", "console"] = _setting("auto", _one_of("auto", "json", "console"))
    """auto: console on a terminal, otherwise JSON lines."""

    given: frozenset[str] = field(init=False, repr=False, compare=False)
    """The names of the settings that were set, also to their defaults: they are passed to children."""

    def __post_init__(self) -> None:
        for setting in self._fields():
            value = getattr(self, setting.name)
            if value is None and setting.default is None:
                continue
            try:
                object.__setattr__(self, setting.name, setting.metadata["read"](value))
            except (ValueError, TypeError) as error:
                raise _refused(setting.name, value, str(error)) from None
        if self.replay is not None and self.record is not None:
            raise _refused("replay", self.replay, f"{PREFIX}RECORD is set too; a run is recorded or replayed, not both")
        object.__setattr__(self, "given", self._changed())
        if "home" not in self.given:
            import platformdirs

            object.__setattr__(self, "home", Path(platformdirs.user_data_dir("sleipnir", appauthor=False)))

    def _changed(self) -> frozenset[str]:
        """The names of settings with other values than their defaults."""
        return frozenset(each.name for each in self._fields() if getattr(self, each.name) != each.default)

    @property
    def hook_secret_folder(self) -> Path:
        """Where the secrets of hooks are that their senders have chosen."""
        return self.hook_secrets or self.home / "hooks"

    @property
    def webhook_key_file(self) -> Path:
        return self.webhook_key or self.home / "webhook.key"

    @property
    def names_of_secrets(self) -> list[str]:
        return [name.strip() for name in self.secret_names.split(",") if name.strip()]

    @property
    def names_of_plugins(self) -> list[str]:
        """Each once, in their order."""
        return list(dict.fromkeys(name.strip() for name in self.plugins.split(",") if name.strip()))

    @property
    def broker(self) -> str | None:
        """Raises ConfigError if that is a Redis Cluster."""
        broker = self.broker_url or self.redis_url
        if broker is not None and broker.partition(":")[0].lower() in OF_CLUSTERS:
            named = "is one" if self.broker_url else "is not set"
            raise ConfigError(
                f"SLEIPNIR_BROKER_URL {named}: Celery does not work on a Redis Cluster. Name a Redis, Sentinels or "
                "RabbitMQ, e.g. redis://localhost:6379/0"
            )
        return broker

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Of all settings, in the order of this file; `given` is none."""
        return tuple(each.name for each in cls._fields())

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None, **overrides: Any) -> Settings:
        """Settings from SLEIPNIR_* variables. Raises ConfigError naming an unknown or unusable variable."""
        env = os.environ if env is None else env
        known = cls.names()
        values: dict[str, Any] = {}
        for name, text in env.items():
            if not name.startswith(PREFIX) or name == failpoints.VARIABLE:
                continue
            key = name[len(PREFIX) :].lower()
            if key not in known:
                raise ConfigError(_unknown(name, [PREFIX + each.upper() for each in known]))
            if not text.isascii() and not _is_text(text):
                raise ConfigError(f"{name}={text[:SHOWN]!r} is not text in UTF-8")
            if text != "":
                values[key] = text
        values |= overrides
        return cls(**values)._with_given(values)

    def replaced(self, **changes: Any) -> Settings:
        """The same settings with other values. Raises ConfigError like the constructor."""
        return replace(self, **changes)._with_given(self.given.union(changes))

    def _with_given(self, names: Iterable[str]) -> Settings:
        object.__setattr__(self, "given", frozenset(names))
        return self

    @classmethod
    def secret_settings(cls) -> frozenset[str]:
        """The settings whose values are shown nowhere."""
        return frozenset(each.name for each in cls._fields() if each.metadata.get("secret"))

    @classmethod
    def _fields(cls) -> Iterator[Field[Any]]:
        return (each for each in fields(cls) if each.init)

    def shared_digests(self) -> dict[str, str]:
        """The settings that must be equal on all schedulers of a deployment, by the names of their variables; others
        see only a short digest of each. A broker's login and the spelling of its address are ignored."""
        broker = (self.broker_url or "").rpartition("@")[2]
        values = {name: getattr(self, name) for name in SHARED} | {"broker_url": broker}
        return {PREFIX + name.upper(): sha256(repr(value).encode()).hexdigest()[:8] for name, value in values.items()}

    def to_log(self) -> dict[str, Any]:
        """The settings that a process logs at its start: those with other values than their defaults, except addresses,
        which may contain a password. `sleipnir doctor --settings` lists all."""
        changed = (self._changed() & self.given) - {"redis_url", "broker_url"} - self.secret_settings()
        values = {name: getattr(self, name) for name in self.names() if name in changed}
        return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}

    def to_env(self) -> dict[str, str]:
        """The variables with which a child process reads the same settings; unset values are omitted."""
        values = {name: getattr(self, name) for name in self.names() if name in self.given - self.secret_settings()}
        return {PREFIX + name.upper(): str(value) for name, value in values.items() if value is not None}


def _refused(name: str, value: object, why: str) -> ConfigError:
    return ConfigError(f"{PREFIX}{name.upper()}={str(value)[:SHOWN]!r}: {why}")


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # bytes that Python could not decode are surrogates
        return False
    return True


def _unknown(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]}?" if close else "see `sleipnir doctor --settings` for the list."
    return f"{name} is set, but there is no such setting; {hint}"

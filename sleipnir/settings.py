"""Every setting, its unit, its default and what it means. Nothing else reads SLEIPNIR_* from the environment, but
failpoints.py, for tests.

An unknown SLEIPNIR_ name stops the process: a misspelt setting that is silently ignored is an outage later.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import platformdirs
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from sleipnir import failpoints
from sleipnir.errors import ConfigError
from sleipnir.graph.duration import seconds

PREFIX = "SLEIPNIR_"
SECONDS_MOST = 10 * 365 * 24 * 3600  # in ms, and added to a moment, it is still a number that Lua holds exactly
BYTES_MOST = 2**50
COUNT_MOST = 2**31
SHARED = ("lease_s", "redispatch_after_s", "max_redeliveries", "owner_ttl_s", "retention_s", "batch_window")
"""What schedulers decide by, besides the broker. One that has another value of it works against the others."""
SHOWN = 200  # characters of a value that is refused

MOST_BUNDLE_FILES = 10_000
MOST_UNPACKED_BYTES = 256 * 2**20


Seconds: TypeAlias = Annotated[float, BeforeValidator(seconds)]
"""A number, or a text with a unit: `30s`, `5m`, `500ms`."""


class Settings(BaseModel):
    """Read once at start with `Settings.from_env()`. Frozen."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    home: Path = Field(default_factory=lambda: Path(platformdirs.user_data_dir("sleipnir", appauthor=False)))
    """Where the embedded stack, the bundle cache and the user's agents live."""
    agents_dir: Path | None = None
    """Looked up first for agents."""
    redis_url: str | None = None
    """The store. Unset: the embedded stack under `home`."""
    broker_url: str | None = None
    """Celery's broker. Unset: the same Redis as the store."""
    allow_eviction: bool = False
    """A Redis with another `maxmemory-policy` than noeviction is used; full, it deletes parts of live runs."""
    key_prefix: str = "slp"
    """First part of every key; several deployments may share one Redis."""
    partitions: int = Field(16, ge=1, le=1024)
    """Fixed for the life of a deployment; stored in Redis on first use and compared at every start."""
    model: str | None = None
    """Model for llm nodes when neither node nor graph names one, as `provider:model`."""
    secrets: Path | None = None
    """File of NAME=VALUE lines with keys of model providers, read by llm workers, and with secrets that agent variables
    name, read by script workers; closed to other users. Unset: `secrets.env` in Loki's configuration directory, if
    there is one."""
    secret_names: str = ""
    """Variables of a worker's environment, NAME,NAME, that agent variables may name as `{{NAME}}`, besides what is in
    its secrets file."""
    record: Annotated[Path, AfterValidator(Path.absolute)] | None = None
    """llm workers write the models' answers into this folder (sleipnir/testing/tape.py)."""
    replay: Annotated[Path, AfterValidator(Path.absolute)] | None = None
    """llm workers answer from the recording in this folder, and ask no model."""
    strict: bool = False
    """Runs that are submitted from here fail for every failed visit: one that no fallback, retry or `on_error` node has
    taken over."""
    stream: bool = True
    """What models say is told while they say it (`watch`, `Client.stream`); 0: models answer in one piece."""
    limits: Path | None = None
    """How often models may be called, for the whole deployment (docs/limits.md). Unset: `limits.yaml` in Loki's
    configuration directory, if there is one."""
    warm_llm: bool = True
    """An llm worker imports litellm (2 s) at its start; otherwise the first visit waits for it."""
    warm_python: bool = True
    """Python scripts are forked from a ready python3, one per worker process, instead of starting one each (Linux)."""
    lease_s: Seconds = Field(15.0, gt=0, le=SECONDS_MOST)
    """A claimed visit whose worker is silent this long is given to another. Three heartbeats."""
    heartbeat_s: Seconds = Field(5.0, gt=0, le=SECONDS_MOST)
    """How often a worker renews the leases of its visits, and learns of cancels."""
    drain_s: Seconds = Field(20.0, ge=0, le=SECONDS_MOST)
    """How long a worker that is told to stop waits for its running visits before it hands them back. Stopping takes up
    to 8 s more, so the default fits Kubernetes' 30 s."""
    task_events: bool = True
    """Workers tell Flower of each visit. Costs an eighth of a worker's time for a visit of no work."""
    redispatch_after_s: Seconds = Field(10.0, gt=0, le=SECONDS_MOST)
    """A visit queued this long without a claim is published again if its message has left the queue; then later each
    time, up to an hour. On a broker that does not show its queues: after an hour, then eight."""
    max_redeliveries: int = Field(3, ge=0, le=COUNT_MOST)
    """A visit whose worker was lost this many times fails with WorkerLost."""
    batch_window: int = Field(0, ge=0, le=COUNT_MOST)
    """Rows of batches become runs while the fleet has fewer visits than this before it. 0: four for each slot of
    the workers that are there, at least 16."""
    once_wait_replicas: int = Field(0, ge=0)
    """Before the work of a node with `effect: once` begins, so many replicas of Redis must have its claim. 0: none."""
    owner_ttl_s: Seconds = Field(3.0, gt=0, le=SECONDS_MOST)
    """A scheduler that is silent this long loses its partitions."""
    retention_s: Seconds = Field(7 * 24 * 3600.0, gt=0, le=SECONDS_MOST)
    """How long a finished run is kept. Unfinished runs never expire."""
    work_retention_s: float = Field(24 * 3600.0, ge=0, le=SECONDS_MOST)
    """How long a worker's machine keeps the scratch folder of a run that is over. Empty ones go at once, and so do
    those on a full disk."""
    archive: Annotated[Path, AfterValidator(Path.absolute)] | None = None
    """Schedulers write finished runs into this folder before they expire (docs/operations.md). Unset: they do not."""
    archive_gzip: bool = False
    """The files of the archive are compressed."""
    archive_file_bytes: int = Field(100 * 2**20, gt=0, le=BYTES_MOST)
    """A file of the archive that has grown to this size is not written to any more."""
    bundle_cache_bytes: int = Field(2 * 2**30, gt=0, le=BYTES_MOST)
    """A worker's machine keeps so much of the agent folders that it has unpacked, those used last."""
    max_prompt_bytes: int = Field(4 * 2**20, gt=0, le=BYTES_MOST)
    """A larger prompt is refused at submit."""
    max_bundle_bytes: int = Field(16 * 2**20, gt=0, le=BYTES_MOST)
    """A larger agent folder (compressed) is refused at submit."""
    max_unpacked_bytes: int = Field(MOST_UNPACKED_BYTES, gt=0, le=BYTES_MOST)
    """An agent folder with more bytes is refused at submit, by schedulers and by workers: set it alike everywhere."""
    max_journal_steps: int = Field(5_000_000, gt=0)
    """A run whose journal has so many steps fails: a loop without an end would fill Redis. A step takes 300 bytes and
    what it writes."""
    max_session_messages: int = Field(10_000, gt=0)
    """A session keeps so many messages, those said last; whole turns are dropped."""
    max_output_bytes: int = Field(16 * 2**20, gt=0, le=BYTES_MOST)
    """A script whose stdout, or a node whose delta, is larger fails."""
    tool_timeout_s: Seconds = Field(120.0, gt=0, le=SECONDS_MOST)
    """A tool call that runs longer is killed, and the model is told."""
    mcp_queue: str = "llm"
    """The queue of workers that speak to MCP servers; they need mcp.json, and the secrets it names."""
    max_tool_result_bytes: int = Field(256 * 1024, gt=0, le=BYTES_MOST)
    """Of a larger result of a tool call the model gets the beginning, and a note of how much was cut."""
    compression_threshold: int = Field(4000, gt=0, le=COUNT_MOST)
    """When a session has grown to so many tokens (an estimate), it is replaced by a summary; an agent's own
    `compression_threshold` goes before this."""
    knowledge: str | None = None
    """Where knowledge bases are shared with all workers: a folder that they all see, or `s3://bucket/prefix`. Unset:
    `<home>/knowledge`, which only workers of this machine see."""
    knowledge_cache_bytes: int = Field(10 * 2**30, gt=0, le=BYTES_MOST)
    """A worker keeps so much of what it fetched from S3, those used last."""
    max_document_bytes: int = Field(64 * 2**20, gt=0, le=BYTES_MOST)
    """A larger document is not loaded into a knowledge base."""
    document_s: Seconds = Field(60.0, gt=0, le=SECONDS_MOST)
    """A document that takes longer to read is not loaded."""
    crawl_pages: int = Field(500, gt=0, le=COUNT_MOST)
    """A crawl (`https://...**`) stops after so many pages,"""
    crawl_depth: int = Field(8, ge=0, le=COUNT_MOST)
    """so many links away from the first one,"""
    crawl_bytes: int = Field(200 * 2**20, gt=0, le=BYTES_MOST)
    """so many bytes,"""
    crawl_s: Seconds = Field(600.0, gt=0, le=SECONDS_MOST)
    """and so much time."""
    private_urls: bool = False
    """Documents may be fetched from addresses of private networks and of this machine."""
    metrics_port: int | None = Field(None, ge=0, le=65535)
    """A scheduler answers /metrics and /health on this port (docs/metrics.md); 0: on any free one, which its log names.
    Unset: it opens no port."""
    metrics_host: str = "127.0.0.1"
    """The address that it listens on; 0.0.0.0 or :: for all. Whoever reaches it can read it."""
    log_level: Literal["trace", "debug", "info", "warning", "error"] = "info"
    """What services log. debug adds entries and routes, trace the full state, which may hold secrets."""
    log_format: Literal["auto", "json", "console"] = "auto"
    """auto: console on a terminal, JSON lines elsewhere."""

    @field_validator("replay")
    @classmethod
    def _not_both(cls, replay: Path | None, others: ValidationInfo) -> Path | None:
        if replay is not None and others.data.get("record") is not None:
            raise ValueError(f"{PREFIX}RECORD is set too; a run is recorded or replayed, not both")
        return replay

    @property
    def names_of_secrets(self) -> list[str]:
        return [name.strip() for name in self.secret_names.split(",") if name.strip()]

    @property
    def broker(self) -> str | None:
        return self.broker_url or self.redis_url

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None, **overrides: Any) -> Settings:
        """Settings from SLEIPNIR_* variables. Raises ConfigError naming an unknown or unusable variable."""
        env = os.environ if env is None else env
        values: dict[str, Any] = {}
        for name, text in env.items():
            if not name.startswith(PREFIX) or name == failpoints.VARIABLE:
                continue
            key = name[len(PREFIX) :].lower()
            if key not in cls.model_fields:
                raise ConfigError(_unknown(name, [PREFIX + field.upper() for field in cls.model_fields]))
            if not text.isascii() and not _is_text(text):
                raise ConfigError(f"{name}={text[:SHOWN]!r} is not text in UTF-8")
            if text != "":
                values[key] = text
        try:
            return cls(**(values | overrides))
        except ValidationError as error:
            first = error.errors()[0]
            name = PREFIX + str(first["loc"][0]).upper()
            raise ConfigError(f"{name}={str(first['input'])[:SHOWN]!r}: {first['msg']}") from None

    def shared_digests(self) -> dict[str, str]:
        """The settings that all schedulers of a deployment must have alike, by the names of their variables; of each
        only a short digest is shown to others. A broker's login does not count, nor how its address is spelled."""
        broker = (self.broker_url or "").rpartition("@")[2]
        values = {name: getattr(self, name) for name in SHARED} | {"broker_url": broker}
        return {PREFIX + name.upper(): sha256(repr(value).encode()).hexdigest()[:8] for name, value in values.items()}

    def to_log(self) -> dict[str, Any]:
        """What a process logs at start: settings that are not at their defaults, but for the addresses, which may hold
        a password. `sleipnir doctor --settings` lists all."""
        return self.model_dump(mode="json", exclude={"redis_url", "broker_url"}, exclude_defaults=True)

    def to_env(self) -> dict[str, str]:
        """The variables that make a child process read these same settings; unset and default values are left out."""
        dumped = self.model_dump(mode="json", exclude_none=True, exclude_unset=True)
        return {PREFIX + name.upper(): str(value) for name, value in dumped.items()}


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

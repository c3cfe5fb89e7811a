"""`up`, `scheduler`, `worker` and `console`: starting the processes of a deployment.

Rule. Services are started as commands, never by import: the command line must not depend on the packages of the
scheduler and the workers, and a process that execs keeps its pid and signals for its supervisor.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NoReturn

import click

from sleipnir.cli.options import COUNT, COUNT_OR_NONE, GlobalOptions, Seconds, pass_options
from sleipnir.errors import ConfigError

if TYPE_CHECKING:
    from sleipnir.settings import Settings

CELERY_LEVELS = {"trace": "DEBUG"}  # Celery knows no trace; the other names are the same in capitals


@click.command()
@click.option("--scripts", type=COUNT_OR_NONE, default=2, show_default=True, help="Scripts at a time.")
@click.option("--llm", type=COUNT_OR_NONE, default=4, show_default=True, help="Model calls at a time.")
@click.option("--console", "with_console", is_flag=True, help="Also serve the HTTP API (docs/http-api.md).")
@click.option("--webhooks", "with_webhooks", is_flag=True, help="Also send webhooks (docs/webhooks.md).")
@pass_options
def up(options: GlobalOptions, scripts: int, llm: int, with_console: bool, with_webhooks: bool) -> None:
    """Run a scheduler and workers here until Ctrl-C; without a Redis URL, a private Redis too."""
    from sleipnir.local.supervisor import supervise

    if with_console:
        refuse_without_console()
    supervise(options.settings(), scripts=scripts, llm=llm, console=with_console, webhooks=with_webhooks)


@click.command()
@click.option(
    "--paused", is_flag=True, help="Pause the deployment first (after an incident); then `sleipnir resume --all`."
)
@pass_options
def scheduler(options: GlobalOptions, paused: bool) -> None:
    """Become a scheduler. Any number may run; they share the partitions."""
    become([*scheduler_command(), *(["--paused"] if paused else [])], options.settings())


@click.command()
@click.option(
    "-Q", "--queues", default="scripts,functions", show_default=True, help="Comma list: scripts,functions,llm,rag."
)
@click.option(
    "-c",
    "--concurrency",
    type=COUNT,
    default=os.cpu_count() or 1,
    help="Visits at a time. Default: one per core.",
)
@click.option(
    "-P",
    "--pool",
    type=click.Choice(["prefork", "threads", "solo"]),
    default="prefork",
    show_default=True,
    help="threads suits scripts and model calls, prefork suits Python functions.",
)
@click.option(
    "-n", "--name", help="The worker's name; `@host` is added. Default: the first queue's name and the process id."
)
@click.option(
    "--health",
    is_flag=True,
    help="Start nothing: check whether the worker (-n; default: those of this host) consumes. Exit code 1 if not.",
)
@click.option(
    "--within",
    type=Seconds(min=1),
    default=45.0,
    show_default=True,
    metavar="DURATION",
    help="With --health: maximum age of the announcement.",
)
@pass_options
def worker(
    options: GlobalOptions, queues: str, concurrency: int, pool: str, name: str | None, health: bool, within: float
) -> int:
    """Become a Celery worker that executes visits of these queues; or, with --health, check one."""
    settings = options.settings()
    if health:
        from sleipnir.cli.fleet.health import report

        return report(with_redis(settings), name, within)
    become(worker_command(queues, concurrency, pool, name, settings.log_level), settings)


@click.command()
@click.option("--host", metavar="ADDRESS", help="Listen on this address. Default: SLEIPNIR_CONSOLE_HOST, 127.0.0.1.")
@click.option("--port", type=click.IntRange(0, 65535), help="Default: SLEIPNIR_CONSOLE_PORT, 8470. 0: any free port.")
@click.option(
    "--behind-proxy", "proxies", metavar="ADDRESS,...", help="Proxies with TLS, from which alone requests come."
)
@pass_options
def console(options: GlobalOptions, host: str | None, port: int | None, proxies: str | None) -> None:
    """Become the server of the HTTP API (docs/http-api.md)."""
    refuse_without_console()
    given = {"console_host": host, "console_port": port, "console_proxies": proxies}
    settings = options.settings().replaced(**{name: value for name, value in given.items() if value is not None})
    become(console_command(), settings)


def refuse_without_console() -> None:
    """Raises ConfigError if what serves HTTP is not installed."""
    from importlib.util import find_spec

    missing = [name for name in ("argon2", "fastapi", "uvicorn") if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"the HTTP API needs {' and '.join(missing)}, which the extra `console` brings: "
            "in a checkout: `pip install '.[console]'`"
        )


def console_command() -> list[str]:
    return [sys.executable, "-m", "sleipnir_console"]


def sender_command() -> list[str]:
    return [sys.executable, "-m", "sleipnir.webhook_sender"]


def scheduler_command() -> list[str]:
    return [sys.executable, "-m", "sleipnir_scheduler"]


def worker_command(queues: str, concurrency: int, pool: str, name: str | None, log_level: str) -> list[str]:
    """Celery's command line. Gossip and mingle are off: workers do not need to know each other, because leases replace
    that."""
    # The worker keeps this process's pid. Two of one name on a host would count as one in doctor and in metrics.
    chosen = name or f"{queues.split(',')[0]}-{os.getpid()}"
    return [
        sys.executable, "-m", "celery", "-A", "sleipnir_workers.app", "worker",
        "-Q", queues, "-c", str(concurrency), "-P", pool,
        "-n", chosen if "@" in chosen else f"{chosen}@%h",
        "--loglevel", CELERY_LEVELS.get(log_level, log_level.upper()),
        "--without-gossip", "--without-mingle",
    ]  # fmt: skip


def become(command: list[str], settings: Settings) -> NoReturn:
    """Replace this process by the command, which reads the same settings. Raises ConfigError without a Redis URL."""
    env = {**os.environ, **with_redis(settings).to_env()}
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvpe(command[0], command, env)


def with_redis(settings: Settings) -> Settings:
    """The settings. Raises ConfigError without a Redis URL."""
    if settings.redis_url is None:
        raise ConfigError(
            "SLEIPNIR_REDIS_URL is not set, and a service on its own needs a Redis to share with the others. "
            "Set it, or use `sleipnir up`, which starts everything."
        )
    return settings

"""Serve the HTTP API until a stop signal.

Rule. Until there are users, everybody who reaches it may do everything: then it listens on this machine alone. Others
reach it by TLS, its own or that of a proxy.
"""

from __future__ import annotations

import contextlib
import gc
import resource
import signal
import socket
import sys
from typing import Final

import structlog
import uvicorn

from sleipnir import hardening, tracing
from sleipnir.client.client import Client
from sleipnir.errors import ConfigError, SleipnirError
from sleipnir.logs import configure
from sleipnir.settings import Settings
from sleipnir.store.address import safe_url
from sleipnir_console.app import create_app
from sleipnir_console.authentication import Authentication
from sleipnir_console.connections import BoundedProtocol
from sleipnir_console.login_provider.provider_settings import ProviderSettings

STOP_S: Final = 10
"""How long requests that are being answered may take when the server stops. Streams of events end at once: their
readers resume with `Last-Event-ID`."""
HEADERS_BYTES: Final = 192 * 1024
"""The first line and the headers of a request: a cursor of 1,000 runs has 80 kB."""
IDLE_S: Final = 15
"""An idle connection is kept open for the next request of its client for this time."""


def main() -> None:
    """Read settings, serve until SIGTERM or SIGINT. Exit code 1 with a message if it cannot begin."""
    hardening.refuse_inspection()
    try:
        settings = Settings.from_env()
        configure(settings)
        tracing.configure("sleipnir-console")
        check(settings)
        serve(settings)
    except SleipnirError as error:
        sys.exit(f"error: {error}")


def check(settings: Settings) -> None:
    """Raises ConfigError for settings with which it must not begin."""
    if settings.redis_url is None:
        raise ConfigError(
            "SLEIPNIR_REDIS_URL is not set: name the Redis of the deployment, or use `sleipnir up --console`"
        )
    if bool(settings.console_tls_cert) != bool(settings.console_tls_key):
        raise ConfigError("SLEIPNIR_CONSOLE_TLS_CERT and SLEIPNIR_CONSOLE_TLS_KEY are given together, or not at all")
    for name, file in (("CERT", settings.console_tls_cert), ("KEY", settings.console_tls_key)):
        if file is not None and not file.is_file():
            raise ConfigError(f"SLEIPNIR_CONSOLE_TLS_{name}: there is no file {file}")
    provider = ProviderSettings.of(settings)
    if Authentication.of(settings).is_private:
        return
    if not settings.console_tls_cert and not settings.console_proxies:
        raise ConfigError(
            f"SLEIPNIR_CONSOLE_HOST={settings.console_host!r} is not an address of this machine alone: passwords and "
            "tokens would be sent in clear text. Set SLEIPNIR_CONSOLE_TLS_CERT and SLEIPNIR_CONSOLE_TLS_KEY, or "
            "`--behind-proxy` with the address of a proxy that has TLS; or bind 127.0.0.1"
        )
    if provider is not None:
        return  # it knows the users
    with Client(settings) as client:
        if not client.access.has_users():
            raise ConfigError(
                "others can reach this server, and there are no users, so that everybody could do everything: add one "
                "with `sleipnir users add NAME --role admin`"
            )


def serve(settings: Settings) -> None:
    """Serve until a stop signal. Raises ConfigError if the address is taken."""
    server = uvicorn.Server(
        uvicorn.Config(
            "sleipnir_console",  # replaced below: the application asks the server whether it stops
            host=settings.console_host,
            port=settings.console_port,
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=True,
            proxy_headers=False,
            timeout_keep_alive=IDLE_S,
            http=BoundedProtocol,
            h11_max_incomplete_event_size=HEADERS_BYTES,
            timeout_graceful_shutdown=STOP_S,
            lifespan="on",
            ws="none",
            ssl_certfile=settings.console_tls_cert,
            ssl_keyfile=settings.console_tls_key,
        )
    )
    server.config.app = create_app(settings, is_stopping=lambda: server.should_exit)
    _allow_connections()
    listener = _bound(server.config)
    host, port = listener.getsockname()[:2]
    structlog.get_logger().info(
        "console starts",
        address=f"{'https' if settings.console_tls_cert else 'http'}://{host}:{port}",
        redis=safe_url(str(settings.redis_url)),
        **settings.to_log(),
    )
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: None)  # uvicorn raises the signal again when it has stopped
    gc.freeze()  # what exists now lives as long as the process; a collection of all of it would take 200 ms
    gc.set_threshold(20_000, 10, 10)  # requests hardly ever create cycles
    try:
        server.run(sockets=[listener])
    finally:
        listener.close()
        tracing.flush()


def _allow_connections() -> None:
    """As many files as this process may open: each connection is one, and shells set 1,024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS names a limit that it does not take
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _bound(config: uvicorn.Config) -> socket.socket:
    """A socket at the address, before the application starts, so that an error names the address."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((config.host, config.port))
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {config.host}:{config.port}: {error.strerror}") from None
    listener.set_inheritable(True)
    return listener

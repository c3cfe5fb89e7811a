"""Serve the HTTP API until a stop signal.

Rule. It listens on this machine alone: until there are users, everybody who reaches it may do everything.
"""

from __future__ import annotations

import ipaddress
import signal
import socket
import sys
from typing import Final

import structlog
import uvicorn

from sleipnir import hardening, tracing
from sleipnir.errors import ConfigError, SleipnirError
from sleipnir.logs import configure
from sleipnir.settings import Settings
from sleipnir.store.address import safe_url
from sleipnir_console.app import create_app

STOP_S: Final = 10
"""How long requests that are being answered may take when the server stops. Streams of events end at once: their
readers resume with `Last-Event-ID`."""
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
    if not is_loopback(settings.console_host):
        raise ConfigError(
            f"SLEIPNIR_CONSOLE_HOST={settings.console_host!r} is not an address of this machine alone. Everybody "
            "who can reach the console may do everything, because it knows no users: bind 127.0.0.1, and let others in "
            "through an SSH tunnel"
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


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
            timeout_graceful_shutdown=STOP_S,
            lifespan="on",
            ws="none",
        )
    )
    server.config.app = create_app(settings, is_stopping=lambda: server.should_exit)
    listener = _bound(server.config)
    host, port = listener.getsockname()[:2]
    structlog.get_logger().info(
        "console starts", address=f"http://{host}:{port}", redis=safe_url(str(settings.redis_url)), **settings.to_log()
    )
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: None)  # uvicorn raises the signal again when it has stopped
    try:
        server.run(sockets=[listener])
    finally:
        listener.close()
        tracing.flush()


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

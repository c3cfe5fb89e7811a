"""Does the server of the HTTP API of this container answer? Exit status 0 or 1.

It asks only whether the process answers: a server whose Redis is away recovers by itself. It goes by the settings of
the server, which the container's environment has.
"""

from __future__ import annotations

import http.client
import ssl
import sys

from sleipnir.errors import SleipnirError
from sleipnir.settings import Settings

TIMEOUT_S = 8


def main() -> None:
    try:
        settings = Settings.from_env()
    except SleipnirError as error:
        sys.exit(f"unhealthy: {error}")
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.console_host, settings.console_host)
    try:
        status = _status(host, settings.console_port, has_tls=settings.console_tls_cert is not None)
    except (OSError, http.client.HTTPException) as error:
        sys.exit(f"unhealthy: {host}:{settings.console_port} does not answer: {error}")
    if status != 200:
        sys.exit(f"unhealthy: {host}:{settings.console_port} answers with {status}")
    print(f"healthy: {host}:{settings.console_port}")


def _status(host: str, port: int, *, has_tls: bool) -> int:
    """Raises OSError and HTTPException. The certificate is for the name that clients use, and not for this address."""
    connection: http.client.HTTPConnection
    if has_tls:
        context = ssl._create_unverified_context()
        connection = http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=context)
    else:
        connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/api/v1/health/live")
        return connection.getresponse().status
    finally:
        connection.close()


if __name__ == "__main__":
    main()

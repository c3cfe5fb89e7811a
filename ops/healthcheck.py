"""Is the scheduler of this container there? Exit status 0 or 1. For workers: `sleipnir worker --health`.

A scheduler announces itself in Redis every few seconds; one without a heartbeat for 30 s counts as stopped. A scheduler
whose Redis is away is unhealthy too: it cannot work, and nothing is lost when it is started again.
"""

from __future__ import annotations

import socket
import sys

from sleipnir.errors import SleipnirError
from sleipnir.settings import Settings
from sleipnir.store.store import Store


def main() -> None:
    try:
        with Store.open(Settings.from_env(), client_name="sleipnir-healthcheck") as store, store.errors():
            schedulers = store.health().schedulers
    except SleipnirError as error:
        sys.exit(f"unhealthy: {error}")
    host = socket.gethostname()
    local = [name for name in schedulers if name.startswith(f"{host}:")]
    if not local:
        sys.exit(f"unhealthy: no scheduler of {host} has announced itself in the last 30 s")
    print(f"healthy: {', '.join(local)}")


if __name__ == "__main__":
    main()

"""Is the service of this container there? `python healthcheck.py scheduler` or `worker`; exit status 0 or 1.

Both announce themselves in Redis every 5 s, and one that was silent for 30 s is not there. A container whose Redis
is away is unhealthy too: it cannot work. `celery inspect ping` would cost a second of CPU and would still answer from
a worker whose announcements fail.
"""

from __future__ import annotations

import socket
import sys

from sleipnir.errors import SleipnirError
from sleipnir.settings import Settings
from sleipnir.store.store import Store


def main() -> None:
    service = sys.argv[1] if len(sys.argv) == 2 else ""
    if service not in ("scheduler", "worker"):
        sys.exit("usage: healthcheck.py scheduler|worker")
    try:
        with Store.open(Settings.from_env(), client_name="sleipnir-healthcheck") as store, store.errors():
            health = store.health()
    except SleipnirError as error:
        sys.exit(f"unhealthy: {error}")
    host = socket.gethostname()
    if service == "scheduler":
        here = [name for name in health.schedulers if name.startswith(f"{host}:")]
    else:
        here = [worker.name for worker in health.workers if worker.name.endswith(f"@{host}")]
    if not here:
        sys.exit(f"unhealthy: no {service} of {host} has announced itself in the last 30 s")
    print(f"healthy: {', '.join(here)}")


if __name__ == "__main__":
    main()

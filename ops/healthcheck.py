"""Is the scheduler of this container there, or with the argument `webhooks` its sender of webhooks? Exit status 0 or 1.
For workers: `sleipnir worker --health`.

Both announce themselves in Redis every few seconds; one without a heartbeat for 30 s counts as stopped. One whose Redis
is away is unhealthy too: it cannot work, and nothing is lost when it is started again.
"""

from __future__ import annotations

import socket
import sys

from sleipnir.errors import SleipnirError
from sleipnir.settings import Settings
from sleipnir.store.store import Store


def main() -> None:
    if sys.argv[1:] not in ([], ["webhooks"]):
        sys.exit(f"unhealthy: {' '.join(sys.argv[1:])!r} is nothing that this checks: webhooks is")
    of_webhooks = bool(sys.argv[1:])
    try:
        with Store.open(Settings.from_env(), client_name="sleipnir-healthcheck") as store, store.errors():
            names = store.webhooks.senders() if of_webhooks else store.health().schedulers
    except SleipnirError as error:
        sys.exit(f"unhealthy: {error}")
    host = socket.gethostname()
    local = [name for name in names if name.startswith(f"{host}:")]
    if not local:
        what = "sender of webhooks" if of_webhooks else "scheduler"
        sys.exit(f"unhealthy: no {what} of {host} has announced itself in the last 30 s")
    print(f"healthy: {', '.join(local)}")


if __name__ == "__main__":
    main()

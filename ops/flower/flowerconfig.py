"""Flower's configuration: `celery -A sleipnir_workers.app flower --conf=ops/flower/flowerconfig.py`.

It needs users: FLOWER_BASIC_AUTH=user:password, several with commas between them; without one Flower does not start.
Any option can be set as FLOWER_<NAME> in the environment or as --<name> on the command line, which both go before what
is here. Flower executes this file as it starts.
"""

import os
import re
import sys

from tornado.options import options

DEFAULTS = {
    # Read-only: no sending or revoking of tasks, stopping of workers, or changes of pools, rates and time limits. Our
    # runs are cancelled with `sleipnir cancel`; a task that Celery revokes is published again.
    "read_only": True,
    # The address that a browser on the same machine reaches; a container sets 0.0.0.0.
    "address": "127.0.0.1",
    # Workers send events by themselves, in batches (SLEIPNIR_TASK_EVENTS). Flower would ask all of them every 5 s.
    "enable_events": False,
    # A view of what happens now; what has happened is in `sleipnir history`, for as long as the run is kept.
    "persistent": False,
    # Only counts are kept of older ones. A task takes 5 kB of memory, so this is 100 MB.
    "max_tasks": 20_000,
    # Stopped workers stay on the page for half an hour; then their metrics are removed too.
    "purge_offline_workers": 1800,
    "natural_time": True,
    "tasks_columns": "name,uuid,state,routing_key,runtime,received,args,result,exception,worker",
}
globals().update({name: value for name, value in DEFAULTS.items() if f"FLOWER_{name.upper()}" not in os.environ})

USER = re.compile(r"[^:]+:.+")
if not options.auth and not (options.basic_auth and all(map(USER.fullmatch, options.basic_auth))):
    sys.exit("error: Flower shows what runs here, so it needs users: set FLOWER_BASIC_AUTH=user:password")

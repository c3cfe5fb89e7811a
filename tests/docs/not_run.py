"""The one list of commands in the documents that the tests do not run, with the reason of each.

A page's entry is the beginning of commands. One that no command begins with fails the tests, so the list has nothing
that is not needed. That the commands exist with their options is tested of these too.
"""

from __future__ import annotations

from collections.abc import Mapping

DEVELOPER = "it is for who works on Sleipnir, and runs the tests themselves or a measurement of an hour"
SERVICE = "it runs until it is stopped; tests/system/test_deployment.py starts and stops all services"
CONSOLE = "it runs until it is stopped; tests/system/test_http_server.py starts and asks it"
WEBHOOKS = "it needs a receiver; tests/system/test_webhooks.py runs these commands with one"
DOCKER = "it needs Docker"
KUBERNETES = "it needs a Kubernetes cluster"
ROOT_USER = "it needs root"
NETWORK = "it needs the internet"

NOT_RUN: Mapping[str, Mapping[str, str]] = {
    "README.md": {"make demo": "CI runs it (.ci/run); it sets up an environment first", "pip install": NETWORK},
    "CONTRIBUTING.md": {"make ": DEVELOPER, ".venv/bin/python ops/": DEVELOPER, ".ci/run": DEVELOPER},
    "agents/code-review/README.md": {
        "sleipnir run code-review --answer approve=post | gh": "it needs GitHub's command line and an account"
    },
    "agents/deep-research/README.md": {
        'sleipnir run deep-research "How are releases made?"': NETWORK,
    },
    "agents/log-triage/README.md": {
        "sleipnir run log-triage /var/log/syslog": "what it says depends on the machine's own log",
        "SLEIPNIR_MODEL=openai:recorded": "tests/system/test_demo.py replays it, in a home where no run waits",
    },
    "docs/deployment.md": {
        "docker ": DOCKER,
        "kubectl ": KUBERNETES,
        "python3 -m venv /opt": ROOT_USER,
        "cp ops/deploy/systemd": ROOT_USER,
        "install -": ROOT_USER,
        "chown -R 10001": ROOT_USER,
        "(umask 077; openssl rand -hex 32 > /etc/sleipnir": ROOT_USER,
        "systemctl ": ROOT_USER,
    },
    "docs/drawing.md": {"sleipnir draw log-triage -o log-triage.png": "it needs Graphviz"},
    "docs/first-agent.md": {
        "": "tests/system/test_init.py follows this page, with all that it prints",
    },
    "console/README.md": {"sleipnir console": CONSOLE},
    "docs/console.md": {"sleipnir console": CONSOLE},
    "docs/http-api.md": {"": CONSOLE},
    "docs/a2a.md": {"": CONSOLE},
    "docs/openai-api.md": {"": CONSOLE},
    "docs/mcp.md": {"python -m sleipnir_workers.mcp check": NETWORK},
    "docs/models.md": {"OPENAI_API_KEY=sk-... SLEIPNIR_MODEL": SERVICE},
    "docs/operations.md": {
        "sleipnir scheduler": SERVICE,
        "sleipnir worker": SERVICE,
        "python -m celery -A sleipnir_workers.app flower": SERVICE.replace("deployment", "flower"),
    },
    "docs/performance.md": {"make bench": DEVELOPER},
    "docs/redis-servers.md": {"TESTED_REDIS=": DEVELOPER},
    "docs/testing.md": {
        "python -m sleipnir.testing serve": SERVICE.replace("system/test_deployment", "integration/testing"),
    },
    "docs/webhooks.md": {"": WEBHOOKS},
    "scheduler/README.md": {"sleipnir scheduler": SERVICE},
    "workers/README.md": {"sleipnir worker": SERVICE},
}


def reason(page: str, command: str) -> str | None:
    """Why this line is not run; None if it is."""
    return next((why for begins, why in NOT_RUN.get(page, {}).items() if command.startswith(begins)), None)

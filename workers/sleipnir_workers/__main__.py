"""`python -m sleipnir_workers [options of celery worker]`: the same as `celery -A sleipnir_workers.app worker`, faster.

The `celery` command imports all of its subcommands, its shell and its plugins (Flower) first: a third of the start.
"""

from __future__ import annotations

from sleipnir import hardening

hardening.refuse_inspection()  # before the imports, which take a while

from celery.bin.base import CLIContext  # noqa: E402
from celery.bin.worker import worker  # noqa: E402

from sleipnir_workers.app import app  # noqa: E402


def main() -> None:
    worker.main(prog_name="python -m sleipnir_workers", obj=CLIContext(app=app, no_color=True, workdir=None))


if __name__ == "__main__":
    main()

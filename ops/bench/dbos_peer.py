"""DBOS: a workflow of no-op steps. Prints its figures as JSON."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from peer_load import Load, OneRun, from_arguments, measure

MAKE_TABLES = (
    "import json, sys; from dbos import DBOS; DBOS(config=json.loads(sys.argv[1])); DBOS.launch(); DBOS.destroy()"
)


def config(load: Load) -> Any:
    return {"name": "bench", "system_database_url": load.store, "log_level": "ERROR", "application_version": "1"}


def prepare(load: Load, number: int) -> OneRun:
    from dbos import DBOS, SetWorkflowID

    @DBOS.step()
    def no_op() -> None:
        """Nothing."""

    @DBOS.workflow()
    def chain() -> None:
        for _ in range(load.nodes):
            no_op()

    DBOS(config={**config(load), "executor_id": f"executor-{number}"})
    DBOS.launch()

    def one_run(run_id: str) -> None:
        with SetWorkflowID(run_id):
            chain()

    return one_run


def make_tables(load: Load) -> None:
    """In a process of its own: what DBOS starts does not survive the fork that follows."""
    import json

    subprocess.run([sys.executable, "-c", MAKE_TABLES, json.dumps(config(load))], check=True)


if __name__ == "__main__":
    wanted = from_arguments(__doc__)
    make_tables(wanted)
    measure(wanted, prepare)

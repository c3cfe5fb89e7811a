"""The store, for clients: create runs, read them, answer and cancel. The scheduler plans and commits.

creation         accept a run
requests         cancel, pause, resume and retry it; notify other runs
gates            its open questions, and the answers to them; gate_requests claims and assigns them,
                 gate_lists finds those that a person wants to see
run_infos        what it is and what it waits for; visit_infos does the same for its visits
lineage          the run that it was forked from, and its forks
journal          what it has done: journal, state, output; compared_runs what is compared of many
event_streams    what happens to it from now on
run_index        which runs there are; run_lists finds those that a query wants, failure_groups those that failed alike
deployment_hold  pause and resume all of them

Sessions are in store/sessions.py, batches in store/batches, outputs of models in store/live.py.
"""

from __future__ import annotations

from sleipnir.store.runs.compared_runs import ComparedRuns
from sleipnir.store.runs.creation import RunCreation
from sleipnir.store.runs.deployment_hold import DeploymentHold
from sleipnir.store.runs.event_streams import EventStreams
from sleipnir.store.runs.failure_groups import FailureGroups
from sleipnir.store.runs.gate_lists import GateLists
from sleipnir.store.runs.gate_requests import GateRequests
from sleipnir.store.runs.lineage import RunLineage
from sleipnir.store.runs.requests import RunRequests
from sleipnir.store.runs.run_index import RunIndex


class Runs(
    RunCreation, RunRequests, GateRequests, GateLists, RunIndex, FailureGroups, RunLineage, ComparedRuns, EventStreams,
    DeploymentHold,
):  # fmt: skip
    """The operations of clients on runs, on one connection."""

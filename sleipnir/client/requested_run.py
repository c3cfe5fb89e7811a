"""Ids that callers give to their submissions: the same request again is the same run.

The id of the run follows from the request's, so two submissions of a request, one after the other or at once, are one
run. A run of a session or a thread lives in the partition of that, so there the id is the first of a fixed series that
does. A request is known as long as its run is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sleipnir.batches.records import request_run_id
from sleipnir.errors import RunNotFound, UsageError
from sleipnir.store.keys import Keys
from sleipnir.store.store import Store

MOST_CHARACTERS: Final = 200


def checked(request_id: str) -> str:
    """Raises UsageError for what is no request id."""
    if not isinstance(request_id, str) or not request_id.strip() or len(request_id) > MOST_CHARACTERS:
        raise UsageError(f"a request id is a text of 1 to {MOST_CHARACTERS} characters, not {request_id!r:.60}")
    return request_id


def run_id_of(request_id: str, keys: Keys, partition: int | None) -> str:
    """The id of a request's run, in a partition (None: in any)."""
    number = 0
    while True:
        run_id = request_run_id(request_id, number)
        if partition in (None, keys.partition_of(run_id)):
            return run_id
        number += 1


def is_known(
    store: Store, run_id: str, request_id: str, agent: str, begin: Mapping[str, Any], user: str | None
) -> bool:
    """Whether the run of a request exists. Raises UsageError if it is one of another agent or user, or if it began with
    other values than those of `begin`."""
    try:
        spec = store.runs.spec(run_id)
        first = store.runs.fold(run_id, 0)
    except RunNotFound:
        return False
    if spec.agent != agent:
        raise UsageError(f"request id {request_id!r} belongs to run {run_id} of agent {spec.agent!r}")
    if spec.user != user:
        raise UsageError(f"request id {request_id!r} belongs to run {run_id}, which is of user {spec.user!r}")
    differing = [key for key, value in begin.items() if key in first and first[key] != value]
    if differing:
        raise UsageError(
            f"request id {request_id!r} belongs to run {run_id}, which was submitted with another {differing[0]!r}. "
            "Another request needs another id"
        )
    return True

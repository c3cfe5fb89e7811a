"""Batches in Redis: waiting rows, results of rows, and requests of people.

1. A row is added once, even if it is submitted repeatedly: its key identifies it.
2. A scheduler admits rows: it moves a waiting row to the effects of the batch's partition atomically, so that a crash
   neither loses nor duplicates it. The id of the row's run is derived from batch and row.
3. A run reports each of its ends to its batch by an effect. Repeated and late reports change nothing.

On one Redis all batches are in the first partition; in a cluster, each is in the partition of its id.

rows       rows are added and read; records has what a reader makes of the record of a batch
requests   seal, hold, replan, cancel and retry
results    how rows ended; row_ends records it, rollups counts it
lists      which batches there are
admission  what admits rows
"""

from __future__ import annotations

from sleipnir.store.batches.admission import BatchAdmission
from sleipnir.store.batches.lists import BatchLists
from sleipnir.store.batches.requests import BatchRequests
from sleipnir.store.batches.results import RowResults
from sleipnir.store.batches.row_ends import RowEnds


class Batches(BatchRequests, RowResults, RowEnds, BatchLists, BatchAdmission):
    """The operations of clients and schedulers on batches, on one connection."""

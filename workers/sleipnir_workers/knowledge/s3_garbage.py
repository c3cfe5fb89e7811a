"""What `gc` needs of an index store in S3 (sleipnir/upkeep/garbage.py): to list its bases, and to remove one."""

from __future__ import annotations

import time

from sleipnir.errors import KnowledgeError
from sleipnir.knowledge.files import index_store_name
from sleipnir.knowledge.order import BuildDone, Order
from sleipnir.settings import Settings
from sleipnir.store.store import Store
from sleipnir_workers.knowledge.bucket import Bucket
from sleipnir_workers.knowledge.store_choice import index_store_of


def run(order: Order, settings: Settings) -> BuildDone:
    """Carry out `shelved` or `unshelve`. Raises KnowledgeError and StoreUnavailable."""
    index_store = index_store_of(settings)
    if not isinstance(index_store, Bucket):
        raise KnowledgeError(f"the index store {index_store_name(settings)} is not in S3", "usage")
    if order.task == "unshelve":
        return BuildDone({"removed": _remove(index_store, order, settings)})
    now_s = time.time()
    return BuildDone({"bases": [(digest, bytes_, now_s - put_s) for digest, bytes_, put_s in index_store.all()]})


def _remove(index_store: Bucket, order: Order, settings: Settings) -> bool:
    """Remove it from the list first, in this process, so that uses are seen until just before it is dropped."""
    with Store.open(settings, client_name="sleipnir-builder") as store, store.errors():
        if not store.knowledge.forget_unused(order.digest, order.before_ms):
            return False
    index_store.drop(order.digest)
    return True

"""Choose the index store of a deployment: a folder, or a bucket with a cache of fetched indexes."""

from __future__ import annotations

from pathlib import Path

from sleipnir.knowledge.files import index_store_name
from sleipnir.settings import Settings
from sleipnir_workers.knowledge.bucket import Bucket
from sleipnir_workers.knowledge.cache import Cache
from sleipnir_workers.knowledge.index_store import FolderIndexStore, IndexStore


def index_store_of(settings: Settings) -> IndexStore:
    """The index store of this deployment. It is not accessed yet."""
    name = index_store_name(settings)
    if not name.startswith("s3://"):
        return FolderIndexStore(Path(name))
    return Bucket(name, Cache(settings.home / "knowledge-cache", settings.knowledge_cache_bytes))

"""`from sleipnir.rows import read`: rows of a batch from a file (docs/batches.md). The reader is batches/rows.py."""

from sleipnir.batches.rows import Row, read

__all__ = ["Row", "read"]

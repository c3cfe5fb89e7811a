"""A load of documents, and what was told of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sleipnir.knowledge.order import BuildNotice, Progress
from sleipnir.settings import Settings
from sleipnir_workers.knowledge.base import Document
from sleipnir_workers.knowledge.failures import LoadFailed
from sleipnir_workers.knowledge.loading import load


@dataclass(frozen=True)
class Load:
    documents: list[Document]
    notices: list[str]
    progress: list[Progress]
    error: LoadFailed | None

    @property
    def text(self) -> str:
        """Of the one document."""
        [document] = self.documents
        return document.text

    @property
    def failures(self) -> dict[str, str]:
        assert self.error is not None
        return {failure.path: failure.reason for failure in self.error.failures}


def loaded(
    folder: Path,
    documents: Sequence[str],
    *,
    loaders: Mapping[str, str] | None = None,
    go_on: bool = False,
    leave_out: Collection[Path] = (),
    **settings: Any,
) -> Load:
    told: list[Progress | BuildNotice] = []
    found = []
    error = None
    try:
        for document in load(
            documents,
            folder,
            loaders=loaders or {},
            settings=Settings(**settings),
            report=told.append,
            go_on=go_on,
            leave_out=leave_out,
        ):
            found.append(document)
    except LoadFailed as failed:
        error = failed
    notices = [each.text for each in told if isinstance(each, BuildNotice)]
    return Load(found, notices, [each for each in told if isinstance(each, Progress)], error)

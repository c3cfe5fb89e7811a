"""Rules about the documents of rag nodes and of config.yaml agents, and about splitting and searching them (spec 2.7.6,
8.2). Loki has none of them: it fails when it builds the base, or not at all."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from sleipnir.graph.check_case import Case, Rule
from sleipnir.graph.findings import KeyPath
from sleipnir.graph.model import RagNode

_URL = re.compile(r"https?://", re.IGNORECASE)
_LOADER = re.compile(r"[A-Za-z_][\w.-]*:")
_WILD = re.compile(r"[*?{]")
_BASES_BEGIN = b"embedding_model:"


def every_document_path_is_valid(case: Case) -> None:
    """The message is Loki's."""
    for document, path in _documents(case):
        if not document.strip():
            case.findings.error(path, "a document is empty", "Name a file, a folder, a pattern or a URL.")
        elif ".." in PurePosixPath(_path_in(document)).parts:
            hint = "Write an absolute path, or put the documents into the agent's folder."
            case.findings.error(path, f"Invalid document path: '{document}'", hint)


def every_document_exists(case: Case) -> None:
    """A warning: the base is built without missing documents."""
    if case.folder is None:
        return
    for document, path in _documents(case):
        place = _place(document.strip(), case.folder)
        if place is not None and not _exists(place):
            message = f"document '{document}' does not exist: there is no {place}"
            case.findings.warning(path, message, "The knowledge base is built without it.")


def every_size_is_valid(case: Case) -> None:
    """Sizes of chunks are in bytes."""
    for node, path in case.nodes(RagNode):
        if node.chunk_size == 0:
            case.findings.error((*path, "chunk_size"), "chunk_size must be at least 1; it is in bytes")
        elif None not in (node.chunk_size, node.chunk_overlap) and (node.chunk_overlap or 0) >= (node.chunk_size or 0):
            message = f"chunk_overlap {node.chunk_overlap} is not less than chunk_size {node.chunk_size}"
            case.findings.warning((*path, "chunk_overlap"), message, "A twentieth of the size is usual.")
        for key, number in (("top_k", node.top_k), ("per_source", node.per_source)):
            if number == 0:
                case.findings.warning((*path, key), f"with {key} 0 a search finds nothing", "Remove it, or write 1.")


def every_source_pattern_can_match(case: Case) -> None:
    for node, path in case.nodes(RagNode):
        for index, pattern in enumerate(node.sources or ()):
            if not pattern.strip():
                hint = "Write a glob of paths or URLs, for example `*/guide/*`."
                case.findings.warning((*path, "sources", index), "an empty pattern matches no source", hint)


def every_knowledge_base_is_used(case: Case) -> None:
    """Loki uses an existing rag.yaml regardless of the config.yaml."""
    if case.folder is None or case.graph.loop is None or any(case.nodes(RagNode)):
        return
    if _begins_as_a_base(case.folder / "rag.yaml"):
        message = "rag.yaml is an unused knowledge base: the agent has no `documents`"
        case.findings.graph_warning((), message, "List the documents that it was built from, or remove the file.")


RULES: Sequence[Rule] = (
    every_document_path_is_valid,
    every_document_exists,
    every_size_is_valid,
    every_source_pattern_can_match,
    every_knowledge_base_is_used,
)


def _documents(case: Case) -> Iterator[tuple[str, KeyPath]]:
    """Every document with its path. Those of a config.yaml agent are at its top level, not in a node."""
    for node, path in case.nodes(RagNode):
        for index, document in enumerate(node.documents):
            yield document, (*(path if case.graph.loop is None else ()), "documents", index)


def _path_in(document: str) -> str:
    """The part of a source that is a path: empty for a URL; without the loader for `loader:path`."""
    text = document.strip()
    if _URL.match(text):
        return ""
    return text if (loader := _LOADER.match(text)) is None else text[loader.end() :]


def _place(document: str, folder: Path) -> Path | None:
    """The file, or the folder before the first pattern, that must exist; None if there is none."""
    parts = PurePosixPath(document).parts
    if not parts or ".." in parts or _URL.match(document) or _LOADER.match(document):
        return None
    fixed = list(itertools.takewhile(lambda part: _WILD.search(part) is None, parts))
    if fixed[:1] == ["~"]:
        return Path.home().joinpath(*fixed[1:])
    return folder.absolute().joinpath(*fixed)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that no file can have
        return False


def _begins_as_a_base(file: Path) -> bool:
    try:
        with file.open("rb") as opened:
            return opened.read(len(_BASES_BEGIN)) == _BASES_BEGIN
    except OSError:
        return False

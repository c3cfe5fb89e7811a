"""Copy shipped agents to the user's own directory, and never over an edit (spec/graph-agents.md 1.1).

Rule 1. An agent is installed as a whole. A file that its user changed or removed keeps all of that agent as it is: new
scripts with an old graph would be an untested combination. Rule 2. The digests in MANIFEST, in the agent's folder,
record what was installed. A file that matches neither the shipped nor the recorded digest was edited. Files that were
not shipped belong to the user and are not read. Rule 3. Files that shipped agents share (`.shared` beside them) are
installed with each agent that is not kept, by rules 1 and 2.

Each file is replaced in one step and the manifest last, so the next installation finishes one that was interrupted.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeAlias

from sleipnir.agents.siblings import SHARED
from sleipnir.errors import ConfigError, UsageError

MANIFEST = ".installed.json"  # a dot-file, so it is not part of a bundle
VERSION = 1

Action: TypeAlias = Literal["installed", "updated", "unchanged", "kept", "reset"]
Digests: TypeAlias = Mapping[str, str]


@dataclass(frozen=True)
class InstalledAgent:
    """The outcome for one agent. `edited` are files that were changed since the installation: the reason of `kept`, and
    the changes that `reset` discarded. `outdated`: a newer version of a kept agent is shipped. `shared_kept` are files
    of `.shared` that the user has changed, so that all of it is kept."""

    name: str
    action: Action
    folder: Path
    edited: tuple[str, ...] = ()
    outdated: bool = False
    shared_kept: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Comparison:
    """A shipped agent beside the user's folder: digests of files by their names."""

    shipped: Digests
    recorded: Digests
    present: Digests = field(default_factory=dict)

    @property
    def edited(self) -> tuple[str, ...]:
        """Files that match neither the shipped nor the recorded digest, and recorded files that are missing."""
        names = sorted({*self.shipped, *self.recorded})
        return tuple(name for name in names if not self._is_ours(name))

    @property
    def outdated(self) -> bool:
        return bool(self.recorded) and dict(self.recorded) != dict(self.shipped)

    @property
    def is_as_shipped(self) -> bool:
        return dict(self.present) == dict(self.shipped)

    def _is_ours(self, name: str) -> bool:
        known = {self.shipped.get(name), self.recorded.get(name)}
        return self.present.get(name) in known if name in self.present else name not in self.recorded


def install(shipped: Path, directory: Path) -> InstalledAgent:
    """Update `directory/NAME` to the shipped folder `shipped`, unless it was edited. Idempotent.

    Raises ConfigError when that cannot be written, UsageError when something else is in the way.
    """
    return _applied(shipped, directory, give_up_edits=False)


def reset(shipped: Path, directory: Path) -> InstalledAgent:
    """Reset `directory/NAME` to the shipped version, discarding edits; the user's own files are kept. Raises like
    `install`."""
    return _applied(shipped, directory, give_up_edits=True)


def edits(shipped: Path, directory: Path) -> tuple[str, ...]:
    """The files whose changes a reset would discard, by their names in the agent's folder."""
    folder = directory / shipped.name
    return _compare(shipped, folder).edited if folder.is_dir() else ()


def _applied(shipped: Path, directory: Path, *, give_up_edits: bool) -> InstalledAgent:
    done = _folder_applied(shipped, directory, give_up_edits=give_up_edits)
    shared = shipped.parent / SHARED
    if done.action == "kept" or not shared.is_dir():
        return done
    with_it = _folder_applied(shared, directory, give_up_edits=give_up_edits)
    return replace(done, shared_kept=with_it.edited if with_it.action == "kept" else ())


def _folder_applied(shipped: Path, directory: Path, *, give_up_edits: bool) -> InstalledAgent:
    name, folder = shipped.name, directory / shipped.name
    if (folder.exists() or folder.is_symlink()) and not folder.is_dir():
        raise UsageError(f"{str(folder)!r} is in the way of the agent {name!r}: it is not a folder. Move it away")
    try:
        if not folder.exists():
            _copy_anew(shipped, folder)
            return InstalledAgent(name, "reset" if give_up_edits else "installed", folder)
        comparison = _compare(shipped, folder)
        if comparison.edited and not give_up_edits:
            return InstalledAgent(name, "kept", folder, comparison.edited, comparison.outdated)
        if comparison.is_as_shipped and dict(comparison.recorded) == dict(comparison.shipped):
            return InstalledAgent(name, "unchanged", folder)
        _bring_up(shipped, folder, comparison)
        if comparison.is_as_shipped:
            return InstalledAgent(name, "unchanged", folder)
        return InstalledAgent(name, "reset" if give_up_edits else "updated", folder, comparison.edited)
    except OSError as error:
        raise ConfigError(f"cannot install the agent {name!r} to {str(folder)!r}: {error}") from error


def _copy_anew(shipped: Path, folder: Path) -> None:
    """Moves the complete folder in one step, so that no run reads half an agent."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".install-", dir=folder.parent))
    try:
        digests = _digests(shipped)
        for name in digests:
            _write(shipped / name, staging / name)
        _record(staging, digests)
        staging.chmod(0o755)
        staging.rename(folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _bring_up(shipped: Path, folder: Path, comparison: _Comparison) -> None:
    for name, digest in comparison.shipped.items():
        if comparison.present.get(name) != digest:
            _write(shipped / name, folder / name)
    for name in comparison.recorded.keys() - comparison.shipped.keys():
        (folder / name).unlink(missing_ok=True)
    _record(folder, comparison.shipped)


def _write(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    content = source.read_bytes()
    _replace(target, content, 0o755 if content.startswith(b"#!") else 0o644)


def _replace(target: Path, content: bytes, mode: int) -> None:
    new = target.with_name(f".{target.name}.new")
    new.write_bytes(content)
    new.chmod(mode)
    new.replace(target)


def _record(folder: Path, digests: Digests) -> None:
    text = json.dumps({"version": VERSION, "files": dict(sorted(digests.items()))}, indent=2)
    _replace(folder / MANIFEST, f"{text}\n".encode(), 0o644)


def _compare(shipped: Path, folder: Path) -> _Comparison:
    digests, recorded = _digests(shipped), _recorded(folder)
    names = {*digests, *recorded}
    return _Comparison(digests, recorded, {n: _digest(folder / n) for n in names if (folder / n).exists()})


def _recorded(folder: Path) -> Digests:
    """The manifest's digests; none if it is missing or unreadable: then every difference counts as an edit."""
    try:
        files = json.loads((folder / MANIFEST).read_text("utf-8"))["files"]
        return {str(name): str(digest) for name, digest in files.items() if _stays_inside(str(name))}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _stays_inside(name: str) -> bool:
    """Validates the manifest, which may be forged, because files that it names are removed."""
    path = Path(name)
    return not path.is_absolute() and ".." not in path.parts


def _digests(folder: Path) -> Digests:
    """The digests of all shipped files, without caches and dot-files."""
    files = (file for file in folder.rglob("*") if file.is_file())
    names = {file.relative_to(folder).as_posix(): file for file in files}
    return {name: _digest(names[name]) for name in sorted(names) if _ships(Path(name))}


def _ships(name: Path) -> bool:
    return not any(part.startswith(".") or part == "__pycache__" for part in name.parts)


def _digest(file: Path) -> str:
    """Empty for an unreadable file, which counts as edited."""
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return ""

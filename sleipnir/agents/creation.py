"""Make a new agent from a template (`sleipnir init`).

A template is an agent that works as it is, in `templates/KIND`. Its name is my-agent: that name, as it is written in
commands, paths, file names and Python, becomes the name of the new agent. Nothing else in it is replaced.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sleipnir.errors import ConfigError, UsageError

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Like names of sessions and batches: it is a folder name, part of Redis keys, and used on command lines."""
RECORDING: Final = "recording"

_PLACEHOLDER = "my-agent"
_COMMAND = re.compile(rf"\b(sleipnir (?:kb )?[a-z]+) {_PLACEHOLDER}\b")


@dataclass(frozen=True)
class Template:
    """`prompt` is an example. A template with a model has a recording of the answers to it."""

    prompt: str
    asks_a_model: bool = False


TEMPLATES: Final[Mapping[str, Template]] = {
    "script": Template("to be or not to be"),
    "llm": Template("The heating in room 12 has failed, and guests arrive at six.", asks_a_model=True),
    "map": Template("coffee 3.20; bread 4.10; a taxi"),
    "loop": Template("a bakery that opens at six", asks_a_model=True),
    "rag": Template("When is breakfast served?", asks_a_model=True),
}


def check_name(name: str) -> None:
    """Raises UsageError for a name that an agent cannot have."""
    if not NAME.fullmatch(name):
        raise UsageError(
            f"{name[:80]!r} is not a name for an agent: it begins with a letter or a digit, and has at most 64 "
            "letters, digits, '.', '_' and '-'"
        )


def make(kind: str, name: str, directory: Path, *, shown: str, command_name: str) -> list[str]:
    """Make `directory/name` from the template `kind`, completely or not at all, and return its files by name.

    In its texts its folder is `shown`, and commands name it by `command_name`. Raises UsageError for an invalid name or
    if the folder exists, ConfigError if it cannot be written.
    """
    check_name(name)
    folder = directory / name
    if folder.exists() or folder.is_symlink():
        raise UsageError(f"{shown} exists already. Choose another name, or remove it first")
    template = Path(__file__).parent / "templates" / kind
    missing = [place for place in (directory, *directory.parents) if not place.exists()]
    staging: Path | None = None
    try:
        directory.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=".init-", dir=directory))
        files = _copy(template, staging, name, shown, command_name)
        staging.chmod(0o755)
        staging.rename(folder)
    except OSError as error:
        _remove(staging, missing)
        raise ConfigError(f"cannot make {shown}: {error.strerror or error}") from error
    except BaseException:
        _remove(staging, missing)
        raise
    return files


def _copy(template: Path, folder: Path, name: str, shown: str, command_name: str) -> list[str]:
    files = []
    for source in sorted(template.rglob("*")):
        relative = source.relative_to(template)
        if not source.is_file() or "__pycache__" in relative.parts:
            continue
        file = _named(relative.as_posix(), name)
        target = folder / file
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(_text(source.read_text("utf-8"), name, shown, command_name), "utf-8")
        files.append(file)
    return files


def _text(text: str, name: str, shown: str, command_name: str) -> str:
    text = text.replace(f"agents/{_PLACEHOLDER}", shown)
    text = _COMMAND.sub(lambda match: f"{match[1]} {command_name}", text)
    return _named(text, name)


def _named(text: str, name: str) -> str:
    return text.replace(_PLACEHOLDER, name).replace(_PLACEHOLDER.replace("-", "_"), re.sub(r"\W", "_", name))


def _remove(staging: Path | None, made: list[Path]) -> None:
    """The half-made folder, and the folders above it that were made for it."""
    if staging is not None:
        shutil.rmtree(staging, ignore_errors=True)
    for place in made:
        try:
            place.rmdir()
        except OSError:  # not created, or not empty
            return

"""Record the answers of real models, and replay them later: no provider, no key, no cost.

    tape = Tape.record(folder)          or Tape.replay(folder)
    answer = tape.find(request)         None while recording; TapeMiss if a replay has no answer
    if answer is None:
        answer = ...                    call the provider
        tape.keep(request, answer)

A tape is a folder with one JSON file per call, `<digest of the request>.<occurrence>.json`. Rules:
1. Requests and answers are plain dicts in the OpenAI form. Only the fields `ASKED` of a request are compared and
   stored, and `ANSWERED` of an answer: no addresses, keys and headers; streamed calls are like others.
2. A repeated request is another occurrence, counted from 1. A replay returns the occurrences in order, in each process
   from the first, and repeats the last one if there are more requests: a visit may be executed twice.
3. Several processes may record into one folder. A file is written atomically and never changes.
4. Failures are not recorded: a replay has answers only.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NewType

from sleipnir.errors import ConfigError, NodeFailed
from sleipnir.settings import Settings
from sleipnir.testing.difference import difference, nearest

VERSION = 1
ASKED: Final = (
    "model", "messages", "tools", "tool_choice", "temperature", "top_p", "max_tokens", "response_format",
)  # fmt: skip
ANSWERED: Final = ("id", "object", "created", "model", "choices", "usage")
DIGEST_CHARACTERS = 20  # 80 bits: enough to make collisions in a tape impossible in practice
LONE_SURROGATES = "backslashreplace"  # UTF-8 cannot encode them; this gives JSON's escapes

Digest = NewType("Digest", str)
Clean = Callable[[str], str]


class TapeMiss(NodeFailed):
    """A replay has no answer to a request. The message shows the difference from the nearest recorded request."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "replay")


@dataclass(frozen=True)
class Recording:
    """One file of a tape. `request` holds the fields `ASKED`."""

    request: Mapping[str, Any]
    answer: dict[str, Any]


class Tape:
    """A recording that is being made or replayed. Thread-safe.

    `clean` removes secrets from a text, and is applied to every text that is written or compared; `str` removes none.
    """

    def __init__(self, folder: Path, clean: Clean, *, recording: bool) -> None:
        self.folder = folder
        self.is_recording = recording
        self._clean = clean
        self._lock = threading.Lock()
        self._given: Counter[Digest] = Counter()

    @classmethod
    def record(cls, folder: Path, clean: Clean = str) -> Tape:
        """A tape that records. The folder is created, private to the user; raises ConfigError if that fails."""
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot record model answers in {str(folder)!r}: {error}") from error
        return cls(folder, clean, recording=True)

    @classmethod
    def replay(cls, folder: Path, clean: Clean = str) -> Tape:
        """A tape that replays. Raises ConfigError if the folder has no recordings."""
        if not has_recordings(folder):
            raise ConfigError(f"there are no recorded model answers in {str(folder)!r}")
        return cls(folder, clean, recording=False)

    @classmethod
    def of(cls, settings: Settings, clean: Clean = str) -> Tape | None:
        """The tape that SLEIPNIR_RECORD or SLEIPNIR_REPLAY names; None if neither is set. Raises ConfigError."""
        if settings.record is not None:
            return cls.record(settings.record, clean)
        return None if settings.replay is None else cls.replay(settings.replay, clean)

    def find(self, request: Mapping[str, Any]) -> dict[str, Any] | None:
        """The recorded answer; None while recording. Raises TapeMiss, and ConfigError for a damaged file."""
        if self.is_recording:
            return None
        asked = self._asked_of(request)
        digest = digest_of(asked)
        file = self._file(digest, self._next_occurrence(digest))
        if not file.exists():
            raise TapeMiss(self._miss(asked))
        return read(file).answer

    def keep(self, request: Mapping[str, Any], answer: Mapping[str, Any]) -> Path:
        """Store an answer as the next occurrence of its request, and return the file."""
        asked = self._asked_of(request)
        digest = digest_of(asked)
        answered = {name: answer[name] for name in ANSWERED if name in answer}
        written = {"version": VERSION, "request": asked, "answer": _cleaned(answered, self._clean)}
        try:
            with tempfile.NamedTemporaryFile(
                "w", dir=self.folder, prefix=".", suffix=".tmp", encoding="utf-8", errors=LONE_SURROGATES
            ) as staging:
                json.dump(written, staging, ensure_ascii=False, indent=1)
                staging.write("\n")
                staging.flush()
                return self._publish(Path(staging.name), digest)
        except OSError as error:
            raise ConfigError(f"cannot record a model's answer in {str(self.folder)!r}: {error}") from error

    def _next_occurrence(self, digest: Digest) -> int:
        """The occurrence to return: the next one, or the last one again if there is no next."""
        with self._lock:
            number = self._given[digest] + 1
            if number > 1 and not self._file(digest, number).exists():
                return number - 1
            self._given[digest] = number
            return number

    def _publish(self, staging: Path, digest: Digest) -> Path:
        """Link the file under the first free number: atomic, and safe with other processes."""
        number = 1
        while True:
            file = self._file(digest, number)
            try:
                os.link(staging, file)
            except FileExistsError:
                number += 1
            else:
                return file

    def _file(self, digest: Digest, occurrence: int) -> Path:
        return self.folder / f"{digest}.{occurrence}.json"

    def _asked_of(self, request: Mapping[str, Any]) -> dict[str, Any]:
        return {name: _cleaned(value, self._clean) for name, value in _only(request, ASKED).items()}

    def _miss(self, asked: Mapping[str, Any]) -> str:
        recorded = {file.name: read(file).request for file in recordings(self.folder)}
        name = nearest(asked, recorded)
        differs = difference(recorded[name], asked)
        return (
            f"the recording in {str(self.folder)!r} has no answer to this request; the nearest of {len(recorded)} "
            f"recorded requests ({name}) differs: {differs}. Record the run again, or restore the request."
        )


def recordings(folder: Path) -> list[Path]:
    """The files of a tape, by name."""
    return sorted(folder.glob("[!.]*.json"))


def has_recordings(folder: Path) -> bool:
    return next(folder.glob("[!.]*.json"), None) is not None


def read(file: Path) -> Recording:
    """Raises ConfigError for a damaged file, or for a file of another version."""
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        version, recording = data["version"], Recording(data["request"], data["answer"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{file} is not a recorded model answer: {error!r}") from error
    if version != VERSION:
        raise ConfigError(f"{file} has format version {version!r}; this release reads {VERSION}: record it again")
    return recording


def digest_of(request: Mapping[str, Any]) -> Digest:
    """The digest of a request: independent of the order of its keys, of a round trip through JSON, and of fields
    outside `ASKED`. A field that is None or empty counts as missing."""
    text = json.dumps(_only(request, ASKED), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return Digest(hashlib.sha256(text.encode()).hexdigest()[:DIGEST_CHARACTERS])


def _only(data: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    plain = {name: _plain(data.get(name)) for name in names}
    return {name: value for name, value in plain.items() if value not in (None, [], {})}


def _plain(value: Any) -> Any:
    """The value after a round trip through JSON, with 1.0 as 1, because other languages do not distinguish the two."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _cleaned(value: Any, clean: Clean) -> Any:
    match value:
        case str():
            return clean(value)
        case list():
            return [_cleaned(item, clean) for item in value]
        case dict():
            return {key: _cleaned(item, clean) for key, item in value.items()}
        case _:
            return value

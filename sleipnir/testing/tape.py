"""Record the answers of real models, and answer from the recording later: no provider, no key, no cost.

    tape = Tape.record(folder)          or Tape.replay(folder)
    answer = tape.find(request)         None while recording; TapeMiss where a replay has no answer
    if answer is None:
        answer = ...                    ask the provider
        tape.keep(request, answer)

A tape is a folder with one JSON file per call, `<digest of the request>.<occurrence>.json`. Rules:
1. Requests and answers are plain dicts in the OpenAI form. Of a request only `ASKED` is looked at and kept, of an
   answer only `ANSWERED`: addresses, keys and headers stay outside, and a streamed call is as any other.
2. The same request asked again is another occurrence, counted from 1. A replay gives them in that order, in each
   process from the first, and the last one again when it is asked more often: a visit may be executed twice.
3. Several processes may record into one folder. A file is there whole or not at all, and never changes.
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
DIGEST_CHARACTERS = 20  # 80 bits: no two requests of a tape ever share them
LONE_SURROGATES = "backslashreplace"  # UTF-8 has none, and this is how JSON writes them

Digest = NewType("Digest", str)
Clean = Callable[[str], str]


class TapeMiss(NodeFailed):
    """A replay was asked what was not recorded. The message says what differs from the nearest recorded request."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "replay")


@dataclass(frozen=True)
class Recording:
    """One file of a tape. `request` holds what `ASKED` names."""

    request: Mapping[str, Any]
    answer: dict[str, Any]


class Tape:
    """A recording that is being made or played. Safe for the threads of a process.

    `clean` takes secrets out of a text, and is applied to all that is written or compared; `str` leaves it as it is.
    """

    def __init__(self, folder: Path, clean: Clean, *, recording: bool) -> None:
        self.folder = folder
        self.is_recording = recording
        self._clean = clean
        self._lock = threading.Lock()
        self._given: Counter[Digest] = Counter()

    @classmethod
    def record(cls, folder: Path, clean: Clean = str) -> Tape:
        """A tape that is added to. The folder is made, private to the user; raises ConfigError if that fails."""
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot record model answers in {str(folder)!r}: {error}") from error
        return cls(folder, clean, recording=True)

    @classmethod
    def replay(cls, folder: Path, clean: Clean = str) -> Tape:
        """A tape that answers. Raises ConfigError if there is nothing recorded in the folder."""
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
        """The recorded answer; None while recording. Raises TapeMiss, and ConfigError for a file that is damaged."""
        if self.is_recording:
            return None
        asked = self._asked_of(request)
        digest = digest_of(asked)
        file = self._file(digest, self._next_occurrence(digest))
        if not file.exists():
            raise TapeMiss(self._miss(asked))
        return read(file).answer

    def keep(self, request: Mapping[str, Any], answer: Mapping[str, Any]) -> Path:
        """Write an answer down as the next occurrence of its request, and return the file."""
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
        """Which occurrence to give: the one after the last that was given, or that one again if it was the last."""
        with self._lock:
            number = self._given[digest] + 1
            if number > 1 and not self._file(digest, number).exists():
                return number - 1
            self._given[digest] = number
            return number

    def _publish(self, staging: Path, digest: Digest) -> Path:
        """A link is made whole or not at all, and not where another process was quicker."""
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
            f"recorded requests ({name}) differs: {differs}. Record the run anew, or make the request the same again."
        )


def recordings(folder: Path) -> list[Path]:
    """The files of a tape, by name."""
    return sorted(folder.glob("[!.]*.json"))


def has_recordings(folder: Path) -> bool:
    return next(folder.glob("[!.]*.json"), None) is not None


def read(file: Path) -> Recording:
    """Raises ConfigError for a file that is damaged, or of a release that wrote another form."""
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        version, recording = data["version"], Recording(data["request"], data["answer"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{file} is no recorded model answer: {error!r}") from error
    if version != VERSION:
        raise ConfigError(f"{file} has version {version!r} of the form; this release reads {VERSION}: record it anew")
    return recording


def digest_of(request: Mapping[str, Any]) -> Digest:
    """Names a request: the same whatever the order of its keys, whether it came from JSON, and what it says outside
    `ASKED`. A field that is None or empty is as one that is missing."""
    text = json.dumps(_only(request, ASKED), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return Digest(hashlib.sha256(text.encode()).hexdigest()[:DIGEST_CHARACTERS])


def _only(data: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    plain = {name: _plain(data.get(name)) for name in names}
    return {name: value for name, value in plain.items() if value not in (None, [], {})}


def _plain(value: Any) -> Any:
    """As JSON would give it back, and 1.0 as 1: which of them it was is lost on the way through other languages."""
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

"""What people have done with an open gate: their voices, if several must give the same answer, who has claimed it, who
it is assigned to, and what they have said about it.

It is stored beside the question, for one attempt of its visit (store/lua/shared/handling.lua), and goes with it. None
of it keeps a gate from expiring.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from sleipnir.decoding import decoded, read_text
from sleipnir.errors import RecordUnreadable
from sleipnir.redaction import REDACTED

MOST_COMMENT: Final = 4_000
"""Characters of a comment."""
MOST_COMMENTS: Final = 100
"""Comments that one gate keeps before it is answered."""
MOST_VOICES: Final = 100
"""People whose answers one gate keeps while it has no quorum."""


@dataclass(frozen=True)
class Voice:
    """The answer of a person to a gate that needs several. A later one of the same person replaces it. `by` is the
    actor as text."""

    person: str
    answer: str
    by: str
    at_ms: int
    comment: str | None = None


@dataclass(frozen=True)
class GateClaim:
    """A person works on a gate, from `at_ms` to `until_ms` of Redis: others do not answer it, unless they take it over.
    `by` is the actor as text."""

    person: str
    by: str
    at_ms: int
    until_ms: int


@dataclass(frozen=True)
class GateAssignment:
    """Whose work a gate is: the actor `by` has given it to the `person` at `at_ms`. Others may answer it as before."""

    person: str
    by: str
    at_ms: int


@dataclass(frozen=True)
class GateComment:
    """What a person has said about a gate at `at_ms`, without answering it. `by` is the actor as text."""

    person: str
    by: str
    at_ms: int
    text: str


@dataclass(frozen=True)
class GateHandling:
    """What people have done with the gate that an attempt of a visit has opened. The `claim` may have ended: see
    `holder`."""

    attempt: int = 1
    voices: tuple[Voice, ...] = ()
    claim: GateClaim | None = None
    assigned: GateAssignment | None = None
    comments: tuple[GateComment, ...] = ()

    def holder(self, now_ms: int) -> str | None:
        """The person whose claim has not ended."""
        return self.claim.person if self.claim is not None and self.claim.until_ms > now_ms else None

    def redacted(self) -> GateHandling:
        """Without the answers, which are secret."""
        return replace(self, voices=tuple(replace(voice, answer=REDACTED) for voice in self.voices))


NO_HANDLING: Final = GateHandling()


def handling_of(text: str | None, attempt: int, key: str = "") -> GateHandling:
    """The handling of the gate that this attempt of a visit has opened. Raises RecordUnreadable."""
    if text is None:
        return NO_HANDLING
    found = read_text(GateHandling, text, "handling of a question", key)
    if found.attempt != attempt:
        return NO_HANDLING
    return replace(found, voices=tuple(replace(each, answer=voice_text(each.answer, key)) for each in found.voices))


def voice_text(stored: Any, key: str = "") -> str:
    """The answer of a stored voice, which is JSON text of a text. Raises RecordUnreadable."""
    answer = decoded(stored, "answer", key)
    if not isinstance(answer, str):
        raise RecordUnreadable("answer", key, "damaged: text is needed")
    return answer


@dataclass(frozen=True)
class VoiceCount:
    """An answer was counted, and the gate stays open: `voices` people have given it, of the `quorum` that must."""

    voices: int
    quorum: int

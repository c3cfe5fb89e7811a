"""Cards: what the lists of runs know of each run, and the names under which runs are found.

A card is a small JSON object beside the run, in a hash of its partition. It says which sorted sets list the run, so
that a change of the card moves the run from set to set in one script (store/lua/shared/lists.lua), and it has what
queries compare without reading the run: they read a thousand cards with one command. Its fields:

    ns  namespace, unless it is `default`     s   standing: the status, and `:reason` of one that waits or is paused
    k   `row` of a batch, `child`; else none  a   agent         d   version: the beginning of the bundle's digest
    t   tags     b   batch of a row           h   `agent/thread`                p   parent run
    e   end, ms  f   fingerprint of the failure     n   failed node     m   beginning of its message
    q   the quoted values of that, in lower case; a card of an earlier release has none
    c   submission, ms, which orders all sets       u   cost in USD when the card was written

A run is listed when it is submitted, and again by each commit that changes its standing: two or three times in the life
of most runs, and never by a visit. The cost of a live run, and that of children that report after its end, are
therefore as of its last change of standing.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from sleipnir.errors import UsageError
from sleipnir.graph.plain import compact_json
from sleipnir.messages import FINAL
from sleipnir.runs.conversation_names import DEFAULT_NAMESPACE
from sleipnir.runs.failure_text import failure_of
from sleipnir.runs.run import RunSpec, RunView
from sleipnir.runs.visits import Backoff, ChildWait, Commands, Delay, Doubt, Fan, Loop, Question, Receipt, SignalWait
from sleipnir.settings import NAMESPACE

if TYPE_CHECKING:
    from sleipnir.runs.visits import Visit

MOST_TAGS: Final = 16
MOST_TAG_VALUE: Final = 200
VERSION_CHARS: Final = 12
MOST_MESSAGE: Final = 200
"""The characters of a failure's message that its card and its group have."""
MOST_QUOTED: Final = 100
"""The characters of the quoted values of a failure's message that its card has."""

_NAME: Final = NAMESPACE

# Tags and namespaces


def checked_namespace(name: object) -> str:
    """Raises UsageError for what cannot name a namespace."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r:.80} cannot name a namespace: 1 to 63 letters, digits, '.', '_' and '-' can, a letter or a digit "
            "first"
        )
    return name


def checked_tags(tags: Mapping[str, str] | None) -> dict[str, str]:
    """The tags of a submission, in the order of their keys. Raises UsageError."""
    if tags is None:
        return {}
    if not isinstance(tags, Mapping):
        raise UsageError(f"tags are a mapping of keys to texts, not {type(tags).__name__}")
    if len(tags) > MOST_TAGS:
        raise UsageError(f"{len(tags)} tags: a run has at most {MOST_TAGS}")
    return dict(sorted(_checked_tag(key, value) for key, value in tags.items()))


def _checked_tag(key: object, value: object) -> tuple[str, str]:
    if not isinstance(key, str) or not _NAME.fullmatch(key):
        raise UsageError(
            f"{key!r:.80} cannot be the key of a tag: 1 to 63 letters, digits, '.', '_' and '-' can, a letter or a "
            "digit first"
        )
    if not isinstance(value, str) or not value.strip() or len(value) > MOST_TAG_VALUE or not value.isprintable():
        raise UsageError(f"tag {key!r} needs a printable text of 1 to {MOST_TAG_VALUE} characters, not {value!r:.80}")
    return key, value


def tag_of(text: str) -> tuple[str, str]:
    """The key and the value of `customer=acme`. Raises UsageError."""
    key, is_pair, value = text.partition("=")
    if not is_pair:
        raise UsageError(f"{text!r:.80} is no tag: write key=value, for example customer=acme")
    return _checked_tag(key, value)


# Standings

WAITS: Final = ("person", "child", "event", "timer", "retry", "limit", "slot", "turn", "other")
HELD: Final = ("person", "breakpoint", "budget", "parent")
STANDINGS: Final = (
    "submitted", "submitted:slot", "submitted:turn", "running", "running:slot", "waiting:slot",
    *(f"waiting:{reason}" for reason in WAITS if reason not in ("slot", "turn")),
    "paused", *(f"paused:{owner}" for owner in HELD), "completed", "failed", "cancelled",
)  # fmt: skip
"""All standings of runs. `slot` waits for one of its agent, `turn` for the runs before it in its thread; paused by a
`person`, at a `breakpoint`, at the end of its `budget`, or with its `parent`."""
REASONS: Final = tuple(dict.fromkeys((*WAITS, *HELD)))

_SIMPLE: Final = frozenset({"running", *FINAL})
"""Statuses of which the standing follows, unless the run waits for a slot."""


def is_moved(before: RunView, after: RunView) -> bool:
    """Whether a commit changes the standing of a run. Most do not, and cost two comparisons."""
    if before.status == after.status and before.status in _SIMPLE and before.slot is after.slot:
        return False
    return standing_of(before) != standing_of(after) or (after.status in FINAL and before.status not in FINAL)


def standing_of(run: RunView) -> str:
    """Where a run is: its status, and why it waits or is paused. Of several reasons a person is first, then that of the
    oldest visit."""
    if run.status in FINAL:
        return run.status
    if run.slot is not None and not run.slot.granted and run.status != "paused":
        return f"{run.status}:slot"
    if run.status == "submitted" and run.queued is not None:
        return "submitted:turn"
    if run.status == "paused":
        owners = [_owner_of(hold) for hold in run.holds]
        if run.budget is not None and run.budget.asked is not None:
            owners.append("budget")
        return f"paused:{owners[0]}" if owners and owners[0] in HELD else "paused"
    if run.status != "waiting":
        return run.status
    reasons = [reason for visit in run.frontier.values() if (reason := _waits_for(visit)) is not None]
    if "person" in reasons:
        return "waiting:person"
    return f"waiting:{next((reason for reason in reasons if reason != 'other'), 'other')}"


def _owner_of(hold: Any) -> str:
    return "breakpoint" if hold.breakpoint is not None else hold.owner or "person"


def _waits_for(visit: Visit) -> str | None:
    match visit.body:
        case Question() | Doubt():
            return "person"
        case ChildWait():
            return "child"
        case SignalWait():
            return "event"
        case Delay():
            return "timer"
        case Backoff(limited=limited):
            return "limit" if limited else "retry"
        case Fan() | Loop() | Commands() | Receipt():
            return "other"
    return None


# Failures

_QUOTED: Final = re.compile(r"'[^'\n]*'|\"[^\"\n]*\"|`[^`\n]*`")
_ID: Final = re.compile(r"\b(?=[\w-]*\d)[\w-]*[A-Za-z][\w-]{5,}\b|0x[0-9a-fA-F]+")
_NUMBER: Final = re.compile(r"\d+(?:[.,:]\d+)*")


def general_message(message: str) -> str:
    """A message without what differs between runs: quoted values, ids and numbers."""
    text = _QUOTED.sub("'…'", message[:2_000])
    return " ".join(_NUMBER.sub("#", _ID.sub("#", text)).split())[:MOST_MESSAGE]


def failure_fields(agent: str, error: str, node: str | None) -> dict[str, str]:
    """The fields of the card of a failed run: its failed node, if it is known, and its message and fingerprint, which
    are the same for runs of an agent that fail alike; and the values that are quoted in its own message."""
    at, cause = failure_of(error)
    node = node or at
    message = general_message(cause).encode("utf-8", "replace").decode()
    alike = hashlib.sha256(f"{agent}\n{node or ''}\n{message}".encode()).hexdigest()[:VERSION_CHARS]
    quoted = quoted_values(cause).encode("utf-8", "replace").decode()
    return {"f": alike, "m": message, **({"n": node} if node else {}), **({"q": quoted} if quoted else {})}


def quoted_values(message: str) -> str:
    """What is quoted in a message, in lower case, separated by blanks."""
    return " ".join(each[1:-1] for each in _QUOTED.findall(message[:2_000])).lower()[:MOST_QUOTED]


# Cards


def card_text(spec: RunSpec, standing: str, batch: str | None = None, **more: Any) -> str:
    """The card of a run. `batch` is RunView.batch; `more` are further fields. Scripts add those of Redis."""
    card: dict[str, Any] = {"s": standing, "a": spec.agent, "d": spec.bundle[:VERSION_CHARS]}
    if spec.namespace != DEFAULT_NAMESPACE:
        card["ns"] = spec.namespace
    if spec.tags:
        card["t"] = spec.tags
    if spec.parent is not None:
        card |= {"k": "child", "p": spec.parent}
    elif batch:
        card |= {"k": "row", "b": batch.partition("/")[0]}
    if spec.thread is not None:
        card["h"] = f"{spec.agent}/{spec.thread}"
    return compact_json(card | more)


def card_of(run: RunView, *, ended_ms: int | None = None, error: str | None = None, node: str | None = None) -> str:
    """The card of a run as it is now. `error` and `node` are those of its failure."""
    more: dict[str, Any] = {} if ended_ms is None else {"e": ended_ms}
    if run.status == "failed" and ended_ms is not None:
        more |= failure_fields(run.spec.agent, error or "", node)
    return card_text(run.spec, standing_of(run), run.batch, **more)

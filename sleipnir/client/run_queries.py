"""Finds runs: what Client.runs, run_count, run_counts and failures do, over store/runs/run_lists.py."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypedDict

from sleipnir.errors import RunNotFound
from sleipnir.runs.cards import checked_namespace, checked_tags
from sleipnir.runs.conversation_names import DEFAULT_NAMESPACE
from sleipnir.runs.run_filters import ANY_NAMESPACE, ListPosition, PageOfRuns, RunFilter

if TYPE_CHECKING:
    from sleipnir.runs.views import RunInfo
    from sleipnir.store.store import Store

_PAGE: Final = 200


class RunQuery(TypedDict, total=False):
    """The keywords that choose runs. Each may be omitted, and None fits any run; all that is given must fit. Times are
    ms since the epoch by Redis' clock, in [since, before).

    namespace       None: that of SLEIPNIR_NAMESPACE, or `default`, but of a named batch or parent its own; `*`: any.
    reason          Why runs wait or are paused: of `waiting` and `submitted` ones `person` (has a question open),
                    `child`, `event`, `timer`, `retry`, `limit`, `slot` (of its agent), `turn` (of its thread), `other`;
                    of `paused` ones `person` (has paused it), `breakpoint`, `budget`, `parent`.
    agents          Their names.
    version         The digest of the agent's bundle, or its beginning.
    tags            Texts by key, which all must be tags of the run.
    batch           Only started rows of this batch.
    rows            Whether rows of batches fit.
    parent          Only runs that this run has started.
    children        Whether runs that other runs have started fit.
    thread          `agent/name` of a thread.
    since_ms, before_ms
                    When the runs were submitted.
    ended_since_ms, ended_before_ms
                    When they ended.
    cost_min, cost_max
                    What they have cost in USD, as of their last change of status.
    node            The node at which they failed.
    text            A part of the message with which they failed; numbers, ids, quoted values and case do not matter.
                    Only the first 200 characters of the message are searched.
    fingerprint     That of a group of failures (`failures`).
    """

    namespace: str | None
    reason: str | Collection[str] | None
    agents: Collection[str]
    version: str | None
    tags: Mapping[str, str] | None
    batch: str | None
    rows: bool
    parent: str | None
    children: bool
    thread: str | None
    since_ms: int | None
    before_ms: int | None
    ended_since_ms: int | None
    ended_before_ms: int | None
    cost_min: float | None
    cost_max: float | None
    node: str | None
    text: str | None
    fingerprint: str | None


NAMES: Final = frozenset(RunQuery.__annotations__)


def filter_of(
    store: Store, namespace: str, status: Collection[str] | None, query: RunQuery, *, children: bool
) -> RunFilter:
    """`namespace` and `children` are the defaults. Raises UsageError for what no run can be, and TypeError for an
    unknown keyword."""
    given: dict[str, Any] = {name: value for name, value in query.items() if value is not None}
    for name in given:
        if name not in NAMES:
            raise TypeError(f"unexpected keyword argument {name!r}; runs are chosen by {', '.join(sorted(NAMES))}")
    named = given.pop("namespace", None)
    if named is None:
        named = _namespace_of(store, given) or namespace
    reason = given.pop("reason", ())
    return RunFilter(
        namespace=named if named == ANY_NAMESPACE else checked_namespace(named),
        statuses=frozenset(status or ()),
        reasons=frozenset({reason} if isinstance(reason, str) else reason),
        agents=frozenset(given.pop("agents", ())),
        tags=checked_tags(given.pop("tags", None)),
        with_children=given.pop("children", children),
        with_rows=given.pop("rows", True),
        **given,
    )


def one_namespace(named: str | None, own: str) -> str | None:
    """The namespace that is asked for; None: any. `own` is that of the settings. Raises UsageError."""
    return None if named == ANY_NAMESPACE else checked_namespace(named or own)


def _namespace_of(store: Store, given: Mapping[str, Any]) -> str | None:
    """The namespace of the batch or the parent that a query names. None: it names none, or one that does not exist."""
    if (batch := given.get("batch")) is not None:
        spec = store.batches.spec(batch)
        return DEFAULT_NAMESPACE if spec is None else spec.namespace
    if (parent := given.get("parent")) is not None:
        try:
            return store.runs.spec(parent).namespace
        except RunNotFound:
            return DEFAULT_NAMESPACE
    return None


def page_of(store: Store, wanted: RunFilter, limit: int, after: str | None, look: int) -> PageOfRuns:
    """One page of runs, with the reasons of their visits. Raises UsageError for what is no cursor."""
    found = store.runs.found(wanted, limit, None if after is None else ListPosition.of(after), look)
    infos = [info for info in store.runs.find(found.ids) if info is not None and _is_still(info, wanted)]
    return PageOfRuns(store.explained(infos), None if found.after is None else found.after.cursor, found.looked)


def all_of(store: Store, wanted: RunFilter) -> Iterator[RunInfo]:
    """All runs that fit, newest first, read lazily."""
    ids = store.runs.found_all(wanted)
    while page := list(islice(ids, _PAGE)):
        yield from (info for info in store.runs.find(page) if info is not None and _is_still(info, wanted))


def _is_still(info: RunInfo, wanted: RunFilter) -> bool:
    """A run may have gone on since its card was read, and a requested retry counts before its card says so."""
    return not wanted.statuses or info.status in wanted.statuses

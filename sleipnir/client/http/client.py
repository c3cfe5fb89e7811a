"""The methods of a client over HTTP. `client_class(Client)` is the class that `Client("http://...")` is of."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sleipnir.client.http.connections import TIMEOUT_S, ApiRequest, ServerConnections, part
from sleipnir.client.http.decoding import decoded, of_json
from sleipnir.client.http.run_filters import filter_parameters
from sleipnir.client.http.runs import PAGE, SUBMIT_S, HttpRun, agent_name, as_they_end, missing_of
from sleipnir.client.http.unserved import not_served, refusing
from sleipnir.errors import (
    AgentNotFound,
    BatchNotFound,
    ConfigError,
    RunNotFound,
    ScheduleNotFound,
    UsageError,
)
from sleipnir.runs.actor import Actor
from sleipnir.runs.run import Hold
from sleipnir.runs.run_filters import ANY_NAMESPACE, FailureGroup, PageOfRuns, RunCount, RunCounts
from sleipnir.runs.views import (
    AgentInfo,
    GateInfo,
    Health,
    MissingProcesses,
    RunInfo,
    SessionInfo,
    ThreadInfo,
)
from sleipnir.settings import Settings

T = TypeVar("T")

if TYPE_CHECKING:
    from sleipnir.batches.records import BatchInfo
    from sleipnir.client.batch import Batch
    from sleipnir.client.http.gates import HttpGateInbox, HttpGateLinks
    from sleipnir.client.http.jobs import HttpJobs
    from sleipnir.client.http.webhooks import HttpHooks, HttpWebhooks
    from sleipnir.client.run import Run
    from sleipnir.client.schedule import Schedule
    from sleipnir.client.schedule_pages import PageOfSchedules
    from sleipnir.client.scheduled_rows import ScheduleRows
    from sleipnir.models.limits import LimitUse
    from sleipnir.python_graph.snapshots import UpdateMode
    from sleipnir.runs.cached_results import CacheUse
    from sleipnir.runs.comparison import Comparison
    from sleipnir.runs.conversation_pages import PageOfConversations
    from sleipnir.runs.deployment_holds import ScopeHold
    from sleipnir.runs.signals import SignalInfo, SignalReceipt
    from sleipnir.runs.throughput import Throughput

_OF_RUNS: Final = frozenset(
    (
        "variables", "strict", "config", "context", "interrupt_before", "interrupt_after", "overrides", "patches",
        "user", "tags",
    )
)  # fmt: skip
"""The options of a run that the API takes."""
_OF_ROWS: Final = frozenset(("variables", "strict"))
_OF_SCHEDULES: Final = frozenset(("variables", "strict", "user", "tags"))
_HERE: Final = frozenset(("scratch", "caller_dir", "ask_variable", "ask_knowledge", "tell_knowledge"))
"""Options of the caller's machine or terminal. A run of the server has a scratch folder in any case."""


@cache
def client_class(base: Any) -> Any:
    """The class of clients over HTTP that is also of the class `base`, which is Client."""
    return refusing("Client")(type("HttpClient", (_HttpCalls, base), {"__module__": __name__, "__doc__": _DOC}))


_DOC: Final = """A client of a deployment over its HTTP API: see sleipnir.client.http."""


class _HttpCalls:
    """What a client over HTTP has in the place of what Client has."""

    def __init__(
        self,
        url: str,
        *,
        by: Actor | None = None,
        token: str | None = None,
        ca_file: Path | str | None = None,
        timeout_s: float | None = None,
    ) -> None:
        if by is not None:
            raise not_served("`by`", "who acts is said by the token")
        self.settings = Settings.from_env()
        self.actor = Actor.here("python")
        self.by = str(self.actor)
        authority = self.settings.ca_file if ca_file is None else Path(ca_file)
        self.server = ServerConnections(url, token or token_of(self.settings), authority, timeout_s or TIMEOUT_S)

    def close(self) -> None:
        """Close all connections."""
        self.server.close()

    def _run(self, run_id: str) -> Run:
        return HttpRun(self.server, run_id, self.settings)

    def _post(self, path: str, body: Any = None, **given: Any) -> Any:
        answer = self.server.call(ApiRequest("POST", path, None, body, **given))
        return of_json(answer) if answer else None

    # Runs.

    def submit(
        self,
        agent: Any,
        prompt: Any = "",
        *,
        state: Mapping[str, Any] | None = None,
        session: str | None = None,
        thread: str | None = None,
        max_cost_usd: float | None = None,
        max_tokens: int | None = None,
        request_id: str | None = None,
        **options: Any,
    ) -> Run:
        """As Client.submit; `agent` is the name of an agent of the server, and `prompt` a text. Each submission has a
        key, so it is repeated when its answer is lost, and leads to one run."""
        body = {
            "agent": agent_name(agent), "prompt": _prompt(prompt), "state": state, "session": session,
            "thread": thread, "max_cost_usd": max_cost_usd, "max_tokens": max_tokens,
            **_options("submit", options, _OF_RUNS),
        }  # fmt: skip
        for name in ("interrupt_before", "interrupt_after"):
            if name in body:
                body[name] = [body[name]] if isinstance(body[name], str) else list(body[name])
        given = {name: value for name, value in body.items() if value is not None}
        key = {"Idempotency-Key": request_id if request_id is not None else secrets.token_hex(16)}
        made = self._post("/runs", given, headers=key, repeats=True, missing=AgentNotFound, timeout_s=SUBMIT_S)
        return self._run(made["id"])

    def run(self, run_id: str) -> Run:
        """As Client.run."""
        return self._run(str(self.server.get(f"/runs/{part(run_id)}", missing=RunNotFound)["run"]["id"]))

    def runs(
        self,
        limit: int = 50,
        status: Collection[str] | None = None,
        *,
        among: int | None = None,
        after: str | None = None,
        **query: Any,
    ) -> PageOfRuns:
        """As Client.runs. How many runs are looked at for a page of the API is the server's to say: `among` limits the
        pages that are asked for."""
        if status is not None and not status:
            return PageOfRuns()
        wanted, found, looked = filter_parameters(status, query), list[RunInfo](), 0
        while True:
            page = self.server.get("/runs", {**wanted, "limit": min(PAGE, limit - len(found)), "after": after})
            found += decoded(list[RunInfo], page["items"])
            after, looked = page["after"], looked + page["looked"]
            if after is None or len(found) >= limit or len(page["items"]) < min(PAGE, limit):
                return PageOfRuns(found, after, looked)

    def run_count(self, status: Collection[str] | None = None, *, among: int | None = None, **query: Any) -> RunCount:
        """As Client.run_count; the server says how many are counted one by one."""
        found = self.server.get("/runs/count", filter_parameters(status, {"children": True, **query}))
        return RunCount(found["count"], is_exact=found["is_exact"])

    def run_counts(self, *, namespace: str | None = None, children: bool = False, rows: bool = True) -> RunCounts:
        """As Client.run_counts."""
        query = {"namespace": namespace, "children": children, "rows": rows}
        return decoded(RunCounts, self.server.get("/runs/standings", query))

    def failures(
        self,
        *,
        agent: str | None = None,
        node: str | None = None,
        since_ms: int | None = None,
        limit: int = 50,
        namespace: str | None = None,
        fingerprint: str | None = None,
    ) -> list[FailureGroup]:
        """As Client.failures, up to 500."""
        query = {"agent": agent, "node": node, "since_ms": since_ms, "limit": _page(limit), "namespace": namespace}
        query["fingerprint"] = fingerprint
        return decoded(list[FailureGroup], self.server.get("/failures", query))

    def discard_failures(self, fingerprint: str, note: str, *, namespace: str | None = None) -> None:
        """As Client.discard_failures."""
        body = {"note": note, **({} if namespace is None else {"namespace": namespace})}
        self._post(f"/failures/{part(fingerprint)}/discard", body, repeats=True)

    def reopen_failures(self, fingerprint: str, *, namespace: str | None = None) -> None:
        """As Client.reopen_failures."""
        body = {} if namespace is None else {"namespace": namespace}
        self._post(f"/failures/{part(fingerprint)}/reopen", body, repeats=True)

    def compare(self, run_a: Run | str, run_b: Run | str, *, judge: Any = None, on_judging: Any = None) -> Comparison:
        """As Client.compare, without a judge."""
        from sleipnir.runs.comparison import Comparison

        if judge is not None:
            raise not_served("compare with `judge`", "the API compares without one")
        a, b = (run if isinstance(run, str) else run.id for run in (run_a, run_b))
        found = self.server.get(f"/runs/{part(a)}/compare/{part(b)}", missing=RunNotFound)
        return decoded(Comparison, found)

    def missing(self, run_ids: Sequence[str]) -> MissingProcesses:
        """As Client.missing."""
        return missing_of(self.server, run_ids)

    def as_they_end(self, run_ids: Iterable[str], timeout_s: float | None = None) -> Iterator[RunInfo]:
        """As Client.as_they_end; it looks at each run twice a second."""
        return as_they_end(self.server, list(run_ids), timeout_s)

    # Questions.

    def gates(self, *, namespace: str | None = None, limit: int | None = None) -> list[GateInfo]:
        """As Client.gates."""
        found: list[GateInfo] = []
        after = None
        while limit is None or len(found) < limit:
            wanted = PAGE if limit is None else min(PAGE, limit - len(found))
            page = self.server.get("/gates", {"namespace": namespace, "limit": wanted, "after": after})
            found += decoded(list[GateInfo], page["items"])
            if (after := page["after"]) is None:
                break
        return found

    def gate_count(self, *, namespace: str | None = None) -> int:
        """As Client.gate_count."""
        return int(self.server.get("/gates", {"namespace": namespace, "limit": 1})["count"])

    @property
    def gate_inbox(self) -> HttpGateInbox:
        """As Client.gate_inbox, of the person of the token."""
        from sleipnir.client.http.gates import HttpGateInbox

        return HttpGateInbox(self.server)

    @property
    def gate_links(self) -> HttpGateLinks:
        """As Client.gate_links, for admins."""
        from sleipnir.client.http.gates import HttpGateLinks

        return HttpGateLinks(self.server)

    @property
    def webhooks(self) -> HttpWebhooks:
        """As Client.webhooks, for admins of the whole deployment."""
        from sleipnir.client.http.webhooks import HttpWebhooks

        return HttpWebhooks(self.server)

    @property
    def hooks(self) -> HttpHooks:
        """As Client.hooks, for admins of the whole deployment."""
        from sleipnir.client.http.webhooks import HttpHooks

        return HttpHooks(self.server)

    @property
    def jobs(self) -> HttpJobs:
        """As Client.jobs."""
        from sleipnir.client.http.jobs import HttpJobs

        return HttpJobs(self.server)

    # Batches.

    def batch(
        self,
        agent: Any,
        rows: Iterable[Any],
        *,
        id: str | None = None,
        key: str | None = None,
        name: str = "",
        priority: int = 3,
        parallel: int | None = None,
        canary: int | None = None,
        max_cost_usd: float | None = None,
        max_tokens: int | None = None,
        on_bad: Any = None,
        on_progress: Any = None,
        **options: Any,
    ) -> Batch:
        """As Client.batch; rows are sent as they are read."""
        import json

        from sleipnir.client.http import batches

        given = _options("batch", options, _OF_ROWS)
        if (variables := given.pop("variables", None)) is not None:
            given["variables"] = json.dumps(dict(variables))
        query = {
            "agent": agent_name(agent), "id": id, "name": name, "key": key, "priority": priority,
            "parallel": parallel, "canary": canary, "max_cost_usd": max_cost_usd, "max_tokens": max_tokens, **given,
        }  # fmt: skip
        return batches.submit(self.server, query, rows, on_bad=on_bad, on_progress=on_progress)

    def fork_batch(
        self, batch: Batch | str, *, id: str | None = None, on_bad: Any = None, on_progress: Any = None, **given: Any
    ) -> Batch:
        """As Client.fork_batch. `on_bad` is called for the first 100 rows that are left out, `on_progress` once, at the
        end."""
        from sleipnir.client.http import batches

        if given.get("agent") is not None:
            given["agent"] = agent_name(given["agent"])
        source = batch if isinstance(batch, str) else batch.id
        return batches.fork(self.server, source, {**given, "id": id}, on_bad=on_bad, on_progress=on_progress)

    def open_batch(self, batch_id: str, *, namespace: str = ANY_NAMESPACE) -> Batch:
        """As Client.open_batch; which namespaces are seen is said by the token."""
        from sleipnir.client.http.batches import HttpBatch

        if namespace != ANY_NAMESPACE:
            raise not_served("open_batch with `namespace`", "the token says which ones are seen")
        found = self.server.get(f"/batches/{part(batch_id)}", missing=BatchNotFound)
        return HttpBatch(self.server, found["batch"]["id"])

    def batches(self, limit: int = 50, *, namespace: str | None = None, after: str | None = None) -> list[BatchInfo]:
        """As Client.batches, up to 500."""
        from sleipnir.batches.records import BatchInfo

        found = self.server.get("/batches", {"limit": _page(limit), "namespace": namespace, "after": after})
        return decoded(list[BatchInfo], [each["batch"] for each in found])

    # Schedules.

    def schedule(
        self,
        name: str,
        agent: Any,
        prompt: Any = "",
        *,
        cron: str | None = None,
        every: float | str | None = None,
        at: str | None = None,
        tz: str = "UTC",
        overlap: Any = "skip",
        catch_up: float | str | None = None,
        jitter: float | str = 0,
        state: Mapping[str, Any] | None = None,
        max_cost_usd: float | None = None,
        max_tokens: int | None = None,
        rows: ScheduleRows | None = None,
        **options: Any,
    ) -> Schedule:
        """As Client.schedule. Not repeated: after a lost answer its name may be taken."""
        from sleipnir.client.http.schedules import HttpSchedule, batch_of, times_of

        times = times_of(
            cron=cron, every=every, at=at, tz=tz, overlap=overlap, catch_up=catch_up, jitter=jitter or None
        )
        body = {
            "name": name, "agent": agent_name(agent), "prompt": _prompt(prompt), "state": state,
            "max_cost_usd": max_cost_usd, "max_tokens": max_tokens, "batch": None if rows is None else batch_of(rows),
            **times, **_options("schedule", options, _OF_SCHEDULES),
        }  # fmt: skip
        given = {field: value for field, value in body.items() if value is not None}
        self._post("/schedules", given, missing=AgentNotFound, timeout_s=SUBMIT_S)
        return HttpSchedule(self.server, name, self.settings)

    def open_schedule(self, name: str) -> Schedule:
        """As Client.open_schedule."""
        from sleipnir.client.http.schedules import HttpSchedule

        self.server.get(f"/schedules/{part(name)}", {"limit": 1}, missing=ScheduleNotFound)
        return HttpSchedule(self.server, name, self.settings)

    def schedules(
        self, limit: int | None = None, *, after: str | None = None, namespace: str | None = None
    ) -> PageOfSchedules:
        """As Client.schedules; without a `namespace` those of the server's."""
        from sleipnir.client.schedule_pages import PageOfSchedules
        from sleipnir.schedules.records import ScheduleInfo

        if limit is not None and limit < 1:
            raise UsageError(f"a page has at least one schedule, not {limit}")
        found: list[ScheduleInfo] = []
        while True:
            wanted = PAGE if limit is None else min(PAGE, limit - len(found))
            page = self.server.get("/schedules", {"limit": wanted, "after": after, "namespace": namespace})
            found += decoded(list[ScheduleInfo], page["items"])
            after = page["after"]
            if after is None or (limit is not None and len(found) >= limit):
                return PageOfSchedules(found, after)

    # Threads and sessions.

    def threads(
        self,
        agent: str | None = None,
        *,
        namespace: str | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> PageOfConversations[ThreadInfo]:
        """As Client.threads."""
        return self._conversations(ThreadInfo, "/threads", agent, namespace, limit, after)

    def thread(self, agent: str, name: str, *, namespace: str | None = None) -> ThreadInfo | None:
        """As Client.thread."""
        found = self._found(f"/threads/{part(agent)}/{part(name)}", {"namespace": namespace})
        return None if found is None else decoded(ThreadInfo, found)

    def update_state(
        self,
        agent: Any,
        config: Mapping[str, Any] | str,
        values: Mapping[str, Any],
        as_node: str | None = None,
        *,
        mode: UpdateMode = "reduce",
        namespace: str | None = None,
    ) -> Run:
        """As Client.update_state; `agent` is a name, and `values` are in their JSON form. Not repeated: each request
        begins a turn."""
        from sleipnir.client.state_snapshots import place_of

        name = agent_name(agent)
        place = place_of(name, config, "default")  # the server knows its namespace
        checkpoint = None if place.run is None else f"{place.run}:{place.step}"
        path = f"/threads/{part(name)}/{part(place.thread.name)}/update"
        body = {"values": dict(values), "as_node": as_node, "mode": mode, "checkpoint_id": checkpoint}
        made = of_json(self.server.call(ApiRequest("POST", path, {"namespace": namespace}, body)))
        return HttpRun(self.server, made["id"], self.settings)

    def thread_runs(self, agent: str, name: str, limit: int = 50, *, namespace: str | None = None) -> list[RunInfo]:
        """As Client.thread_runs, up to 500."""
        query = {"limit": _page(limit), "namespace": namespace}
        return decoded(list[RunInfo], self._found(f"/threads/{part(agent)}/{part(name)}/runs", query) or [])

    def remove_thread(self, agent: str, name: str, *, namespace: str | None = None) -> bool:
        """As Client.remove_thread."""
        return self._removed(f"/threads/{part(agent)}/{part(name)}", {"namespace": namespace})

    def sessions(
        self,
        agent: str | None = None,
        *,
        namespace: str | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> PageOfConversations[SessionInfo]:
        """As Client.sessions."""
        return self._conversations(SessionInfo, "/sessions", agent, namespace, limit, after)

    def _conversations(
        self, kind: type[T], path: str, agent: str | None, namespace: str | None, limit: int | None, after: str | None
    ) -> PageOfConversations[T]:
        from sleipnir.runs.conversation_pages import PageOfConversations

        found: list[T] = []
        while True:
            query = {"agent": agent, "namespace": namespace, "limit": PAGE if limit is None else limit, "after": after}
            page = self.server.get(path, query)
            found += [decoded(kind, each) for each in page["items"]]
            after = page["after"]
            if after is None or limit is not None:
                return PageOfConversations(found, after)

    def session(self, agent: str, name: str, *, namespace: str | None = None) -> SessionInfo | None:
        """As Client.session."""
        found = self._found(f"/sessions/{part(agent)}/{part(name)}", {"namespace": namespace})
        return None if found is None else decoded(SessionInfo, found["session"])

    def said(self, agent: str, session: str, *, namespace: str | None = None) -> list[dict[str, Any]]:
        """As Client.said."""
        found = self._found(f"/sessions/{part(agent)}/{part(session)}", {"namespace": namespace})
        return [] if found is None else decoded(list[dict[str, Any]], found["messages"])

    def remove_session(self, agent: str, session: str, *, namespace: str | None = None) -> bool:
        """As Client.remove_session."""
        return self._removed(f"/sessions/{part(agent)}/{part(session)}", {"namespace": namespace})

    def _found(self, path: str, query: Mapping[str, Any] | None = None) -> Any:
        try:
            return self.server.get(path, query, missing=_NotThere)
        except _NotThere:
            return None

    def _removed(self, path: str, query: Mapping[str, Any] | None = None) -> bool:
        try:
            self.server.call(ApiRequest("DELETE", path, query, missing=_NotThere))
        except _NotThere:
            return False
        return True

    # The fleet.

    def agents(self) -> list[AgentInfo]:
        """As Client.agents: those of the server. Their folders are not told: `folder` is the name alone."""
        return [decoded(AgentInfo, {**each, "folder": each["name"]}) for each in self.server.get("/agents")]

    def cached_results(self, agent: str | None = None, node: str | None = None) -> list[CacheUse]:
        """As Client.cached_results."""
        from sleipnir.runs.cached_results import CacheUse

        found = self.server.get("/cache", {"agent": agent, "node": node})
        return [decoded(CacheUse, {**each, "bytes_": each["size_bytes"]}) for each in found]

    def clear_cache(self, agent: str | None = None, node: str | None = None) -> int:
        """As Client.clear_cache. Not repeated: it counts."""
        answer = self.server.call(ApiRequest("DELETE", "/cache", {"agent": agent, "node": node}))
        return int(of_json(answer)["removed"])

    def limits(self) -> list[LimitUse]:
        """As Client.limits, of the limits.yaml of the server."""
        from sleipnir.models.limits import LimitUse

        return decoded(list[LimitUse], self.server.get("/limits"))

    def set_limit(
        self,
        pattern: str,
        *,
        requests_per_minute: int | None = None,
        tokens_per_minute: int | None = None,
        max_parallel: int | None = None,
        reason: str = "",
    ) -> LimitUse:
        """As Client.set_limit, of the limits.yaml of the server."""
        from sleipnir.models.limits import LimitUse

        bounds = {
            "requests_per_minute": requests_per_minute, "tokens_per_minute": tokens_per_minute,
            "max_parallel": max_parallel,
        }  # fmt: skip
        body = {"pattern": pattern, "reason": reason, **bounds}
        return decoded(LimitUse, self._post("/limits/set", body, repeats=True))

    def reset_limit(self, pattern: str, *, reason: str = "") -> LimitUse:
        """As Client.reset_limit, of the limits.yaml of the server."""
        from sleipnir.models.limits import LimitUse

        return decoded(LimitUse, self._post("/limits/reset", {"pattern": pattern, "reason": reason}, repeats=True))

    def throughput(self, *, namespace: str | None = None) -> Throughput:
        """As Client.throughput. The budget is that of the server."""
        from sleipnir.runs.throughput import Throughput

        return decoded(Throughput, self.server.get("/throughput", {"namespace": namespace}))

    def signal(self, name: str, data: Any = None, *, id: str | None = None) -> SignalReceipt:
        """As Client.signal."""
        from sleipnir.runs.signals import SignalReceipt, new_id

        body = {"name": name, "data": data, "id": new_id() if id is None else id}
        return decoded(SignalReceipt, self._post("/signals", body, repeats=True))

    def signals(self, limit: int = 50) -> list[SignalInfo]:
        """As Client.signals, up to 500."""
        from sleipnir.runs.signals import SignalInfo

        return decoded(list[SignalInfo], self.server.get("/signals", {"limit": _page(limit)}))

    def pause_all(self, by: str | None = None, reason: str | None = None, *, namespace: str | None = None) -> None:
        """As Client.pause_all; who pauses is said by the token."""
        if by is not None:
            raise not_served("pause_all with `by`", "who acts is said by the token")
        self._post(f"{_scope_path(namespace)}/pause", {"reason": reason}, repeats=True)

    def resume_all(self, *, namespace: str | None = None) -> bool:
        """As Client.resume_all: whether it was paused just before."""
        scope = namespace or "*"
        was_held = any(held.scope == scope for held in self.holds())
        self._post(f"{_scope_path(namespace)}/resume", repeats=True)
        return was_held

    def resume_part(
        self, *, agents: Sequence[str] = (), rate: float | None = None, namespace: str | None = None
    ) -> ScopeHold:
        """As Client.resume_part."""
        from sleipnir.runs.deployment_holds import ScopeHold

        body = {"agents": list(agents), "rate": rate}
        return decoded(ScopeHold, self._post(f"{_scope_path(namespace)}/resume-part", body, repeats=True))

    def holds(self) -> list[ScopeHold]:
        """As Client.holds: those of the deployment and of namespaces that the token may see."""
        from sleipnir.runs.deployment_holds import ScopeHold

        return decoded(list[ScopeHold], self.server.get("/holds"))

    def held(self) -> Hold | None:
        """As Client.held."""
        found = self.server.get("/deployment/hold")["held"]
        return None if found is None else decoded(Hold, found)

    def health(self) -> Health:
        """As Client.health."""
        return decoded(Health, self.server.get("/health"))

    def now_ms(self) -> int:
        """As Client.now_ms."""
        return int(self.server.get("/health")["now_ms"])

    def __repr__(self) -> str:
        return f"Client({self.server.address.origin + self.server.address.path!r})"


class _NotThere(UsageError):
    """For what is looked up, and may be absent."""


def token_of(settings: Settings) -> str | None:
    """The token of SLEIPNIR_TOKEN, or in the file SLEIPNIR_TOKEN_FILE. Raises ConfigError."""
    if settings.token or settings.token_file is None:
        return settings.token
    try:
        token = settings.token_file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"SLEIPNIR_TOKEN_FILE={str(settings.token_file)!r} cannot be read: {error}") from None
    if not token:
        raise ConfigError(f"SLEIPNIR_TOKEN_FILE={str(settings.token_file)!r} is empty")
    return token


def _prompt(prompt: Any) -> str:
    if not isinstance(prompt, str):
        raise not_served("a prompt that is no text", "give the values of a graph as `state`")
    return prompt


def _page(limit: int) -> int:
    if not 1 <= limit <= PAGE:
        raise not_served(f"a limit of {limit:,}", f"the API has pages of 1 to {PAGE}")
    return limit


def _options(what: str, options: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    from sleipnir.client.options import refuse_unknown

    refuse_unknown(options)
    given = {name: value for name, value in options.items() if value is not None and name not in _HERE}
    for name, value in given.items():
        if name not in known and value not in ((), {}, ""):
            raise not_served(f"{what} with `{name}`", "the API has no such parameter")
    return {
        name: dict(value) if isinstance(value, Mapping) else value for name, value in given.items() if name in known
    }


def _scope_path(namespace: str | None) -> str:
    return "/deployment" if namespace in (None, "*") else f"/namespaces/{part(str(namespace))}"

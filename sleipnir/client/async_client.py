"""The client for programs with an event loop: `AsyncClient` has the methods of `Client`, as coroutines.

    async with AsyncClient() as client:
        run = await client.submit("triage", "the build is red")
        async for event in run.stream():
            ...
        print(await run.output())

Each method is that of Client, called by waiting.in_loop: one implementation, and no thread per call. The docstrings and
errors are those of Client, Run and Batch. Packing an agent's folder for its first submission blocks the loop for some
milliseconds.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

from sleipnir.client.access import Access
from sleipnir.client.batch import Batch, Given
from sleipnir.client.client import Client, Run
from sleipnir.client.gate_inbox import GateInbox
from sleipnir.client.gate_links import GateLinks
from sleipnir.client.hooks import Hooks
from sleipnir.client.jobs import Jobs
from sleipnir.client.schedule import Schedule
from sleipnir.client.webhooks import Webhooks
from sleipnir.messages import RunStatus
from sleipnir.python_graph.compiled import CompiledGraph
from sleipnir.runs.actor import Actor
from sleipnir.settings import Settings
from sleipnir.store.store import Store
from sleipnir.waiting import awaited, in_loop

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C")
R = TypeVar("R")

_END = object()


def _awaited_rows(rows: Iterable[T] | AsyncIterable[T]) -> Iterator[T]:
    """The rows of an iterable of either kind."""
    if not isinstance(rows, AsyncIterable):
        yield from rows
        return
    iterator = aiter(rows)
    while (row := awaited(_next(iterator))) is not _END:
        yield row


async def _next(iterator: AsyncIterator[T]) -> Any:
    return await anext(iterator, _END)


def _of(blocking: Any, method: Callable[Concatenate[C, P], T]) -> Callable[P, T]:
    """The method of this object: a client over HTTP has other ones than Client."""
    found: Callable[P, T] = getattr(blocking, method.__name__)
    return found


def _coroutine(method: Callable[Concatenate[C, P], T]) -> Callable[Concatenate[Any, P], Awaitable[T]]:
    """A method of the blocking client, as a coroutine."""

    @functools.wraps(method)
    async def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await in_loop(_of(await self._opened(), method), *args, **kwargs)

    return call


def _coroutine_of(
    method: Callable[Concatenate[C, P], T], wrap: Callable[[T], R]
) -> Callable[Concatenate[Any, P], Awaitable[R]]:
    """The same, for a method that returns an object with methods of its own."""

    @functools.wraps(method)
    async def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return wrap(await in_loop(_of(await self._opened(), method), *args, **kwargs))

    return call


def _iterator(method: Callable[Concatenate[C, P], Iterator[T]]) -> Callable[Concatenate[Any, P], AsyncIterator[T]]:
    """A method of the blocking client that iterates, as an asynchronous generator."""

    @functools.wraps(method)
    async def iterate(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        iterator = iter(_of(await self._opened(), method)(*args, **kwargs))
        try:
            while (item := await in_loop(next, iterator, _END)) is not _END:
                yield item  # type: ignore[misc]
        finally:
            if isinstance(iterator, Generator):
                await in_loop(iterator.close)

    return iterate


class AsyncRun:
    """One run, as `Run`. `status`, `output` and `error` are methods, because they ask Redis."""

    def __init__(self, run: Run) -> None:
        self.run, self.id = run, run.id

    def __repr__(self) -> str:
        return f"Async{self.run!r}"

    def _repr_html_(self) -> str:
        """As Run's. A notebook does not await it, so it opens a blocking connection for the time that it takes."""
        from sleipnir.client import run_page

        return run_page.page_from(self.run.settings, self.id)

    async def _opened(self) -> Run:
        return self.run

    async def status(self) -> RunStatus:
        """As Run.status."""
        return await in_loop(lambda: self.run.status)

    async def output(self) -> str | None:
        """As Run.output."""
        return await in_loop(lambda: self.run.output)

    async def error(self) -> str | None:
        """As Run.error."""
        return await in_loop(lambda: self.run.error)

    info = _coroutine(Run.info)
    missing = _coroutine(Run.missing)
    tree = _coroutine(Run.tree)
    active = _coroutine(Run.active)
    lineage = _coroutine(Run.lineage)
    forks = _coroutine(Run.forks)
    wait = _coroutine(Run.wait)
    result = _coroutine(Run.result)
    events = _iterator(Run.events)
    stream = _iterator(Run.stream)
    history = _coroutine(Run.history)
    past_steps = _coroutine(Run.past_steps)
    export = _iterator(Run.export)
    trace = _coroutine(Run.trace)
    trace_lines = _iterator(Run.trace_lines)
    graph = _coroutine(Run.graph)
    source = _coroutine(Run.source)
    late_results = _coroutine(Run.late_results)
    execution_errors = _coroutine(Run.execution_errors)
    state = _coroutine(Run.state)
    state_at = _coroutine(Run.state_at)
    state_difference = _coroutine(Run.state_difference)
    checkpoint = _coroutine(Run.checkpoint)
    fork = _coroutine_of(Run.fork, lambda run: AsyncRun(run))
    rewind = _coroutine_of(Run.rewind, lambda run: AsyncRun(run))
    get_state = _coroutine(Run.get_state)
    get_state_history = _iterator(Run.get_state_history)
    update_state = _coroutine_of(Run.update_state, lambda run: AsyncRun(run))
    gates = _coroutine(Run.gates)
    answer = _coroutine(Run.answer)
    answer_all = _coroutine(Run.answer_all)
    answered = _coroutine(Run.answered)
    cancel = _coroutine(Run.cancel)
    retry = _coroutine(Run.retry)
    skip = _coroutine(Run.skip)
    pause = _coroutine(Run.pause)
    resume = _coroutine(Run.resume)


class AsyncBatch:
    """One batch, as `Batch`."""

    def __init__(self, batch: Batch) -> None:
        self.batch, self.id = batch, batch.id

    def __repr__(self) -> str:
        return f"Async{self.batch!r}"

    async def _opened(self) -> Batch:
        return self.batch

    info = _coroutine(Batch.info)
    watch = _iterator(Batch.watch)
    wait = _coroutine(Batch.wait)
    run_id = _coroutine(Batch.run_id)
    pause = _coroutine(Batch.pause)
    resume = _coroutine(Batch.resume)
    set_parallel = _coroutine(Batch.set_parallel)
    cancel = _coroutine(Batch.cancel)
    retry_failed = _coroutine(Batch.retry_failed)
    results = _iterator(Batch.results)
    errors = _coroutine(Batch.errors)
    rows = _coroutine(Batch.rows)
    grid = _coroutine(Batch.grid)
    ended_rows = _coroutine(Batch.ended_rows)
    comparisons = _coroutine(Batch.comparisons)


class AsyncAccess:
    """Users, access tokens, logins and the audit, as `Access`. Passwords are hashed in a thread."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def _opened(self) -> Access:
        return (await self._client._opened()).access

    users = _coroutine(Access.users)
    user = _coroutine(Access.user)
    has_users = _coroutine(Access.has_users)
    add_user = _coroutine(Access.add_user)
    set_password = _coroutine(Access.set_password)
    set_disabled = _coroutine(Access.set_disabled)
    set_role = _coroutine(Access.set_role)
    tokens = _coroutine(Access.tokens)
    token = _coroutine(Access.token)
    create_token = _coroutine(Access.create_token)
    revoke_token = _coroutine(Access.revoke_token)
    of_token = _coroutine(Access.of_token)
    log_in = _coroutine(Access.log_in)
    begin_provided = _coroutine(Access.begin_provided)
    log_in_provided = _coroutine(Access.log_in_provided)
    change_password = _coroutine(Access.change_password)
    logins = _coroutine(Access.logins)
    end_login = _coroutine(Access.end_login)
    of_cookie = _coroutine(Access.of_cookie)
    of_proxy = _coroutine(Access.of_proxy)
    log_out = _coroutine(Access.log_out)
    audit = _iterator(Access.audit)
    audit_page = _coroutine(Access.audit_page)


class AsyncGateInbox:
    """The open questions of one person, as `GateInbox`."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def _opened(self) -> GateInbox:
        return (await self._client._opened()).gate_inbox

    page = _coroutine(GateInbox.page)
    walk = _iterator(GateInbox.walk)
    counts = _coroutine(GateInbox.counts)
    ways_on = _coroutine(GateInbox.ways_on)
    claim = _coroutine(GateInbox.claim)
    release = _coroutine(GateInbox.release)
    release_all = _coroutine(GateInbox.release_all)
    assign = _coroutine(GateInbox.assign)
    snooze = _coroutine(GateInbox.snooze)
    comment = _coroutine(GateInbox.comment)


class AsyncGateLinks:
    """Signed links to questions, as `GateLinks`."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def _opened(self) -> GateLinks:
        return (await self._client._opened()).gate_links

    make = _coroutine(GateLinks.make)
    opened = _coroutine(GateLinks.opened)


class AsyncWebhooks:
    """Webhooks and their deliveries, as `Webhooks`."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def _opened(self) -> Webhooks:
        return (await self._client._opened()).webhooks

    add = _coroutine(Webhooks.add)
    all = _coroutine(Webhooks.all)
    get = _coroutine(Webhooks.get)
    remove = _coroutine(Webhooks.remove)
    pause = _coroutine(Webhooks.pause)
    resume = _coroutine(Webhooks.resume)
    deliveries = _coroutine(Webhooks.deliveries)
    redeliver = _coroutine(Webhooks.redeliver)
    senders = _coroutine(Webhooks.senders)
    lost_notes = _coroutine(Webhooks.lost_notes)


class AsyncJobs:
    """Requests to many runs, as `Jobs`."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def _opened(self) -> Jobs:
        return (await self._client._opened()).jobs

    preview = _coroutine(Jobs.preview)
    submit = _coroutine(Jobs.submit)
    get = _coroutine(Jobs.get)
    page = _coroutine(Jobs.page)
    refusals = _coroutine(Jobs.refusals)
    stop = _coroutine(Jobs.stop)


class AsyncHooks:
    """Hooks and their requests, as `Hooks`."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def _opened(self) -> Hooks:
        return (await self._client._opened()).hooks

    add = _coroutine(Hooks.add)
    all = _coroutine(Hooks.all)
    get = _coroutine(Hooks.get)
    remove = _coroutine(Hooks.remove)
    rotate = _coroutine(Hooks.rotate)
    receive = _coroutine(Hooks.receive)


class AsyncSchedule:
    """One schedule, as `Schedule`."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule, self.name = schedule, schedule.name

    def __repr__(self) -> str:
        return f"Async{self.schedule!r}"

    async def _opened(self) -> Schedule:
        return self.schedule

    info = _coroutine(Schedule.info)
    fires = _coroutine(Schedule.fires)
    runs = _coroutine(Schedule.runs)
    pause = _coroutine(Schedule.pause)
    resume = _coroutine(Schedule.resume)
    remove = _coroutine(Schedule.remove)
    run_now = _coroutine_of(Schedule.run_now, AsyncRun)
    batch_now = _coroutine_of(Schedule.batch_now, AsyncBatch)
    edit = _coroutine(Schedule.edit)


class _LoopClient(Client):
    """A client whose calls are made by in_loop."""

    def _open_store(self) -> Store:
        return Store.open(
            self.settings, client_name="sleipnir-client", by=self.by, in_loop=True, person=self.actor.person
        )


class AsyncClient:
    """A connection to a deployment. It is opened by the first call, which raises StoreUnavailable or ConfigError. For
    one event loop. `settings`, which may be the URL of an HTTP API, and the other parameters are as in Client."""

    def __init__(self, settings: Settings | str | None = None, *, by: Actor | None = None, **server: Any) -> None:
        self._settings, self._by, self._server = settings, by, server
        self._client: Client | None = None
        self._opening = asyncio.Lock()

    async def _opened(self) -> Client:
        async with self._opening:
            if self._client is None:
                self._client = await in_loop(_LoopClient, self._settings, by=self._by, **self._server)
        return self._client

    def acting_as(self, by: Actor) -> AsyncClient:
        """As Client.acting_as. Nothing is opened by it."""
        return _ActingClient(self, by)

    @property
    def access(self) -> AsyncAccess:
        """Users, access tokens, logins and the audit."""
        return AsyncAccess(self)

    @property
    def gate_inbox(self) -> AsyncGateInbox:
        """The open questions of this person."""
        return AsyncGateInbox(self)

    @property
    def jobs(self) -> AsyncJobs:
        """Requests to many runs, which a scheduler carries out."""
        return AsyncJobs(self)

    @property
    def gate_links(self) -> AsyncGateLinks:
        """Signed links, each for one question and one person."""
        return AsyncGateLinks(self)

    @property
    def hooks(self) -> AsyncHooks:
        """What requests of other programs start."""
        return AsyncHooks(self)

    @property
    def webhooks(self) -> AsyncWebhooks:
        """Webhooks and their deliveries."""
        return AsyncWebhooks(self)

    async def close(self) -> None:
        """Close all connections."""
        if self._client is not None:
            await in_loop(self._client.close)
            self._client = None

    async def __aenter__(self) -> AsyncClient:
        await self._opened()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def batch(
        self, agent: str | Path | CompiledGraph, rows: Iterable[Given] | AsyncIterable[Given], **options: Any
    ) -> AsyncBatch:
        """As Client.batch; `rows` may also be an asynchronous iterable."""
        client = await self._opened()
        return AsyncBatch(await in_loop(client.batch, agent, _awaited_rows(rows), **options))

    submit = _coroutine_of(Client.submit, AsyncRun)
    run = _coroutine_of(Client.run, AsyncRun)
    fork_batch = _coroutine_of(Client.fork_batch, AsyncBatch)
    open_batch = _coroutine_of(Client.open_batch, AsyncBatch)
    batches = _coroutine(Client.batches)
    schedule = _coroutine_of(Client.schedule, AsyncSchedule)
    open_schedule = _coroutine_of(Client.open_schedule, AsyncSchedule)
    schedules = _coroutine(Client.schedules)
    prepare_knowledge = _coroutine(Client.prepare_knowledge)
    definition = _coroutine(Client.definition)
    structure = _coroutine(Client.structure)
    nodes = _coroutine(Client.nodes)
    warnings = _coroutine(Client.warnings)
    cached_results = _coroutine(Client.cached_results)
    clear_cache = _coroutine(Client.clear_cache)
    threads = _coroutine(Client.threads)
    thread = _coroutine(Client.thread)
    thread_runs = _coroutine(Client.thread_runs)
    remove_thread = _coroutine(Client.remove_thread)
    get_state = _coroutine(Client.get_state)
    get_state_history = _iterator(Client.get_state_history)
    update_state = _coroutine_of(Client.update_state, lambda run: AsyncRun(run))
    shared_values = _coroutine(Client.shared_values)
    set_shared_values = _coroutine(Client.set_shared_values)
    remove_shared_values = _coroutine(Client.remove_shared_values)
    shared_value_counts = _coroutine(Client.shared_value_counts)
    sessions = _coroutine(Client.sessions)
    session = _coroutine(Client.session)
    said = _coroutine(Client.said)
    add_to_session = _coroutine(Client.add_to_session)
    remove_session = _coroutine(Client.remove_session)
    stream = _iterator(Client.stream)
    missing = _coroutine(Client.missing)
    as_they_end = _iterator(Client.as_they_end)
    signal = _coroutine(Client.signal)
    signals = _coroutine(Client.signals)
    runs = _coroutine(Client.runs)
    compare = _coroutine(Client.compare)
    compare_batches = _iterator(Client.compare_batches)
    run_count = _coroutine(Client.run_count)
    run_counts = _coroutine(Client.run_counts)
    failures = _coroutine(Client.failures)
    discard_failures = _coroutine(Client.discard_failures)
    reopen_failures = _coroutine(Client.reopen_failures)
    now_ms = _coroutine(Client.now_ms)
    agents = _coroutine(Client.agents)
    gates = _coroutine(Client.gates)
    gate_count = _coroutine(Client.gate_count)
    limits = _coroutine(Client.limits)
    set_limit = _coroutine(Client.set_limit)
    reset_limit = _coroutine(Client.reset_limit)
    throughput = _coroutine(Client.throughput)
    pause_runs = _coroutine(Client.pause_runs)
    resume_runs = _coroutine(Client.resume_runs)
    pause_all = _coroutine(Client.pause_all)
    resume_all = _coroutine(Client.resume_all)
    resumed = _coroutine(Client.resumed)
    held = _coroutine(Client.held)
    holds = _coroutine(Client.holds)
    resume_part = _coroutine(Client.resume_part)
    health = _coroutine(Client.health)


class _ActingClient(AsyncClient):
    """The client `first`, for requests of another actor. Closing it closes nothing."""

    def __init__(self, first: AsyncClient, by: Actor) -> None:
        super().__init__(first._settings, by=by)
        self._first, self._actor = first, by

    async def _opened(self) -> Client:
        if self._client is None:
            self._client = (await self._first._opened()).acting_as(self._actor)
        return self._client

    async def close(self) -> None:
        self._client = None

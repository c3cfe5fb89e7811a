"""Follow a run for one call of a tool: progress, questions to the client's user, and what the call returns.

Rules. A call ends when its run has ended, when it waits for what the client cannot give, or after `wait_s`, of which
the time that a person takes to answer is no part. A question that the user declines stays open. Clients of protocol
2025-11-25 and earlier are asked by a request of ours; later ones get the question as the result of the call, and repeat
the call with the answer: `request_state` says then which run it is of. It is the client's word, and checked.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any, Final, cast

import anyio
import structlog
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.types import CallToolResult, ElicitRequest, ElicitRequestFormParams, ElicitResult, InputRequiredResult

from sleipnir.client.async_client import AsyncClient, AsyncRun
from sleipnir.errors import GateError, SleipnirError, UsageError
from sleipnir.mcp_server import questions
from sleipnir.mcp_server.progress import ProgressMessages
from sleipnir.mcp_server.results import run_content, run_result
from sleipnir.runs.views import GateInfo, RunEvent, RunInfo, StreamMode

Result = CallToolResult | InputRequiredResult

MODES: Final[tuple[StreamMode, ...]] = ("updates", "tools", "events", "custom")
REPEATED_SINCE: Final = "2026-07-28"
"""The first version of the protocol with which calls are repeated; versions are dates."""

MOST_ROUNDS: Final = 8
"""Repetitions of one call with answers: clients give up after ten."""

MOST_TRIES: Final = 3  # of a user to give an answer that fits
_LOOK_AGAIN_S: Final = 2.0  # whether another person has answered meanwhile
_STOPS: Final = frozenset(("gate_opened", "run_paused", "run_stopped", "run_ended", "gap"))
"""Events after which the run may wait for somebody, or be over."""


Place = tuple[str, int, int, int]


def place_of(gate: GateInfo) -> Place:
    """What tells a question from all others, also from an earlier one of its visit."""
    return gate.run, gate.seq, gate.attempt, gate.opened_ms


@dataclass(frozen=True)
class RepeatedCall:
    """What a repeated call says about the call before it: the run, the question that was asked, how often the call was
    repeated, and the questions that the user has declined."""

    run_id: str
    asked: Place
    rounds: int
    declined: tuple[Place, ...] = ()

    @classmethod
    def of(cls, text: str) -> RepeatedCall:
        """Raises UsageError for a text that this server has not made."""
        try:
            run_id, asked, rounds, declined = json.loads(text)
            places = tuple(map(_place, declined))
            if isinstance(run_id, str) and type(rounds) is int:
                return cls(run_id, _place(asked), rounds, places)
        except (ValueError, TypeError, RecursionError):
            pass
        raise UsageError("the state of this repeated call is not one of this server")

    def __str__(self) -> str:
        return json.dumps([self.run_id, self.asked, self.rounds, self.declined])


def _place(value: Any) -> Place:
    """Raises ValueError and TypeError."""
    run, *numbers = value
    seq, attempt, opened_ms = numbers
    if not isinstance(run, str) or not all(type(number) is int for number in numbers):
        raise ValueError(value)
    return run, seq, attempt, opened_ms


class AwaitedRun:
    """One run, for one call."""

    def __init__(
        self,
        context: ServerRequestContext[Any, Any],
        client: AsyncClient,
        run: AsyncRun,
        wait_s: float,
        *,
        answers: bool,
        before: RepeatedCall | None = None,
    ) -> None:
        """`answers`: the client has a tool for answers, which a result may name."""
        self._context, self._client, self._run = context, client, run
        self._left_s, self._answers = wait_s, answers
        self._before = before
        self._repeats = context.protocol_version >= REPEATED_SINCE
        can_ask = self._repeats or context.session.can_send_request
        self._elicits = can_ask and questions.can_elicit(context.session.client_capabilities)
        self._answered: set[Place] = set()
        self._declined = set(before.declined) if before is not None else set()
        self._progress = ProgressMessages(context.session.report_progress)

    async def result(self, *, since_ms: int = 0) -> Result:
        """Follow the run to where the call ends. What happened before `since_ms` is no progress."""
        failure: SleipnirError | None = None
        async with anyio.create_task_group() as beside:
            beside.start_soon(self._progress.keep_alive)
            try:
                result = await self._followed(since_ms)
            except SleipnirError as error:  # else it would be in an ExceptionGroup
                failure = error
            beside.cancel_scope.cancel()
        if failure is not None:
            raise failure
        return result

    async def use(self, answer: ElicitResult) -> Result | None:
        """Answer the question of the call before. Returns the same question again if the run refused the answer."""
        assert self._before is not None
        gate = next((each for each in await self._run.gates() if place_of(each) == self._before.asked), None)
        problem = None if gate is None else await self._use(gate, answer)
        if gate is None or problem is None or self._before.rounds >= MOST_ROUNDS:
            return None
        return self._question(await self._run.info(), gate, problem)

    async def _followed(self, since_ms: int) -> Result:
        stream = cast(AsyncGenerator[RunEvent], self._run.stream(MODES, subgraphs=True))
        async with contextlib.aclosing(stream) as events:
            while True:
                is_over = await self._until_it_may_wait(events, since_ms)
                info, gates = await self._standing()
                while self._elicits and (gate := self._next(gates)) is not None:
                    if self._repeats:
                        return self._question(info, gate)
                    await self._ask(info, gate)
                    info, gates = await self._standing()
                if is_over or gates or info.status == "paused" or self._left_s <= 0:
                    output = await self._run.output() if info.status == "completed" else None
                    content = run_content(info, output, gates, await self._client.now_ms())
                    return run_result(content, how_to_go_on(info, gates, answers=self._answers))

    async def _until_it_may_wait(self, events: AsyncIterator[RunEvent], since_ms: int) -> bool:
        """Report events up to the next that may stop the run, or until the time of the call is over. Returns whether
        there are no more."""
        began_s = anyio.current_time()
        try:
            with anyio.move_on_after(max(0.0, self._left_s)):
                async for event in events:
                    if event.at_ms >= since_ms:
                        await self._progress.report_event(event)
                    if event.type in _STOPS:
                        return False
                return True
            return False
        finally:
            self._left_s -= anyio.current_time() - began_s

    async def _standing(self) -> tuple[RunInfo, list[GateInfo]]:
        """The run, and its open questions but those that have their answer, which a scheduler has not seen yet."""
        info = await self._run.info()
        gates = [] if info.is_final else await self._run.gates()
        return info, [gate for gate in gates if place_of(gate) not in self._answered]

    def _next(self, gates: list[GateInfo]) -> GateInfo | None:
        """The question to ask next."""
        if self._before is not None and self._before.rounds >= MOST_ROUNDS:
            return None
        return next((gate for gate in gates if place_of(gate) not in self._declined), None)

    def _question(self, info: RunInfo, gate: GateInfo, problem: str | None = None) -> InputRequiredResult:
        """The question as the result of the call, which the client then repeats."""
        rounds = 0 if self._before is None else self._before.rounds
        state = RepeatedCall(self._run.id, place_of(gate), rounds + 1, tuple(self._declined))
        form = ElicitRequest(params=questions.form_of(gate, info.agent, problem))
        return InputRequiredResult(input_requests={questions.ANSWER: form}, request_state=str(state))

    async def _ask(self, info: RunInfo, gate: GateInfo) -> None:
        """Ask the user by a request, again if the run refuses the answer. In the end the question is answered, by
        whomever, or declined."""
        problem: str | None = None
        for _ in range(MOST_TRIES):
            answer = await self._shown(gate, questions.form_of(gate, info.agent, problem))
            if answer is None:
                return
            problem = await self._use(gate, answer)
            if problem is None:
                return
        self._declined.add(place_of(gate))

    async def _shown(self, gate: GateInfo, form: ElicitRequestFormParams) -> ElicitResult | None:
        """The user's answer to a form. None: somebody else has answered, or the client has failed."""
        answer: ElicitResult | None = None
        async with anyio.create_task_group() as beside:
            beside.start_soon(self._until_answered, gate, beside.cancel_scope)
            try:
                session, call = self._context.session, self._context.request_id
                answer = await session.elicit_form(form.message, form.requested_schema, call)
            except (MCPError, ValueError) as error:
                structlog.get_logger().warning("the client did not show a question", run=gate.run, error=str(error))
                self._declined.add(place_of(gate))
            beside.cancel_scope.cancel()
        return answer

    async def _until_answered(self, gate: GateInfo, scope: anyio.CancelScope) -> None:
        """Withdraw the form as soon as the question is not open any more."""
        while True:
            await anyio.sleep(_LOOK_AGAIN_S)
            with contextlib.suppress(SleipnirError):  # Redis is away; the user still reads
                if all(place_of(gate) != place_of(each) for each in await self._run.gates()):
                    self._answered.add(place_of(gate))
                    scope.cancel()

    async def _use(self, gate: GateInfo, answer: ElicitResult) -> str | None:
        """Answer the question as the user did. Returns why the run refused that."""
        if answer.action != "accept":
            self._declined.add(place_of(gate))
            return None
        try:
            await self._run.answer(questions.answer_in(gate, answer.content), gate)
        except GateError:
            pass  # another person was faster; the run goes on with that answer
        except UsageError as error:
            return str(error)
        self._answered.add(place_of(gate))
        return None


def how_to_go_on(info: RunInfo, gates: list[GateInfo], *, answers: bool) -> str:
    """For the client's model: what to do about a run that is not over."""
    if gates and answers:
        return (
            "It waits for a person. Ask the user, and pass the user's answer on with answer_question; do not answer in "
            "the user's place. Then call wait_for_run."
        )
    if gates:
        return f"It waits for a person: `sleipnir answer {info.id}` answers it."
    if info.status == "paused":
        return f"It is paused: `sleipnir resume {info.id}` goes on with it."
    return f"It goes on without you. Call wait_for_run with run_id {info.id} for its result."

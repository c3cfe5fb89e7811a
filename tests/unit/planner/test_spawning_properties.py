"""Agents that start agents, under a hostile world: a tree of runs, driven by the planner alone.

Each run has a stream of what its commits owe to other runs, which is delivered in order, an entry once or twice; and
what was delivered may come again much later, where that may happen. Results of workers come late, twice, out of order,
or from an attempt that was lost. What a model asks for is drawn. What must hold then is in the invariants, and when all
has been delivered, and all runs have been led to their end, in `teardown`. 100 examples, and more with
`--hypothesis-profile slow` (`make test-slow`).
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sleipnir.graph.config_agent import load_config_agent
from sleipnir.messages import AGENTS, ANSWER, MESSAGES, PERSON, RESULT, ResultHeader, ToolCall
from sleipnir.runs.events import (
    Answered,
    Cancelled,
    ChildEnded,
    Event,
    LeaseLost,
    Resulted,
    Submitted,
    TimerFired,
    Told,
)
from sleipnir.runs.run import RunSpec, RunView, agent_id
from sleipnir.runs.transitions import Effect, SetValue, StartChild, TellChild, TellParent, TellRun, Transition
from sleipnir.runs.visits import ChildWait, Loop, Visit
from tests.model_store import Driver

MOST_AGENTS, MOST_DEPTH = 2, 2
CONFIG = f"""
name: boss
can_spawn_agents: true
max_concurrent_agents: {MOST_AGENTS}
max_agent_depth: {MOST_DEPTH}
summarization_threshold: 10
"""
GRAPH = load_config_agent(CONFIG, "config.yaml", "boss").graph
TOP = "run1"
SEND, INBOX = "agent__send_message", "agent__check_inbox"
TOOLS = (
    *["agent__spawn"] * 3, "agent__check", *["agent__collect"] * 3, "agent__list", *["agent__cancel"] * 2,
    *["agent__task_create"] * 3, *["agent__task_complete"] * 2, "agent__task_fail", *[SEND] * 4, *[INBOX] * 2,
    "agent__reply_escalation", "user__input",
)  # fmt: skip


class Delivery(NamedTuple):
    """What happens to a run, with what a worker or a child brought. `sent` are the messages among the calls of a turn:
    number, whom they are for, and text."""

    run: str
    event: Event
    delta: dict[str, Any]
    sent: tuple[tuple[int, str, str], ...] = ()


class World(RuleBasedStateMachine):
    """A tree of runs of one agent, which starts itself."""

    @initialize(deep=st.booleans())
    def submit(self, deep: bool) -> None:
        """Nothing happens without agents, so some are there from the beginning."""
        self.runs: dict[str, Driver] = {}
        self.owed: dict[str, deque[Effect]] = defaultdict(deque)
        self.delivered: list[tuple[str, Effect]] = []
        self.late: list[Delivery] = []
        self.started: Counter[str] = Counter()
        self.prompts: Counter[str] = Counter()
        self.texts = 0
        self.ends: dict[str, Transition] = {}
        self.senders: dict[str, str] = {}
        self.unconfirmed: dict[tuple[str, str], tuple[str, str]] = {}
        self.sent: dict[str, str] = {}
        self.read: dict[str, list[str]] = defaultdict(list)
        self._create(TOP, RunSpec("boss", "digest", agents={"boss": "digest"}))
        for number in range(1 + deep):
            run, visit = self._queued("turn")[number]
            asked = [("agent__spawn", {"agent": "boss", "prompt": f"{run} {each}"}) for each in "ab"]
            self._happen(self._turn(run, visit, asked))
            self._deliver_all()

    # What models and workers do

    @precondition(lambda self: self._queued("turn"))
    @rule(data=st.data(), tools=st.lists(st.sampled_from(TOOLS), min_size=1, max_size=4), at_once=st.booleans())
    def ask(self, data: st.DataObject, tools: list[str], at_once: bool) -> None:
        """A model asks for tools."""
        run, visit = data.draw(st.sampled_from(self._queued("turn")))
        self._come(self._turn(run, visit, [(tool, self._arguments(data, run, tool)) for tool in tools]), at_once)

    @precondition(lambda self: self._queued("turn"))
    @rule(data=st.data(), tool=st.sampled_from(["agent__spawn", "agent__collect", SEND, INBOX, "user__input"]))
    def ask_for_one(self, data: st.DataObject, tool: str) -> None:
        """The same, more to the point."""
        run, visit = data.draw(st.sampled_from(self._queued("turn")))
        self._happen(self._turn(run, visit, [(tool, self._arguments(data, run, tool))]))

    @precondition(lambda self: len(self._queued("turn")) > 1)
    @rule(data=st.data(), said=st.sampled_from(["short", "longer than the limit", None]), at_once=st.booleans())
    def end(self, data: st.DataObject, said: str | None, at_once: bool) -> None:
        """A model has said its last word, or cannot be asked."""
        run, visit = data.draw(st.sampled_from(self._queued("turn")[1:]))  # not the top, or all is over
        self._come(self._last_turn(run, visit, said), at_once)

    @precondition(lambda self: self._queued("summary"))
    @rule(data=st.data(), ok=st.booleans(), at_once=st.booleans())
    def sum_up(self, data: st.DataObject, ok: bool, at_once: bool) -> None:
        run, visit = data.draw(st.sampled_from(self._queued("summary")))
        self._come(self._summary(run, visit, ok), at_once)

    @precondition(lambda self: self.late)
    @rule(data=st.data(), dies=st.booleans())
    def come_late(self, data: st.DataObject, dies: bool) -> None:
        """A result that is late, or was there before; or its worker has died, and so it is of no use."""
        late = data.draw(st.sampled_from(self.late))
        if dies and isinstance(late.event, Resulted) and late.event.attempt < 3:
            late = Delivery(late.run, LeaseLost(late.event.seq, late.event.attempt, "w"), {})
        self._happen(late)

    # What people and clocks do

    @precondition(lambda self: self._asking())
    @rule(data=st.data(), in_time=st.booleans())
    def answer(self, data: st.DataObject, in_time: bool) -> None:
        run, visit = data.draw(st.sampled_from(self._asking()))
        event: Event = Answered(visit.seq, "yes", visit.attempt) if in_time else TimerFired(visit.timer)
        self._happen(Delivery(run, event, {}))

    @precondition(lambda self: self._cancellable())
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self._happen(Delivery(data.draw(st.sampled_from(self._cancellable())), Cancelled(), {}))

    # What runs owe to each other

    @precondition(lambda self: any(self.owed.values()))
    @rule(data=st.data(), most=st.integers(1, 8), twice=st.booleans())
    def deliver(self, data: st.DataObject, most: int, twice: bool) -> None:
        """The oldest entries of a run; a scheduler may die before it has deleted the last one."""
        run = data.draw(st.sampled_from([run for run, effects in self.owed.items() if effects]))
        for _ in range(min(most, len(self.owed[run]))):
            effect = self._deliver_next(run)
        if twice:
            self._deliver(run, effect)

    @precondition(lambda self: any(self.owed.values()))
    @rule()
    def deliver_all(self) -> None:
        self._deliver_all()

    @precondition(lambda self: self.delivered)
    @rule(data=st.data())
    def deliver_again(self, data: st.DataObject) -> None:
        """By a scheduler that was frozen meanwhile."""
        run, effect = data.draw(st.sampled_from(self.delivered))
        if not isinstance(effect, TellRun) or effect.what in ("sent", "passed_on"):
            self._deliver(run, effect)

    @invariant()
    def no_agent_is_started_twice(self) -> None:
        assert set(self.started.values()) <= {1}
        assert set(self.prompts.values()) <= {1}, "nor is a task"

    @invariant()
    def no_model_has_more_agents_than_it_may(self) -> None:
        for driver in self.runs.values():
            assert all(
                len(visit.body.agents) <= MOST_AGENTS
                for visit in driver.run.frontier.values()
                if isinstance(visit.body, Loop)
            )

    @invariant()
    def no_agent_is_deeper_than_it_may(self) -> None:
        assert all(driver.run.spec.depth <= MOST_DEPTH for driver in self.runs.values())

    @invariant()
    def each_message_is_read_once_and_those_of_one_sender_in_order(self) -> None:
        everything = [text for texts in self.read.values() for text in texts]
        assert len(set(everything)) == len(everything)
        for texts in self.read.values():
            of_senders = defaultdict(list)
            for text in texts:
                of_senders[self.senders[text]].append(int(text))
            assert all(numbers == sorted(numbers) for numbers in of_senders.values())

    @invariant()
    def a_run_is_over_or_something_moves_it(self) -> None:
        for driver in self.runs.values():
            visits = driver.run.frontier.values()
            moving = any(
                v.state == "queued" or v.is_asking or isinstance(v.body, ChildWait) or v.due_ms is not None
                for v in visits
            )
            assert moving or driver.run.is_final

    def teardown(self) -> None:
        if not hasattr(self, "runs"):
            return
        self._deliver_all()
        self._no_message_is_lost()
        self._no_question_is_left_that_nobody_asks()
        for depth in range(MOST_DEPTH, -1, -1):
            self._lead_to_their_end(depth)
        for driver in self.runs.values():
            assert driver.run.is_final
            assert driver.run.status != "completed" or driver.memory.items.keys() <= {"inbox"}

    def _no_message_is_lost(self) -> None:
        for text, run in self.sent.items():
            driver = self.runs.get(run)
            if driver is not None and not driver.run.is_final:
                waiting = json.loads(driver.memory.items.get("inbox", '{"messages": []}'))["messages"]
                assert [*self.read[run], *(each["text"] for each in waiting)].count(text) == 1

    def _no_question_is_left_that_nobody_asks(self) -> None:
        asked = {(run, visit.seq) for run, visit in self._asking()}
        for visit in self.runs[TOP].run.frontier.values():
            questions = visit.body.escalations if isinstance(visit.body, Loop) else ()
            assert {(each["run"], each["seq"]) for each in questions} <= asked

    def _lead_to_their_end(self, depth: int) -> None:
        """No agent below runs any more: what waits for one waits for ever."""
        for run in [run for run, driver in self.runs.items() if driver.run.spec.depth == depth]:
            driver = self.runs[run]
            while not driver.run.is_final:
                moved = [visit for visit in driver.run.frontier.values() if visit.state == "queued" or visit.is_asking]
                assert moved, f"{run} waits for ever: {driver.run.frontier}"
                for visit in moved:
                    if visit.is_asking:
                        self._happen(Delivery(run, Answered(visit.seq, "yes", visit.attempt), {}))
                    elif visit.role == "summary":
                        self._happen(self._summary(run, visit, ok=True))
                    else:
                        self._happen(self._last_turn(run, visit, "short"))
                    self._deliver_all()

    # How it happens

    def _create(self, run: str, spec: RunSpec) -> None:
        assert GRAPH is not None
        driver = self.runs[run] = Driver(GRAPH, {"initial_prompt": "go"})
        driver.run = RunView(id=run, spec=spec)
        self._happen(Delivery(run, Submitted(), {}))

    def _come(self, delivery: Delivery, at_once: bool) -> None:
        if at_once:
            self._happen(delivery)
        self.late.append(delivery)

    def _happen(self, delivery: Delivery) -> None:
        run, driver = delivery.run, self.runs[delivery.run]
        patience_ms = 1_000_000 if isinstance(delivery.event, TimerFired) else 1
        outcome = driver.try_(delivery.event, delivery.delta, after_ms=patience_ms)
        if not isinstance(outcome, Transition):
            return
        for effect in outcome.effects:
            self.owed[run].append(effect)
            if isinstance(effect, StartChild):
                self.started[effect.child] += 1
                self.prompts[effect.prompt] += 1
        if driver.run.is_final:
            self.ends.setdefault(run, outcome)
        results = {op.field: json.loads(op.text) for op in outcome.items if isinstance(op, SetValue)}
        for result in results.values():
            if isinstance(result, dict) and "count" in result:
                self.read[run] += [message["payload"]["content"] for message in result["messages"]]
        turn = next((write.step.part.turn for write in outcome.writes if write.step.part), 0)
        for number, to, text in delivery.sent:
            self.senders[text] = run
            self.unconfirmed[run, f"1.{turn}.{number}"] = (text, self._named(run, to))
        for field, result in results.items():
            if (message := self.unconfirmed.pop((run, field), None)) is not None and result["status"] == "ok":
                self.sent |= dict([message])

    def _deliver(self, run: str, effect: Effect) -> None:
        """As the scheduler does."""
        spec = self.runs[run].run.spec
        match effect:
            case StartChild() if effect.child not in self.runs:
                above = {"parent": run, "parent_seq": effect.seq, "parent_attempt": effect.attempt}
                more = {"root": spec.root or run, "depth": spec.depth + 1, "agents": spec.agents}
                self._create(effect.child, RunSpec(effect.agent, "digest", **above, **more))
            case TellChild():
                self._happen(Delivery(effect.child, Cancelled(), {}))
            case TellRun():
                self._happen(Delivery(effect.run, Told(effect.what, effect.data), {}))
            case TellParent():
                assert spec.parent is not None
                end, status = self.ends[run], self.runs[run].run.status
                event = ChildEnded(spec.parent_seq, spec.parent_attempt, run, status, end.error)
                self._happen(Delivery(spec.parent, event, {} if end.output is None else {RESULT: end.output}))

    def _deliver_all(self) -> None:
        while any(self.owed.values()):
            for run in list(self.owed):
                while self.owed[run]:
                    self._deliver_next(run)

    def _deliver_next(self, run: str) -> Effect:
        effect = self.owed[run].popleft()
        self._deliver(run, effect)
        self.delivered.append((run, effect))
        return effect

    # What is asked for

    def _arguments(self, data: st.DataObject, run: str, tool: str) -> dict[str, Any]:
        self.texts += 1
        match tool:
            case "agent__spawn":
                return {"agent": "boss", "prompt": f"p{self.texts}"}
            case "agent__check" | "agent__collect" | "agent__cancel":
                return {"id": data.draw(st.sampled_from(self._below(run) or ["nobody"]))}
            case "agent__task_create":
                after = data.draw(st.lists(st.sampled_from(self._tasks(run)), max_size=2))
                agent = {"agent": "boss", "prompt": f"p{self.texts}"} if data.draw(st.booleans()) else {}
                return {"subject": "s", "blocked_by": after, **agent}
            case "agent__task_complete" | "agent__task_fail":
                return {"task_id": data.draw(st.sampled_from(self._tasks(run)))}
            case "agent__send_message":
                parent = self.runs[run].run.spec.parent
                beside = self._below(parent) if parent else []
                to = data.draw(st.sampled_from([*self._below(run), *beside, "parent"]))
                return {"to": to, "message": str(self.texts)}
            case "agent__reply_escalation":
                questions = [each["escalation_id"] for each in self._questions(run)]
                return {"escalation_id": data.draw(st.sampled_from([*questions, "none"])), "reply": "r"}
            case "user__input":
                return {"question": "q"}
        return {}

    def _turn(self, run: str, visit: Visit, asked: list[tuple[str, dict[str, Any]]]) -> Delivery:
        calls = tuple(
            ToolCall(f"c{number}", tool, PERSON if tool.startswith("user__") else AGENTS)
            for number, (tool, _) in enumerate(asked)
        )
        functions = [{"name": tool, "arguments": json.dumps(arguments)} for tool, arguments in asked]
        delta: dict[str, Any] = {ANSWER: {"tool_calls": [{"id": "c", "function": each} for each in functions]}}
        if visit.part and visit.part.turn == 0:
            delta[MESSAGES] = []
        sent = ((n, given["to"], given["message"]) for n, (tool, given) in enumerate(asked) if tool == SEND)
        header = ResultHeader(ok=True, keys=tuple(delta), calls=calls)
        return Delivery(run, Resulted(visit.seq, visit.attempt, header), delta, tuple(sent))

    def _last_turn(self, run: str, visit: Visit, said: str | None) -> Delivery:
        if said is None:
            return Delivery(run, Resulted(visit.seq, visit.attempt, ResultHeader(ok=False, error="boom")), {})
        header = ResultHeader(ok=True, keys=("output",))
        return Delivery(run, Resulted(visit.seq, visit.attempt, header), {"output": said})

    def _summary(self, run: str, visit: Visit, ok: bool) -> Delivery:
        header = ResultHeader(ok=ok, keys=(RESULT,) if ok else (), error=None if ok else "boom")
        return Delivery(run, Resulted(visit.seq, visit.attempt, header), {RESULT: {"output": "short"}} if ok else {})

    # What there is

    def _visits(self) -> Iterator[tuple[str, Visit]]:
        return ((run, visit) for run, driver in self.runs.items() for visit in driver.run.frontier.values())

    def _queued(self, role: str | None = None) -> list[tuple[str, Visit]]:
        return [(run, v) for run, v in self._visits() if v.state == "queued" and role in (None, v.role)]

    def _asking(self) -> list[tuple[str, Visit]]:
        return [(run, visit) for run, visit in self._visits() if visit.is_asking]

    def _cancellable(self) -> list[str]:
        return [run for run, driver in self.runs.items() if run != TOP and not driver.run.is_final]

    def _below(self, run: str) -> list[str]:
        """The ids of agents that were started there, by who is there to be asked."""
        return [agent_id(each, "boss") for each, driver in self.runs.items() if driver.run.spec.parent == run]

    def _tasks(self, run: str) -> list[str]:
        """The ids of its tasks, and the next one."""
        count = len(json.loads(self.runs[run].memory.items.get("1.tasks", "[]")))
        return [str(number + 1) for number in range(count + 1)]

    def _questions(self, run: str) -> list[Any]:
        return [
            each
            for v in self.runs[run].run.frontier.values()
            if isinstance(v.body, Loop)
            for each in v.body.escalations
        ]

    def _named(self, run: str, to: str) -> str:
        if to == "parent":
            return str(self.runs[run].run.spec.parent)
        return next(each for each in self.runs if agent_id(each, "boss") == to)


EXAMPLES = {"slow": 4_000, "ci": 400}.get(settings.get_current_profile_name(), 100)
TestWorld = World.TestCase
TestWorld.pytestmark = [pytest.mark.timeout(480)]
TestWorld.settings = settings(
    max_examples=EXAMPLES, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)

"""Agents that a model starts and collects, without workers (spec/graph-agents.md 6)."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest

from sleipnir.graph.config_agent import load_config_agent
from sleipnir.graph.model import Graph, Settings
from sleipnir.messages import AGENTS, ANSWER, MESSAGES, PERSON, RESULT, ResultHeader, RunStatus, ToolCall
from sleipnir.runs.events import Answered, Cancelled, ChildEnded, Paused, Resulted, Resumed, TimerFired, Told
from sleipnir.runs.run import agent_id, changed, child_id
from sleipnir.runs.transitions import StartChild, TellChild, TellRun, Transition
from sleipnir.runs.visits import ChildWait, Loop, Receipt, Spawned, Visit
from sleipnir.store.visit_records import read_visit, visit_text
from sleipnir_scheduler.planner.plan import IgnoredEvent
from tests.model_store import Driver, work_of

CONFIG = "name: boss\ncan_spawn_agents: true\nmax_concurrent_agents: 2\n"
Asked = tuple[str, dict[str, Any]]


def graph_of(text: str) -> Graph:
    graph = load_config_agent(text, "config.yaml", "boss").graph
    assert graph is not None
    return graph


class Boss(Driver):
    """A run of an agent that may start `worker` and `other`. `turn` makes calls, and tells what the model reads."""

    def __init__(self, more: str = "", depth: int = 0) -> None:
        super().__init__(graph_of(CONFIG + more), {"initial_prompt": "go"})
        spec = changed(self.run.spec, agents={"worker": "digest2", "other": "digest3"}, depth=depth)
        self.run = changed(self.run, spec=spec)
        self.start()

    def turn(self, *asked: Asked, **delta: Any) -> list[Any]:
        """The model replies, with these calls. Results by call; None for one that waits."""
        [visit] = [each for each in self.run.frontier.values() if each.role == "turn"]
        assert visit.part is not None
        calls = tuple(ToolCall(f"c{number}", name, AGENTS) for number, (name, _) in enumerate(asked))
        if asked:
            functions = [{"name": name, "arguments": json.dumps(arguments)} for name, arguments in asked]
            delta |= {ANSWER: {"role": "assistant", "tool_calls": [{"id": "c", "function": f} for f in functions]}}
        if asked and visit.part.turn == 0:
            delta |= {MESSAGES: [{"role": "user", "content": "go"}]}
        outcome = self.try_(Resulted(visit.seq, 1, ResultHeader(ok=True, keys=tuple(delta), calls=calls)), delta)
        assert isinstance(outcome, Transition), outcome
        return self.results(visit.part.turn, len(calls))

    def results(self, turn: int, count: int = 1) -> list[Any]:
        found = [self.memory.items.get(f"1.{turn}.{number}") for number in range(count)]
        return [None if text is None else json.loads(text) for text in found]

    def spawn(self, *agents: str) -> list[str]:
        """Ids of agents that are spawned in one turn."""
        return [each["id"] for each in self.turn(*((SPAWN, {"agent": each, "prompt": "do"}) for each in agents))]

    @property
    def agents(self) -> tuple[Spawned, ...]:
        loop = next(each.body for each in self.run.frontier.values() if isinstance(each.body, Loop))
        return loop.agents

    def child_ends(self, run: str, output: str | None = None, error: str | None = None, **more: Any) -> Any:
        """The run of an agent is over."""
        status: RunStatus = "completed" if output is not None else "failed"
        seq = next(number for number in range(30) if child_id("run1", number) == run)
        event = ChildEnded(seq, 1, run, status, error, **more)
        return self.try_(event, {} if output is None else {RESULT: output})

    def told(self) -> list[Any]:
        """What the last commit owes to runs."""
        assert self.last is not None
        return list(self.last.effects)


SPAWN, CHECK, COLLECT, LIST, CANCEL, AVAILABLE = (
    f"agent__{name}" for name in ("spawn", "check", "collect", "list_running", "cancel", "list_available")
)


def name_of(run: str) -> str:
    return f"agent_worker_{hashlib.sha256(run.encode()).hexdigest()[:8]}"


@pytest.mark.conformance("W01")
def test_an_agent_is_spawned_at_once_and_the_model_continues() -> None:
    boss = Boss()
    [result] = boss.turn((SPAWN, {"agent": "worker", "prompt": "look \ud800", "task_id": "7"}))
    [agent] = boss.agents
    assert result == {
        "status": "ok", "id": agent.id, "agent": "worker",
        "message": f"Agent 'worker' spawned as '{agent.id}'. Use agent__check or agent__collect to get results.",
    }  # fmt: skip
    assert agent == Spawned(name_of(agent.run), child_id("run1", 3), "worker", 3)
    assert boss.told() == [StartChild(agent.run, "worker", "look �", "agent", 3, 1, twin=3)]
    assert [visit.role for visit in boss.run.frontier.values()] == ["node", "turn"]
    loop = next(visit for visit in boss.run.frontier.values() if isinstance(visit.body, Loop))
    assert read_visit(visit_text(loop)) == loop


@pytest.mark.conformance("W02")
def test_a_check_reports_a_running_agent_and_collects_an_ended_one() -> None:
    boss = Boss()
    [id_] = boss.spawn("worker")
    assert boss.turn((CHECK, {"id": id_})) == [{"status": "pending", "id": id_, "message": "Agent is still running"}]
    boss.child_ends(boss.agents[0].run, "found it", usage={"calls": 2, "input_tokens": 5})
    assert boss.last is not None
    assert boss.last.usage == {"calls": 2, "input_tokens": 5}
    assert boss.memory.items[f"1.agents.{id_}"] == '"found it"'
    assert boss.agents[0].exit == "Completed"
    assert boss.turn((CHECK, {"id": id_}), (CHECK, {"id": id_})) == [
        {"status": "completed", "id": id_, "agent": "worker", "exit_status": "Completed", "output": "found it"},
        {"status": "error", "message": f"No agent found with id '{id_}'"},
    ]
    assert boss.agents == ()
    assert not any("agents" in field for field in boss.memory.items)
    boss.turn(output="done")
    assert (boss.run.status, boss.output, boss.memory.items) == ("completed", "done", {})


@pytest.mark.conformance("W03")
def test_a_collect_waits_for_its_agent_without_a_worker() -> None:
    boss = Boss()
    first, second = boss.spawn("worker", "other")
    assert boss.turn((COLLECT, {"id": first}), (COLLECT, {"id": second}), (COLLECT, {"id": "x"}))[:2] == [None, None]
    assert boss.results(1, 3)[2] == {
        "status": "error", "message": "Agent 'x' not found. Use agent__check to verify it exists and is finished."
    }  # fmt: skip
    assert (boss.run.status, boss.on_workers()) == ("waiting", [])
    [visit, _] = [each for each in boss.run.frontier.values() if isinstance(each.body, ChildWait)]
    assert not visit.is_asking
    assert isinstance(boss.try_(Answered(visit.seq, "hello")), IgnoredEvent), "no person is asked"
    one, other = boss.agents
    boss.child_ends(other.run, error='no "disk"')
    assert boss.results(1, 2) == [
        None,
        {"status": "completed", "id": second, "agent": "other", "exit_status": 'Failed("no \\"disk\\"")', "output": ""},
    ]
    assert not boss.on_workers()
    boss.child_ends(one.run, "found it")
    assert boss.results(1)[0]["output"] == "found it"
    assert (boss.on_workers(), boss.agents) == (["agent"], ())
    assert isinstance(boss.child_ends(one.run, "found it"), IgnoredEvent), "it was told before"


def test_two_collects_of_one_agent_give_its_result_to_the_first() -> None:
    boss = Boss()
    [id_] = boss.spawn("worker")
    boss.turn((COLLECT, {"id": id_}), (COLLECT, {"id": id_}))
    boss.child_ends(boss.agents[0].run, "found it")
    first, second = boss.results(1, 2)
    assert first["output"] == "found it"
    assert second == {
        "status": "error",
        "message": f"Agent '{id_}' completed but could not be collected. It may have been collected by another call.",
    }


@pytest.mark.conformance("W04")
def test_agents_are_listed_and_cancelled() -> None:
    boss = Boss()
    assert boss.turn((LIST, {})) == [{"active_count": 0, "max_concurrent": 2, "agents": []}]
    first, second = boss.spawn("worker", "other")
    one, other = boss.agents
    boss.child_ends(one.run, "found it")
    assert isinstance(boss.child_ends(one.run, "found it"), IgnoredEvent)
    listed, cancelled, gone, unknown, waits = boss.turn(
        (LIST, {}), (CANCEL, {"id": first}), (CHECK, {"id": first}), (CANCEL, {"id": "x"}), (COLLECT, {"id": second})
    )
    assert listed["agents"] == [
        {"id": first, "agent": "worker", "status": "finished"}, {"id": second, "agent": "other", "status": "running"}
    ]  # fmt: skip
    assert (listed["active_count"], listed["max_concurrent"]) == (2, 2)
    assert cancelled == {"status": "ok", "message": "Cancelled agent 'worker'"}
    assert gone == {"status": "error", "message": f"No agent found with id '{first}'"}
    assert unknown == {"status": "error", "message": "No agent found with id 'x'"}
    assert (waits, boss.told()) == (None, [])
    assert not any("agents" in field for field in boss.memory.items)
    boss.child_ends(other.run, "well")
    [third] = boss.spawn("worker")
    assert boss.turn((COLLECT, {"id": third}), (CANCEL, {"id": third})) == [
        {"status": "error", "message": f"Agent '{third}' not found. Use agent__check to verify it exists and is "
         "finished."},
        {"status": "ok", "message": "Cancelled agent 'worker'"},
    ]  # fmt: skip
    [told] = boss.told()
    assert isinstance(told, TellChild)
    assert told.what == "cancelled"
    late = boss.child_ends(told.child, "late", usage={"calls": 3})
    assert (late.usage, late.usage_of, late.items, late.close, late.open) == ({"calls": 3}, told.child, (), (), ())
    assert isinstance(boss.child_ends(told.child, "late"), IgnoredEvent)


@pytest.mark.conformance("W05")
def test_an_agent_too_many_is_refused_until_one_is_collected() -> None:
    boss = Boss()
    ids = boss.spawn("worker", "worker")
    full = {
        "status": "error", "message": "At capacity: 2/2 agents running. Wait for one to finish or cancel one."
    }  # fmt: skip
    boss.child_ends(boss.agents[0].run, "ended, but not collected")
    assert boss.turn((SPAWN, {"agent": "worker", "prompt": "p"})) == [full]
    _, result = boss.turn((CHECK, {"id": ids[0]}), (SPAWN, {"agent": "worker", "prompt": "p"}))
    assert result["status"] == "ok"
    assert len(boss.agents) == 2


@pytest.mark.conformance("W06", "CY78")
def test_an_agent_too_deep_and_an_unknown_one_are_refused() -> None:
    deep = Boss("max_agent_depth: 2\n", depth=2)
    assert deep.turn((SPAWN, {"agent": "worker", "prompt": "p"})) == [
        {"status": "error", "message": "Max agent depth exceeded (3/2)"}
    ]
    boss = Boss()
    assert boss.turn((SPAWN, {"agent": "nobody", "prompt": "p"})) == [
        {"tool_call_error": "Supervisor tool failed: Unknown agent `nobody`"}
    ]
    assert (boss.agents, boss.told()) == ((), [])


def cancelled(boss: Boss) -> list[str]:
    return [told.child for told in boss.told() if isinstance(told, TellChild) and told.what == "cancelled"]


def test_agents_that_still_run_are_cancelled_when_their_spawner_ends() -> None:
    boss = Boss()
    boss.spawn("worker", "other")
    one, other = boss.agents
    boss.child_ends(one.run, "never asked for")
    boss.turn(output="done")
    assert (boss.run.status, boss.memory.items, cancelled(boss)) == ("completed", {}, [other.run])


def test_agents_are_cancelled_with_the_run_and_their_results_are_removed() -> None:
    for end in (Cancelled(), None):
        boss = Boss()
        first, second = boss.spawn("worker", "other")
        one, other = boss.agents
        boss.child_ends(one.run, "never asked for")
        boss.turn((COLLECT, {"id": second}))
        if end is not None:
            boss.send(end)
            assert boss.run.status == "cancelled"
        else:
            loop = next(visit for visit in boss.run.frontier.values() if isinstance(visit.body, Loop))
            boss.graph = changed(boss.graph, settings=Settings(timeout=1))
            boss.send(TimerFired("deadline"), after_ms=100_000)
            assert (boss.run.status, boss.run.frontier[loop.seq].children) == ("failed", ())
            assert f"1.agents.{first}" not in boss.memory.items
        assert cancelled(boss) == [other.run]


def test_an_agent_spawned_in_the_turn_that_is_one_too_many_is_cancelled() -> None:
    boss = Boss()
    node = boss.graph.nodes["agent"]
    boss.graph.nodes["agent"] = changed(node, max_iterations=1)
    boss.turn((SPAWN, {"agent": "worker", "prompt": "p"}))
    assert boss.run.status == "failed"
    [start, told] = [effect for effect in boss.told() if isinstance(effect, StartChild | TellChild)]
    assert isinstance(start, StartChild)
    assert told == TellChild(start.child, "cancelled")


def test_agents_are_held_with_their_spawner() -> None:
    boss = Boss()
    [id_] = boss.spawn("worker")
    [agent] = boss.agents
    boss.turn((COLLECT, {"id": id_}))
    boss.send(Paused("me"))
    assert boss.told() == [TellChild(agent.run, "paused", "me")]
    boss.child_ends(agent.run, "found it")
    boss.send(Resumed())
    assert boss.told() == []
    boss.send(Paused("me"))
    boss.spawn("worker")
    assert boss.told() == [
        StartChild(boss.agents[0].run, "worker", "do", "agent", boss.agents[0].seq, 1, twin=boss.agents[0].seq),
        TellChild(boss.agents[0].run, "paused", "me"),
    ]


def summary(boss: Boss) -> Visit:
    [visit] = [each for each in boss.run.frontier.values() if each.role == "summary"]
    return visit


@pytest.mark.conformance("W11")
def test_a_worker_makes_a_summary_of_what_is_too_long_to_read() -> None:
    boss = Boss("summarization_threshold: 10\n")
    short, long = boss.spawn("worker", "other")
    one, other = boss.agents
    boss.turn((COLLECT, {"id": short}), (COLLECT, {"id": long}))
    boss.child_ends(one.run, "123456789")
    assert boss.results(1)[0]["output"] == "123456789"
    boss.child_ends(other.run, "12345678é", usage={"calls": 1})
    visit = summary(boss)
    assert (visit.queue, visit.state, visit.children, boss.agents) == ("llm", "queued", (), ())
    result = json.loads(boss.memory.items[work_of(visit).given or ""])
    assert result == {
        "status": "completed", "id": long, "agent": "other", "exit_status": "Completed", "output": "12345678é"
    }  # fmt: skip
    header = ResultHeader(ok=True, keys=(RESULT,), usage={"calls": 1})
    boss.try_(Resulted(visit.seq, 1, header), {RESULT: result | {"output": "short"}})
    assert boss.results(1, 2)[1]["output"] == "short"
    assert (boss.on_workers(), [field for field in boss.memory.items if "summaries" in field]) == (["agent"], [])


def test_where_no_summary_comes_the_model_reads_the_beginning() -> None:
    boss = Boss("summarization_threshold: 10\n")
    [id_] = boss.spawn("worker")
    boss.child_ends(boss.agents[0].run, "1234567890é")
    assert boss.turn((CHECK, {"id": id_})) == [None]
    visit = summary(boss)
    boss.send(Resulted(visit.seq, 1, ResultHeader(ok=False, error="the provider is down")))
    assert boss.results(1)[0]["output"] == (
        "1234567890\n\n[The first 10 of 12 bytes: a summary of the output has failed: the provider is down]"
    )
    assert not any("summaries" in field for field in boss.memory.items)


def test_an_obsolete_summary_is_removed() -> None:
    boss = Boss("summarization_threshold: 10\n")
    [id_] = boss.spawn("worker")
    boss.child_ends(boss.agents[0].run, "1234567890é")
    boss.turn((CHECK, {"id": id_}))
    boss.graph = changed(boss.graph, settings=Settings(timeout=1, interrupt_on_timeout=True))
    boss.send(TimerFired("deadline"), after_ms=100_000)
    assert boss.run.status == "failed"
    assert not any("summaries" in field for field in boss.memory.items)


CREATE, TASKS, COMPLETE, FAIL = (f"agent__task_{name}" for name in ("create", "list", "complete", "fail"))


def statuses(boss: Boss) -> dict[str, str]:
    [result] = boss.turn((TASKS, {}))
    return {task["id"]: task["status"] for task in result["tasks"]}


@pytest.mark.conformance("W08")
def test_a_task_is_blocked_until_all_that_it_depends_on_is_completed() -> None:
    boss = Boss()
    assert boss.turn((TASKS, {})) == [{"tasks": []}]
    assert boss.turn(
        (CREATE, {"subject": "a"}),
        (CREATE, {"subject": "b", "description": "all of b"}),
        (CREATE, {"subject": "c", "blocked_by": ["1", "2", "1"]}),
        (CREATE, {"subject": "d", "blocked_by": ["9", "4", 3]}),
    ) == [
        {"status": "ok", "task_id": "1"},
        {"status": "ok", "task_id": "2"},
        {"status": "ok", "task_id": "3"},
        {"status": "ok", "task_id": "4", "warnings": [
            "Dependency task '9' does not exist", "A task cannot depend on itself"
        ]},
    ]  # fmt: skip
    [listed] = boss.turn((TASKS, {}))
    assert listed["tasks"][2] == {
        "id": "3", "subject": "c", "status": "blocked", "owner": None, "blocked_by": ["1", "2"], "blocks": ["4"],
        "agent": None, "prompt": None,
    }  # fmt: skip
    first, again, second, unknown = boss.turn(
        (COMPLETE, {"task_id": "1"}), (COMPLETE, {"task_id": "1"}), (COMPLETE, {"task_id": "2"}),
        (COMPLETE, {"task_id": "7"}),
    )  # fmt: skip
    assert first == again == {"status": "ok", "task_id": "1", "newly_runnable": []}
    assert second["newly_runnable"] == [{"id": "3", "subject": "c", "description": "", "agent": None}]
    assert unknown == {"status": "error", "message": "Task '7' not found"}
    boss.turn((CREATE, {"subject": "e", "blocked_by": ["1"]}))
    assert statuses(boss) == {"1": "completed", "2": "completed", "3": "pending", "4": "blocked", "5": "pending"}
    boss.turn(output="done")
    assert boss.memory.items == {}


@pytest.mark.conformance("W09")
def test_a_task_with_an_agent_starts_it_as_soon_as_nothing_blocks_it_and_there_is_room() -> None:
    boss = Boss()
    boss.turn(
        (CREATE, {"subject": "a"}),
        (CREATE, {"subject": "b", "blocked_by": ["1"], "agent": "worker", "prompt": "do b"}),
        (CREATE, {"subject": "c", "blocked_by": ["1"], "agent": "other", "prompt": "do c"}),
        (CREATE, {"subject": "d", "agent": "worker", "prompt": "do {{d}}"}),
    )
    created = boss.results(0, 4)
    assert created[1] == {"status": "ok", "task_id": "2", "auto_dispatch": True}
    [started] = created[3]["auto_dispatched"]
    assert (created[3]["auto_dispatch"], started["status"], started["id"]) == (True, "ok", boss.agents[0].id)
    assert [effect.prompt for effect in boss.told() if isinstance(effect, StartChild)] == ["do {{d}}"]
    [completed] = boss.turn((COMPLETE, {"task_id": "1"}))
    assert [task["id"] for task in completed["newly_runnable"]] == ["2", "3"]
    assert [each["status"] for each in completed["auto_dispatched"]] == ["ok", "error"]
    assert completed["auto_dispatched"][1]["message"].startswith("At capacity: 2/2")
    assert statuses(boss) == {"1": "completed", "2": "in_progress", "3": "pending", "4": "in_progress"}
    first, second = boss.agents
    boss.child_ends(first.run, "ended, but not collected")
    assert boss.told() == []
    boss.turn((COLLECT, {"id": first.id}))
    assert [effect.prompt for effect in boss.told() if isinstance(effect, StartChild)] == ["do c"]
    [result] = boss.turn((TASKS, {}))
    assert [task["owner"] for task in result["tasks"]] == [None, "auto:worker", "auto:other", "auto:worker"]
    boss.turn((CREATE, {"subject": "e", "agent": "worker", "prompt": "do e"}), (COLLECT, {"id": second.id}))
    boss.child_ends(second.run, "well")
    assert [effect.prompt for effect in boss.told() if isinstance(effect, StartChild)] == ["do e"]
    assert len({agent.run for agent in (*boss.agents, first, second)}) == 4


@pytest.mark.parametrize("blocked_by", [["task_1"], '["task_1"]', "task_1", '["1"]'])
def test_a_task_may_be_named_as_lokis_texts_do(blocked_by: Any) -> None:
    """Finding U8 of the second review: Loki's own text for models says `--blocked_by ["task_1"]`."""
    boss = Boss()
    boss.turn((CREATE, {"subject": "a"}), (CREATE, {"subject": "b", "blocked_by": blocked_by}))
    assert statuses(boss) == {"1": "pending", "2": "blocked"}
    [result] = boss.turn((COMPLETE, {"task_id": "task_1"}))
    assert [task["id"] for task in result["newly_runnable"]] == ["2"]
    boss.turn((FAIL, {"task_id": "task_2"}))
    assert statuses(boss) == {"1": "completed", "2": "failed"}


ALLOWED = "spawnable_agents: [other, absent]\n"


@pytest.mark.conformance("CY71")
def test_an_agent_outside_the_whitelist_is_not_started() -> None:
    """Finding U7 of the second review. The whitelist comes before capacity and depth."""
    boss = Boss(ALLOWED + "max_agent_depth: 0\n")
    refused, deep = boss.turn((SPAWN, {"agent": "worker", "prompt": "p"}), (SPAWN, {"agent": "other", "prompt": "p"}))
    assert refused == {
        "status": "error",
        "message": "Agent 'worker' is not in this agent's `spawnable_agents` whitelist. Allowed: "
        '["other", "absent"]. Call `agent__list_available` to see what you can spawn.',
    }
    assert deep["message"].startswith("Max agent depth exceeded")
    [task] = boss.turn((CREATE, {"subject": "a", "agent": "worker", "prompt": "p"}))
    assert [each["status"] for each in task["auto_dispatched"]] == ["error"]
    assert boss.agents == ()


@pytest.mark.conformance("CY72", "CY73")
@pytest.mark.parametrize(
    ("more", "names"),
    [
        ("", ["other", "worker"]),
        ("spawnable_agents: null\n", ["other", "worker"]),
        (ALLOWED, ["other"]),
        ("spawnable_agents: []\n", []),
    ],
)
def test_the_agents_that_may_be_started_are_listed_with_what_they_are_for(more: str, names: list[str]) -> None:
    """Finding U7 of the second review."""
    boss = Boss(more)
    boss.run = changed(boss.run, spec=changed(boss.run.spec, descriptions={"other": "Looks things up."}))
    about = {"other": {"description": "Looks things up."}, "worker": {}}
    listed = [{"name": name, **about[name]} for name in names]
    assert boss.turn((AVAILABLE, {})) == [{"count": len(names), "agents": listed}]


def test_the_former_name_of_the_list_of_agents_is_answered() -> None:
    boss = Boss()
    boss.spawn("worker")
    first, former = boss.turn((LIST, {}), ("agent__list", {}))
    assert first == former
    assert first["active_count"] == 1


def test_a_task_whose_agent_is_not_known_stays_pending() -> None:
    boss = Boss()
    [result] = boss.turn((CREATE, {"subject": "a", "agent": "nobody", "prompt": "p"}))
    assert result["auto_dispatched"] == [{"status": "error", "message": "Unknown agent `nobody`"}]
    assert statuses(boss) == {"1": "pending"}


@pytest.mark.conformance("W10")
def test_tasks_that_depend_on_a_failed_task_remain_blocked() -> None:
    boss = Boss()
    boss.turn(
        (CREATE, {"subject": "a"}),
        (CREATE, {"subject": "b", "blocked_by": ["1"], "agent": "worker", "prompt": "p"}),
        (CREATE, {"subject": "c", "blocked_by": ["1"]}),
    )
    assert boss.turn((FAIL, {"task_id": "1"}), (FAIL, {"task_id": "x"})) == [
        {
            "status": "ok", "task_id": "1", "blocked_dependents": ["2", "3"],
            "message": "Task '1' marked as failed. 2 dependent task(s) will remain blocked.",
        },
        {"status": "error", "message": "Task 'x' not found"},
    ]  # fmt: skip
    assert statuses(boss) == {"1": "failed", "2": "blocked", "3": "blocked"}
    assert boss.agents == ()


def asks(depth: int, tool: str = "user__confirm") -> tuple[Boss, Visit]:
    """A run whose model asks a question, and the visit that waits for the answer."""
    boss = Boss("escalation_timeout: 60\n", depth=depth)
    if depth:
        boss.run = changed(boss.run, spec=changed(boss.run.spec, root="top"))
    [turn] = [each for each in boss.run.frontier.values() if each.role == "turn"]
    function = {"name": tool, "arguments": json.dumps({"question": "Go on?"})}
    delta = {ANSWER: {"role": "assistant", "tool_calls": [{"id": "c", "function": function}]}, MESSAGES: []}
    header = ResultHeader(ok=True, keys=tuple(delta), calls=(ToolCall("c", tool, PERSON),))
    boss.try_(Resulted(turn.seq, 1, header), delta)
    [visit] = [each for each in boss.run.frontier.values() if each.is_asking]
    return boss, visit


@pytest.mark.conformance("W13")
def test_a_child_with_an_unanswered_question_continues_without_an_answer() -> None:
    boss, visit = asks(depth=1)
    boss.send(Answered(visit.seq, "perhaps"))
    assert boss.last is not None
    assert [gate.question for gate in boss.last.gates] == ["The answer must be yes or no, not 'perhaps'.\nGo on?"]
    assert not tells(boss), "it is the same question"
    boss.send(TimerFired(visit.timer), after_ms=60_000)
    assert boss.results(0) == [
        {
            "error": "Escalation timed out after 60 seconds waiting for user response",
            "fallback": "Make your best judgment and proceed",
        }
    ]
    assert boss.on_workers() == ["agent"]
    assert isinstance(boss.try_(Answered(visit.seq, "yes")), IgnoredEvent)
    [settled] = tells(boss)
    assert (settled.run, settled.what) == ("top", "settled")


def test_a_question_of_the_run_at_the_top_waits_without_limit() -> None:
    boss, visit = asks(depth=0)
    assert (visit.due_ms, boss.last and boss.last.timers) == (None, {})


def tells(boss: Boss) -> list[TellRun]:
    return [effect for effect in boss.told() if isinstance(effect, TellRun)]


REPLY = "agent__reply_escalation"


@pytest.mark.conformance("W13", "CY76")
def test_the_model_at_the_top_answers_the_question_of_a_child() -> None:
    child, question = asks(depth=2)
    [asked] = tells(child)
    id_ = asked.data["escalation_id"]
    told = {
        "escalation_id": id_, "from_agent_id": agent_id("run1", "agent"), "from_agent_name": "agent",
        "question": "[confirm] Go on?",
    }  # fmt: skip
    assert (asked.run, asked.what) == ("top", "asked")
    assert asked.data == told | {"run": "run1", "seq": question.seq, "attempt": 1}

    boss = Boss()
    first, second = boss.spawn("worker", "other")
    assert boss.turn((COLLECT, {"id": first})) == [None]
    boss.send(Told("asked", asked.data))
    waiting = {"status": "pending", "pending_escalations": [told]}
    reply = "child agents have pending escalations that need your reply. Reply via agent__reply_escalation"
    again = f"Agent '{first}' is still running, but {reply}, then call agent__collect again."
    assert boss.results(1) == [waiting | {"id": first, "message": again}]
    assert not cancelled(boss)
    assert isinstance(boss.try_(Told("asked", asked.data)), IgnoredEvent)
    loop = next(visit for visit in boss.run.frontier.values() if isinstance(visit.body, Loop))
    assert read_visit(visit_text(loop)) == loop
    checked, collected, replied, twice = boss.turn(
        (CHECK, {"id": second}), (COLLECT, {"id": first}),
        (REPLY, {"escalation_id": id_, "reply": "as you like"}), (REPLY, {"escalation_id": id_, "reply": "no"}),
    )  # fmt: skip
    assert checked == waiting | {"id": second, "message": f"Agent is still running, but {reply}"}
    assert collected["status"] == "pending"
    assert replied == {
        "status": "ok", "message": f"Reply sent to agent 'agent' for escalation '{id_}'",
        "original_question": "[confirm] Go on?",
    }  # fmt: skip
    assert twice["message"] == (
        f"No pending escalation found with id '{id_}'. It may have already been replied to or timed out."
    )
    [answer] = tells(boss)
    assert (answer.run, answer.what) == ("run1", "replied")
    assert boss.turn((CHECK, {"id": second}))[0]["message"] == "Agent is still running"

    child.send(Told("replied", answer.data))
    assert child.results(0) == [{"answer": "as you like"}]
    assert child.on_workers() == ["agent"]
    assert isinstance(child.try_(Told("replied", answer.data)), IgnoredEvent)


def test_a_question_that_a_person_has_answered_is_taken_back_at_the_top() -> None:
    child, question = asks(depth=1)
    [asked] = tells(child)
    child.send(Answered(question.seq, "yes"))
    [settled] = tells(child)
    boss = Boss()
    boss.send(Told("asked", asked.data))
    boss.send(Told(settled.what, settled.data))
    assert isinstance(boss.try_(Told(settled.what, settled.data)), IgnoredEvent)
    [id_] = boss.spawn("worker")
    assert boss.turn((COLLECT, {"id": id_})) == [None]
    assert isinstance(boss.try_(Told("something of a newer release", {})), IgnoredEvent)


@pytest.mark.parametrize("end", [Cancelled(), TimerFired("deadline")])
def test_a_question_of_a_run_that_is_over_is_taken_back_at_the_top(end: Cancelled | TimerFired) -> None:
    child, question = asks(depth=1)
    [asked] = tells(child)
    child.graph = replace(child.graph, settings=Settings(timeout=10))
    ended = child.send(end, after_ms=60_000)
    assert ended.status in ("cancelled", "failed")
    assert [visit.seq for visit in ended.close if visit.is_asking] == [question.seq], "and with it its gate"
    [settled] = tells(child)
    assert (settled.run, settled.what) == ("top", "settled")
    boss = Boss()
    boss.send(Told("asked", asked.data))
    boss.send(Told(settled.what, settled.data))
    [id_] = boss.spawn("worker")
    checked, replied = boss.turn(
        (CHECK, {"id": id_}), (REPLY, {"escalation_id": asked.data["escalation_id"], "reply": "yes"})
    )
    assert "pending_escalations" not in checked
    assert replied["message"].startswith("No pending escalation found with id")


def test_a_question_of_a_loop_whose_time_is_up_is_taken_back_at_the_top() -> None:
    child, _ = asks(depth=1)
    loop = next(visit for visit in child.run.frontier.values() if isinstance(visit.body, Loop))
    child.graph.nodes["agent"] = changed(child.graph.nodes["agent"], timeout=1)
    child.run.frontier.put(changed(loop, body=changed(loop.body, due_ms=child.now_ms)))  # type: ignore[attr-defined]
    child.send(TimerFired(loop.timer))
    assert [told.what for told in tells(child)] == ["settled"]


@pytest.mark.conformance("W13")
def test_with_the_results_of_its_calls_the_model_at_the_top_reads_which_questions_wait() -> None:
    child, _ = asks(depth=1)
    [asked] = tells(child)
    boss = Boss()
    boss.spawn("worker")
    boss.send(Told("asked", asked.data))
    boss.turn((LIST, {}))
    shown = {name: asked.data[name] for name in ("escalation_id", "from_agent_id", "from_agent_name", "question")}
    instruction = (
        "Child agents are BLOCKED waiting for your reply. "
        "Call agent__reply_escalation for each pending escalation to unblock them."
    )
    assert "1.0.user" not in boss.memory.items
    assert json.loads(boss.memory.items["1.1.user"]) == {"pending_escalations": [shown], "instruction": instruction}
    boss.turn((REPLY, {"escalation_id": shown["escalation_id"], "reply": "yes"}))
    assert "1.2.user" not in boss.memory.items
    boss.turn(said="all done")
    assert boss.memory.items == {}


def test_a_run_whose_model_cannot_reply_passes_questions_over() -> None:
    child, _ = asks(depth=1)
    [asked] = tells(child)
    other = Driver("name: g\nstart: e\nnodes: {e: {type: input, question: q, next: f}, f: {type: end}}\n").start()
    assert isinstance(other.try_(Told("asked", asked.data)), IgnoredEvent)


SEND, INBOX = "agent__send_message", "agent__check_inbox"


def below(boss: Boss, agent: Spawned) -> Boss:
    """The run of an agent that another one has started."""
    child = Boss()
    spec = changed(child.run.spec, agent=agent.agent, parent=boss.run.id, root=boss.run.id, depth=1)
    child.run = changed(child.run, id=agent.run, spec=spec)
    return child


@pytest.mark.conformance("W12")
def test_agents_send_messages_to_children_parents_and_siblings() -> None:
    boss = Boss()
    first, second = boss.spawn("worker", "other")
    one, other = (below(boss, agent) for agent in boss.agents)
    sent, unknown = boss.turn((SEND, {"to": first, "message": "hello"}), (SEND, {"id": "parent", "message": "hello"}))
    assert sent == {"status": "ok", "message": f"Message delivered to agent '{first}'"}
    assert unknown == {
        "status": "error",
        "message": "No agent found with id 'parent'. Agent may not exist or may have already completed.",
    }
    [told] = tells(boss)
    assert (told.run, told.what) == (one.run.id, "sent")
    one.send(Told(told.what, told.data))
    assert isinstance(one.try_(Told(told.what, told.data)), IgnoredEvent), "it has come before"
    read, empty = one.turn((INBOX, {}), (INBOX, {}))
    [message] = read["messages"]
    assert (read["count"], message["from"], message["payload"]) == (1, "agent", {"type": "text", "content": "hello"})
    assert message["timestamp"].startswith("1970-01-01T00:00:01.")
    assert empty == {"messages": [], "count": 0}
    assert isinstance(one.try_(Told(told.what, told.data)), IgnoredEvent), "and was read"

    waits, said = one.turn((SEND, {"id": second, "message": "for you"}), (SEND, {"id": "parent", "message": "done"}))
    assert (waits, said["status"], one.run.status) == (None, "ok", "waiting")
    beside, above = tells(one)
    assert {beside.run, above.run} == {boss.run.id}
    boss.send(Told(beside.what, beside.data))
    passed_on, arrived = tells(boss)
    assert (passed_on.run, arrived.run) == (other.run.id, one.run.id)
    one.send(Told(arrived.what, arrived.data))
    assert one.results(1)[0] == {"status": "ok", "message": f"Message delivered to agent '{second}'"}
    assert isinstance(one.try_(Told(arrived.what, arrived.data)), IgnoredEvent)
    other.send(Told(passed_on.what, passed_on.data))
    [heard] = other.turn((INBOX, {}))
    assert [(each["from"], each["payload"]["content"]) for each in heard["messages"]] == [(first, "for you")]
    boss.send(Told(above.what, above.data))
    [heard] = boss.turn((INBOX, {}))
    assert [each["payload"]["content"] for each in heard["messages"]] == ["done"]


@pytest.mark.conformance("W12")
def test_a_message_for_an_agent_that_is_not_there_is_refused_by_the_parent() -> None:
    boss = Boss()
    [first, _] = boss.spawn("worker", "other")
    one = below(boss, boss.agents[0])
    assert one.turn((SEND, {"id": "agent_x_1", "message": "hello?"}), (SEND, {"id": "", "message": "!"})) == [
        None,
        None,
    ]
    waiting = [visit for visit in one.run.frontier.values() if isinstance(visit.body, Receipt)]
    assert [visit.is_asking for visit in waiting] == [False, False]
    assert all(read_visit(visit_text(visit)) == visit for visit in waiting)
    assert isinstance(one.try_(Answered(waiting[0].seq, "yes")), IgnoredEvent), "it is no question"
    asked, _ = tells(one)
    boss.send(Told(asked.what, asked.data))
    [told] = tells(boss)
    boss.turn((CANCEL, {"id": first}))
    one.send(Told(told.what, told.data))
    assert one.results(0)[0] == {
        "status": "error",
        "message": "No agent found with id 'agent_x_1'. Agent may not exist or may have already completed.",
    }
    boss.send(Told(asked.what, asked.data))
    assert tells(boss) == [told], "the answer is the same when it is asked again"
    one.send(TimerFired(waiting[1].timer), after_ms=60_000)
    why = "It could not be found out within 60 seconds whether the message has reached agent ''."
    assert one.results(0, 2)[1] == {"status": "error", "message": why}
    assert one.on_workers() == ["agent"]


def test_a_message_for_the_parent_by_its_name_is_the_parents() -> None:
    boss = Boss()
    boss.spawn("worker")
    one = below(boss, boss.agents[0])
    one.turn((SEND, {"id": "agent", "message": "hello"}))
    [asked] = tells(one)
    for _ in range(2):
        boss.send(Told(asked.what, asked.data))
        [told] = tells(boss)
        assert (told.run, told.data["found"]) == (one.run.id, True)
    [heard] = boss.turn((INBOX, {}))
    assert heard["count"] == 1

"""Agents that a model starts and collects with the `agent__*` tools (spec/graph-agents.md 6).

    agent__spawn ─► a child run, which no visit waits for ─► it ends ─► agent__collect, agent__check: its output

A loop keeps the agents of its model (visits.Spawned); their outputs are in the run's items until the model collects
them. Both are dropped when the loop ends, and agents that still run are cancelled (owed.py). A call ends immediately,
with two exceptions: a call that collects from a running agent waits without a worker, and a worker summarizes a result
that is too long. Tasks (tasks.py) start agents automatically. While questions of child runs wait for the model
(escalating.py), the model waits for no agent.

The worker of the turn has checked the arguments already.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from sleipnir.graph.model import Json, LoopAgent
from sleipnir.graph.plain import compact_json
from sleipnir.messages import QUEUE_OF, RESULT
from sleipnir.runs.events import ChildEnded
from sleipnir.runs.run import agent_id, changed
from sleipnir.runs.transitions import DropValue, SetValue, StartChild, TakeResult
from sleipnir.runs.values import WantedValues
from sleipnir.runs.visits import Call, Child, ChildWait, Spawned, Visit, Work
from sleipnir_scheduler.planner.context import Context
from sleipnir_scheduler.planner.known import require
from sleipnir_scheduler.planner.loops import escalating, messaging
from sleipnir_scheduler.planner.loops.model_loop import ModelLoop, change, now
from sleipnir_scheduler.planner.loops.questions import storable
from sleipnir_scheduler.planner.loops.tasks import Task, Tasks, task_id
from sleipnir_scheduler.planner.nodes import agents


class CallRefused(Exception):
    """A failed call; the text explains it to the model."""


def asked(message: Mapping[str, Json], call: int) -> dict[str, Json]:
    """The arguments of a call: `message` is the assistant's, as providers speak. All texts can be stored."""
    arguments = json.loads(message["tool_calls"][call]["function"]["arguments"])
    stored: dict[str, Json] = json.loads(storable(json.dumps(arguments, ensure_ascii=False)))
    return stored


def call(
    context: Context, model_loop: ModelLoop, visit: Visit, place: Call, arguments: Mapping[str, Json]
) -> Json | None:
    """The result of the call `visit`, as the model reads it; None: the call waits for an agent. Raises CallRefused."""
    match place.tool:
        case "agent__spawn":
            return _spawn(context, model_loop, visit.seq, arguments["agent"], arguments["prompt"])
        case "agent__check":
            return _check(context, model_loop, visit, arguments["id"])
        case "agent__collect":
            return _collect(context, model_loop, visit, arguments["id"])
        case "agent__list_running" | "agent__list":
            return _list(context, model_loop)
        case "agent__list_available":
            return _available(context)
        case "agent__cancel":
            return _cancel(context, model_loop, arguments["id"])
        case "agent__task_create":
            return _create_task(context, model_loop, arguments)
        case "agent__task_list":
            return {"tasks": _tasks(context, model_loop).listed()}
        case "agent__task_complete":
            return _complete_task(context, model_loop, task_id(arguments["task_id"]))
        case "agent__task_fail":
            return _fail_task(context, model_loop, task_id(arguments["task_id"]))
        case "agent__send_message":
            return messaging.send(
                context, model_loop.loop, visit, arguments["id" if "id" in arguments else "to"], arguments["message"]
            )
        case "agent__check_inbox":
            return messaging.read(context)
        case escalating.REPLY:
            return escalating.reply(context, model_loop, arguments["escalation_id"], arguments["reply"])
    raise CallRefused(f"Unknown tool '{place.tool}'")


def ended(context: Context, model_loop: ModelLoop, event: ChildEnded) -> None:
    """The run of an agent of a loop is over. Its output waits to be collected."""
    loop = model_loop.loop
    agent = next(each for each in loop.agents if each.run == event.child)
    agents.count_child(context, agent.seq, model_loop.visit.node, Child(agent.run, agent.agent), event)
    if event.status == "completed":
        context.draft.record.item(TakeResult(loop.output_of(agent), RESULT))
    agents_now = (changed(each, exit=_exit_of(event)) if each is agent else each for each in loop.agents)
    change(context, model_loop, agents=tuple(agents_now))


def collected_for(context: Context, model_loop: ModelLoop, visit: Visit, child: Child) -> Json | None:
    """The result of a call that waited for an agent; None: it still waits. Raises MissingValues."""
    agent = next((each for each in model_loop.loop.agents if each.run == child.run), None)
    if agent is not None:
        return _still_runs(model_loop, agent) if agent.exit is None else _take(context, model_loop, visit, agent)
    id_ = agent_id(child.run, child.agent)
    if child.run not in context.draft.owed.ended:
        return _not_there(id_)
    return _error(f"Agent '{id_}' completed but could not be collected. It may have been collected by another call.")


def start_tasks(context: Context, model_loop: ModelLoop) -> None:
    """Start the agents of tasks that are ready, up to the limit of agents. Raises MissingValues."""
    loop = model_loop.loop
    if not loop.has_tasks or len(loop.agents) >= _limits(context).max_concurrent_agents:
        return
    tasks = _tasks(context, model_loop)
    if startable := tasks.startable():
        _start(context, model_loop, tasks, startable)


def patience_s(context: Context) -> int | None:
    """How long a question of the run's models waits for an answer; None: without limit, as the run has no parent."""
    return _limits(context).escalation_timeout if context.run.spec.depth else None


def _spawn(context: Context, model_loop: ModelLoop, seq: int, agent: str, prompt: str) -> dict[str, Json]:
    """Start an agent. `seq`, from which its run's id follows, is the number of the call, or a new one."""
    loop, limits = model_loop.loop, _limits(context)
    if limits.spawnable_agents is not None and agent not in limits.spawnable_agents:
        return _error(
            f"Agent '{agent}' is not in this agent's `spawnable_agents` whitelist. Allowed: "
            f"{json.dumps(limits.spawnable_agents, ensure_ascii=False)}. "
            "Call `agent__list_available` to see what you can spawn."
        )
    if len(loop.agents) >= limits.max_concurrent_agents:
        return _error(
            f"At capacity: {len(loop.agents)}/{limits.max_concurrent_agents} agents running. "
            "Wait for one to finish or cancel one."
        )
    depth = context.run.spec.depth + 1
    if depth > limits.max_agent_depth:
        return _error(f"Max agent depth exceeded ({depth}/{limits.max_agent_depth})")
    if agent not in context.run.spec.agents:
        raise CallRefused(f"Unknown agent `{agent}`")
    run = context.child_id(seq, agent)
    spawned = Spawned(agent_id(run, agent), run, agent, seq)
    change(context, model_loop, agents=(*loop.agents, spawned))
    node = model_loop.visit.node
    context.draft.owed.add(StartChild(run, agent, prompt, node, seq, attempt=1, twin=seq))
    context.draft.record.notice("child_started", seq=seq, node=node, child=run, agent=agent)
    agents.hold_if_paused(context, run)
    message = f"Agent '{agent}' spawned as '{spawned.id}'. Use agent__check or agent__collect to get results."
    return {"status": "ok", "id": spawned.id, "agent": agent, "message": message}


def _check(context: Context, model_loop: ModelLoop, visit: Visit, id_: str) -> Json | None:
    agent = _find(model_loop, id_)
    if agent is None:
        return _error(f"No agent found with id '{id_}'")
    if agent.exit is None:
        result: dict[str, Json] = {"status": "pending", "id": id_, "message": "Agent is still running"}
        if questions := escalating.pending(model_loop.loop):
            result["message"] += f", but {_ANSWER_FIRST}"
            result["pending_escalations"] = questions
        return result
    return _take(context, model_loop, visit, agent)


def _collect(context: Context, model_loop: ModelLoop, visit: Visit, id_: str) -> Json | None:
    agent = _find(model_loop, id_)
    if agent is None:
        return _not_there(id_)
    if agent.exit is not None:
        return _take(context, model_loop, visit, agent)
    if (result := _still_runs(model_loop, agent)) is not None:
        return result
    context.draft.visits.begin(visit, ChildWait(Child(agent.run, agent.agent)))
    return None


_ANSWER_FIRST = "child agents have pending escalations that need your reply. Reply via agent__reply_escalation"


def _still_runs(model_loop: ModelLoop, agent: Spawned) -> Json | None:
    """The result of collecting from a running agent while questions wait; None: no question waits."""
    if not (questions := escalating.pending(model_loop.loop)):
        return None
    message = f"Agent '{agent.id}' is still running, but {_ANSWER_FIRST}, then call agent__collect again."
    return {"status": "pending", "id": agent.id, "message": message, "pending_escalations": questions}


def _list(context: Context, model_loop: ModelLoop) -> Json:
    entries = [
        {"id": each.id, "agent": each.agent, "status": "running" if each.exit is None else "finished"}
        for each in model_loop.loop.agents
    ]
    most = _limits(context).max_concurrent_agents
    return {"active_count": len(entries), "max_concurrent": most, "agents": entries}


def _available(context: Context) -> Json:
    """The agents that the model may start, sorted by name, with their descriptions."""
    spec, allowed = context.run.spec, _limits(context).spawnable_agents
    names = sorted(name for name in spec.agents if allowed is None or name in allowed)
    entries = [
        {"name": name} | ({"description": spec.descriptions[name]} if name in spec.descriptions else {})
        for name in names
    ]
    return {"count": len(entries), "agents": entries}


def _cancel(context: Context, model_loop: ModelLoop, id_: str) -> Json:
    agent = _find(model_loop, id_)
    if agent is None:
        return _error(f"No agent found with id '{id_}'")
    _drop(context, model_loop, agent)
    return {"status": "ok", "message": f"Cancelled agent '{agent.agent}'"}


def shortened(context: Context, item: str, error: str) -> Json:
    """The result when a summary has failed: the beginning of the agent's output. Raises MissingValues."""
    result, most = json.loads(context.values.item(item) or "{}"), _limits(context).summarization_threshold
    output = result["output"].encode()
    note = f"[The first {most:,} of {len(output):,} bytes: a summary of the output has failed: {error}]"
    return {**result, "output": f"{output[:most].decode(errors='ignore')}\n\n{note}"}


def _create_task(context: Context, model_loop: ModelLoop, arguments: Mapping[str, Json]) -> Json:
    tasks = _tasks(context, model_loop)
    task, warnings = tasks.create(arguments)
    result: dict[str, Json] = {"status": "ok", "task_id": task.id}
    if task.agent is not None:
        result["auto_dispatch"] = True
    if warnings:
        result["warnings"] = warnings
    model_loop = change(context, model_loop, has_tasks=True)
    started = _start(context, model_loop, tasks, [task] if task.may_start else [])
    return {**result, "auto_dispatched": started} if started else result


def _complete_task(context: Context, model_loop: ModelLoop, id_: str) -> Json:
    tasks = _tasks(context, model_loop)
    if tasks.get(id_) is None:
        return _error(f"Task '{id_}' not found")
    runnable = tasks.complete(id_)
    entries = [{"id": t.id, "subject": t.subject, "description": t.description, "agent": t.agent} for t in runnable]
    result = {"status": "ok", "task_id": id_, "newly_runnable": entries}
    started = _start(context, model_loop, tasks, [task for task in runnable if task.may_start])
    return {**result, "auto_dispatched": started} if started else result


def _fail_task(context: Context, model_loop: ModelLoop, id_: str) -> Json:
    tasks = _tasks(context, model_loop)
    if tasks.get(id_) is None:
        return _error(f"Task '{id_}' not found")
    blocked = tasks.fail(id_)
    _keep(context, model_loop, tasks)
    message = f"Task '{id_}' marked as failed. {len(blocked)} dependent task(s) will remain blocked."
    return {"status": "ok", "task_id": id_, "blocked_dependents": blocked, "message": message}


def _start(context: Context, model_loop: ModelLoop, tasks: Tasks, startable: Sequence[Task]) -> list[Json]:
    """Start the agents of tasks, and store the tasks. A task whose agent is refused stays unchanged, and is tried again
    when another agent has left. Returns the results."""
    results: list[Json] = []
    for task in startable:
        seq = context.draft.visits.number()
        try:
            result = _spawn(context, now(context, model_loop), seq, task.agent or "", task.prompt or "")
        except CallRefused as error:
            result = _error(str(error))
        if result["status"] == "ok":
            tasks.started(task.id)
        results.append(result)
    _keep(context, model_loop, tasks)
    return results


def _tasks(context: Context, model_loop: ModelLoop) -> Tasks:
    """The task queue, as this event leaves it so far. Raises MissingValues."""
    loop = model_loop.loop
    return Tasks(context.values.item(loop.tasks) if loop.has_tasks else None)


def _keep(context: Context, model_loop: ModelLoop, tasks: Tasks) -> None:
    context.draft.record.item(SetValue(model_loop.loop.tasks, tasks.text()))


def _take(context: Context, model_loop: ModelLoop, visit: Visit, agent: Spawned) -> Json | None:
    """The result of an ended agent, which leaves the loop and makes room for another. None: a worker first summarizes
    its long output, for `visit`. Raises MissingValues."""
    loop, node = model_loop.loop, model_loop.visit.node
    output = _output(context, loop.output_of(agent)) if agent.exit == _COMPLETED else ""
    _drop(context, model_loop, agent)
    result = {"status": "completed", "id": agent.id, "agent": agent.agent, "exit_status": agent.exit, "output": output}
    if not output or len(output.encode()) < _limits(context).summarization_threshold:
        return result
    given = f"{loop.id}.summaries.{visit.seq}"
    context.draft.record.item(SetValue(given, compact_json(result)))
    work = Work(context.graph.nodes[node].queue or QUEUE_OF["llm"], given=given)
    visits, place = context.draft.visits, changed(visit.place, summary=True)
    visits.move(visits.begin(visit, work), work, place=place)
    return None


def _output(context: Context, field: str) -> str:
    """A text among the run's items, which this event may have brought."""
    if field in context.draft.record.changed_items:
        require(context.known, WantedValues(delta=frozenset([RESULT])))
        return str(context.known.delta.get(RESULT, ""))
    text = context.values.item(field)
    return str(json.loads(text)) if text else ""


def _drop(context: Context, model_loop: ModelLoop, agent: Spawned) -> None:
    loop = model_loop.loop
    if agent.exit == _COMPLETED:
        context.draft.record.item(DropValue(loop.output_of(agent)))
    others = tuple(each for each in loop.agents if each is not agent)
    questions = tuple(each for each in loop.escalations if each["from_agent_id"] != agent.id)
    change(context, model_loop, agents=others, escalations=questions)


_COMPLETED = "Completed"


def _exit_of(event: ChildEnded) -> str:
    if event.status == "completed":
        return _COMPLETED
    reason = "it was cancelled" if event.status == "cancelled" else event.error or "it gives no reason"
    return f"Failed({json.dumps(reason, ensure_ascii=False)})"


def _not_there(id_: str) -> Json:
    return _error(f"Agent '{id_}' not found. Use agent__check to verify it exists and is finished.")


def _error(message: str) -> dict[str, Json]:
    return {"status": "error", "message": message}


def _find(model_loop: ModelLoop, id_: str) -> Spawned | None:
    return next((each for each in model_loop.loop.agents if each.id == id_), None)


def _limits(context: Context) -> LoopAgent:
    """The limits from the agent's file; a graph has the defaults."""
    return context.graph.loop or LoopAgent()

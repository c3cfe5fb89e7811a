"""Agents that a model starts and asks after, by the `agent__*` tools (spec/graph-agents.md 6).

    agent__spawn ─► a child run, that nobody waits for ─► it ends ─► agent__collect, agent__check: what it has said

Which agents a model has is kept with its loop (runs.Spawned), what they have said among the run's items, until it is
collected; both go when the loop ends, and agents that still run are cancelled then (draft.py). A call is answered at
once. Only one that collects from an agent that still runs waits, without a worker; and of what is too long for the
model to read, a worker makes a summary first. Tasks (tasks.py) start agents by themselves. While questions of child
runs wait for an answer of the model (escalating.py), it waits for no agent.

The worker of the turn has looked at the arguments already: a call that lacks some never comes here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from sleipnir.graph.model import Json, LoopAgent
from sleipnir.messages import QUEUE_OF, RESULT
from sleipnir.runs.events import ChildEnded
from sleipnir.runs.run import Child, Loop, Spawned, Visit, agent_id, changed
from sleipnir.runs.transitions import Drop, Fill, StartChild, Take, TellChild
from sleipnir.runs.values import Wanted
from sleipnir_scheduler.planner import escalating, messaging
from sleipnir_scheduler.planner.context import Context
from sleipnir_scheduler.planner.known import require
from sleipnir_scheduler.planner.questions import storable
from sleipnir_scheduler.planner.tasks import Task, Tasks, task_id


class CannotDo(Exception):
    """A call that fails as such; the text says why, to the model."""


def asked(message: Mapping[str, Json], call: int) -> dict[str, Json]:
    """The arguments of a call: `message` is the assistant's, as providers speak. Texts are such that can be stored."""
    arguments = json.loads(message["tool_calls"][call]["function"]["arguments"])
    found: dict[str, Json] = json.loads(storable(json.dumps(arguments, ensure_ascii=False)))
    return found


def call(context: Context, of: Visit, visit: Visit, arguments: Mapping[str, Json]) -> Json | None:
    """What the model of the loop `of` reads of the call `visit`; None: that waits for an agent. Raises CannotDo."""
    assert visit.part is not None
    match visit.part.tool:
        case "agent__spawn":
            return _spawn(context, of, visit.seq, arguments["agent"], arguments["prompt"])
        case "agent__check":
            return _check(context, of, visit, arguments["id"])
        case "agent__collect":
            return _collect(context, of, visit, arguments["id"])
        case "agent__list_running" | "agent__list":
            return _list(context, of)
        case "agent__list_available":
            return _available(context)
        case "agent__cancel":
            return _cancel(context, of, arguments["id"])
        case "agent__task_create":
            return _create_task(context, of, arguments)
        case "agent__task_list":
            return {"tasks": _tasks(context, of).listed()}
        case "agent__task_complete":
            return _complete_task(context, of, task_id(arguments["task_id"]))
        case "agent__task_fail":
            return _fail_task(context, of, task_id(arguments["task_id"]))
        case "agent__send_message":
            return messaging.send(
                context, of, visit, arguments["id" if "id" in arguments else "to"], arguments["message"]
            )
        case "agent__check_inbox":
            return messaging.read(context)
        case escalating.REPLY:
            return escalating.reply(context, of, arguments["escalation_id"], arguments["reply"])
    raise CannotDo(f"Unknown tool '{visit.part.tool}'")


def ended(context: Context, of: Visit, event: ChildEnded) -> None:
    """The run of an agent of the loop `of` is over. What it has said waits to be collected."""
    draft, loop = context.draft, _loop(of)
    agent = next(each for each in loop.agents if each.run == event.child)
    draft.run_ended(event)
    draft.count_failed_of_child(of.node, Child(agent.run, agent.agent), event.failed_visits)
    draft.notice_child_ended(agent.seq, of.node, event)
    if event.status == "completed":
        draft.item(Take(loop.said_by(agent), RESULT))
    agents = (changed(each, exit=_exit_of(event)) if each is agent else each for each in loop.agents)
    draft.put(changed(of, loop=changed(loop, agents=tuple(agents))))


def collected_for(context: Context, of: Visit, visit: Visit) -> Json | None:
    """What the model reads of a call that has waited for an agent; None: it still has to. Raises Missing."""
    assert visit.child is not None
    agent = next((each for each in _loop(of).agents if each.run == visit.child.run), None)
    if agent is not None:
        return _still_runs(of, agent) if agent.exit is None else _take(context, of, visit, agent)
    id_ = agent_id(visit.child.run, visit.child.agent)
    if not context.draft.has_ended(visit.child.run):
        return _not_there(id_)
    return _error(f"Agent '{id_}' completed but could not be collected. It may have been collected by another call.")


def start_tasks(context: Context, of: Visit) -> None:
    """Start the agents of tasks that wait for them, while there is room for one. Raises Missing."""
    loop = _loop(of)
    if not loop.has_tasks or len(loop.agents) >= _limits(context).max_concurrent_agents:
        return
    tasks = _tasks(context, of)
    if startable := tasks.startable():
        _start(context, of, tasks, startable)


def patience_s(context: Context) -> int | None:
    """How long a question of the run's models waits for an answer; None: without limit, as nobody waits for the run."""
    return _limits(context).escalation_timeout if context.run.spec.depth else None


def _spawn(context: Context, of: Visit, seq: int, agent: str, prompt: str) -> dict[str, Json]:
    """`seq` is the number by which the agent's run is known, of a call or its own."""
    draft, loop, limits = context.draft, _loop(of), _limits(context)
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
        raise CannotDo(f"Unknown agent `{agent}`")
    run = context.child_id(seq, agent)
    spawned = Spawned(agent_id(run, agent), run, agent, seq)
    draft.put(changed(of, loop=changed(loop, agents=(*loop.agents, spawned))))
    draft.effect(StartChild(run, agent, prompt, of.node, seq, attempt=1))
    draft.notice("child_started", seq=seq, node=of.node, child=run, agent=agent)
    if (holder := draft.holder) is not None:
        draft.effect(TellChild(run, "paused", holder))
    told = f"Agent '{agent}' spawned as '{spawned.id}'. Use agent__check or agent__collect to get results."
    return {"status": "ok", "id": spawned.id, "agent": agent, "message": told}


def _check(context: Context, of: Visit, visit: Visit, id_: str) -> Json | None:
    agent = _find(of, id_)
    if agent is None:
        return _error(f"No agent found with id '{id_}'")
    if agent.exit is None:
        told: dict[str, Json] = {"status": "pending", "id": id_, "message": "Agent is still running"}
        if questions := escalating.pending(of):
            told["message"] += f", but {_ANSWER_FIRST}"
            told["pending_escalations"] = questions
        return told
    return _take(context, of, visit, agent)


def _collect(context: Context, of: Visit, visit: Visit, id_: str) -> Json | None:
    agent = _find(of, id_)
    if agent is None:
        return _not_there(id_)
    if agent.exit is not None:
        return _take(context, of, visit, agent)
    if (told := _still_runs(of, agent)) is not None:
        return told
    context.draft.put(changed(context.draft.begin(visit, None), child=Child(agent.run, agent.agent)))
    return None


_ANSWER_FIRST = "child agents have pending escalations that need your reply. Reply via agent__reply_escalation"


def _still_runs(of: Visit, agent: Spawned) -> Json | None:
    """What the model reads instead of the result of an agent that runs while others have questions; None: none has."""
    if not (questions := escalating.pending(of)):
        return None
    told = f"Agent '{agent.id}' is still running, but {_ANSWER_FIRST}, then call agent__collect again."
    return {"status": "pending", "id": agent.id, "message": told, "pending_escalations": questions}


def _list(context: Context, of: Visit) -> Json:
    agents = [
        {"id": each.id, "agent": each.agent, "status": "running" if each.exit is None else "finished"}
        for each in _loop(of).agents
    ]
    most = _limits(context).max_concurrent_agents
    return {"active_count": len(agents), "max_concurrent": most, "agents": agents}


def _available(context: Context) -> Json:
    """The agents that the model may start, sorted by name, with what their files say of them."""
    spec, allowed = context.run.spec, _limits(context).spawnable_agents
    names = sorted(name for name in spec.agents if allowed is None or name in allowed)
    agents = [
        {"name": name} | ({"description": spec.descriptions[name]} if name in spec.descriptions else {})
        for name in names
    ]
    return {"count": len(agents), "agents": agents}


def _cancel(context: Context, of: Visit, id_: str) -> Json:
    agent = _find(of, id_)
    if agent is None:
        return _error(f"No agent found with id '{id_}'")
    _drop(context, of, agent)
    return {"status": "ok", "message": f"Cancelled agent '{agent.agent}'"}


def shortened(context: Context, visit: Visit, error: str) -> Json:
    """What the model reads where a summary has failed: the beginning of what the agent has said. Raises Missing."""
    assert visit.given is not None
    require(context.known, Wanted(items=frozenset([visit.given])))
    result, most = json.loads(context.known.items[visit.given]), _limits(context).summarization_threshold
    said = result["output"].encode()
    note = f"[The first {most:,} of {len(said):,} bytes: a summary of the output has failed: {error}]"
    return {**result, "output": f"{said[:most].decode(errors='ignore')}\n\n{note}"}


def _create_task(context: Context, of: Visit, arguments: Mapping[str, Json]) -> Json:
    tasks = _tasks(context, of)
    task, warnings = tasks.create(arguments)
    result: dict[str, Json] = {"status": "ok", "task_id": task.id}
    if task.agent is not None:
        result["auto_dispatch"] = True
    if warnings:
        result["warnings"] = warnings
    of = context.draft.put(changed(of, loop=changed(_loop(of), has_tasks=True)))
    started = _start(context, of, tasks, [task] if task.may_start else [])
    return {**result, "auto_dispatched": started} if started else result


def _complete_task(context: Context, of: Visit, id_: str) -> Json:
    tasks = _tasks(context, of)
    if tasks.get(id_) is None:
        return _error(f"Task '{id_}' not found")
    runnable = tasks.complete(id_)
    told = [{"id": t.id, "subject": t.subject, "description": t.description, "agent": t.agent} for t in runnable]
    result = {"status": "ok", "task_id": id_, "newly_runnable": told}
    started = _start(context, of, tasks, [task for task in runnable if task.may_start])
    return {**result, "auto_dispatched": started} if started else result


def _fail_task(context: Context, of: Visit, id_: str) -> Json:
    tasks = _tasks(context, of)
    if tasks.get(id_) is None:
        return _error(f"Task '{id_}' not found")
    blocked = tasks.fail(id_)
    _keep(context, of, tasks)
    message = f"Task '{id_}' marked as failed. {len(blocked)} dependent task(s) will remain blocked."
    return {"status": "ok", "task_id": id_, "blocked_dependents": blocked, "message": message}


def _start(context: Context, of: Visit, tasks: Tasks, startable: Sequence[Task]) -> list[Json]:
    """Start the agents of tasks, and keep these. A task whose agent is refused stays as it is, and is tried again when
    another agent has left. Returns what came of each."""
    results: list[Json] = []
    for task in startable:
        assert task.agent is not None
        try:
            result = _spawn(
                context, context.draft.frontier[of.seq], context.draft.number(), task.agent, task.prompt or ""
            )
        except CannotDo as error:
            result = _error(str(error))
        if result["status"] == "ok":
            tasks.started(task.id)
        results.append(result)
    _keep(context, of, tasks)
    return results


def _tasks(context: Context, of: Visit) -> Tasks:
    """The task queue, as this commit leaves it so far. Raises Missing."""
    loop = _loop(of)
    if not loop.has_tasks:
        return Tasks(None)
    left = context.draft.left.get(loop.tasks)
    if isinstance(left, Fill):
        return Tasks(left.text)
    require(context.known, Wanted(items=frozenset([loop.tasks])))
    return Tasks(context.known.items.get(loop.tasks))


def _keep(context: Context, of: Visit, tasks: Tasks) -> None:
    context.draft.item(Fill(_loop(of).tasks, tasks.text()))


def _take(context: Context, of: Visit, visit: Visit, agent: Spawned) -> Json | None:
    """How an agent has ended; from here on nobody has it any more, and there is room for another. None: it has said so
    much that a worker makes a summary first, for `visit`. Raises Missing."""
    output = _said(context, _loop(of).said_by(agent)) if agent.exit == _COMPLETED else ""
    _drop(context, of, agent)
    result = {"status": "completed", "id": agent.id, "agent": agent.agent, "exit_status": agent.exit, "output": output}
    if not output or len(output.encode()) < _limits(context).summarization_threshold:
        return result
    given, queue = f"{_loop(of).id}.summaries.{visit.seq}", context.graph.nodes[of.node].queue or QUEUE_OF["llm"]
    context.draft.item(Fill(given, json.dumps(result, ensure_ascii=False, separators=(",", ":"))))
    begun = context.draft.begin(visit, queue)
    context.draft.put(changed(begun, role="summary", child=None, given=given))
    return None


def _said(context: Context, field: str) -> str:
    """A text among the run's items, which this commit may have taken from what the event has brought."""
    if field in context.draft.left:
        require(context.known, Wanted(delta=frozenset([RESULT])))
        return str(context.known.delta.get(RESULT, ""))
    require(context.known, Wanted(items=frozenset([field])))
    text = context.known.items.get(field)
    return str(json.loads(text)) if text else ""


def _drop(context: Context, of: Visit, agent: Spawned) -> None:
    loop = _loop(of)
    if agent.exit == _COMPLETED:
        context.draft.item(Drop(loop.said_by(agent)))
    agents = tuple(each for each in loop.agents if each is not agent)
    questions = tuple(each for each in loop.escalations if each["from_agent_id"] != agent.id)
    context.draft.put(changed(of, loop=changed(loop, agents=agents, escalations=questions)))


_COMPLETED = "Completed"


def _exit_of(event: ChildEnded) -> str:
    if event.status == "completed":
        return _COMPLETED
    why = "it was cancelled" if event.status == "cancelled" else event.error or "it gives no reason"
    return f"Failed({json.dumps(why, ensure_ascii=False)})"


def _not_there(id_: str) -> Json:
    return _error(f"Agent '{id_}' not found. Use agent__check to verify it exists and is finished.")


def _error(message: str) -> dict[str, Json]:
    return {"status": "error", "message": message}


def _find(of: Visit, id_: str) -> Spawned | None:
    return next((each for each in _loop(of).agents if each.id == id_), None)


def _limits(context: Context) -> LoopAgent:
    """What the agent's file says; a graph cannot, and has the defaults."""
    return context.graph.loop or LoopAgent()


def _loop(of: Visit) -> Loop:
    assert of.loop is not None
    return of.loop

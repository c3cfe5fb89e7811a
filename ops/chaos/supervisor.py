"""Run an agent that starts agents while everything is killed: `python ops/chaos/supervisor.py --children 10`.

The supervisor is a config.yaml agent. It spawns half of its children; the others are tasks that wait for two steps of
its own. It tells each child the id of its sibling. In each round a child sends its sibling two messages, and reads its
inbox until its own two have arrived; in the end it reports that to the supervisor. The supervisor collects all
children, and reads its inbox once. This runs once without faults, then while one of two schedulers, three workers and a
redis-server with an append-only file is killed (SIGKILL) and started again every few seconds (kills.py). The model is
the scripted server, which is not killed. Afterwards the last request of each conversation, which has all its messages,
and every journal are checked:

* the supervisor's answer is the same as without faults;
* each child was started once, and there are no other runs;
* each message is in one reading of one inbox, once, and those of one sender in their order;
* each turn and each call is in the journal once, and none has failed; messages of a conversation did not change;
* a model call was repeated at most as often as a worker with it died.

Prints one line of figures with the seed; exits with 1 when a promise was broken, or when it was not over in time.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from ops.chaos import kills  # noqa: E402
from ops.chaos.run import retried, settled  # noqa: E402
from ops.chaos.verdict import Wrong, leaks  # noqa: E402
from sleipnir.client.client import Client, Run  # noqa: E402
from sleipnir.store.connect import connect  # noqa: E402
from sleipnir.testing import Call, ModelServer, Reply, Request  # noqa: E402
from tests.processes import wait_until  # noqa: E402

ANSWER_S = 0.3  # long enough that a blow now and then strikes in the middle

SUPERVISOR = """
name: supervisor
model: openai:gpt-test
can_spawn_agents: true
max_concurrent_agents: {children}
"""
CHILD = """
name: child
model: openai:gpt-test
"""


class Model:
    """The models' answers. They depend only on the conversation: a repeated turn gets the same answer."""

    def __init__(self, children: int, rounds: int) -> None:
        self.children, self.rounds = children, rounds

    def __call__(self, request: Request) -> Reply:
        run, name = str(request.conversation).split(".")
        return self._supervisor(request, run) if name == "top" else self._child(request, int(name))

    def _supervisor(self, request: Request, run: str) -> Reply:
        tool_results = results(request.messages)
        children = [each["id"] for each in started(tool_results)]
        match request.turn:
            case 1:
                # Tasks 1 and 2 are its own; the tasks that wait for them start when it has completed them.
                calls = [_task("first"), _task("second", "1")]
                for number in range(self.children):
                    work = {"agent": "child", "prompt": f"[conversation {run}.{number}] Go on."}
                    if number < self.children / 2:
                        calls.append(Call("agent__spawn", work))
                    else:
                        calls.append(_task("work", "1" if number < self.children * 3 / 4 else "2", **work))
                return _says(calls)
            case 2 | 3:
                return _says([Call("agent__task_complete", {"task_id": str(request.turn - 1)})])
            case 4:
                assert len(children) == self.children, tool_results
                beside = [*children[1:], children[0]]
                pairs = zip(children, beside, strict=True)
                return _says([_message(child, f"beside you is {other}") for child, other in pairs])
            case 5:
                return _says([Call("agent__collect", {"id": child}) for child in children])
            case 6:
                return _says([_look(request)])
        outputs = sorted(each["output"] for each in tool_results if each.get("exit_status") == "Completed")
        contents = sorted(message["payload"]["content"] for message in read(request.messages))
        return _says(text="\n".join([*outputs, *contents]))

    def _child(self, request: Request, number: int) -> Reply:
        contents = [message["payload"]["content"] for message in read(request.messages)]
        beside = [text.removeprefix("beside you is ") for text in contents if text.startswith("beside you is ")]
        from_siblings = [text for text in contents if text not in (f"beside you is {other}" for other in beside)]
        sent = [call["to"] for call in asked(request.messages, "agent__send_message")]
        if "parent" in sent:
            return _says(text=f"{_place(number)}: {', '.join(from_siblings)}")
        if beside and len(sent) < 2 * self.rounds and len(from_siblings) >= len(sent):
            return _says([_message(beside[0], text) for text in said_in(len(sent) // 2, number)])
        if not beside or len(from_siblings) < 2 * self.rounds:
            return _says([_look(request)])
        return _says([_message("parent", f"{_place(number)} has heard")])


def said_in(round_: int, number: int) -> list[str]:
    """The messages that a child sends in a round."""
    return [f"{word} {round_} from {_place(number)}" for word in ("first", "second")]


def _place(number: int) -> str:
    return f"child {number:03}"


def _says(calls: Sequence[Call] = (), text: str = "") -> Reply:
    return Reply(text, calls=calls, delay_s=ANSWER_S)


def _task(subject: str, *after: str, **work: str) -> Call:
    return Call("agent__task_create", {"subject": subject, "blocked_by": list(after), **work})


def _message(to: str, text: str) -> Call:
    return Call("agent__send_message", {"to": to, "message": text})


def _look(request: Request) -> Call:
    """Look into the inbox. No call like the last one, which would be refused as going round in circles."""
    return Call("agent__check_inbox", {"turn": request.turn})


Messages = Sequence[Mapping[str, Any]]
"""A conversation, as a model receives it."""


def results(messages: Messages) -> list[Any]:
    """The results of the tools."""
    return [json.loads(message["content"]) for message in messages if message["role"] == "tool"]


def asked(messages: Messages, tool: str) -> list[Any]:
    """The arguments of all calls of one tool."""
    calls = [call["function"] for message in messages for call in message.get("tool_calls") or ()]
    return [json.loads(call["arguments"]) for call in calls if call["name"] == tool]


def started(tool_results: Sequence[Any]) -> list[Any]:
    """The results of each agent that a call or a task started."""
    of_tasks = [each for result in tool_results for each in result.get("auto_dispatched", ())]
    return [each for each in (*tool_results, *of_tasks) if "agent" in each and "exit_status" not in each]


def read(messages: Messages) -> list[Any]:
    """All messages that were read from the inbox."""
    return [message for result in results(messages) for message in result.get("messages", ())]


class Fleet(kills.Fleet):
    """The processes of this campaign."""

    workers = ("models-1", "models-2", "models-3")
    model: ModelServer

    def launch_worker(self, name: str) -> None:
        self.stack.start_worker(name, "llm", concurrency=4, env=self.model.env(), ready=False)


def campaign(options: argparse.Namespace, folder: Path) -> int:
    """The whole of it. Returns how many promises were broken."""
    agents = folder / "agents"
    for name, text in (("supervisor", SUPERVISOR.format(children=options.children)), ("child", CHILD)):
        (agents / name).mkdir(parents=True)
        (agents / name / "config.yaml").write_text(text)
    chaos, model = Fleet(folder, options, agents_dir=agents), Model(options.children, options.rounds)
    try:
        with ModelServer(model) as chaos.model, chaos.stack.client() as client:
            chaos.start()
            peace = client.submit("supervisor", "[conversation peace.top] Go on.")
            peace.wait(120)
            run, begun = client.submit("supervisor", "[conversation fire.top] Go on."), time.monotonic()
            chaos.under_fire(lambda: wait_until(lambda: kills.is_over(run), "the supervisor is over", options.limit))
            took_s = time.monotonic() - begun
            violations = settled(lambda: list(wrongs(client, peace, run, model, chaos)))
            print(retried(lambda: in_words(options, chaos, run, took_s, violations)))
        return kills.report(chaos, violations)
    finally:
        chaos.end()


def wrongs(client: Client, peace: Run, run: Run, model: Model, chaos: Fleet) -> Iterator[Wrong]:
    if not run.info().is_final:
        yield Wrong("stuck", f"{run.id}: {run.status}: {[visit.reason for visit in run.info().visits]}")
        return
    if run.output != peace.output or not peace.output:
        yield Wrong("differs", f"{run.id}: {run.status} {run.error}: {run.output!r} instead of {peace.output!r}")
    children = {
        member.id: [child.id for child in client.store.runs.children([member.id])[member.id]] for member in (peace, run)
    }
    conversations = {"fire.top": run}
    for child in map(client.run, children[run.id]):
        name = str(child.state()["initial_prompt"]).split()[1].rstrip("]")
        if name in conversations:
            yield Wrong("double", f"{child.id}: is the second run of {name}")
        conversations[name] = child
    if len(conversations) != 1 + model.children:
        yield Wrong("lost", f"{run.id}: has {len(conversations) - 1} children")
    known = {peace.id, run.id, *children[peace.id], *children[run.id]}
    for info in client.runs(10_000, children=True):
        if info.id not in known:
            yield Wrong("double", f"{info.id}: an unexpected run")
    for name, member in conversations.items():
        yield from of_run(name, member, chaos)
        yield from of_messages(name, member, model, chaos)
    redis = connect(chaos.redis.url)
    yield from leaks(client, redis)
    redis.close()


def of_run(name: str, run: Run, chaos: Fleet) -> Iterator[Wrong]:
    """Each turn and each call was journaled once, and the model was called again at most as often as workers died."""
    if run.status != "completed":
        yield Wrong("differs", f"{run.id}: {name} {run.status} {run.error}")
    answered, last = chaos.model.counts().get(name, {}), whole(name, chaos)
    turns = [message for message in last if message["role"] == "assistant"]
    expected = Counter((turn, call) for turn, turn_message in enumerate(turns, 1) for call in _calls(turn_message))
    expected[len(turns) + 1, None] += 1
    steps = [step for step in run.history() if step.part is not None]
    places = [(step.part.turn + 1, step.part.call) for step in steps if step.part is not None]
    if Counter(places) != expected:
        yield Wrong("double", f"{run.id}: {name}: in the journal are {sorted(places, key=str)}")
    for step, (turn, call) in zip(steps, places, strict=True):
        if not step.ok:
            yield Wrong("differs", f"{run.id}: {name}: turn and call {turn, call} failed: {step.error}")
        most = 1 + chaos.deaths(run, step)
        if call is None and not 1 <= answered.get(turn, 0) <= most:
            yield Wrong("effect", f"{run.id}: turn {turn} was answered {answered.get(turn, 0)} times, at most {most}")
    for request in chaos.model.calls_of(name):
        if request.messages != last[: len(request.messages)]:
            yield Wrong("double", f"{run.id}: {name}: turn {request.turn} was asked after a different conversation")


def _calls(message: Mapping[str, Any]) -> list[int | None]:
    """The places of a turn in the journal: the turn, and its calls."""
    return [None, *range(len(message.get("tool_calls") or ()))]


def whole(name: str, chaos: Fleet) -> list[Any]:
    """All messages of a conversation before its last answer."""
    return max((request.messages for request in chaos.model.calls_of(name)), key=len, default=[])


def of_messages(name: str, run: Run, model: Model, chaos: Fleet) -> Iterator[Wrong]:
    """Each message that was sent to an inbox was read there once."""
    texts = [message["payload"]["content"] for message in read(whole(name, chaos))]
    of_roster = [text for text in texts if text.startswith("beside you is ")]
    heard = [text for text in texts if text not in of_roster]
    if name.endswith(".top"):
        heard.sort()  # many senders
        expected, rosters = [f"{_place(number)} has heard" for number in range(model.children)], 0
    else:
        before = (int(name.split(".")[1]) - 1) % model.children
        expected, rosters = [text for number in range(model.rounds) for text in said_in(number, before)], 1
    if len(of_roster) != rosters:
        yield Wrong("double" if len(of_roster) > rosters else "lost", f"{run.id}: {name} has heard {of_roster}")
    if heard != expected:
        for got, wanted in zip_longest(heard, expected):
            if got != wanted:
                kind = "double" if len(heard) > len(expected) else "lost"
                yield Wrong(kind, f"{run.id}: {name} has read {got!r} instead of {wanted!r}")


def in_words(options: argparse.Namespace, chaos: Fleet, run: Run, took_s: float, violations: list[Wrong]) -> str:
    broken = Counter(wrong.kind for wrong in violations)
    fire = {name: turns for name, turns in chaos.model.counts().items() if str(name).startswith("fire.")}
    answered = [times for turns in fire.values() for times in turns.values()]
    messages = sum(len(read(whole(str(name), chaos))) for name in fire)
    return (
        f"seed {options.seed}: a supervisor with {options.children} children and {options.rounds} rounds of messages, "
        f"{chaos.faults()}: "
        f"{broken['differs']} other answers or failed calls, {broken['double']} started, read or journaled twice, "
        f"{broken['lost']} messages or children lost, {broken['effect']} repeated without a death, "
        f"{broken['stuck']} stuck, {broken['leak']} keys left over; {messages} messages; {sum(answered)} model calls, "
        f"{sum(times - 1 for times in answered)} of them repeated; killed workers held {len(chaos.blows.visits)} "
        f"visits; {took_s:.0f} s"
    )


def main() -> None:
    parser = kills.parser(__doc__)
    parser.add_argument("--children", type=int, default=10, help="of the supervisor (default 10)")
    parser.add_argument("--rounds", type=int, default=10, help="of messages between children (default 10)")
    kills.main(campaign, parser.parse_args())


if __name__ == "__main__":
    main()

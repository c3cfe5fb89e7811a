"""The same graph gives the same state, whatever ends first: in both engines, with every reducer, joins, maps, commands,
llm nodes with tools.

What a visit writes is drawn from what it is (its node, its item, its command, what was said in its loop) and not from
when it runs. Two runs of one graph are moved in two random orders, workers dying on the way, and must end alike.
"""

from __future__ import annotations

import random
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sleipnir.messages import ANSWER, FOLLOW_UP, MESSAGES, RESULT, ResultHeader, ToolCall
from sleipnir.runs.events import LeaseLost, Resulted, TimerFired
from sleipnir.runs.visits import BRANCH, Visit
from tests.model_store import Driver, work_of

EXAMPLES = {"slow": 2_000, "ci": 400}.get(settings.get_current_profile_name(), 100)

NODES = ["a", "b", "c", "d", "e", "f"]
REDUCERS = {
    "list": "append",
    "text": "concat",
    "sum": "sum",
    "most": "max",
    "merged": "deep_merge",
    "set": "union",
    "first": "first",
    "last": "last",
    "own": "r.py:own",
}


@st.composite
def graphs(draw: st.DrawFn) -> str:
    """A graph without loops: edges lead to later nodes. In a dag no node is started twice: how often a join fires whose
    source runs twice depends on what ends first, by its definition."""
    engine = draw(st.sampled_from(["bsp", "dag"]))
    lines = [
        "name: g",
        "version: sleipnir/1",
        "start: a",
        f"engine: {engine}",
        "settings: {max_concurrency: 3, max_loop_iterations: 1000}",
    ]
    lines += ["state:", *(f"  {key}: {{type: any, reducer: '{reducer}'}}" for key, reducer in REDUCERS.items())]
    lines += ["nodes:"]
    taken: set[str] = set()
    for number, name in enumerate(NODES):
        later = NODES[number + 1 :]
        targets = draw(st.lists(st.sampled_from(later), max_size=3, unique=True)) if later else []
        if engine == "dag":
            targets = [target for target in targets if target not in taken]
            taken |= set(targets)
        edges = f", next: [{', '.join(targets)}]" if targets else ""
        joins = [other for other in NODES[:number] if draw(st.integers(0, 3)) == 0]
        alone = engine == "bsp" or name not in taken
        waits = f", wait_for: [{', '.join(joins)}]" if len(joins) > 1 and alone else ""
        taken |= {name} if waits else set()
        kind = draw(st.integers(0, 7)) if name != "a" else 7
        if kind < 2:
            each = f"for_each: '{{{{items}}}}', as: x, node: {('body', 'talker')[kind]}"
            lines.append(f"  {name}: {{type: map, {each}, collect: list{edges}{waits}}}")
        elif kind < 4 and name != "b":
            lines.append(f"  {name}: {{type: llm, prompt: p, tools: [t]{edges}{waits}}}")
        else:
            lines.append(f"  {name}: {{type: function, call: 'f.py:f'{edges}{waits}}}")
    lines += [f"  {name}: {{type: function, call: 'f.py:f'}}" for name in ("body", "sent", "too")]
    lines += ["  talker: {type: llm, prompt: p, tools: [t]}"]
    return "\n".join(lines) + "\n"


def written(driver: Driver, visit: Visit) -> dict[str, Any]:
    """What the visit writes, by what it is."""
    if visit.role == "reduce":
        given_ = driver.sees(visit)["own"]
        return {"own": [*(given_.get("current") or []), *given_["incoming"]]}
    said = "" if visit.part is None else name_of_talk(driver, visit)
    if visit.role == "tool":
        return {RESULT: said}
    if visit.item is not None:
        return {"output": f"{visit.item.of}{visit.item.index}{said}"}
    seen = driver.sees(visit)
    name = f"{visit.node}{seen.get('n', '')}{said}"
    number = sum(name.encode())
    values: dict[str, Any] = {
        "list": name,
        "text": name,
        "sum": number,
        "most": number,
        "merged": {name[0]: {name: number}},
        "set": [name, "all"],
        "first": name,
        "last": name,
        "own": name,
        "plain": name,
    }
    return {key: value for index, (key, value) in enumerate(values.items()) if (number + index) % 3}


def name_of_talk(driver: Driver, visit: Visit) -> str:
    """What was said in a loop before this visit, and which part of the loop it is; the order of visits apart."""
    assert visit.part is not None
    said = repr((driver.memory.talk(visit), visit.part.turn, visit.part.call))
    return str(zlib.crc32(said.encode()))


def talks(driver: Driver, visit: Visit) -> None:
    """A turn of a model: up to two turns with calls, or that go on without, then what the node writes."""
    assert visit.part is not None
    turn, place = visit.part.turn, len(visit.node) + (visit.item.index if visit.item else 0)
    calls = tuple(ToolCall(f"c{n}", "t", ("scripts", "llm", "")[n]) for n in range((place + turn) % 4))
    goes_on = not calls and place % 2 == 1
    if turn > 1 or not (calls or goes_on):
        driver.ends(visit, **written(driver, visit))
        return
    delta = {ANSWER: f"{visit.node} {turn}"} | {f"{RESULT}.2": "here" for call in calls if not call.where}
    delta |= {FOLLOW_UP: f"{visit.node} goes on"} if goes_on else {}
    delta |= {} if turn else {MESSAGES: f"{visit.node} is told"}
    driver.ends(visit, calls=calls, goes_on=goes_on, **delta)


def play(text: str, order: random.Random) -> dict[str, Any]:
    """One run to its end, its visits ending in the order that is drawn; some workers die."""
    driver = Driver(text, {"items": ["x", "y", "z"]}).start()
    while not driver.run.is_final:
        live = driver.run.frontier.values()
        visit = order.choice([visit for visit in live if visit.state == "queued" or visit.due_ms is not None])
        if visit.due_ms is not None:
            driver.send(TimerFired(visit.timer))
            continue
        fault = order.random()
        if fault < 0.1 and work_of(visit).losses < 2:
            driver.send(LeaseLost(visit.seq, visit.attempt, "w"))
            continue
        if fault > 0.9 and visit.role == "turn":
            driver.send(Resulted(visit.seq, visit.attempt, ResultHeader(ok=False, later_ms=driver.now_ms + 1_000)))
            continue
        if visit.role == "turn":
            talks(driver, visit)
            continue
        sends = None
        if visit.node == "b" and visit.place == BRANCH:
            sends = [("sent", {"n": 1}), ("too", {"n": 2}), ("sent", {"n": 3})]
        driver.ends(visit, sends=sends, **written(driver, visit))
    starved = "can never fire" in (driver.error or "")
    assert driver.run.status == "completed" or starved, driver.error
    assert starved or not driver.memory.items
    return {**driver.state, "?": driver.error and "starved"}


@settings(max_examples=EXAMPLES, deadline=None)
@pytest.mark.timeout(480)
@pytest.mark.conformance("IS-02")
@given(text=graphs(), seeds=st.tuples(st.integers(0, 999), st.integers(0, 999)))
def test_two_runs_of_one_graph_end_in_the_same_state(text: str, seeds: tuple[int, int]) -> None:
    one, other = (play(text, random.Random(seed)) for seed in seeds)
    assert one == other

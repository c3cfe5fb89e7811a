"""A graph with most features of the language, as graph.yaml and in Python: tool calls, commands with private values, a
cache, a child with mappers, a question, a breakpoint and a join. Whatever is killed meanwhile, it ends the same way."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from sleipnir import Client, Run
from sleipnir.testing import Call, ModelServer, Reply, Request
from tests.processes import RedisServer, Stack, wait_until

AGENTS = Path(__file__).parents[1] / "fixtures" / "support_case"
FORMS = ("support-case", "support-case-python")
KILLS = 10
ONCE = ("plan", "look", "pay", "notify", "ledger", "close")
CACHED = ("check-price", "check-age", "check-owner")


def classify(request: Request) -> Reply:
    if not request.tool_results:
        return Reply(calls=[Call("lookup_order", {"order_id": 17})])
    return Reply("refund")


class Case:
    """One run, and the person who watches it."""

    def __init__(self, client: Client, form: str, order_id: int, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.order_id = folder, order_id
        state = {"order_id": order_id, "folder": str(folder)}
        self.run: Run = client.submit(form, "My order is broken.", state=state)

    def goes_on(self) -> bool:
        """Answer what is asked, and pass the breakpoint. Returns whether the run is over."""
        info = self.run.info()
        if info.status == "paused":
            self.run.resume()
        for gate in self.run.gates():
            self.run.answer("yes", gate)
        return info.is_final

    def marks(self) -> Counter[str]:
        return Counter({file.name: len(file.read_text()) for file in self.folder.iterdir()})

    def ended_right(self) -> None:
        info = self.run.info()
        assert info.status == "completed", info.error
        state = self.run.state()
        rules = [f"{rule} of {self.order_id} is right" for rule in ("price", "age", "owner")]
        assert state["findings"] == [*rules, f"{rules[0]}, says the expert"]
        assert state["receipts"] == [f"paid {self.order_id}", "booked", "told", "closed"]
        assert [message.get("role") or message["type"] for message in state["messages"]] == [
            *("user", "assistant", "tool", "assistant"),
        ]
        done = Counter(step.node for step in self.run.history() if step.ok and step.role == "node" and step.node)
        assert done["check"] == 3
        assert {done[node] for node in ("plan", "expert", "decide", "pay", "notify", "ledger", "close")} == {1}


@pytest.fixture
def own(redis_server: RedisServer, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stack]:
    agents = shutil.copytree(AGENTS, tmp_path / "agents")
    prefix = request.node.name.replace("[", "-").replace("]", "")
    with Stack(redis_server, tmp_path / "home", key_prefix=prefix, agents_dir=agents, owner_ttl_s=0.5) as stack:
        yield stack


def start(stack: Stack, name: str, model: ModelServer) -> None:
    if name == "scheduler":
        stack.start_scheduler()
    elif name == "models":
        stack.start_worker(name, "llm", env=model.env(), ready=False)
    else:
        stack.start_worker(name, "scripts,functions", concurrency=3, ready=False)


def start_all(stack: Stack, model: ModelServer) -> None:
    for name in ("scheduler", "models", "code"):
        start(stack, name, model)


@pytest.mark.parametrize("form", FORMS)
def test_a_second_case_takes_its_checks_from_the_cache(own: Stack, tmp_path: Path, form: str) -> None:
    with ModelServer(classify) as model, own.client() as client:
        start_all(own, model)
        cases = []
        for _ in range(2):
            cases.append(case := Case(client, form, 17, tmp_path / "marks"))
            wait_until(case.goes_on, "the case is over", 120)
            case.ended_right()
        assert [case.run.info().cached_visits for case in cases] == [0, 3]
        assert cases[1].marks() == Counter(dict.fromkeys(ONCE, 2) | dict.fromkeys(CACHED, 1))


def test_cases_whose_processes_are_killed_end_as_without_faults(own: Stack, tmp_path: Path) -> None:
    chance = random.Random(7)
    with ModelServer(classify) as model, own.client() as client:
        start_all(own, model)
        cases = [Case(client, form, number, tmp_path / f"{form}-{number}") for number in range(4) for form in FORMS]
        for kill in range(KILLS):
            seen = sum(len(case.run.history()) for case in cases)
            wanted = seen + chance.randint(1, 12)

            def moved(wanted: int = wanted) -> bool:
                over = [case.goes_on() for case in cases]
                return all(over) or sum(len(case.run.history()) for case in cases) >= wanted

            wait_until(moved, f"the cases go on after {kill} kills", 120)
            name = chance.choice(("scheduler", "models", "code"))
            own.kill(name)
            start(own, name, model)
        wait_until(lambda: all([case.goes_on() for case in cases]), "all cases are over", 240)
        for case in cases:
            case.ended_right()
            assert set(case.marks()) == {*ONCE, *CACHED}

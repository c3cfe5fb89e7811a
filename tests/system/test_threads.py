"""Threads on a real scheduler and real workers: turns of graphs in YAML and in Python, conflicts, kills."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sleipnir import Client
from sleipnir.client.client import Run
from sleipnir.errors import ThreadBusy, UsageError
from sleipnir.python_graph.agent_modules import load
from tests.processes import RedisServer, Stack, wait_until, write_agent

COUNTS = """
name: counts
version: sleipnir/1
start: count
state: {number: int, said: {type: list, reducer: append}}
nodes:
  count: {type: function, call: "f.py:count", next: done}
  done: {type: end, output: "{{number}} {{said}}"}
"""
COUNT = """
from sleipnir import interrupt

def count(state):
    prompt = state["initial_prompt"]
    if prompt == "boom":
        raise ValueError("boom")
    if prompt == "ask":
        prompt = interrupt("what?")
    return {"number": state["number"] + 1, "said": [prompt]}
"""
PYTHON = """
import operator
from typing import Annotated, TypedDict

from sleipnir import START, InMemorySaver, StateGraph, get_config


def longest(old: str, new: str) -> str:
    return max(old or "", new, key=len)


class State(TypedDict, total=False):
    said: Annotated[list[str], operator.add]
    best: Annotated[str, longest]
    last: str


def answer(state: State) -> dict:
    return {"said": [f"{len(state['said'])} in {get_config()['configurable']['thread_id']}"]}


graph = StateGraph(State).add_node(answer).add_edge(START, "answer").compile(checkpointer=InMemorySaver())
"""
CHATTY = "name: chatty\nmodel: openai:gpt-test\n"


@pytest.fixture(scope="module")
def stack(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    home = tmp_path_factory.mktemp("threads")
    write_agent(home / "agents" / "counts", COUNTS, f_py=COUNT)
    write_agent(home / "agents" / "talks", None, graph_py=PYTHON)
    (home / "agents" / "chatty").mkdir()
    (home / "agents" / "chatty" / "config.yaml").write_text(CHATTY)
    with Stack(redis_server, home / "home", key_prefix="threads", agents_dir=home / "agents") as stack:
        stack.start_scheduler("scheduler")
        stack.start_worker("worker")
        yield stack


@pytest.fixture
def client(stack: Stack) -> Iterator[Client]:
    with stack.client() as client:
        yield client


def ended(run: Run, status: str = "completed") -> Run:
    assert run.wait(60).status == status, run.error
    return run


def test_each_turn_goes_on_from_the_state_of_the_last_one(client: Client) -> None:
    first = ended(client.submit("counts", "a", thread="plain", state={"number": 5}))
    second = ended(client.submit("counts", "b", thread="plain"))
    third = ended(client.submit("counts", "c", thread="plain", state={"said": ["new"]}))
    other = ended(client.submit("counts", "x", thread="other"))
    outputs = [run.output for run in (first, second, third, other)]
    assert outputs == ['6 ["a"]', '7 ["a","b"]', '8 ["new","c"]', '1 ["x"]']
    assert [run.id for run in client.thread_runs("counts", "plain")] == [third.id, second.id, first.id]
    assert third.state_at(0) == {"number": 7, "said": ["new"], "initial_prompt": "c"}
    assert [info.name for info in client.threads("counts")][:2] == ["other", "plain"]
    with pytest.raises(UsageError, match=r"state key 'number' .*int"):
        client.submit("counts", "d", thread="plain", state={"number": "many"})


def test_an_unfinished_run_is_gone_on_with_by_an_answer_and_not_by_a_turn(client: Client) -> None:
    run = client.submit("counts", "ask", thread="asks")
    wait_until(run.gates, "it asks")
    with pytest.raises(ThreadBusy, match=rf"run {run.id}, which is waiting: .*`sleipnir answer {run.id} TEXT` answers"):
        client.submit("counts", "b", thread="asks")
    run.answer("me")
    ended(run)
    assert ended(client.submit("counts", "b", thread="asks")).output == '2 ["me","b"]'


def test_of_turns_submitted_at_once_exactly_one_begins(stack: Stack, client: Client) -> None:
    ended(client.submit("counts", "a", thread="race"))
    begun, refused, start = list[str](), list[str](), threading.Barrier(5)

    def submit() -> None:
        with stack.client() as own:
            start.wait()
            try:
                begun.append(own.submit("counts", "ask", thread="race").id)
            except ThreadBusy as error:
                refused.append(str(error))

    threads = [threading.Thread(target=submit) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(begun), len(refused)) == (1, 4)
    assert all(begun[0] in why for why in refused)
    client.run(begun[0]).cancel()
    ended(client.run(begun[0]), "cancelled")


def test_two_namespaces_have_threads_of_one_name_at_once_and_share_nothing(stack: Stack, client: Client) -> None:
    start, failures = threading.Barrier(4), list[BaseException]()
    outputs: dict[str, list[str]] = {}

    def talk(namespace: str, thread: str) -> None:
        try:
            with stack.client() as own:
                start.wait(60)
                turns = [
                    ended(own.submit("counts", f"{namespace}{turn}", thread=thread, namespace=namespace))
                    for turn in (1, 2, 3)
                ]
                outputs[f"{namespace} {thread}"] = [str(run.output) for run in turns]
        except BaseException as error:
            failures.append(error)
            raise

    pairs = [(namespace, thread) for namespace in ("default", "acme") for thread in ("both", "same")]
    threads = [threading.Thread(target=talk, args=pair) for pair in pairs]
    for each in threads:
        each.start()
    for each in threads:
        each.join(180)
    assert not failures
    for namespace, thread in pairs:
        first, second, third = (f'"{namespace}{turn}"' for turn in (1, 2, 3))
        said = [f"1 [{first}]", f"2 [{first},{second}]", f"3 [{first},{second},{third}]"]
        assert outputs[f"{namespace} {thread}"] == said
        info = client.thread("counts", thread, namespace=namespace)
        assert info is not None and (info.turns, info.namespace) == (3, namespace)
        runs = client.thread_runs("counts", thread, namespace=namespace)
        assert {run.namespace for run in runs} == {namespace} and len(runs) == 3
        assert client.get_state("counts", thread, namespace=namespace).values["number"] == 3
    assert [info.name for info in client.threads("counts", namespace="acme")].count("both") == 1
    both = [info for info in client.threads("counts", namespace="*") if info.name == "both"]
    assert {info.namespace for info in both} == {"default", "acme"}
    assert client.thread("counts", "both", namespace="nowhere") is None
    with pytest.raises(UsageError, match="cannot name a namespace"):
        client.thread("counts", "both", namespace="a/b")


def test_a_fork_and_the_command_line_find_the_thread_of_their_namespace(stack: Stack, client: Client) -> None:
    first = ended(client.submit("counts", "a", thread="line", namespace="team"))
    assert ended(first.fork(at=0, thread="line", state={"initial_prompt": "b"})).output == '1 ["b"]'
    shown = stack.sleipnir("threads", "show", "counts", "line", "--namespace", "team", "--json")
    assert [run["turn"] for run in json.loads(shown.stdout)["runs"]] == [2, 1]
    own = json.loads(stack.sleipnir("threads", "ls", "--json", SLEIPNIR_NAMESPACE="team").stdout)
    assert [(info["name"], info["namespace"]) for info in own] == [("line", "team")]
    hidden = stack.sleipnir("threads", "show", "counts", "line")
    nowhere = stack.sleipnir("threads", "show", "counts", "line", "--namespace", "nowhere")
    assert (hidden.returncode, hidden.stderr) == (nowhere.returncode, nowhere.stderr) and hidden.returncode == 2
    assert stack.sleipnir("threads", "rm", "counts", "line").returncode == 2
    assert stack.sleipnir("threads", "rm", "counts", "line", "--namespace", "team").returncode == 0
    assert client.thread("counts", "line", namespace="team") is None


def test_a_failed_run_is_retried_or_left_by_the_next_turn_which_says_so(stack: Stack, client: Client) -> None:
    ended(client.submit("counts", "a", thread="fails"))
    failed = ended(client.submit("counts", "boom", thread="fails"), "failed")
    said = stack.sleipnir("run", "counts", "b", "--thread", "fails")
    assert (said.returncode, said.stdout) == (0, '2 ["a","b"]\n')
    assert f"note: the last run {failed.id} of thread 'fails' is failed" in said.stderr
    with pytest.raises(UsageError, match="its thread 'fails' has continued without it"):
        failed.retry()
    forked = failed.fork(at=0, state={"initial_prompt": "c"})
    assert ended(forked).output == '2 ["a","c"]'
    assert forked.info().thread is None


def test_the_command_line_lists_shows_and_removes_threads(stack: Stack, client: Client) -> None:
    done = stack.sleipnir("run", "counts", "a", "--thread", "t1")
    assert done.stdout == '1 ["a"]\n', done.stderr
    submitted = stack.sleipnir("submit", "counts", "ask", "--thread", "t1").stdout.strip()
    busy = stack.sleipnir("submit", "counts", "b", "--thread", "t1")
    assert (busy.returncode, f"goes on with run {submitted}" in busy.stderr) == (2, True)
    listed = json.loads(stack.sleipnir("threads", "ls", "counts", "--json").stdout)
    assert (listed[0]["name"], listed[0]["turns"], listed[0]["run"]) == ("t1", 2, submitted)
    assert submitted in stack.sleipnir("threads", "ls").stdout
    shown = json.loads(stack.sleipnir("threads", "show", "counts", "t1", "--json").stdout)
    assert [run["turn"] for run in shown["runs"]] == [2, 1]
    assert submitted in stack.sleipnir("threads", "show", "counts", "t1").stdout
    assert "t1, turn 2, after run" in stack.sleipnir("show", submitted).stdout
    assert stack.sleipnir("threads", "rm", "counts", "t1").returncode == 2
    client.run(submitted).cancel()
    ended(client.run(submitted), "cancelled")
    assert stack.sleipnir("threads", "rm", "counts", "t1").returncode == 0
    gone = stack.sleipnir("threads", "show", "counts", "t1")
    assert (gone.returncode, "has no thread 't1'" in gone.stderr) == (2, True)
    assert stack.sleipnir("run", "counts", "z", "--thread", "t1").stdout == '1 ["z"]\n'


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("counts", "a", "--thread", "a/b"), "cannot name a thread"),
        (("chatty", "a", "--thread", "t"), "which are sessions"),
        (("counts", "a", "--thread", "t", "--in-process"), "--thread needs a deployment"),
    ],
)
def test_a_thread_that_cannot_be_is_refused(stack: Stack, words: tuple[str, ...], why: str) -> None:
    refused = stack.sleipnir("run", *words)
    assert (refused.returncode, why in refused.stderr) == (2, True), refused.stderr


def test_the_input_of_a_graph_in_python_goes_through_its_reducers(stack: Stack, client: Client) -> None:
    graph = load(stack.settings.agents_dir / "talks" / "graph.py").graph  # type: ignore[operator]
    config = {"configurable": {"thread_id": "py"}}
    first = ended(graph.submit({"said": ["hi"], "best": "long one"}, client=client, config=config))
    assert first.state()["said"] == ["hi", "1 in py"]
    second = ended(graph.submit({"said": ["again"], "best": "short", "last": "x"}, client=client, thread="py"))
    assert second.state() == {
        "said": ["hi", "1 in py", "again", "3 in py"], "best": "long one", "last": "x",
    }  # fmt: skip
    assert (second.info().thread, second.info().turn) == ("py", 2)
    with pytest.raises(UsageError, match="in the thread 'py', but its configuration says 'other'"):
        graph.submit({}, client=client, thread="py", config={"configurable": {"thread_id": "other"}})
    with pytest.raises(UsageError, match="'configurable' must be a mapping, not int"):
        graph.submit({}, client=client, config={"configurable": 3})
    with pytest.raises(UsageError, match="rows of batches are in no thread"):
        client.batch(graph, [{}], config=config)


def test_a_turn_of_a_graph_py_of_an_agent_goes_through_its_reducers_too(stack: Stack, client: Client) -> None:
    ended(client.submit("talks", thread="folder", state={"said": ["hi"], "best": "long one"}))
    done = ended(client.submit("talks", thread="folder", state={"said": ["again"], "best": "short"}))
    assert done.state()["said"] == ["hi", "1 in folder", "again", "3 in folder"]
    assert done.state()["best"] == "long one"
    assert ended(client.submit("talks", thread="folder")).state()["said"][-1] == "4 in folder"


def test_a_fork_is_a_turn_of_another_thread_or_takes_its_own_back(stack: Stack, client: Client) -> None:
    first = ended(client.submit("counts", "a", thread="ann"))
    second = ended(client.submit("counts", "b", thread="ann"))
    made = stack.sleipnir("fork", second.id, "--at", "0", "--set", 'initial_prompt="c"', "--thread", "ann-2", "--json")
    assert made.returncode == 0, made.stderr
    branch = ended(client.run(json.loads(made.stdout)["run"]))
    assert (branch.output, json.loads(made.stdout)["thread"]) == ('2 ["a","c"]', "ann-2")
    assert [run.id for run in client.thread_runs("counts", "ann-2")] == [branch.id]
    assert ended(client.submit("counts", "d", thread="ann-2")).output == '3 ["a","c","d"]'
    back = stack.sleipnir("rewind", first.id, "--at", "0", "--set", 'initial_prompt="e"', "--thread", "ann")
    assert back.returncode == 0, back.stderr
    again = ended(client.run(back.stdout.strip()))
    assert (again.output, again.info().turn, again.info().previous) == ('1 ["e"]', 3, second.id)
    assert ended(client.submit("counts", "f", thread="ann")).output == '2 ["e","f"]'
    asks = client.submit("counts", "ask", thread="ann")
    wait_until(asks.gates, "it asks")
    busy = stack.sleipnir("rewind", asks.id, "--at", "0", "--thread", "ann")
    assert (busy.returncode, f"goes on with run {asks.id}" in busy.stderr) == (2, True), busy.stderr
    elsewhere = asks.rewind(at=0, state={"initial_prompt": "g"}, thread="ann-3")
    ended(asks, "cancelled")
    assert ended(elsewhere).output == '3 ["e","f","g"]'
    refused = stack.sleipnir("fork", first.id, "--at", "0", "--thread", "a/b")
    assert (refused.returncode, "cannot name a thread" in refused.stderr) == (2, True), refused.stderr


def test_a_fork_that_never_began_leaves_its_state_to_the_next_turn(client: Client, tmp_path: Path) -> None:
    agent = write_agent(tmp_path / "single", COUNTS.replace("start:", "concurrency: {limit: 1}\nstart:"), f_py=COUNT)
    source = ended(client.submit(agent, "a", state={"number": 5}))
    holds = client.submit(agent, "ask")
    wait_until(holds.gates, "it has the only slot")
    fork = source.fork(before="done", thread="t")
    fork.cancel()
    ended(fork, "cancelled")
    holds.cancel()
    assert ended(client.submit(agent, "b", thread="t")).output == '7 ["a","b"]'


def test_a_fork_of_a_graph_in_python_sees_its_own_thread_and_chats_have_none(client: Client) -> None:
    first = ended(client.submit("talks", thread="py-a", state={"said": ["hi"]}))
    assert ended(first.fork(at=0, thread="py-b")).state()["said"] == ["hi", "1 in py-b"]
    chat = client.submit("chatty", "hi")
    with pytest.raises(UsageError, match="which are sessions"):
        chat.fork(at=0, thread="t")
    chat.cancel()


def test_a_turn_goes_on_while_everything_dies(redis_server: RedisServer, tmp_path: Path) -> None:
    agent = write_agent(tmp_path / "counts", COUNTS, f_py=COUNT)
    with Stack(redis_server, tmp_path / "home", key_prefix="threads-die") as own, own.client() as client:
        own.start_scheduler("first")
        own.start_worker("worker")
        ended(client.submit(agent, "a", thread="t"))
        own.kill("first")
        own.kill("worker")
        run = client.submit(agent, "b", thread="t")
        with pytest.raises(ThreadBusy, match="which is submitted"):
            client.submit(agent, "c", thread="t")
        own.start_scheduler("second")
        own.start_worker("other")
        assert ended(run).output == '2 ["a","b"]'
        own.kill("second")
        third = client.submit(agent, "c", thread="t")
        own.start_scheduler("third")
        assert ended(third).output == '3 ["a","b","c"]'


def test_a_thread_that_is_bound_to_a_graph_is_refused_with_what_to_do_instead(client: Client, stack: Stack) -> None:
    folder = stack.settings.agents_dir
    assert folder is not None
    graph = load(folder / "talks" / "graph.py").graph
    bound, count = graph.with_config(configurable={"thread_id": "bound"}), client.run_count()
    for submit in (lambda: client.submit(bound, {"last": "x"}), lambda: client.batch(bound, [{"last": "x"}])):
        with pytest.raises(UsageError, match=r"the thread 'bound' is bound to the graph by with_config"):
            submit()
    assert client.run_count() == count

"""What somebody may try who writes an agent, a value, a document, a message or a model's answer. Each fails as
docs/threat-model.md says.

Attacks on processes share one deployment: an attack that harmed it would fail the others. A canary run shows that other
runs go on meanwhile.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import os
import pickle
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from sleipnir.agents.bundle import pack, unpack
from sleipnir.batches.rows import read as read_rows
from sleipnir.client.client import Client, Run
from sleipnir.errors import AgentNotFound, BundleError, GateError, GraphError, RunNotFound, SleipnirError, UsageError
from sleipnir.graph.load import load_file
from sleipnir.graph.template import render, render_lenient
from sleipnir.messages import VisitCall
from sleipnir.store.connect import connect
from sleipnir.store.keys import Keys
from sleipnir.testing import Call, ModelServer, Reply, Request
from sleipnir_scheduler.counters.series import Counter
from sleipnir_scheduler.dispatch import envelope, message
from sleipnir_workers.knowledge.failures import Unloadable, UnreadableContent
from sleipnir_workers.knowledge.loaders.content import Content
from sleipnir_workers.knowledge.parsing import Parser
from sleipnir_workers.knowledge.web import Web
from tests.integration.knowledge.loads import loaded
from tests.other_user import as_user
from tests.processes import RedisServer, Stack, wait_until, write_agent
from tests.system.test_inspection import HOLD, reads
from tests.unit.workers.visits import is_gone

PREFIX = "attacks"
SECRET = "sk-of-the-worker-0123456789"
INJECTED = "$(touch injected); `touch injected` ; touch injected"
BACKTRACKS = "a" * 60 + "!"


def replies(request: Request) -> Reply:
    """A model that was talked into calling a tool that its node does not have, with an argument made for a shell."""
    if request.turn > 1:
        return Reply("done")
    return Reply(
        calls=(Call("forbidden", {}), Call("echo", {"text": "$(touch injected); `touch injected` ; touch injected"}))
    )


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A scheduler, a worker with a secret in its environment, and one that reaches a model."""
    redis, folder = RedisServer(), tmp_path_factory.mktemp("attacked")
    try:
        with (
            ModelServer(replies) as model,
            Stack(redis, folder, key_prefix=PREFIX, warm_llm=False) as stack,
        ):
            stack.start_scheduler()
            env = {**model.env(key=SECRET), "OTHER_API_KEY": SECRET}
            stack.start_worker("worker", "scripts,functions,llm", env=env, concurrency=4)
            yield stack
    finally:
        redis.stop()


@pytest.fixture
def client(attacked: Stack) -> Iterator[Client]:
    with attacked.client() as opened:
        yield opened


@pytest.fixture(scope="module")
def raw(attacked: Stack) -> Iterator[Any]:
    """Redis, as somebody with its password has it."""
    connection = connect(attacked.redis.url)
    yield connection
    connection.close()


CANARY = """
name: canary
start: a
nodes:
  a: {type: script, script: a.sh, next: e}
  e: {type: end, output: "{{sings}}"}
"""


def canary(client: Client, folder: Path) -> None:
    """Another run starts and ends."""
    run = client.submit(write_agent(folder / "canary", CANARY, a_sh='echo \'{"sings": "yes"}\'\n'))
    assert (run.wait(60).status, run.output) == ("completed", "yes")


def submit(client: Client, folder: Path, graph: str, prompt: str = "", **files: str) -> Run:
    name = re.search(r"name: (\S+)", graph)
    assert name is not None
    return client.submit(write_agent(folder / name[1], graph, **files), prompt)


def one_script(name: str, script: str = "a.py", more: str = "") -> str:
    return f"""
name: {name}
start: a
{more}
nodes:
  a: {{type: script, script: {script}, next: e}}
  e: {{type: end, output: "{{{{said}}}}"}}
"""


# Messages of somebody who has the broker's login

QUEUED = """
name: queued
start: a
nodes:
  a: {type: script, script: a.sh, queue: nobody, next: b}
  b: {type: script, script: b.sh, queue: nobody, next: e}
  e: {type: end, output: "{{said}}"}
"""


@pytest.fixture
def queued(client: Client, tmp_path: Path) -> tuple[Run, VisitCall]:
    """A run whose visit waits for a worker, and the true message for it."""
    agent = write_agent(tmp_path / "queued", QUEUED, a_sh='echo \'{"said": "a"}\'\n', b_sh='echo \'{"said": "b"}\'\n')
    run = client.submit(agent)
    [visit] = wait_until(lambda: frontier(client, run), "the visit is queued").values()
    bundle = client.store.runs.spec(run.id).bundle
    return run, VisitCall(run.id, "a", visit["seq"], 1, "queued", bundle)


def frontier(client: Client, run: Run) -> dict[str, Any]:
    keys = client.store.keys.of_run(run.id)
    return {seq: json.loads(text) for seq, text in client.store._client.hgetall(keys.frontier).items()}


def push(raw: Any, text: str) -> None:
    raw.lpush(Keys(PREFIX).broker_prefix + "scripts", text)


def all_taken(raw: Any, client: Client, folder: Path) -> None:
    """The worker has taken all messages, and still works."""
    wait_until(lambda: raw.llen(Keys(PREFIX).broker_prefix + "scripts") == 0, "all messages are taken")
    canary(client, folder)


def test_a_message_that_comes_a_hundred_times_executes_its_visit_once(
    client: Client, raw: Any, tmp_path: Path, queued: tuple[Run, VisitCall]
) -> None:
    run, call = queued
    for _ in range(100):
        push(raw, envelope(call, "scripts"))
    wait_until(lambda: [step for step in run.history() if step.node == "a"], "it is executed")
    all_taken(raw, client, tmp_path)
    assert [step.node for step in run.history()].count("a") == 1
    run.cancel()


FORGED: list[dict[str, Any]] = [
    *({"run": run} for run in ("run-of-nobody", "../../etc", "}:x{p00}")),
    *({"seq": 99}, {"attempt": 2}, {"attempt": 0}, {"v": 99}),
    *({"node": "b"}, {"agent": "another"}, {"role": "branch"}, {"role": "turn"}),
    *({"bundle": digest} for digest in ("0" * 64, "../../../../tmp", "/etc", "")),
]


def test_a_message_that_fits_no_queued_visit_executes_nothing(
    client: Client, raw: Any, tmp_path: Path, queued: tuple[Run, VisitCall]
) -> None:
    """Finding S4: a message named the node, the bundle or the folder that was executed in the run's name."""
    run, call = queued
    for number, forged in enumerate(FORGED):
        push(raw, json.dumps(message(replace(call, **forged), "scripts", f"forged-{number}")))
    all_taken(raw, client, tmp_path)
    assert [step.node for step in run.history()] == [None]
    push(raw, envelope(call, "scripts"))
    wait_until(lambda: [step for step in run.history() if step.node == "a"], "the true message is executed")
    assert run.state()["said"] == "a"
    run.cancel()


def test_a_message_of_another_bundle_of_the_same_agent_executes_nothing(
    client: Client, raw: Any, tmp_path: Path, queued: tuple[Run, VisitCall]
) -> None:
    """Finding S4: the bundle is a real one, which the worker has loaded."""
    run, call = queued
    script = f"touch {tmp_path}/executed\n"
    other = client.submit(write_agent(tmp_path / "more" / "queued", QUEUED, a_sh=script, b_sh=script))
    push(raw, envelope(replace(call, bundle=client.store.runs.spec(other.id).bundle), "scripts"))
    all_taken(raw, client, tmp_path)
    assert not (tmp_path / "executed").exists()
    assert [step.node for step in run.history()] == [None]
    run.cancel()
    other.cancel()


def test_a_message_that_is_none_ends_no_worker(attacked: Stack, client: Client, raw: Any, tmp_path: Path) -> None:
    """Finding S7: each ended a process, or was put back for ever."""
    worker = attacked.processes["worker"]
    sound = message(VisitCall("r", "a", 0, 1, "agent", "0" * 64), "scripts", "broken")
    for broken in (
        *("", "no JSON", "[]", "null", "{}", "[" * 50_000, "\x00\xff"),
        *(json.dumps({**sound, **part}) for part in ({"headers": {}}, {"properties": {}}, {"body": "{"}, {"body": 5})),
        *(json.dumps({**sound, "body": json.dumps(body)}) for body in ([], [[], {}, {}], [[5], {}, {}], {"a": 1})),
    ):
        push(raw, broken)
    all_taken(raw, client, tmp_path)
    assert worker.poll() is None


def test_a_pickled_message_is_not_unpickled(client: Client, raw: Any, tmp_path: Path) -> None:
    """Celery's oldest hole: the broker's login would be a shell on every worker."""

    class Shell:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {tmp_path}/pickled",)

    forged = message(VisitCall("r", "a", 0, 1, "agent", "0" * 64), "scripts", "forged-tag")
    forged["content-type"] = "application/x-python-serialize"
    forged["content-encoding"] = "binary"
    forged["properties"]["body_encoding"] = "base64"
    forged["body"] = base64.b64encode(pickle.dumps(([Shell()], {}, {}))).decode()
    push(raw, json.dumps(forged))
    all_taken(raw, client, tmp_path)
    assert not (tmp_path / "pickled").exists()


def test_a_message_for_another_task_executes_nothing(client: Client, raw: Any, tmp_path: Path) -> None:
    forged = message(VisitCall("r", "a", 0, 1, "agent", "0" * 64), "scripts", "other-task")
    for task in ("os.system", "celery.backend_cleanup", "celery.chord", "__main__.exit"):
        forged["headers"]["task"] = task
        push(raw, json.dumps(forged))
    all_taken(raw, client, tmp_path)


# Records of somebody who has Redis' login


def test_entries_that_cannot_be_read_hold_up_no_other_run(client: Client, raw: Any, tmp_path: Path) -> None:
    keys = client.store.keys
    for number in range(keys.partitions):
        partition = keys.of_partition(number)
        for forged in ({"t": "nonsense"}, {"t": "result", "run": "x", "h": "{"}, {b"\xff": b"\xfe"}, {"t": "answered"}):
            raw.xadd(partition.inbox, forged)
        for effect in ("{", "null", '["start_child"]', '{"kind": "no such kind"}', "[" * 5_000):
            raw.xadd(partition.effects, {"run": "x", "e": effect})
    for _ in range(5):
        canary(client, tmp_path)


def test_a_bundle_that_was_edited_in_redis_is_refused(client: Client, raw: Any, tmp_path: Path) -> None:
    agent = write_agent(tmp_path / "edited", one_script("edited", "a.sh"), a_sh='echo \'{"said": "true"}\'\n')
    other = write_agent(tmp_path / "other", one_script("edited", "a.sh"), a_sh='echo \'{"said": "forged"}\'\n')
    bundle = pack(agent, limit_bytes=2**20)
    client.store._client.set(Keys(PREFIX).bundle(bundle.digest), pack(other, limit_bytes=2**20).packed)
    raw.zadd(Keys(PREFIX).bundles, {bundle.digest: 2**42})
    run = client.submit(agent)
    assert run.wait(60).status == "failed"
    assert run.output != "forged"


# Bundles


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("../x", tarfile.REGTYPE),
        ("/x", tarfile.REGTYPE),
        ("a/../../x", tarfile.REGTYPE),
        *(
            ("x", kind)
            for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.BLKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE)
        ),
    ],
)
def test_an_archive_that_leads_out_of_its_folder_is_refused_completely(tmp_path: Path, name: str, kind: bytes) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        good, bad = tarfile.TarInfo("graph.yaml"), tarfile.TarInfo(name)
        bad.type, bad.linkname = kind, "/etc/passwd"
        archive.addfile(good, io.BytesIO())
        archive.addfile(bad, io.BytesIO())
    with pytest.raises(BundleError):
        unpack(packed.getvalue(), tmp_path / "bundles" / "digest", "a")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_bundle_of_a_gigabyte_of_zeros_is_not_unpacked(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=1) as file:
        header = tarfile.TarInfo("graph.yaml")
        header.size = 2**30
        file.write(header.tobuf())
        for _ in range(300):
            file.write(bytes(2**20))
    with pytest.raises(BundleError):
        unpack(packed.getvalue(), tmp_path / "digest", "a")
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) < 2**20


def test_a_link_to_a_secret_is_not_packed(tmp_path: Path) -> None:
    agent = write_agent(tmp_path / "linking", CANARY, a_sh="true\n")
    (tmp_path / "id_rsa").write_text("private")
    (agent / "notes.txt").symlink_to(tmp_path / "id_rsa")
    with pytest.raises(BundleError, match=r"notes\.txt"):
        pack(agent, limit_bytes=2**20)


def test_a_run_cannot_change_what_the_next_run_executes(client: Client, tmp_path: Path) -> None:
    script = (
        'chmod -R u+w "$LLM_AGENT_ROOT_DIR" 2>/dev/null\n'
        'echo \'echo {\\"said\\": \\"changed\\"}\' > "$LLM_AGENT_ROOT_DIR/a.sh" 2>/dev/null\n'
        'echo \'{"said": "original"}\'\n'
    )
    graph = one_script("changing", "a.sh").replace("{{said}}", "{{said}} {{last_error}}")
    for _ in range(2):  # the second one, if it were changed, would change nothing
        run = submit(client, tmp_path, graph, a_sh=script)
        assert run.wait(60).status == "completed"
        assert "a.sh" in str(run.output).partition("written or removed while the visit ran: ")[2]
        assert not str(run.output).startswith("changed")


# Paths


@pytest.mark.parametrize("path", ["../outside.sh", "/bin/sh", "scripts/../../outside.sh", "link.sh"])
def test_a_script_outside_the_agent_s_folder_is_refused(client: Client, tmp_path: Path, path: str) -> None:
    (tmp_path / "outside.sh").write_text('echo \'{"said": "outside"}\'\n')
    agent = write_agent(tmp_path / "escaping", one_script("escaping", path))
    (agent / "link.sh").symlink_to(tmp_path / "outside.sh")
    with pytest.raises(SleipnirError):
        client.submit(agent)


def test_a_function_outside_the_agent_s_folder_is_refused(client: Client, tmp_path: Path) -> None:
    (tmp_path / "outside.py").write_text("def f(state):\n    return {}\n")
    graph = one_script("calling").replace("type: script, script: a.py", 'type: function, call: "../outside.py:f"')
    with pytest.raises(SleipnirError):
        submit(client, tmp_path, graph)


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc", "a\0b", "..", "x" * 5_000, "a\nb"])
def test_an_agent_s_name_that_is_a_path_is_no_agent(client: Client, name: str) -> None:
    with pytest.raises((AgentNotFound, GraphError, UsageError)):
        client.submit(name)


def test_documents_that_link_out_of_their_folder_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "secret.md").write_text(SECRET)
    agent = tmp_path / "agent"
    (agent / "docs").mkdir(parents=True)
    (agent / "docs" / "good.md").write_text("It is about ships.")
    (agent / "docs" / "bad.md").symlink_to(tmp_path / "secret.md")
    load = loaded(agent, ["docs/"], go_on=True)
    assert load.text == "It is about ships."
    assert any("leaves" in notice for notice in load.notices)


# Ids and names


@pytest.mark.parametrize("run_id", ["../../x", "a:b", "}{p00}", "x\ny", "x\0y", "*", "", " ", "x" * 10_000, "\x1b[31m"])
def test_an_id_with_separators_is_no_run_and_reaches_no_other_key(attacked: Stack, client: Client, run_id: str) -> None:
    with pytest.raises((RunNotFound, UsageError)):
        client.run(run_id).info()
    if "\0" not in run_id:
        shown = attacked.sleipnir("show", run_id)
        assert shown.returncode not in (0, 1) or "Traceback" not in shown.stderr
        assert "Traceback" not in shown.stdout + shown.stderr
        assert "\x1b" not in shown.stdout + shown.stderr


@pytest.mark.parametrize("name", ["a:b", "../x", "a}b", "a b", "", "a\nb", "x" * 65, ".hidden", "a/b"])
def test_a_session_s_name_with_separators_is_refused(client: Client, tmp_path: Path, name: str) -> None:
    agent = tmp_path / "talker"
    agent.mkdir()
    (agent / "config.yaml").write_text("name: talker\nmodel: openai:gpt-test\ninstructions: hello\n")
    with pytest.raises(SleipnirError):
        client.submit(agent, "hello", session=name)


@pytest.mark.parametrize("batch_id", ["a:b", "../x", "a}b", "", "x" * 65, "a\nb"])
def test_a_batch_s_id_with_separators_is_refused(client: Client, tmp_path: Path, batch_id: str) -> None:
    with pytest.raises(UsageError):
        client.batch(write_agent(tmp_path / "canary", CANARY, a_sh="true\n"), [], id=batch_id)


# Values


def test_a_value_that_is_a_placeholder_is_not_rendered_again(client: Client, tmp_path: Path) -> None:
    graph = """
name: injected
version: sleipnir/1
start: a
initial_state: {hidden: "the hidden value"}
nodes:
  a: {type: router, next: e}
  e: {type: end, output: "{{initial_prompt}}", state_updates: {copy: "{{initial_prompt}}"}}
"""
    run = submit(client, tmp_path, graph, prompt="{{hidden}}")
    assert (run.wait(60).status, run.output) == ("completed", "{{hidden}}")
    assert run.state()["copy"] == "{{hidden}}"


@pytest.mark.parametrize("path", ["k.__class__", "k.__init__.__globals__", "k[0].__dict__", "__builtins__", "k.format"])
def test_a_placeholder_reaches_no_attribute_of_a_value(path: str) -> None:
    assert render_lenient("{{" + path + "}}", {"k": ["x"]}) == ""
    assert render("{k} {k.__class__} %s {{k}}", {"k": "v"}) == "{k} {k.__class__} %s v"


KEYS = ["../x", "a:b", "a\nb", "a\0b", "__class__", "\x1b]0;title\x07", "{p00}", "*", "'; FLUSHALL", ""]


def test_state_keys_of_any_text_stay_in_their_run(client: Client, raw: Any, tmp_path: Path) -> None:
    before = {str(key) for key in raw.scan_iter(f"{PREFIX}:*", count=1000)}
    values = {key: f"value {number}" for number, key in enumerate(KEYS)}
    script = f"import json\nprint(json.dumps({values!r}))\n"
    run = submit(client, tmp_path, one_script("keys"), a_py=script)
    assert run.wait(60).status == "completed"
    assert {key: value for key, value in run.state().items() if key in values} == values
    added = {str(key) for key in raw.scan_iter(f"{PREFIX}:*", count=1000)} - before
    assert not [key for key in added if any(name and name in key for name in ("../x", "FLUSHALL", "__class__"))]


@pytest.mark.parametrize(
    "printed",
    [
        "'[' * 200_000 + ']' * 200_000",
        "'{\"a\":' * 100_000 + '1' + '}' * 100_000",
        "'{\"n\": ' + '9' * 100_000 + '}'",
        "'{\"n\": NaN}'",
        "'{\"a\": 1}' * 2",
    ],
    ids=["deep list", "deep object", "long number", "NaN", "two objects"],
)
def test_output_made_for_the_parser_fails_its_node_and_nothing_else(
    client: Client, tmp_path: Path, printed: str
) -> None:
    run = submit(client, tmp_path, one_script("deep"), a_py=f"print({printed})\n")
    info = run.wait(60)
    assert "Traceback" not in str(info.error) + str(run.state())
    assert "last_error" in run.state() or info.status == "failed"
    canary(client, tmp_path)


def test_output_of_a_gigabyte_is_cut_off(client: Client, tmp_path: Path) -> None:
    flood = "import sys\nwhile True:\n    sys.stdout.write('x' * 1_000_000)\n"
    run = submit(client, tmp_path, one_script("flood"), a_py=flood)
    run.wait(60)
    assert "more than" in run.state()["last_error"]


def test_an_answer_of_ten_megabytes_is_refused(client: Client, tmp_path: Path) -> None:
    graph = """
name: asking
start: a
nodes:
  a: {type: input, question: "?", next: e}
  e: {type: end}
"""
    run = submit(client, tmp_path, graph)
    wait_until(run.gates, "the question is open")
    with pytest.raises(UsageError):
        run.answer("x" * 10_000_000)
    with pytest.raises(SleipnirError):
        run.answer("half a pair \ud800")
    run.cancel()


def test_a_question_is_answered_once(client: Client, tmp_path: Path) -> None:
    graph = """
name: approving
start: a
nodes:
  a: {type: approval, question: "?", options: [yes, no], routes: {yes: y, no: n}, on_other: n}
  y: {type: end, output: yes}
  n: {type: end, output: no}
"""
    run = submit(client, tmp_path, graph)
    [gate] = wait_until(run.gates, "the question is open")
    run.answer("yes; no", gate)
    with pytest.raises(GateError):
        run.answer("yes", gate)
    assert (run.wait(60).status, run.output) == ("completed", "no")


# What never ends


def test_an_answer_made_for_a_pattern_stops_no_other_run(client: Client, tmp_path: Path) -> None:
    """Finding S1: the scheduler never came back, and the next one neither."""
    graph = """
name: matching
version: sleipnir/1
start: a
state: {k: {type: string, schema: {pattern: "^(a+)+$"}}}
nodes:
  a: {type: input, question: "?", state_updates: {k: "{{input}}"}, next: e}
  e: {type: end}
"""
    run = submit(client, tmp_path, graph)
    wait_until(run.gates, "the question is open")
    run.answer(BACKTRACKS)
    canary(client, tmp_path)
    assert run.wait(60).status == "failed"
    assert "does not match its schema" in str(run.info().error)


def test_a_condition_that_never_ends_stops_no_other_run(client: Client, tmp_path: Path) -> None:
    """Finding S2."""
    loops = "".join(f"state.l.all(x{level}, " for level in range(10)) + "x9 >= 0" + ")" * 10
    graph = f"""
name: looping
version: sleipnir/1
start: a
initial_state: {{l: {list(range(100))}}}
nodes:
  a: {{type: router, branch: [{{when: "{loops}", to: e}}, {{else: e}}]}}
  e: {{type: end}}
"""
    run = submit(client, tmp_path, graph)
    for _ in range(3):
        canary(client, tmp_path)
    assert run.status in ("running", "failed")
    run.cancel()


@pytest.mark.parametrize("schema", ["{pattern: '(?=a)b'}", "{pattern: '(a)\\1'}", "{pattern: '(\\p{L}{100}){100}'}"])
def test_a_pattern_that_cannot_be_bounded_is_not_accepted(client: Client, tmp_path: Path, schema: str) -> None:
    """Finding S1."""
    graph = f"name: refused\nstart: e\nstate: {{k: {{schema: {schema}}}}}\nnodes:\n  e: {{type: end}}\n"
    with pytest.raises(GraphError, match="cannot be applied: the pattern"):
        submit(client, tmp_path, graph)


BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + level)}: &{chr(98 + level)} [{', '.join([f'*{chr(97 + level)}'] * 10)}]\n" for level in range(12)
)


@pytest.mark.parametrize(
    "text",
    [
        BOMB,
        "[" * 100_000,
        "a: " + "{b: " * 100_000,
        "- " * 100_000,
        "&a [*a]",
        "x: !!python/object/apply:os.system [ls]",
    ],
    ids=["aliases", "lists", "maps", "dashes", "itself", "python"],
)
def test_a_graph_made_for_the_parser_is_refused_with_a_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "graph.yaml").write_text(text)
    found = load_file(tmp_path / "graph.yaml")
    assert found.graph is None
    assert found.problems


@pytest.mark.skipif(sys.platform != "linux", reason="subreapers are Linux'")
def test_a_process_that_leaves_its_session_is_not_waited_for_and_dies(client: Client, tmp_path: Path) -> None:
    """Finding S12 of the second review."""
    text = 'setsid sleep 1000 &\nuntil read -r name < /proc/$!/comm && [ "$name" = sleep ]; do :; done\n'
    run = submit(client, tmp_path, one_script("daemon", "a.sh"), a_sh=text + 'echo "{\\"said\\": \\"$!\\"}"\n')
    assert run.wait(60).status == "completed"
    assert is_gone(str(run.output))


# Secrets


def test_a_script_has_no_secret_in_its_environment_or_arguments(client: Client, tmp_path: Path) -> None:
    script = (
        "import json, os\nfound = {**os.environ, 'argv': open('/proc/self/cmdline').read()}\n"
        "print(json.dumps({'said': json.dumps(found)}))\n"
    )
    run = submit(client, tmp_path, one_script("looking"), a_py=script)
    assert run.wait(60).status == "completed"
    seen = json.loads(str(run.output))
    assert SECRET not in str(run.output)
    assert not [name for name in seen if name.startswith("SLEIPNIR_") or name.endswith("_API_KEY")]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux'")
def test_a_script_reads_nothing_of_a_process_that_holds_secrets() -> None:
    """Finding S3. As another user, where the tests are root: root reads everything."""
    holder = [sys.executable, "-c", HOLD.format(act="hardening.refuse_inspection()")]
    env = {**os.environ, "OPENAI_API_KEY": SECRET}
    with subprocess.Popen(as_user(holder), env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            assert set(reads(process.pid).values()) == {"refused"}
        finally:
            process.kill()


def test_no_secret_is_written_to_redis_logs_or_bundles(attacked: Stack, client: Client, tmp_path: Path) -> None:
    canary(client, tmp_path)
    for folder in (attacked.home, attacked.redis.folder):
        for file in folder.rglob("*"):
            if file.is_file() and not file.is_socket():
                assert SECRET.encode() not in file.read_bytes(), file


TOOLS = '''
import os
from pathlib import Path


def echo(text: str):
    """Say it again."""
    return {"said": text}


def forbidden():
    """Not for this node."""
    Path(os.environ["GRAPH_CALLER_DIR"], "forbidden").touch()
'''


def test_a_model_calls_no_tool_that_its_node_does_not_have_and_no_shell(client: Client, tmp_path: Path) -> None:
    graph = """
name: talked-into
start: a
nodes:
  a: {type: llm, model: "openai:gpt-test", prompt: p, tools: [echo], state_updates: {said: "{{output}}"}, next: e}
  e: {type: end, output: "{{said}}"}
"""
    agent = write_agent(tmp_path / "talked-into", graph, tools_py=TOOLS)
    run = client.submit(agent, caller_dir=tmp_path, cwd=tmp_path)
    assert (run.wait(60).status, run.output) == ("completed", "done"), run.info().error
    assert not [path for path in tmp_path.rglob("*") if path.name in ("forbidden", "injected")]


def test_an_mcp_server_gets_only_the_variables_of_its_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    from sleipnir_workers.mcp import Connections
    from tests.integration.workers.mcp.servers import lab_on_stdio

    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    monkeypatch.setenv("SLEIPNIR_REDIS_URL", f"redis://:{SECRET}@example.org")
    connections = Connections()
    try:
        seen = connections.invoke(lab_on_stdio(), "environment", {})["structuredContent"]
    finally:
        connections.close()
    assert seen["GIVEN"] == "yes"
    assert SECRET not in str(seen)


# Documents of somebody else


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "localhost", "[::1]", "0.0.0.0", "169.254.169.254", "10.0.0.1", "192.168.1.1", "172.16.0.1"),
        *(
            "2130706433",
            "0x7f000001",
            "[::ffff:127.0.0.1]",
            "[64:ff9b::7f00:1]",
            "[fd00::1]",
            "100.64.0.1",
            "224.0.0.1",
        ),
    ],
)
def test_a_document_is_not_fetched_from_this_machine_or_its_network(address: str) -> None:
    with pytest.raises(Unloadable):
        Web(max_bytes=1000).get(f"http://{address}/latest/meta-data")


@pytest.mark.parametrize("url", ["file:///etc/passwd", "gopher://x/", "ftp://x/", "http://", "javascript:alert(1)"])
def test_a_document_is_fetched_from_the_web_alone(url: str) -> None:
    with pytest.raises(Unloadable):
        Web(max_bytes=1000).get(url)


def zipped(**files: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name.replace("__", "/") + ".xml", content)
    return packed.getvalue()


LAUGHS = (
    b'<?xml version="1.0"?><!DOCTYPE l [<!ENTITY a "ha">'
    + b"".join(b'<!ENTITY %c "%s">' % (98 + n, b"&%c;" % (97 + n) * 10) for n in range(12))
    + b']><w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"><w:body><w:p><w:r>'
    + b"<w:t>&m;</w:t></w:r></w:p></w:body></w:document>"
)
READ = b'<!DOCTYPE l [<!ENTITY a SYSTEM "file:///etc/passwd">]><html><body><p>&a; It is about ships.</p></body></html>'


def test_documents_that_were_made_to_stop_or_rob_their_reader_do_neither() -> None:
    """Finding S11."""
    parser = Parser(20)
    limit = 2**20
    try:
        for data, extension, charset in (
            (zipped(word__document=bytes(2**26)), "docx", None),
            (zipped(word__document=LAUGHS), "docx", None),
            (zipped(xl__workbook=LAUGHS), "xlsx", None),
            (b"<p " + b" ".join(b"a%d=1" % n for n in range(100_000)) + b">x</p>", "html", None),
            (b"a" * 100_000 + b"-" + b"b" * 100_000, "html", "punycode"),
            (b"a" * 100_000 + b"-" + b"b" * 100_000, "txt", "punycode"),
        ):
            with pytest.raises(UnreadableContent):
                parser.read(Content(data, charset, limit), extension, print)
        assert "root:" not in parser.read(Content(READ, None, limit), "html", print).text
        parser.read(Content(b"<div>" * 50_000 + b"x", None, limit), "html", print)
    except UnreadableContent as error:
        assert "levels" in str(error) or "nested" in str(error) or "longer" in str(error)
    finally:
        parser.close()


# What people see


def test_rows_of_a_table_stay_text(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text('prompt,name\n"=cmd|\' /C calc\'!A0","@SUM(1)"\n')
    rows = [row for row in read_rows(file)]
    assert "=cmd|' /C calc'!A0" in str(rows)
    file.write_bytes(b"prompt\na\0b\n")
    assert "Traceback" not in str(list(read_rows(file)))


TITLES = "\x1b]0;owned\x07\x1b[2J\x1b[31mred\x9b31m\r\u202e"


def test_a_log_line_cannot_be_forged(attacked: Stack, client: Client, tmp_path: Path) -> None:
    forged = '\n{"level": "error", "event": "forged by a script"}\n'
    script = f"import sys\nsys.stderr.write({forged!r})\nsys.exit(1)\n"
    run = submit(client, tmp_path, one_script("forging"), a_py=script, prompt=forged)
    run.wait(60)
    for name in ("worker", "scheduler"):
        assert not re.search(r'^\{"level": "error", "event": "forged', attacked.log(name), re.MULTILINE)


def test_a_picture_of_a_graph_holds_no_script_of_its_author(attacked: Stack, tmp_path: Path) -> None:
    graph = """
name: drawn
start: a
nodes:
  a: {type: approval, question: "<script>alert(1)</script>", options: ["<img src=x onerror=alert(1)>"], on_other: e,
      routes: {"<img src=x onerror=alert(1)>": e}}
  e: {type: end}
"""
    agent = write_agent(tmp_path / "drawn", graph)
    for kind in ("svg", "mermaid"):
        drawn = attacked.sleipnir("draw", str(agent), "--format", kind)
        assert drawn.returncode == 0, drawn.stderr
        assert "<script" not in drawn.stdout
        assert "<img" not in drawn.stdout


TITLED = """
name: titled
start: a
nodes:
  a: {type: script, script: a.py, next: ask}
  ask: {type: input, question: "{{said}}", state_updates: {answer: "{{input}}"}, next: f}
  f: {type: script, script: f.sh, next: e}
  e: {type: end, output: "{{said}}"}
"""


def test_a_value_does_not_reach_the_terminal_as_a_command(attacked: Stack, client: Client, tmp_path: Path) -> None:
    """Finding S12: a result could set the title, move the cursor, and hide what it did."""
    script = f"import json\nprint(json.dumps({{'said': {TITLES!r}, {TITLES!r}: 1}}))\n"
    failing = "printf '\\033]0;owned\\007' >&2\nexit 1\n"
    run = submit(client, tmp_path, TITLED, prompt=TITLES, a_py=script, f_sh=failing)
    wait_until(run.gates, "the question is open")
    commands = (("show", run.id), ("ps", "--all"), ("gates",), ("history", run.id))
    for words in commands:
        check_terminal(attacked.sleipnir(*words), words)
    run.answer(TITLES)
    run.wait(60)
    for words in commands:  # `run`, `watch` and `wait` give a program the result as it is
        check_terminal(attacked.sleipnir(*words), words)


def check_terminal(shown: Any, words: tuple[str, ...]) -> None:
    found = {character for character in shown.stdout + shown.stderr if character in "\x1b\x07\x9b\r"}
    assert not found, (words, found, shown.stdout, shown.stderr)


def test_a_name_cannot_forge_a_metric() -> None:
    name = 'x"} 1\nforged_total{a="b\\'
    counter = Counter("sleipnir_x_total", "X.", "agent")
    counter.add(name)

    class Kept(Collector):
        def collect(self) -> list[Metric]:
            return [counter.family()]

    registry = CollectorRegistry()
    registry.register(Kept())
    [family] = text_string_to_metric_families(generate_latest(registry).decode())
    assert [sample.labels["agent"] for sample in family.samples] == [name]

"""Llm nodes that are recorded, and that are answered from the recording: no server, no key, no litellm."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sleipnir.graph.model import LlmNode
from sleipnir.messages import ANSWER, Usage, VisitResult
from sleipnir.runs.visits import Part
from sleipnir.testing import Call, ModelServer, Reply
from sleipnir_workers.llm import recording
from sleipnir_workers.llm.node import run_llm
from sleipnir_workers.llm.reply import Answer
from sleipnir_workers.llm.reply import AnswerCollector as Collected
from sleipnir_workers.llm.turn import run_turn
from tests.unit.workers.visits import host, visit

pytestmark = [
    pytest.mark.filterwarnings("ignore:Item 'summary' on TypedDict class:UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # litellm's own, in the thread of a call
]

KEY = "sk-a-key-nobody-may-see"
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
TOOLS = '''
def lookup(ip: str):
    """Look an address up."""
'''


@pytest.fixture(autouse=True)
def new_process() -> None:
    """A tape counts for one process."""
    recording._tapes.clear()


@pytest.fixture
def tape(tmp_path: Path) -> Path:
    return tmp_path / "tape"


class Watching:
    """Collects what a watcher sees."""

    def __init__(self) -> None:
        self.pieces: list[str] = []

    def write(self, text: str) -> None:
        self.pieces.append(text)

    def restart(self) -> None:
        self.pieces.append("again")


def run(env: dict[str, str], settings: dict[str, Any], text_sink: Any = None, **node_fields: Any) -> VisitResult:
    node = LlmNode(**{"id": "ask", "prompt": "hello", "model": "openai:gpt-test", **node_fields})
    return run_llm(node, visit(node, Path(), text_sink=text_sink), host(env, **settings))


def record(tape: Path, replies: list[Reply | str], **fields: Any) -> VisitResult:
    with ModelServer(replies) as server:
        result = run(server.env(key=KEY), {"record": tape}, **fields)
    assert result.ok, result.error
    recording._tapes.clear()
    return result


def test_a_streamed_answer_is_kept_joined_and_replayed_in_one_piece_without_a_key(tape: Path) -> None:
    live, again = Watching(), Watching()
    recorded = record(
        tape, [Reply("a streamed answer, in pieces")], text_sink=live, state_updates={"said": "{{output}}"}
    )
    assert recorded.delta == {"said": "a streamed answer, in pieces"}
    assert len(live.pieces) > 1
    result = run({}, {"replay": tape}, text_sink=again, state_updates={"said": "{{output}}"})
    assert (result.ok, result.delta, again.pieces) == (True, recorded.delta, ["a streamed answer, in pieces"])
    assert result.usage == Usage(10, 5, 1, "openai:gpt-test", 0.0), "the tokens of the recording, and nothing was paid"


def test_whether_it_is_streamed_makes_no_other_request(tape: Path) -> None:
    record(tape, ["hi"], text_sink=Watching())
    assert run({}, {"replay": tape}).ok


def test_structured_output_is_replayed_with_the_calls_of_its_extractor(tape: Path) -> None:
    recorded = record(tape, ["it is five", '{"n": "five"}', '{"n": 5}'], output_schema=SCHEMA)
    assert len(list(tape.glob("*.json"))) == 3
    result = run({}, {"replay": tape}, output_schema=SCHEMA)
    assert result.delta == recorded.delta == {"n": 5}
    assert result.notes == recorded.notes


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"prompt": "hullo"}, "message 1 (role user)"),
        ({"temperature": 0.5}, "temperature"),
        ({"model": "openai:other"}, "model"),
    ],
)
def test_an_unrecorded_request_fails_the_node_with_the_difference(
    tape: Path, change: dict[str, Any], difference: str
) -> None:
    record(tape, ["hi"])
    result = run({}, {"replay": tape}, **change)
    assert (result.ok, result.error_kind, result.transient) == (False, "replay", False)
    assert "has no answer to this request; the nearest of 1 recorded requests" in str(result.error)
    assert difference in str(result.error)


def test_failed_calls_are_not_recorded(tape: Path) -> None:
    assert record(tape, [Reply(status=429), "hi"], max_attempts=2).ok
    assert len(list(tape.glob("*.json"))) == 1
    assert run({}, {"replay": tape}).ok


def test_a_turn_with_calls_is_replayed_as_it_was(tape: Path, tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(TOOLS)
    node = LlmNode(id="ask", prompt="hello", model="openai:gpt-test", tools=["lookup"])
    at = visit(node, tmp_path, role="turn", part=Part(7, 0))
    calls = [Call("lookup", {"ip": "ä"}, id="c1"), Call("lookup", '{"ip": "1",', id="c2")]
    with ModelServer([Reply("let me see", calls=calls)]) as server:
        recorded = run_turn(node, at, host(server.env(key=KEY), record=tape))
    result = run_turn(node, at, host({}, replay=tape))
    assert recorded.calls
    assert (result.calls, result.delta) == (recorded.calls, recorded.delta)
    assert result.delta[ANSWER]["content"] == "let me see"


def test_no_secret_of_the_worker_is_written(tape: Path, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(
        "clients:\n"
        "  - {type: openai-compatible, name: mine, api_base: http://127.0.0.1:1, api_key: literal-secret}\n"
        "  - {type: openai-compatible, name: more, api_base: http://127.0.0.1:1, api_key: '{{ODDLY_NAMED}}'}\n"
    )
    secrets = tmp_path / "secrets.env"
    secrets.write_text("FILED=filed-secret\n")
    secrets.chmod(0o600)
    planted = (KEY, "literal-secret", "oddly-named-secret", "filed-secret")
    env = {"LOKI_CONFIG_DIR": str(tmp_path), "ODDLY_NAMED": "oddly-named-secret"}
    text = "say " + " ".join(planted)
    with ModelServer([text]) as server:
        settings = {"record": tape, "secrets": secrets}
        assert run({**server.env(key=KEY), **env}, settings, prompt=text).ok
    [file] = tape.glob("*.json")
    assert not [secret for secret in planted if secret in file.read_text()]
    recording._tapes.clear()
    assert run(env | {"OPENAI_API_KEY": KEY}, {"replay": tape, "secrets": secrets}, prompt=text).ok


def test_a_tape_that_is_damaged_or_missing_is_a_failure_of_the_node(tape: Path) -> None:
    record(tape, ["hi"])
    [file] = tape.glob("*.json")
    for damage in ("{", json.dumps({**json.loads(file.read_text()), "answer": {"model": "m", "choices": []}})):
        file.write_text(damage)
        failed = run({}, {"replay": tape})
        assert (failed.ok, failed.error_kind) == (False, "config")
    file.unlink()
    recording._tapes.clear()
    assert "there are no recorded model answers" in str(run({}, {"replay": tape}).error)


def test_what_providers_want_back_is_kept() -> None:
    collected = Collected()
    collected.add(
        {
            "content": "text",
            "reasoning_content": "hm",
            "thinking_blocks": [
                {"type": "thinking", "thinking": "a", "signature": "s"},
                {"type": "redacted", "data": "x"},
            ],
            "provider_specific_fields": {"thought_signatures": ["t"]},
            "tool_calls": [
                {
                    "index": 0, "id": "c", "function": {"name": "f", "arguments": {"a": 1}},
                    "provider_specific_fields": {"thought_signature": "u"},
                }
            ],
        }
    )  # fmt: skip
    collected.finish = "tool_calls"
    answer = collected.answer("1", input_tokens=3, output_tokens=4, cost_usd=0.5)
    back = recording.replayed(json.loads(json.dumps(recording.recorded(answer, "m"))))
    assert back == Answer(**{**vars(answer), "cost_usd": 0.0})


def test_a_replay_imports_no_model_library(tape: Path) -> None:
    record(tape, ["hi"])
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from tests.integration.workers.llm.test_recording import run\n"
        "assert 'litellm' not in sys.modules\n"
        "result = run({}, {'replay': Path(sys.argv[1])})\n"
        "assert result.ok, result.error\n"
        "print([name for name in ('litellm', 'openai', 'mcp') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tape)], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr

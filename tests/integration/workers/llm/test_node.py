"""The llm node against a real HTTP server that speaks the OpenAI protocol (spec 2.7.1, 2.9)."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from sleipnir.errors import ConfigError
from sleipnir.graph.model import LlmNode, MapNode, StateField
from sleipnir.messages import Usage, VisitResult
from sleipnir.runs.visits import Item
from sleipnir.testing import ModelServer, Reply
from sleipnir_workers.execution.execution import VisitLost
from sleipnir_workers.execution.put_off import PutOff
from sleipnir_workers.llm import litellm_compat, structured_output
from sleipnir_workers.llm import node as llm
from sleipnir_workers.llm.permit import Permit
from tests.unit.workers.visits import When, host, visit

# pytest puts its own filters over the one that litellm_compat.py sets.
pytestmark = pytest.mark.filterwarnings("ignore:Item 'summary' on TypedDict class:UserWarning")

MODEL = "openai:gpt-test"
KEY = "sk-a-key-nobody-may-see"


def run(
    server: ModelServer,
    *,
    prompt: str = "hello",
    env: dict[str, str] | None = None,
    settings: dict[str, Any] | None = None,
    visit_fields: dict[str, Any] | None = None,
    **node_fields: Any,
) -> VisitResult:
    node = LlmNode(**{"id": "ask", "prompt": prompt, "model": MODEL, **node_fields})
    worker = host({**server.env(key=KEY), **(env or {})}, **(settings or {}))
    return llm.run_llm(node, visit(node, Path(), **(visit_fields or {})), worker)


def ask(replies: Iterable[Reply | str], **fields: Any) -> tuple[VisitResult, ModelServer]:
    with ModelServer(replies) as server:
        return run(server, **fields), server


@pytest.fixture(scope="module", autouse=True)
def litellm_is_warm() -> None:
    """Its import takes two seconds and the first call another half, which no test is about."""
    litellm_compat.warm_up()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert ask(["warm"])[0].ok


# As the body of a map


@pytest.mark.parametrize(
    ("reply", "fields", "delta"),
    [
        ("hi", {}, {"output": "hi"}),
        ("hi", {"state_updates": {"output": "said {{output}}"}}, {"output": "said hi"}),
        ("hi", {"state_updates": {"other": "{{output}}"}}, {"other": "hi", "output": "hi"}),
        ('{"n": 1}', {"output_schema": {"type": "object"}}, {"n": 1, "output": {"n": 1}}),
        ('{"output": 1}', {"output_schema": {"type": "object"}}, {"output": 1}),
    ],
)
def test_its_own_output_is_the_result_of_an_item(reply: str, fields: dict[str, Any], delta: dict[str, Any]) -> None:
    each = MapNode(id="each", over="{{all}}", item="one", body=["ask"], collect_into="results")
    of_item = {"others": [each], "item": Item(map=1, index=0, of="each")}
    result, _ = ask([reply], visit_fields=of_item, **fields)
    assert (result.ok, result.delta) == (True, delta)


# With declared state


@pytest.mark.parametrize(("reply", "written"), [("5", 5), ("five", "five")])
def test_its_output_is_written_as_what_the_key_is_declared_to_hold(reply: str, written: Any) -> None:
    declared = {"graph": {"state": {"n": StateField(type="int")}}}
    result, _ = ask([reply], visit_fields=declared, state_updates={"n": "{{output}}"})
    assert result.delta == {"n": written}  # the second is refused before it is delivered


# What is sent


@pytest.mark.conformance("T08")
def test_global_tools_and_servers_of_the_graph_are_not_given_to_a_node_that_lists_none() -> None:
    universe = {"graph": {"global_tools": ["web.sh"], "mcp_servers": ["docs"]}}
    result, server = ask(["hi"], visit_fields=universe)
    assert result.ok
    assert server.requests[0].body.keys() == {"model", "messages"}


@pytest.mark.conformance("M01", "M02", "M14")
def test_a_prompt_alone_is_one_user_message_and_nothing_else() -> None:
    result, server = ask(["hi"], tools=[])
    assert result.ok
    [request] = server.requests
    assert request.body == {"model": "gpt-test", "messages": [{"role": "user", "content": "hello"}]}
    assert request.authorization == f"Bearer {KEY}"


@pytest.mark.conformance("M01", "P12")
def test_instructions_are_the_system_message_and_values_are_not_rendered_again() -> None:
    state = {"topic": "{{secret}}", "secret": "s", "list": [1, "ä"]}
    _, server = ask(
        ["hi"],
        prompt='{{topic}} {{list}} {"a":1}',
        instructions="about {{topic}}",
        visit_fields={"state": state},
    )
    assert server.requests[0].messages == [
        {"role": "system", "content": "about {{secret}}"},
        {"role": "user", "content": '{{secret}} [1,"ä"] {"a":1}'},
    ]


@pytest.mark.conformance("M14")
def test_a_second_visit_does_not_have_the_conversation_of_the_first() -> None:
    with ModelServer(["one", "two"]) as server:
        run(server, prompt="first")
        run(server, prompt="second")
    assert server.requests[1].messages == [{"role": "user", "content": "second"}]


@pytest.mark.conformance("T06", "M13")
@pytest.mark.parametrize(
    ("node", "graph", "setting", "expected"),
    [
        ("openai:n", "openai:g", "openai:s", "n"),
        (None, "openai:g", "openai:s", "g"),
        (None, None, "openai:s", "s"),
    ],
)
def test_the_model_is_the_nodes_else_the_graphs_else_the_settings(
    node: str | None, graph: str | None, setting: str, expected: str
) -> None:
    result, server = ask(["hi"], model=node, visit_fields={"graph": {"model": graph}}, settings={"model": setting})
    assert server.requests[0].model == expected
    assert result.notes == (f"llm call: model=openai:{expected} tools=<none>",)


def test_without_a_model_the_error_names_the_places_for_one() -> None:
    result, _ = ask([], model=None)
    assert result.error == (
        "LLM node failed: no model: name one as `model: client:model` on the node or the graph, "
        "or set SLEIPNIR_MODEL on the llm workers"
    )


@pytest.mark.conformance("T07", "M13")
@pytest.mark.parametrize(
    ("node", "graph", "expected"),
    [
        ({}, {}, {}),
        ({}, {"temperature": 0.2, "top_p": 0.9}, {"temperature": 0.2, "top_p": 0.9}),
        ({"temperature": 0.0}, {"temperature": 0.2, "top_p": 0.9}, {"temperature": 0.0, "top_p": 0.9}),
        ({"top_p": 0.1}, {"temperature": 0.2}, {"temperature": 0.2, "top_p": 0.1}),
    ],
)
def test_sampling_is_the_nodes_else_the_graphs_else_not_sent(
    node: dict[str, float], graph: dict[str, float], expected: dict[str, float]
) -> None:
    _, server = ask(["hi"], visit_fields={"graph": graph}, **node)
    body = server.requests[0].body
    assert {name: body[name] for name in ("temperature", "top_p") if name in body} == expected


def test_a_client_of_ones_own_is_reached_by_its_name() -> None:
    with ModelServer(["hi"]) as server:
        result = run(server, model="my-box:llama", env=server.env("my-box", key="box-key"))
    assert result.ok
    assert (server.requests[0].model, server.requests[0].authorization) == ("llama", "Bearer box-key")


# What comes back


@pytest.mark.conformance("U01", "U02", "U03")
def test_the_text_is_visible_to_state_updates_only() -> None:
    result, _ = ask(["hi"], state_updates={"said": "<{{output}}>"}, visit_fields={"state": {"other": 1}})
    assert (result.ok, result.delta, result.next) == (True, {"said": "<hi>"}, None)
    assert ask(["hi"])[0].delta == {}


@pytest.mark.conformance("U10")
def test_a_state_key_called_output_keeps_its_value() -> None:
    result, _ = ask(["new"], state_updates={"said": "{{output}}"}, visit_fields={"state": {"output": "old"}})
    assert result.delta == {"said": "new"}


@pytest.mark.parametrize("text", ["", None])
def test_an_empty_reply_is_a_success(text: str | None) -> None:
    result, _ = ask([Reply(text)], state_updates={"said": "[{{output}}]"})
    assert (result.ok, result.delta) == (True, {"said": "[]"})


def test_usage_counts_every_call_and_the_price_is_unknown_not_zero() -> None:
    result, _ = ask([Reply(status=429), Reply("hi", input_tokens=7, output_tokens=2)], max_attempts=2)
    assert result.usage == Usage(7, 2, 2, MODEL, None)


def test_a_known_model_has_a_price() -> None:
    result, _ = ask(
        [Reply("no json", input_tokens=1000), Reply("{}", input_tokens=1000)],
        model="openai:gpt-4o-mini",
        output_schema={},
    )
    assert result.usage is not None and result.usage.cost_usd is not None
    assert result.usage.input_tokens == 2000
    assert 0 < result.usage.cost_usd < 0.01


def test_a_failed_call_is_counted_too() -> None:
    result, _ = ask([Reply(status=401)])
    assert result.usage == Usage(0, 0, 1, MODEL, None)


# Failures


@pytest.mark.conformance("M12", "U06")
def test_a_failure_leaves_its_text_in_output() -> None:
    result, _ = ask([Reply(status=400, error="no such model")], state_updates={"said": "{{output}}", "also": "x"})
    assert (result.ok, result.next, result.error_kind) == (False, None, "model_call")
    assert result.delta == {"said": result.error, "also": "x"}
    assert str(result.error).startswith("LLM node failed: ")
    assert "no such model" in str(result.error)


@pytest.mark.conformance("M15")
@pytest.mark.parametrize(("field", "what"), [("prompt", "prompt"), ("instructions", "instructions")])
def test_a_missing_state_key_fails_the_node_and_is_named(field: str, what: str) -> None:
    result, server = ask(["hi"], **{field: "{{a}} {{b.c}}"}, state_updates={"said": "{{output}}"})
    assert result.delta == {
        "said": f"LLM node failed: Failed to interpolate llm node {what}: "
        "Template interpolation failed: 'a', 'b.c' not found in state"
    }
    assert server.requests == []


@pytest.mark.conformance("M08")
@pytest.mark.parametrize(
    "bad",
    [
        Reply(status=429, error="slow down"),
        Reply(status=500, error="upstream RATE LIMIT"),
        Reply(status=500, error="upstream timed out"),
        Reply(status=500, error="connection reset by peer"),
    ],
)
def test_transient_errors_are_tried_again_up_to_max_attempts(bad: Reply) -> None:
    result, server = ask([bad, bad, "hi"], max_attempts=3, state_updates={"said": "{{output}}"})
    assert (result.delta, len(server.requests)) == ({"said": "hi"}, 3)
    result, server = ask([bad, bad, "hi"], max_attempts=2)
    assert (result.ok, len(server.requests)) == (False, 2)


@pytest.mark.conformance("M08")
def test_one_attempt_is_the_default() -> None:
    result, server = ask([Reply(status=429), "hi"])
    assert (result.ok, result.error_kind, len(server.requests)) == (False, "rate_limit", 1)


@pytest.mark.conformance("M08")
def test_a_server_that_is_not_there_is_transient_and_named() -> None:
    with ModelServer() as server:
        pass
    result = run(server, max_attempts=2)
    assert "Connection refused" in str(result.error)
    assert result.usage is not None and result.usage.calls == 2


@pytest.mark.conformance("M09")
@pytest.mark.parametrize("bad", [Reply(status=401), Reply(status=400), Reply(status=500), Reply(body="no json at all")])
def test_other_errors_are_not_tried_again(bad: Reply) -> None:
    result, server = ask([bad, "hi"], max_attempts=5)
    assert (result.ok, len(server.requests)) == (False, 1)


class Limited:
    """Permits that refuse some calls; `True`: the next one may be made."""

    def __init__(self, *granted: bool) -> None:
        self.granted = list(granted)

    @contextmanager
    def call(self, *_: Any) -> Iterator[Permit]:
        if not self.granted.pop(0):
            raise PutOff(int(time.time() * 1000) + 1, "limit 'openai:*' until then")
        yield Permit()


def test_a_call_that_meets_a_limit_is_put_off_and_has_not_ended_well() -> None:
    result, server = ask(["hi"], visit_fields={"permits": Limited(False)}, state_updates={"said": "{{output}}"})
    assert (result.ok, result.error_kind, result.error) == (False, "limit", "limit 'openai:*' until then")
    assert (result.later_ms is not None, result.delta, server.requests) == (True, {}, [])


def test_a_second_attempt_that_meets_a_limit_waits_so_that_attempts_have_an_end() -> None:
    limited = Limited(True, False, True)
    replies = [Reply(status=429), Reply(status=429), "late"]
    result, server = ask(replies, visit_fields={"permits": limited}, max_attempts=2)
    assert (result.ok, result.error_kind, result.later_ms) == (False, "rate_limit", None)
    assert (len(server.requests), limited.granted) == (2, [])


def test_a_node_with_tools_of_an_old_scheduler_calls_no_model() -> None:
    result, server = ask(["hi"], tools=["lookup"])
    assert (result.ok, result.error_kind, server.requests) == (False, "tools", [])
    assert "upgrade the schedulers" in str(result.error)


def test_a_number_that_only_contains_429_is_not_a_rate_limit() -> None:
    result, server = ask([Reply(status=400, error="no such model (request 142937)"), "hi"], max_attempts=3)
    assert (result.ok, len(server.requests)) == (False, 1)


def test_no_attempts_and_no_iterations_are_failures() -> None:
    assert ask([], max_attempts=0)[0].error == "LLM node failed: llm node exhausted retries"
    assert ask([], max_iterations=0)[0].error == "LLM node failed: llm node ended without producing output"


@pytest.mark.conformance("M10")
def test_the_timeout_ends_a_call_that_hangs() -> None:
    started = time.monotonic()
    result, server = ask([Reply(hang=True), "hi"], timeout=1, max_attempts=5)
    assert (result.error, result.error_kind) == ("LLM node failed: llm node timed out after 1s", "timeout")
    assert len(server.requests) == 1
    assert time.monotonic() - started < 30


@pytest.mark.conformance("M10")
def test_the_timeout_covers_all_attempts_together() -> None:
    with ModelServer(lambda request: Reply(status=429)) as server:
        result = run(server, timeout=1, max_attempts=1000)
    assert result.error == "LLM node failed: llm node timed out after 1s"
    assert 1 < len(server.requests) < 20


def test_a_lost_visit_leaves_a_call_that_hangs_within_a_second() -> None:
    lost = threading.Event()
    with ModelServer([Reply(hang=True)]) as server:
        with When(lambda: server.requests, lost.set) as trigger, pytest.raises(VisitLost):
            run(server, visit_fields={"lost": lost})
        assert time.monotonic() - trigger.acted_at < 30


def test_a_lost_visit_ends_the_pause_between_attempts() -> None:
    lost = threading.Event()
    with ModelServer(lambda request: Reply(status=429)) as server:
        with When(lambda: len(server.requests) >= 3, lost.set) as trigger, pytest.raises(VisitLost):
            run(server, max_attempts=1000, visit_fields={"lost": lost})
        assert time.monotonic() - trigger.acted_at < 30


def test_no_key_appears_in_an_error() -> None:
    echo = Reply(status=401, error=f"Incorrect API key: {KEY}, and also hunter2-hunter2")
    result, _ = ask([echo], env={"DB_PASSWORD": "hunter2-hunter2"}, state_updates={"said": "{{output}}"})
    assert "Incorrect API key: [redacted], and also [redacted]" in result.delta["said"]
    assert KEY not in repr(result) and "hunter2" not in repr(result)


# Structured output

SCHEMA = {"type": "object", "properties": {"items": {"type": "array"}}}


@pytest.mark.conformance("O01")
def test_the_schema_is_asked_for_in_the_instructions_else_in_the_prompt() -> None:
    hint = (
        "Respond with a JSON object that matches this schema. Output ONLY the JSON object with no surrounding "
        'prose or markdown fences.\n\nSchema:\n{\n  "type": "object",\n  "x": "{{not a placeholder}}"\n}'
    )
    schema = {"type": "object", "x": "{{not a placeholder}}"}
    _, server = ask(["{}"], instructions="be brief", output_schema=schema)
    assert (server.requests[0].system, server.requests[0].prompt) == (f"be brief\n\n{hint}", "hello")
    _, server = ask(["{}"], output_schema=schema)
    assert (server.requests[0].system, server.requests[0].prompt) == (None, f"hello\n\n{hint}")


@pytest.mark.conformance("O06", "U04", "U05")
def test_an_objects_keys_are_merged_with_their_types_and_state_updates_win() -> None:
    result, _ = ask(
        ['```json\n{"items": [1, "a"], "n": 5, "kept": 1}\n```'],
        output_schema=SCHEMA,
        state_updates={"first": "{{output.items[0]}}", "n": "{{output.n}}!", "all": "{{output}}", "seen": "{{kept}}"},
    )
    assert result.delta == {
        "items": [1, "a"],
        "n": "5!",
        "kept": 1,
        "first": "1",
        "all": '{"items":[1,"a"],"n":5,"kept":1}',
        "seen": "1",
    }


@pytest.mark.conformance("O07")
def test_a_value_that_is_no_object_is_only_in_output() -> None:
    result, _ = ask(['["a", "b"]'], output_schema={"type": "array"}, state_updates={"second": "{{output[1]}}"})
    assert result.delta == {"second": "b"}


@pytest.mark.conformance("O04", "O11")
def test_the_extractor_is_one_more_call_of_the_same_model_in_its_own_context() -> None:
    result, server = ask(
        ["The items are a.", '{"items": ["a"]}'],
        instructions="be brief",
        model=None,
        visit_fields={"graph": {"model": "openai:of-the-graph"}},
        output_schema=SCHEMA,
    )
    assert result.delta == {"items": ["a"]}
    second = server.requests[1]
    assert second.model == "of-the-graph"
    assert [message["role"] for message in second.messages] == ["system", "user"]
    assert second.system == structured_output.EXTRACTOR
    assert second.prompt.endswith("Input:\nThe items are a.")
    assert result.notes[1:] == ("structured-output: parsing raw output failed, invoking extractor",)
    assert result.usage is not None and result.usage.calls == 2


@pytest.mark.conformance("O05", "O08")
def test_two_bad_replies_of_the_extractor_fail_the_node_and_merge_nothing() -> None:
    result, server = ask(["a", "b", "c"], output_schema=SCHEMA, state_updates={"said": "{{output}}"})
    message = (
        "LLM node structured-extraction failed: "
        "Structured-output extractor failed to produce valid JSON after repair retry. Last response:\nc"
    )
    assert (result.ok, result.error, result.error_kind) == (False, message, "structured")
    assert result.delta == {"said": message}
    assert len(server.requests) == 3
    assert len(result.notes) == 3


@pytest.mark.conformance("O08")
def test_an_extractor_that_cannot_be_called_fails_the_node() -> None:
    result, _ = ask(["a", Reply(status=400, error="too long")], output_schema=SCHEMA, max_attempts=3)
    assert str(result.error).startswith(
        "LLM node structured-extraction failed: Structured-output extractor LLM call failed: "
    )


def test_the_timeout_covers_the_extractor() -> None:
    result, _ = ask(["a", Reply(hang=True)], output_schema=SCHEMA, timeout=1)
    assert result.error == "LLM node structured-extraction failed: llm node timed out after 1s"


# The process


def test_loading_the_executors_imports_nothing_that_only_workers_for_models_have() -> None:
    code = (
        "import sys; from sleipnir_workers.nodes import function, script; "
        "from sleipnir_workers.llm import node, dialogue; "
        "sys.exit(bool({'litellm', 'urllib3', 'httpx'} & sys.modules.keys()))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# Configuration and secrets


def configured(folder: Path, server: ModelServer, *, secret: str = "sk-planted-in-the-file") -> dict[str, str]:
    """The environment of a worker whose config.yaml and secrets file lead to `server`."""
    (folder / "config.yaml").write_text(
        "model: mine:small\n"
        "clients:\n"
        f"  - {{type: openai-compatible, name: mine, api_base: '{server.url}', api_key: '{{{{MINE}}}}', "
        "models: [{name: small, real_name: small-1, input_price: 100, output_price: 200}]}\n"
        "  - {type: openai-compatible, name: theirs, api_base: 'http://x', api_key: sk-planted-in-the-config}\n"
    )
    (folder / "secrets.env").write_text(f"MINE={secret}\n")
    (folder / "secrets.env").chmod(0o600)
    return {"LOKI_CONFIG_DIR": str(folder)}


def test_a_configured_client_is_asked_with_its_secret_and_its_price(tmp_path: Path) -> None:
    with ModelServer([Reply("hi", input_tokens=1000, output_tokens=10)]) as server:
        result = run(server, model=None, env=configured(tmp_path, server))
    [request] = server.requests
    assert (request.model, request.authorization) == ("small-1", "Bearer sk-planted-in-the-file")
    assert result.usage == Usage(1000, 10, 1, "mine:small", pytest.approx(0.102))
    assert "planted" not in repr(result)


def test_no_configured_key_appears_in_an_error(tmp_path: Path) -> None:
    echo = Reply(status=401, error="sk-planted-in-the-file and sk-planted-in-the-config")
    with ModelServer([echo]) as server:
        result = run(server, model="mine:small", env=configured(tmp_path, server))
    assert "[redacted] and [redacted]" in str(result.error)
    assert "planted" not in repr(result)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "secrets.env").chmod(0o644), "is open to others (mode 0644)"),
        (lambda folder: (folder / "secrets.env").write_text("A=sk-planted\n"), "client 'mine' needs the secret MINE"),
        (lambda folder: (folder / "config.yaml").write_text("clients: 5\n"), "config.yaml:1:1: clients: "),
    ],
)
def test_a_wrong_configuration_fails_the_node_with_the_reason(tmp_path: Path, spoil: Any, message: str) -> None:
    with ModelServer() as server:
        env = configured(tmp_path, server)
        spoil(tmp_path)
        result = run(server, model="mine:small", env=env, state_updates={"said": "{{output}}"})
    assert (result.ok, result.error_kind, server.requests) == (False, "config", [])
    assert message in str(result.error)
    assert "planted" not in repr(result)


@pytest.mark.parametrize(("mode", "is_right"), [(0o600, True), (0o640, False)])
def test_a_worker_can_check_its_configuration_before_it_is_needed(tmp_path: Path, mode: int, is_right: bool) -> None:
    with ModelServer() as server:
        worker = host(configured(tmp_path, server))
    (tmp_path / "secrets.env").chmod(mode)
    with nullcontext() if is_right else pytest.raises(ConfigError, match="is open to others"):
        llm.check_configuration(worker)

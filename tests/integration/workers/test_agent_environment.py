"""Agent variables that name secrets of the worker (spec 3.5, 10.1)."""

from __future__ import annotations

from pathlib import Path

import pytest

from sleipnir.errors import NodeFailed
from sleipnir.graph.model import EndNode, Graph, LlmNode, Variable
from sleipnir.messages import RESULT, Send, VisitResult
from sleipnir.runs.conversation import StoredConversation
from sleipnir.runs.visits import Part
from sleipnir_workers.machine.agent_environment import agent_variables, without_secrets
from sleipnir_workers.machine.host import Host
from sleipnir_workers.nodes.script import run_script
from sleipnir_workers.tools.node import run_tool
from tests.unit.workers.visits import host, script, visit

DSN = Variable(name="dsn", description="Of the database", default="pg://me:{{DB_PASSWORD}}@db/{{ SCHEMA }}")
GRAPH = Graph(name="t", start="e", nodes={"e": EndNode(id="e")}, variables=[DSN])
PASSWORD = "correct-horse"


def worker(tmp_path: Path, mode: int = 0o600) -> Host:
    """One whose secrets file has the password."""
    secrets = tmp_path / "loki" / "secrets.env"
    secrets.parent.mkdir()
    secrets.write_text(f"DB_PASSWORD={PASSWORD}\n")
    secrets.chmod(mode)
    env = {"LOKI_CONFIG_DIR": str(secrets.parent), "SCHEMA": "app", "SLEIPNIR_REDIS_URL": "redis://pw@x"}
    return host({**env, "REDIS_PASSWORD": "of-the-deployment"}, secret_names="SCHEMA")


@pytest.mark.conformance("C06")
def test_secrets_are_put_into_the_environment_and_what_is_none_stays(tmp_path: Path) -> None:
    here = worker(tmp_path)
    assert agent_variables(GRAPH, {}, here) == {"LLM_AGENT_VAR_DSN": f"pg://me:{PASSWORD}@db/app"}
    for text in ("{{REDIS_PASSWORD}}", "{{HOME}}", "{{NOBODYS}}", "{{SLEIPNIR_REDIS_URL}}", "{{}}", "{DB_PASSWORD}"):
        assert agent_variables(GRAPH, {"dsn": text}, here) == {"LLM_AGENT_VAR_DSN": text}


def test_a_secrets_file_that_others_can_read_is_not_used(tmp_path: Path) -> None:
    here = worker(tmp_path, mode=0o644)
    with pytest.raises(NodeFailed, match="is open to others"):
        agent_variables(GRAPH, {}, here)
    assert agent_variables(GRAPH, {"dsn": "plain"}, here) == {"LLM_AGENT_VAR_DSN": "plain"}, "nobody asked for it"
    result = VisitResult(ok=True, delta={"a": 1})
    assert without_secrets(result, GRAPH, {}, here) == result


def test_what_has_run_with_a_secret_leaves_it_nowhere(tmp_path: Path) -> None:
    sends = (Send("next", {"one": PASSWORD}),)
    left = VisitResult(ok=False, delta={"a": [f"x{PASSWORD}y", 1], PASSWORD: {"b": None}}, error=PASSWORD, sends=sends)
    found = without_secrets(left, GRAPH, {}, worker(tmp_path))
    assert found.delta == {"a": ["x[redacted]y", 1], "[redacted]": {"b": None}}
    assert (found.error, found.sends) == ("[redacted]", (Send("next", {"one": "[redacted]"}),))


def test_a_secret_is_in_no_route_no_key_and_no_note(tmp_path: Path) -> None:
    """Finding S12."""
    here = worker(tmp_path)
    left = VisitResult(
        ok=True, delta={f"k{PASSWORD}": 1}, next=PASSWORD, sends=(Send(PASSWORD, {PASSWORD: PASSWORD}),),
        error_type=f"a:{PASSWORD}", notes=(f"merged: {PASSWORD}",),
    )  # fmt: skip
    assert PASSWORD not in repr(without_secrets(left, GRAPH, {}, here))
    assert without_secrets(VisitResult(ok=True, next=("a", PASSWORD)), GRAPH, {}, here).next == ("a", "[redacted]")


def test_a_script_that_routes_by_a_secret_does_not_show_it(tmp_path: Path) -> None:
    """Finding S12."""
    text = 'printf \'{"_next": "%s", "%s": 1}\' "$LLM_AGENT_VAR_DSN" "$LLM_AGENT_VAR_DSN"\n'
    node = script(tmp_path, "s.sh", text)
    result = run_script(node, visit(node, tmp_path, graph={"variables": [DSN]}), worker(tmp_path))
    assert result.ok
    assert PASSWORD not in repr(result)


@pytest.mark.parametrize("end", ["exit 1", 'echo "{\\"said\\": \\"$LLM_AGENT_VAR_DSN\\"}"'])
def test_a_script_works_with_a_secret_and_no_record_has_it(tmp_path: Path, end: str) -> None:
    text = f'echo "$LLM_AGENT_VAR_DSN" > {tmp_path}/seen\necho "no $LLM_AGENT_VAR_DSN" >&2\n{end}\n'
    node = script(tmp_path, "s.sh", text)
    result = run_script(node, visit(node, tmp_path, graph={"variables": [DSN]}), worker(tmp_path))
    assert PASSWORD in (tmp_path / "seen").read_text()
    assert PASSWORD not in repr(result) and "[redacted]" in repr(result)


def test_a_tool_uses_a_secret_that_is_hidden_from_its_model(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(
        'import os\n\ndef t():\n    """x"""\n    dsn = os.environ["LLM_AGENT_VAR_DSN"]\n    return [dsn, len(dsn)]\n'
    )
    message = '{"tool_calls": [{"id": "c", "function": {"name": "t", "arguments": "{}"}}]}'
    node = LlmNode(id="ask", prompt="p", tools=["t"])
    place = {"role": "tool", "part": Part(7, 0, 0, "t", "c"), "talk": StoredConversation(turns=((message, ()),))}
    result = run_tool(node, visit(node, tmp_path, graph={"variables": [DSN]}, **place), worker(tmp_path))
    assert result.delta == {RESULT: ["pg://me:[redacted]@db/app", len(f"pg://me:{PASSWORD}@db/app")]}

"""What of a result goes to Redis, and what keeps it from going there."""

from __future__ import annotations

from pathlib import Path

import pytest

from sleipnir.graph.model import FunctionNode
from sleipnir.messages import OVERLAY_END, OVERLAYS, ResultHeader, Send, VisitResult, overlay_of
from sleipnir_workers.visits.delivery import encoded
from sleipnir_workers.visits.guard import execute
from tests.unit.workers.visits import visit

LIMIT = 1_000


def test_values_are_compact_json_by_key() -> None:
    result = VisitResult(ok=True, delta={"a": {"b": [1, 1.0, "ä"]}})
    assert encoded(result, "n", LIMIT) == (result, {"a": '{"b":[1,1.0,"ä"]}'})


def test_the_updates_of_commands_are_sent_separately_from_the_state_keys() -> None:
    result = VisitResult(ok=True, delta={"n": 1}, sends=(Send("w", {"i": "a\x1eb\n", "ö": [1]}), Send("v")))
    same, values = encoded(result, "n", LIMIT)
    header = ResultHeader.of(same, worker="w", started_ms=0, took_ms=0)
    assert (header.keys, header.sends) == (("n",), ("w", "v"))
    assert values.pop("n") == "1"
    texts = values.pop(OVERLAYS).split(OVERLAY_END)
    assert [overlay_of(text) for text in texts] == [{"i": '"a\\u001eb\\n"', "ö": "[1]"}, {}]
    assert not values


@pytest.mark.parametrize("sends", [None, (), (Send("w"), Send("v"))])
def test_without_updates_only_state_keys_are_sent(sends: tuple[Send, ...] | None) -> None:
    assert encoded(VisitResult(ok=True, sends=sends), "n", LIMIT)[1] == {}


@pytest.mark.parametrize("delta", [{"a": ["x\ud800"]}, {"a": {"\ud800": 1}}, {"\udc00": 1}])
def test_half_a_surrogate_pair_fails_the_visit_and_not_the_delivery(delta: dict[str, object]) -> None:
    result, values = encoded(VisitResult(ok=True, delta=delta), "n", LIMIT)
    assert (result.ok, result.error_kind, set(values)) == (False, "not_json", {"_error", "last_error"})
    assert str(result.error).encode().startswith(b"node 'n' state key '")


@pytest.mark.conformance("ST-11")
def test_a_reserved_key_is_left_out_and_the_rest_is_written() -> None:
    result, values = encoded(VisitResult(ok=True, delta={"_next": "x", "n": 1}), "n", LIMIT)
    assert (dict(result.delta), values) == ({"n": 1}, {"n": "1"})


def test_updates_of_commands_count_towards_the_limit() -> None:
    result, values = encoded(VisitResult(ok=True, sends=(Send("w", {"i": "x" * LIMIT}),)), "plan", LIMIT)
    assert (result.ok, result.error_kind, result.sends) == (False, "too_large", None)
    assert "node 'plan' writes 1,0" in str(result.error)
    assert "the largest part are the updates of its commands" in str(result.error)
    assert list(values) == ["_error", "last_error"]


def test_a_delta_that_is_too_large_names_its_largest_key() -> None:
    result, _ = encoded(VisitResult(ok=True, delta={"a": 1, "b": "x" * LIMIT}), "plan", LIMIT)
    assert "the largest key is 'b'. Store the data in a file and write its path" in str(result.error)


# LM-09, IS-01: nodes are apart from each other and from the worker


@pytest.mark.conformance("IS-01")
def test_two_functions_that_change_their_input_do_not_see_each_other(tmp_path: Path) -> None:
    (tmp_path / "steps.py").write_text("def step(state):\n    state['l'].append(1)\n    return {'seen': state['l']}\n")
    node = FunctionNode(id="step", call="steps.py:step")
    state = {"l": [0]}
    results = [execute(visit(node, tmp_path, state=state)) for _ in range(2)]
    assert [result and result.delta for result in results] == [{"seen": [0, 1]}] * 2
    assert state == {"l": [0]}

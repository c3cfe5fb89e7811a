"""How long a call of a tool may take: what goes before what."""

from __future__ import annotations

from typing import Any

import pytest

from sleipnir.graph.model import SLEIPNIR, Graph, LlmNode, ToolNode
from sleipnir_workers.tools.timeouts import COYOTES_S, OURS_S, UNLIMITED_S, seconds_of
from tests.unit.workers.visits import host

OWN = LlmNode(id="a", prompt="p", tool_timeout=500)
PLAIN = LlmNode(id="a", prompt="p")


@pytest.mark.conformance("CY16", "CY17")
@pytest.mark.parametrize(
    ("node", "settings", "env", "expected"),
    [
        (PLAIN, {}, {}, COYOTES_S),
        (PLAIN, {}, {"COYOTE_TOOL_TIMEOUT": "1"}, 1.0),
        (PLAIN, {}, {"LOKI_TOOL_TIMEOUT": "2"}, 2.0),
        (PLAIN, {}, {"COYOTE_TOOL_TIMEOUT": "0"}, UNLIMITED_S),
        (PLAIN, {}, {"COYOTE_TOOL_TIMEOUT": "9" * 40}, UNLIMITED_S),
        *((PLAIN, {}, {"COYOTE_TOOL_TIMEOUT": wrong}, COYOTES_S) for wrong in ("-1", "soon", "inf", "1.5")),
        (PLAIN, {"tool_timeout_s": 7}, {"COYOTE_TOOL_TIMEOUT": "0"}, 7.0),
        (OWN, {"tool_timeout_s": 7}, {"COYOTE_TOOL_TIMEOUT": "0"}, 0.5),
        (ToolNode(id="i", tool="_instructions", output_key="i"), {}, {"COYOTE_TOOL_TIMEOUT": "3"}, 3.0),
        (None, {}, {}, COYOTES_S),
    ],
)
def test_an_agent_in_lokis_format_has_the_time_that_it_has_with_coyote(
    node: LlmNode | ToolNode | None, settings: dict[str, Any], env: dict[str, str], expected: float
) -> None:
    assert seconds_of(node, Graph(name="g", start="a", nodes={}), host(env, **settings)) == expected


def test_in_our_language_a_call_that_hangs_is_found_out_sooner() -> None:
    graph = Graph(name="g", start="a", nodes={}, version=SLEIPNIR)
    assert seconds_of(PLAIN, graph, host({"COYOTE_TOOL_TIMEOUT": "0"})) == OURS_S
    assert seconds_of(OWN, graph, host()) == 0.5

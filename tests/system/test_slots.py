"""Agents that may have few runs at once, on real processes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from sleipnir.runs.views import SlotInfo
from tests.processes import Stack, wait_until, write_agent

TWO_STEPS = """
name: limited
start: enter
concurrency: {key: "{{tenant}}", limit: 2}
nodes:
  enter: {type: script, script: mark.sh, next: leave}
  leave: {type: script, script: mark.sh, next: done}
  done: {type: end, output: "{{tenant}}"}
"""
MARK = """
case $GRAPH_STATE in *acme*) tenant=acme;; *) tenant=zeta;; esac
echo $GRAPH_NODE_ID $tenant >> FOLDER/marks
echo '{}'
"""
ASKS = """
name: one
start: ask
concurrency: {limit: 1}
nodes:
  ask: {type: input, question: "{{initial_prompt}}?", next: done}
  done: {type: end}
"""


def test_at_most_two_rows_of_a_tenant_in_a_batch_run_at_once_and_all_end(stack: Stack, tmp_path: Path) -> None:
    """Without the limit nearly all rows would begin before the first one ends: the queue is first in, first out."""
    agent = write_agent(tmp_path / "limited", TWO_STEPS, mark_sh=MARK.replace("FOLDER", str(tmp_path)))
    tenants = ["acme", "zeta"] * 6
    with stack.client() as client:
        batch = client.batch(agent, [{"prompt": "", "tenant": tenant} for tenant in tenants])
        assert [info.completed for info in batch.watch()][-1] == len(tenants)
        assert [result.output for result in batch.results()] == tenants
        under_way, most = Counter[str](), Counter[str]()
        for node, tenant in map(str.split, (tmp_path / "marks").read_text().splitlines()):
            under_way[tenant] += 1 if node == "enter" else -1
            most[tenant] = max(most[tenant], under_way[tenant])
        assert (+under_way, max(most.values()) <= 2, sorted(most)) == (Counter(), True, ["acme", "zeta"])
        sets = [client.store.keys.of_slots("limited", tenant) for tenant in most]
        left = [key for slots in sets for key in (slots.limit, slots.holders, slots.waiters)]
        wait_until(lambda: client.store._client.exists(*left) == 0, "nothing is left of the slots")


def test_a_run_that_waits_for_a_slot_reports_it_and_continues_when_the_one_before_it_ends(
    stack: Stack, tmp_path: Path
) -> None:
    agent = write_agent(tmp_path / "one", ASKS)
    with stack.client() as client:
        first, second = client.submit(agent), client.submit(agent)
        wait_until(lambda: second.info().slot, "the second one has asked for a slot")
        wait_until(lambda: first.gates() or second.gates(), "one has it")
        if not first.gates():  # they are in two partitions, and neither waits for the other one's
            first, second = second, first
        assert (second.status, second.info().slot) == ("running", SlotInfo("", 1, granted=False))
        for words in (("show", second.id), ("ps",)):
            assert "waits for a slot of one, limit 1" in stack.sleipnir(*words).stdout
        first.cancel()
        wait_until(second.gates, "the second one asks")
        second.answer("yes")
        assert second.wait(60).status == "completed"

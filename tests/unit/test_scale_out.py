"""The simulation of ops/scale_out.py, on sizes whose outcome can be calculated. Nothing is timed here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ops.scale_out import Costs, Size, growing, needed, nodes_of_partitions, row, simulate

EQUAL = Costs(worker=300, scheduler=100, node=200, broker=10, row=0, row_scheduler=0, exchange=0, idle_partition=0,
              idle_node=0, idle_scheduler=0)  # fmt: skip
MOST_OF_IT = 0.8
"""Of what a full core can do: a scheduler waits for its nodes while it does not plan."""


@pytest.mark.parametrize(
    ("size", "full", "most"),
    [
        (Size(1, 4, 8), "a node", 5_000),
        (Size(4, 1, 16), "a scheduler", 10_000),
        (Size(4, 4, 2), "workers", 6_667),
        (Size(4, 16, 64, even=True), "a node", 20_000),
    ],
)
def test_throughput_is_what_the_full_core_can_do_and_the_table_names_it(size: Size, full: str, most: float) -> None:
    outcome = simulate(size, EQUAL)
    assert outcome.full == full
    assert most * MOST_OF_IT <= outcome.visits_per_s <= most * 1.02
    assert row(outcome).endswith(full)


def test_messages_that_cost_much_fill_the_broker() -> None:
    outcome = simulate(Size(8, 8, 32), replace(EQUAL, broker=80))
    assert outcome.full == "the broker"
    assert outcome.visits_per_s == pytest.approx(12_500, rel=0.05)


def test_the_same_seed_gives_the_same_outcome() -> None:
    size = Size(3, 2, 6)
    assert simulate(size, EQUAL, seed=7) == simulate(size, EQUAL, seed=7) != simulate(size, EQUAL, seed=8)


def test_each_node_has_an_equal_part_of_the_slots_and_so_more_or_fewer_partitions() -> None:
    by_slot, even = (nodes_of_partitions(Size(24, 1, 1, even=even)) for even in (False, True))
    assert max(map(by_slot.count, range(24))) > 1.3 * 256 / 24
    assert {even.count(node) for node in range(24)} == {10, 11}
    outcomes = [simulate(Size(24, 16, 96, even=even), replace(EQUAL, scheduler=10)) for even in (False, True)]
    assert outcomes[0].visits_per_s < 0.9 * outcomes[1].visits_per_s


def test_rows_of_one_batch_fill_its_node_and_those_of_many_do_not() -> None:
    size, costs = Size(8, 16, 64, even=True), replace(EQUAL, row=500)
    without, of_one, of_many = (simulate(replace(size, batches=number), costs).visits_per_s for number in (0, 1, 1000))
    assert simulate(replace(size, batches=1), costs).full == "a node"
    assert of_one == pytest.approx(1e6 / (200 / 8 + 500 / 10), rel=0.1)
    assert of_one < 0.6 * without
    assert of_many > 1.3 * of_one


def test_rows_of_one_batch_fill_its_scheduler() -> None:
    outcome = simulate(Size(16, 8, 64, even=True, batches=1), replace(EQUAL, row_scheduler=1000))
    assert outcome.full == "a scheduler"
    assert outcome.visits_per_s == pytest.approx(1e6 / (100 / 8 + 1000 / 10), rel=0.15)


def test_what_processes_do_without_visits_takes_time_from_visits() -> None:
    idle = replace(EQUAL, idle_node=100_000, idle_partition=100_000 / 256)
    assert simulate(Size(1, 4, 8), idle).visits_per_s == pytest.approx(4_000, rel=0.05)


def test_costs_are_those_of_the_bench_without_what_is_idle() -> None:
    figures = {
        "cluster_visits_per_s": 1_000, "cluster_workers_us": 400, "cluster_scheduler_us": 340, "cluster_redis_us": 230,
        "cluster_broker_us": 15, "cluster_row_us": 150, "cluster_row_scheduler_us": 300,
        "cluster_idle_scheduler_us": 40_000, "cluster_idle_redis_us": 30_000,
    }  # fmt: skip
    costs = Costs.of_bench(figures)
    assert (costs.worker, costs.scheduler, costs.node, costs.broker, costs.row) == (400, 300, 200, 15, 150)
    assert 3 * costs.idle_node + 256 * costs.idle_partition == pytest.approx(30_000)


def test_a_load_takes_as_many_deployments_as_carry_it_two_thirds_full() -> None:
    load = needed(EQUAL, 256, visits_per_s=2_000, waiting=100_000_000, active=10)
    assert (load.deployments, load.size.nodes, load.size.schedulers) == (1, 1, 1)
    assert (load.memory_bytes, load.nodes_by_memory) == (760e9, 12)
    assert simulate(load.size, EQUAL, active=10).visits_per_s >= 3_000


def test_the_sizes_of_the_table_grow_up_to_what_is_supported() -> None:
    sizes = growing(Costs(), 256)
    assert [sizes[0].nodes, sizes[-1].nodes, sizes[-1].schedulers] == [1, 32, 16]
    assert sizes == sorted(sizes, key=lambda size: (size.nodes, size.schedulers, size.worker_cores))

"""The servers of a campaign: one Redis, or with `--nodes` a Redis Cluster, whose broker is a Redis of its own."""

from __future__ import annotations

import argparse

from ops.chaos import failovers
from tests.processes import PARTITIONS, RedisServer
from tests.redis_cluster import ServerCluster


class BrokeredCluster(ServerCluster):
    """A cluster with its broker, which stops with it."""

    def __init__(self, primaries: int, replicas: int, *options: str) -> None:
        self._broker = RedisServer()
        super().__init__(primaries, replicas, *options, broker_url=self._broker.url)

    def stop(self) -> None:
        super().stop()
        self._broker.stop()


def add_options(parser: argparse.ArgumentParser, *, partitions: int = PARTITIONS, replicas: bool = False) -> None:
    """`replicas`: the verdict of the campaign can tell what fail-overs explain."""
    parser.add_argument("--partitions", type=int, default=partitions, help=f"of the deployment (default {partitions})")
    parser.add_argument("--nodes", type=int, default=0, metavar="N", help="state on a Redis Cluster of so many nodes")
    if replicas:
        parser.add_argument("--replicas", type=int, default=0, metavar="N", help="of each node, to which it fails over")
    else:
        parser.set_defaults(replicas=0)


def servers(options: argparse.Namespace) -> RedisServer | ServerCluster:
    """The harness decides when nodes fail over to their replicas."""
    if not options.nodes:
        return RedisServer()
    more = failovers.NODE_OPTIONS if options.replicas else ()
    return BrokeredCluster(options.nodes, options.replicas, *more)

"""A client of a Redis Cluster, for parts that were written for one Redis.

redis-py's RedisCluster knows which node serves which slot, and asks anew after a fail-over. This adds what it lacks or
does slowly:

* many commands at once, each to its node, in one exchange with every node (`execute_all`, and pipelines on it);
* commands without a key, such as TIME: each node has a clock of its own (`slots_of`);
* reads of streams in several slots, while a cluster reads those of one slot only. stream_watch.py waits for many.

A node that does not answer costs only the commands that are for it: each of them has the error as its reply.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import redis
from hiredis import pack_command
from redis.client import EMPTY_RESPONSE, NEVER_DECODE
from redis.cluster import PRIMARY, ClusterNode, RedisCluster
from redis.crc import key_slot
from redis.maint_notifications import MaintNotificationsConfig

from sleipnir.store import loop_sockets
from sleipnir.store.address import ClusterAddress
from sleipnir.store.guarded_scripts import guarded
from sleipnir.store.pending_replies import PendingReplies, Sending
from sleipnir.waiting import sleep

FLEET_KEY: Final = "{p00}"
"""The hash tag of the first partition."""
POLL_S: Final = 0.05
"""Between looks at streams of several slots; longer if there are more than 25."""
TRY_AGAIN_S: Final = 0.02
"""The pause while a slot moves of which a command needs several keys, or while nodes refer to each other."""
MOST_REDIRECTIONS: Final = 64
LOOK_AGAIN_S: Final = 0.2
"""Between two questions for who serves which slots, however many commands fail."""
CONNECT_AGAIN_S: Final = 1.0
"""After a node has not accepted a connection, no other one is tried for so long."""
_RedisCluster: Any = RedisCluster
_Node: Any = ClusterNode

REDIRECTED: Final = (
    redis.exceptions.MovedError,
    redis.exceptions.AskError,
    redis.exceptions.TryAgainError,
    redis.exceptions.ClusterDownError,
)
"""What a node replies to a command whose slot moves or has moved, or while the cluster changes: it was not executed."""
BROKEN: Final = (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError, OSError)

_ASKING: Final = pack_command(("ASKING",))
_KEYLESS: Final = frozenset({"TIME", "PING", "WAIT"})
_SCRIPTS: Final = frozenset({"EVALSHA", "EVAL"})


def slot_of(key: str | bytes) -> int:
    """The slot of a key: that of its hash tag, if it has one."""
    text = key.decode(errors="surrogateescape") if isinstance(key, bytes) else key
    begin = text.find("{")
    end = text.find("}", begin + 1) if begin >= 0 else -1
    return _slot(text[begin + 1 : end]) if end > begin + 1 else key_slot(text.encode(errors="surrogateescape"))


@functools.lru_cache(maxsize=8192)
def _slot(tag: str) -> int:
    return int(key_slot(tag.encode(errors="surrogateescape")))


def slots_of(commands: Sequence[Sequence[Any]]) -> list[int]:
    """The slot of each of some commands that are sent together. One without a key is for the node of the first that has
    one, so that a time is of the same clock as what it is read with; without any, for that of the whole fleet."""
    found = [None if command[0] in _KEYLESS else slot_of(_key_of(command)) for command in commands]
    of_others = next((slot for slot in found if slot is not None), None)
    if of_others is None:
        of_others = slot_of(FLEET_KEY)
    return [of_others if slot is None else slot for slot in found]


def _key_of(command: Sequence[Any]) -> Any:
    """The first key of a command. All keys of one are in a slot."""
    name = command[0]
    if name in _SCRIPTS:
        return command[3]
    return command[command.index(b"STREAMS") + 1] if name == "XREAD" else command[1]


def open_cluster(address: ClusterAddress, options: Mapping[str, Any], *, in_loop: bool) -> ClusterClient:
    """`options` are redis-py's. Raises its errors if no node answers."""
    tls = address.tls
    connection = redis.connection.Connection if tls is None else redis.connection.SSLConnection
    (host, port), *others = address.hosts
    return ClusterClient(
        url=f"redis://{f'[{host}]' if ':' in host else host}:{port}",  # only with a URL it takes a class of connections
        startup_nodes=[_Node(*other) for other in others],
        require_full_coverage=False,  # runs on other nodes go on
        maint_notifications_config=MaintNotificationsConfig(enabled=False),  # of one vendor; others refuse its command
        username=address.username,
        password=address.password,
        connection_class=loop_sockets.in_loop(connection) if in_loop else connection,
        **(tls or {}),
        **options,
    )


class ClusterClient(_RedisCluster):  # type: ignore[misc]  # redis-py's types are not used: connect.Client
    """Made by `open_cluster`. Safe to use in several threads."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._idle: dict[str, list[Any]] = {}
        """Connections that no call uses, by the address of their node. redis-py's pool looks at a socket before it
        hands out its connection, which costs as much as a command; here a broken one is noticed when it is used."""
        self._pid = os.getpid()
        self._refused: dict[str, tuple[float, Exception]] = {}
        """Why a node did not accept a connection, and until when that is not tried again, by its address."""
        self._looked_s = time.monotonic()
        super().__init__(*args, **options)

    # What the deployment as a whole is asked

    def time(self, **options: Any) -> Any:
        return self.execute_command("TIME")

    def ping(self, **options: Any) -> Any:
        return self.execute_command("PING")

    def nodes_info(self, section: str | None = None) -> dict[str, Any]:
        """INFO of each primary, by its address; of one that does not answer, the error."""
        found: dict[str, Any] = {}
        for node in self.get_primaries():
            try:
                found[node.name] = self.get_redis_connection(node).info(section)
            except BROKEN as error:
                found[node.name] = error
        return found

    def primaries(self) -> list[str]:
        """The run ids of the servers that are primaries now."""
        self.nodes_manager.initialize()
        infos = self.nodes_info("server").values()
        return [str(info["run_id"]) for info in infos if not isinstance(info, Exception)]

    def script_load(self, script: str) -> Any:
        """Load a script into each primary that answers."""
        sha = None
        for node in self.get_primaries():
            try:
                sha = self.get_redis_connection(node).script_load(script)
            except BROKEN:
                continue
        return sha

    # Commands

    def node_of(self, slot: int) -> Any:
        """The primary of a slot, as far as this client knows. Raises RedisClusterException if none is known."""
        nodes = self.nodes_manager.slots_cache.get(slot)
        return nodes[0] if nodes else self.nodes_manager.get_node_from_slot(slot)

    def by_node(self, keys: Iterable[str]) -> dict[str, list[str]]:
        """The keys that each node has, by its address."""
        found: dict[str, list[str]] = {}
        for key in keys:
            found.setdefault(self.node_of(slot_of(key)).name, []).append(key)
        return found

    def execute_command(self, *command: Any, **options: Any) -> Any:
        """As redis-py's, without asking a server where the keys of a command are."""
        if command[0] in self.command_flags and command[0] not in _KEYLESS:
            return super().execute_command(*command, **options)
        if not options.keys().isdisjoint(("target_nodes", EMPTY_RESPONSE, NEVER_DECODE)):
            return super().execute_command(*command, **options)
        return self.converted(command, self.execute(*command), options)

    def execute(self, *command: Any) -> Any:
        """The reply to a command with a key as it is, not converted for redis-py's callers."""
        [reply] = self.execute_all([command])
        if isinstance(reply, Exception):
            raise reply
        return reply

    def execute_all(self, commands: Sequence[Sequence[Any]], *, repeat: bool = True) -> list[Any]:
        """The replies of `sending_all`."""
        return PendingReplies(self.sending_all(commands, repeat=repeat)).result()

    def sending_all(self, commands: Sequence[Sequence[Any]], *, repeat: bool = True) -> Sending[list[Any]]:
        """Send each command to its node and return the replies in the order of the commands, an error as an exception.

        Commands for one node are executed in order, unless slots move or the connection breaks meanwhile: then some
        come later than their successors. A command may have been executed twice if its connection broke; with `repeat`
        false it has an error instead.
        """
        replies: list[Any] = [None] * len(commands)
        by_node: dict[str, tuple[ClusterNode, list[int]]] = {}
        slots = slots_of(commands)
        for place, slot in enumerate(slots):
            try:
                node = self.node_of(slot)
            except redis.exceptions.RedisClusterException as error:
                replies[place] = redis.exceptions.ConnectionError(str(error))
                continue
            by_node.setdefault(node.name, (node, []))[1].append(place)
        yield from self._exchanging(commands, by_node.values(), replies)
        for _, places in by_node.values():
            self._repeat(commands, slots, replies, places, (*REDIRECTED, *BROKEN) if repeat else REDIRECTED)
        return replies

    def try_at_once(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Send commands for one slot to its node over one connection, and return the replies, an error as an
        exception. No redirection is followed, and nothing is repeated."""
        replies: list[Any] = [None] * len(commands)
        self._exchange(commands, [(self.node_of(slots_of(commands)[0]), list(range(len(commands))))], replies)
        return replies

    def times_ms(self, keys: Sequence[str]) -> dict[str, int]:
        """The clock of the node of each key. Keys of nodes that do not answer are left out; raises the error of one if
        none does."""
        by_node = self.by_node(keys)
        slots = [slot_of(of_node[0]) for of_node in by_node.values()]
        commands = [("TIME",)] * len(slots)
        replies: list[Any] = [None] * len(slots)
        self._exchange(commands, [(self.node_of(slot), [at]) for at, slot in enumerate(slots)], replies)
        found: dict[str, int] = {}
        for at, of_node in enumerate(by_node.values()):
            self._repeat(commands, slots, replies, [at], (*REDIRECTED, *BROKEN))
            if not isinstance(reply := replies[at], Exception):
                found |= dict.fromkeys(of_node, int(reply[0]) * 1000 + int(reply[1]) // 1000)
        if keys and not found:
            raise replies[0]
        return found

    def _exchange(
        self,
        commands: Sequence[Sequence[Any]],
        parts: Iterable[tuple[ClusterNode, list[int]]],
        replies: list[Any],
        *,
        asking: bool = False,
    ) -> None:
        PendingReplies(self._exchanging(commands, parts, replies, asking=asking)).result()

    def _exchanging(
        self,
        commands: Sequence[Sequence[Any]],
        parts: Iterable[tuple[ClusterNode, list[int]]],
        replies: list[Any],
        *,
        asking: bool = False,
    ) -> Sending[None]:
        """Send all, then read all. `asking`: the commands were redirected to a node that is about to get their slot."""
        sent: list[tuple[ClusterNode, Any, list[int]]] = []
        try:
            for node, places in parts:
                packed = b"".join(_packed(commands[place]) for place in places)
                try:
                    connection = self._take(node)
                    sent.append((node, connection, places))
                    connection.send_packed_command((_ASKING + packed if asking else packed,))
                except BROKEN as error:
                    _fail(replies, places, error)
            yield
            for _, connection, places in sent:
                if replies[places[0]] is None:
                    _read(connection, places, replies, skip=int(asking))
        except BaseException:
            for _, connection, _ in sent:
                connection.disconnect()  # replies may be left in it
            raise
        for node, connection, places in sent:
            if isinstance(replies[places[-1]], BROKEN):
                connection.disconnect()
            else:
                self._idle.setdefault(node.name, []).append(connection)

    def _take(self, node: ClusterNode) -> Any:
        """A connection to a node. A process that was forked has its own."""
        if self._pid != os.getpid():
            self._idle, self._pid = {}, os.getpid()
        try:
            return self._idle[node.name].pop()
        except (KeyError, IndexError):
            return self._connected(node)

    def _connected(self, node: ClusterNode, **options: Any) -> Any:
        """A new connection. One to a node that did not accept one just now is not tried: calls for other nodes would
        wait for it."""
        until_s, error = self._refused.get(node.name, (0.0, None))
        if error is not None and time.monotonic() < until_s:
            raise error
        pool = self.get_redis_connection(node).connection_pool
        connection = pool.connection_class(**{**pool.connection_kwargs, **options})
        try:
            connection.connect()
        except BROKEN as refusal:
            self._refused[node.name] = (time.monotonic() + CONNECT_AGAIN_S, refusal)
            raise
        self._refused.pop(node.name, None)
        return connection

    def connection_to(self, address: str, **options: Any) -> Any:
        """A new connection to a node that this client knows. Raises redis-py's errors."""
        node = self.get_node(node_name=address)
        if node is None:
            raise redis.exceptions.ConnectionError(f"the cluster has no node {address} any more")
        return self._connected(node, **options)

    def _repeat(
        self,
        commands: Sequence[Sequence[Any]],
        slots: Sequence[int],
        replies: list[Any],
        places: Sequence[int],
        errors: tuple[Any, ...],
    ) -> None:
        """Send again, one by one, the commands of a node that have one of these errors. If it does not answer again,
        the rest is not sent: each would wait."""
        silent: Exception | None = None
        for place in places:
            before = replies[place]
            if not isinstance(before, errors):
                continue
            if isinstance(before, BROKEN):
                reply = replies[place] = silent or self._followed(commands[place], slots[place], before)
                silent = reply if isinstance(reply, BROKEN) else None
            else:
                replies[place] = self._followed(commands[place], slots[place], before)

    def _followed(self, command: Sequence[Any], slot: int, reply: Any) -> Any:
        """The reply to a command after its redirections and repetitions. `reply` is the first one."""
        breaks = 0
        for redirections in range(MOST_REDIRECTIONS):
            if redirections > 4:  # the nodes do not agree yet
                sleep(TRY_AGAIN_S)
            asked: ClusterNode | None = None
            match reply:
                case redis.exceptions.MovedError():
                    self.nodes_manager.move_slot(reply)
                case redis.exceptions.AskError():
                    asked = self.nodes_manager.get_node(host=reply.host, port=reply.port)
                    asked = asked or _Node(reply.host, reply.port, PRIMARY)
                case redis.exceptions.TryAgainError():
                    sleep(TRY_AGAIN_S)
                case _ if isinstance(reply, (redis.exceptions.ClusterDownError, *BROKEN)):
                    breaks += 1
                    if breaks > max(1, self.retry.get_retries()):
                        return reply
                    if (error := self._look_again(slot)) is not None:
                        return error
                case _:
                    return reply
            replies: list[Any] = [None]
            self._exchange([command], [(asked or self.node_of(slot), [0])], replies, asking=asked is not None)
            reply = replies[0]
        return reply

    def look_again(self) -> None:
        """Ask the nodes who serves which slots, at most once per LOOK_AGAIN_S. Raises ConnectionError if none
        answers."""
        if time.monotonic() - self._looked_s < LOOK_AGAIN_S:
            return
        try:
            self.nodes_manager.initialize()
        except redis.exceptions.RedisClusterException as error:
            raise redis.exceptions.ConnectionError(str(error)) from error
        self._looked_s = time.monotonic()

    def _look_again(self, slot: int) -> Exception | None:
        """Look again, and return an error if no node answers, or none serves this slot."""
        try:
            self.look_again()
            self.node_of(slot)
        except redis.exceptions.ConnectionError as error:
            return error
        except redis.exceptions.RedisClusterException as error:
            return redis.exceptions.ConnectionError(str(error))
        return None

    # Pipelines and streams

    def pipeline(self, transaction: bool | None = True, shard_hint: Any = None) -> Any:
        """A transaction is redis-py's, of keys in one slot. Other pipelines may have commands for any nodes."""
        return super().pipeline(transaction=True) if transaction else RoutedPipeline(self)

    def _split_command_across_slots(self, command: str, *keys: Any) -> int:
        """Of redis-py: EXISTS, DEL and UNLINK of keys in any slots."""
        pipe: Any = RoutedPipeline(self)
        for key in keys:
            pipe.execute_command(command, key)
        return sum(pipe.execute())

    def xread(self, streams: Mapping[str, str], count: int | None = None, block: int | None = None) -> Any:
        """As of one Redis, for streams in any slots. Those of several are looked at again and again while it waits."""
        if len({slot_of(key) for key in streams}) == 1:
            return super().xread(dict(streams), count=count, block=block)
        until_s = None if block is None else time.monotonic() + block / 1000
        poll_s = max(POLL_S, len(streams) * POLL_S / 25)
        while True:
            pipe: Any = RoutedPipeline(self)
            for key, after in streams.items():
                pipe.xread({key: after}, count=count)
            found = {name: entries for reply in pipe.execute() for name, entries in dict(reply or {}).items()}
            if found or until_s is None or time.monotonic() >= until_s:
                return found
            sleep(min(poll_s, max(0.0, until_s - time.monotonic())))

    @functools.cached_property
    def callbacks(self) -> Any:
        """How replies are converted, by command."""
        return self.get_redis_connection(self.get_default_node()).response_callbacks

    def converted(self, command: Sequence[Any], reply: Any, options: Mapping[str, Any] | None = None) -> Any:
        """A reply as redis-py's callers expect it."""
        if (callback := self.callbacks.get(command[0])) is None:
            return reply
        return callback(reply, **{name: value for name, value in (options or {}).items() if name != "keys"})

    def close(self) -> None:
        """Close the connections. As one of another Redis, it connects again when it is used."""
        for connections in list(self._idle.values()):
            while connections:
                connections.pop().disconnect()
        for node in self.get_nodes():
            if node.redis_connection is not None:
                node.redis_connection.connection_pool.disconnect()


class RoutedPipeline(redis.client.Pipeline):
    """Commands for any nodes, sent at once. Not a transaction."""

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster
        pool = cluster.get_redis_connection(cluster.get_default_node()).connection_pool
        super().__init__(pool, cluster.callbacks, transaction=False, shard_hint=None)

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        commands, self.command_stack = self.command_stack, []
        replies = self._cluster.execute_all([command for command, _ in commands])
        if raise_on_error:
            for reply in replies:
                if isinstance(reply, Exception):
                    raise reply
        return [
            reply if isinstance(reply, Exception) else self._cluster.converted(command, reply, options)
            for (command, options), reply in zip(commands, replies, strict=True)
        ]


class ClusterLine:
    """As a FastClient (fast_client.py), with connections of a cluster's client to each node."""

    def __init__(self, client: ClusterClient) -> None:
        self.client = client

    def execute_command(self, *command: Any) -> Any:
        return self.client.execute(*command)

    def execute_commands(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        replies = self.client.execute_all(commands, repeat=False)
        for reply in replies:
            if isinstance(reply, BROKEN):
                raise reply
        return replies


def _packed(command: Sequence[Any]) -> bytes:
    """redis-py's names of some commands consist of two words."""
    name, *rest = command
    if name in _SCRIPTS:
        return bytes(pack_command(tuple(guarded(command))))
    return bytes(pack_command((*name.split(), *rest) if " " in name else tuple(command)))


def _read(connection: Any, places: list[int], replies: list[Any], *, skip: int) -> None:
    """Read the replies to these commands, after `skip` others."""
    try:
        for _ in range(skip):
            connection.read_response()
    except BROKEN as error:
        _fail(replies, places, error)
        return
    for at, place in enumerate(places):
        try:
            replies[place] = connection.read_response()
        except redis.exceptions.ResponseError as error:
            replies[place] = error
        except BROKEN as error:
            _fail(replies, places[at:], error)
            return


def _fail(replies: list[Any], places: Sequence[int], error: Exception) -> None:
    for place in places:
        replies[place] = error

"""Lua scripts by name. The header of each `lua/*.lua` file is its contract, and calls are checked against it.

    claim = LuaScript("claim")
    claim(client, keys={"run": ..., ...}, args={"seq": 1, ...}, rest=[...])

A missing or unknown name is a TypeError here instead of a nil in Lua. `rest` follows the named arguments and is only
allowed if the header declares `ARGV[n...]`; a script that declares `KEYS[1...]` takes a list of keys. Scripts are
called by digest; a server that lost its script cache (restart, failover) automatically gets the text again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, TypeAlias

import redis

from sleipnir import failpoints
from sleipnir.store.connect import Client
from sleipnir.store.fast_client import execute_all, sending_all
from sleipnir.store.guarded_scripts import guard
from sleipnir.store.pending_replies import PendingReplies, Sending

Arg: TypeAlias = str | bytes | int | float

KeyNames: TypeAlias = Mapping[str, str] | Sequence[str]
"""Keys by declared name; a list if the header declares `KEYS[1...]`."""

SILENT = (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError, redis.exceptions.ClusterDownError)
"""The errors of a Redis, or of a node of a cluster, that does not answer."""

_SHARED = re.compile(r"^-- shared: (\w+)$", re.MULTILINE)

_SLOT = re.compile(r"^-- (KEYS|ARGV)\[(\d+)(\.\.\.)?\]\s+(\w+)", re.MULTILINE)


class LuaScript:
    """One Lua file. `keys` and `args` are the declared names in order; `has_rest`: more arguments may follow;
    `has_many_keys`: its one key name stands for a list. A line `-- shared: NAME` of the file stands for the text of
    `lua/shared/NAME.lua`."""

    def __init__(self, name: str) -> None:
        self.name = name
        folder = resources.files("sleipnir.store") / "lua"
        text = (folder / f"{name}.lua").read_text()
        self.text = _SHARED.sub(lambda found: (folder / "shared" / f"{found[1]}.lua").read_text(), text)
        self.sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()
        slots = _SLOT.findall(self.text)
        self.keys = tuple(slot[3] for slot in slots if slot[0] == "KEYS")
        self.args = tuple(slot[3] for slot in slots if slot[0] == "ARGV" and not slot[2])
        self.has_rest = any(slot[2] for slot in slots if slot[0] == "ARGV")
        self.has_many_keys = any(slot[2] for slot in slots if slot[0] == "KEYS")
        self._key_names, self._arg_names = frozenset(self.keys), frozenset(self.args)
        if not self.has_many_keys:
            guard(self.sha, self.text)

    def vector(self, keys: KeyNames, args: Mapping[str, Arg], rest: Sequence[Arg] = ()) -> list[Arg]:
        """Keys and arguments in declared order. Raises TypeError if a name is missing or not declared."""
        if not self._takes(keys) or args.keys() != self._arg_names or (rest and not self.has_rest):
            raise TypeError(
                f"script {self.name!r} takes keys {self.keys} and args {self.args}"
                f"{' and more' if self.has_rest else ''}, "
                f"got keys {tuple(keys)} and args {tuple(args)} and {len(rest)} more"
            )
        in_order = keys if self.has_many_keys else map(keys.__getitem__, self.keys)
        return [*in_order, *map(args.__getitem__, self.args), *rest]

    def _takes(self, keys: KeyNames) -> bool:
        if isinstance(keys, Mapping):
            return not self.has_many_keys and keys.keys() == self._key_names
        return self.has_many_keys

    @failpoints.around(lambda script, *_, **__: script.name)
    def __call__(self, client: Client, keys: KeyNames, args: Mapping[str, Arg], rest: Sequence[Arg] = ()) -> Any:
        vector = self.vector(keys, args, rest)
        try:
            return client.execute_command("EVALSHA", self.sha, len(keys), *vector)
        except redis.exceptions.NoScriptError:
            return client.execute_command("EVAL", self.text, len(keys), *vector)

    def load(self, client: Client) -> None:
        """Load the text into the server's script cache, which pipelines need."""
        client.script_load(self.text)


def run_batch(client: Client, script: LuaScript, vectors: Sequence[Sequence[Arg]]) -> list[Any]:
    """One script with many argument vectors (from `script.vector`) in one round trip; results in order.

    Not a transaction: each call is atomic by itself. A result may be an exception of redis-py.
    """
    return PendingReplies(sending_batch(client, script, vectors)).result()


def sending_batch(client: Client, script: LuaScript, vectors: Sequence[Sequence[Arg]]) -> Sending[list[Any]]:
    """The same, for PendingReplies."""
    if not vectors:
        return []
    results = yield from _sending(client, script, vectors)
    if any(isinstance(result, redis.exceptions.NoScriptError) for result in results):
        script.load(client)
        missing = [i for i, result in enumerate(results) if isinstance(result, redis.exceptions.NoScriptError)]
        again = yield from _sending(client, script, [vectors[i] for i in missing])
        for i, result in zip(missing, again, strict=True):
            results[i] = result
    return results


def checked(reply: Any) -> Any:
    """A reply of `run_batch` or `run_in_order`; raises it if it is an exception."""
    if isinstance(reply, Exception):
        raise reply
    return reply


def answers(replies: Sequence[Any], missing: Any) -> list[Any]:
    """The replies of calls for several partitions, with `missing` for those of a cluster's nodes that do not answer.
    Raises the error of one if none answers, and any other error."""
    silent = [reply for reply in replies if isinstance(reply, SILENT)]
    if silent and len(silent) == len(replies):
        raise silent[0]
    return [missing if isinstance(reply, SILENT) else checked(reply) for reply in replies]


@dataclass(frozen=True)
class RedisCommand:
    """A call of a script, or (`script` None) a command of Redis; `vector` are its arguments, of which `keys` are keys
    if the script takes any number."""

    script: LuaScript | None
    vector: Sequence[Arg]
    keys: int | None = None

    @property
    def words(self) -> tuple[Arg, ...]:
        if self.script is None:
            return tuple(self.vector)
        return ("EVALSHA", self.script.sha, self.keys or len(self.script.keys), *self.vector)


def run_in_order(client: Client, commands: Sequence[RedisCommand]) -> list[Any]:
    """Calls of several scripts, in order, in one round trip; results in order.

    Not a transaction: each call is atomic by itself. A result may be an exception of redis-py. Each must be safe to
    repeat: if the server has lost its scripts, all calls are repeated, because later ones may depend on earlier ones.
    """
    if not commands:
        return []
    scripts = {each.script.name: each.script for each in commands if each.script is not None}
    for name in scripts:
        failpoints.hit(f"{name}.before")
    results = _send_all(client, commands)
    if any(isinstance(result, redis.exceptions.NoScriptError) for result in results):
        for script in scripts.values():
            script.load(client)
        results = _send_all(client, commands)
    for name in scripts:
        failpoints.hit(f"{name}.after")
    return results


def _send_all(client: Client, commands: Sequence[RedisCommand]) -> list[Any]:
    return execute_all(client, [command.words for command in commands])


def _sending(client: Client, script: LuaScript, vectors: Sequence[Sequence[Arg]]) -> Sending[list[Any]]:
    head = ("EVALSHA", script.sha, len(script.keys))
    failpoints.hit(f"{script.name}.before")
    replies = yield from sending_all(client, [(*head, *vector) for vector in vectors])
    failpoints.hit(f"{script.name}.after")
    return replies

"""The number of partitions of a deployment. The first process that starts stores it, and it never changes: the
partition of a run, and so the names of its keys, follow from it. Every other process uses the stored number.

Starting a private stack needs this module at once, so it imports little.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sleipnir.errors import ConfigError

if TYPE_CHECKING:
    from sleipnir.store.connect import Client

FEWEST = 16
"""Of a new deployment. One of an earlier release may have fewer, and keeps them."""
DEFAULT = 256
PRIVATE = 16
"""Of the Redis that Sleipnir starts for one machine: more would only cost its one scheduler idle work."""
UNSTORED = 16
"""Of data whose stored number is lost: the default of the releases that stored one at every start."""


def meta_key(prefix: str) -> str:
    return f"{prefix}:meta"


def agreed_partitions(client: Client, prefix: str, owner: str, wanted: int | None, *, may_create: bool = True) -> int:
    """The number of this deployment. A new one gets `wanted`, or the default; without `may_create` nothing is stored.
    `owner` is a key that exists since the first scheduler started. Raises ConfigError if another number is `wanted`, or
    too few for a new deployment."""
    number = _stored(client, prefix)
    if number is None:
        number = _first_number(wanted, is_new=not client.exists(owner))
        if may_create:
            offer_partitions(client, prefix, number)
            number = _stored(client, prefix) or number  # another process may have been first
    if wanted not in (None, number):
        raise ConfigError(
            f"this deployment was created with {number} partitions, but SLEIPNIR_PARTITIONS is {wanted}; the number "
            f"cannot change. Set SLEIPNIR_PARTITIONS={number}, or leave it out."
        )
    return number


def offer_partitions(client: Client, prefix: str, number: int) -> None:
    """Store the number, unless there is one."""
    client.hsetnx(meta_key(prefix), "partitions", str(number))


def _first_number(wanted: int | None, *, is_new: bool) -> int:
    if not is_new:
        return wanted or UNSTORED
    if wanted is not None and wanted < FEWEST:
        raise ConfigError(
            f"SLEIPNIR_PARTITIONS={wanted}: a new deployment has from {FEWEST} to 4,096 partitions; leave it out for "
            f"{DEFAULT}"
        )
    return wanted or DEFAULT


def _stored(client: Client, prefix: str) -> int | None:
    text = client.hget(meta_key(prefix), "partitions")
    return int(text) if text else None

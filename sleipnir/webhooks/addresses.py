"""Where a request of Sleipnir's own may go: to public addresses, and to the private networks that the operator of the
deployment names."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Final, TypeAlias

from sleipnir.errors import ConfigError

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")


@dataclass(frozen=True)
class AddressGuard:
    """Private networks to which requests may go, and the setting that names them."""

    networks: tuple[Network, ...] = ()
    setting: str = "SLEIPNIR_WEBHOOK_NETWORKS"

    @classmethod
    def of(cls, text: str, setting: str = "SLEIPNIR_WEBHOOK_NETWORKS") -> AddressGuard:
        """Addresses and networks with commas between. Raises ConfigError."""
        try:
            parts = [part.strip() for part in text.split(",") if part.strip()]
            return cls(tuple(ipaddress.ip_network(part) for part in parts), setting)
        except ValueError as error:
            raise ConfigError(f"{setting}={text[:200]!r}: {error}") from None

    def problem(self, address: str, scheme: str) -> str | None:
        """Why a request must not go to this address; None: it may."""
        ip = ipaddress.ip_address(address.partition("%")[0])
        if any(ip in network for network in self.networks if network.version == ip.version):
            return None
        if is_private(ip):
            return f"{address} is not a public address: {self.setting} names those that are allowed"
        return None if scheme == "https" else "http:// goes to allowed private networks only: use https://"


def is_private(ip: Address) -> bool:
    """Whether an address is not public: of this machine, of a private network, multicast or reserved. One that stands
    for another one is as private as that."""
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if ip in _NAT64:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is not None:
            return is_private(inner)
        if ip.is_site_local:
            return True
    return not ip.is_global or ip.is_multicast or ip.is_reserved

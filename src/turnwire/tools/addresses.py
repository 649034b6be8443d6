"""Which addresses belong to the public internet, and which ones a name stands for.

What is behind a server (its own ports, its private network, the metadata service of its cloud) trusts it, so an address
that a model or a web page names is reached only if anybody could reach it. The standard library's own idea of a public
address differs between versions of Python: what matters is written out here and asked in addition.
"""

import asyncio
import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

from turnwire.core.errors import ToolError

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_NOT_PUBLIC_V4 = tuple(
    IPv4Network(one)
    for one in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",
        "100.64.0.0/10",  # carrier-grade NAT, and the metadata service of Alibaba
        "127.0.0.0/8",
        "168.63.129.16/32",  # Azure's own services: a public address that is not
        "169.254.0.0/16",  # link-local, and the metadata service of most clouds
        "172.16.0.0/12",
        "192.0.0.0/24",  # protocol assignments, and the metadata service of Oracle
        "192.0.2.0/24",
        "192.88.99.0/24",  # relays of 6to4
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/3",  # multicast, reserved, broadcast
    )
)
_UNICAST_V6 = IPv6Network("2000::/3")
_NOT_PUBLIC_V6 = tuple(IPv6Network(one) for one in ("2001::/23", "2001:db8::/32", "3fff::/20"))
_NAT64 = IPv6Network("64:ff9b::/96")


def is_public(address: Address) -> bool:
    """An IPv6 address that leads to an IPv4 one is as public as that."""
    if isinstance(address, IPv4Address):
        return address.is_global and not any(address in network for network in _NOT_PUBLIC_V4)
    inner = _embedded(address)
    if inner is not None:
        return is_public(inner)
    return address in _UNICAST_V6 and address.is_global and not any(address in network for network in _NOT_PUBLIC_V6)


def _embedded(address: IPv6Address) -> IPv4Address | None:
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour


async def resolve(host: str, port: int, allowed: Sequence[Network]) -> list[Address]:
    """The addresses of a host, every one of them public or allowed. Raises ToolError.

    One that is not makes all of them void: such a name was made to get past this check. They are to be connected to as
    they are, because the name may stand for others when it is looked up again.
    """
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = [ip_address(place[0]) for *_, place in found]
    except (OSError, ValueError):
        raise ToolError(f"there is no host {host!r}; check the URL") from None
    for address in addresses:
        if not is_public(address) and not any(address in network for network in allowed):
            # Which address it is stays untold: it says how the network behind this server is built.
            raise ToolError(f"{host!r} is not on the public internet and may not be fetched from")
    return list(dict.fromkeys(addresses))

"""The store host that goes into every record: the setting ``advertise``, else this machine's first own address."""

from __future__ import annotations

import ipaddress
import socket

from service.settings import Settings
from tiering.format.record import encode_host


def store_host(settings: Settings) -> bytes:
    """IP and port as a record holds them: 8 bytes with IPv4, 20 with IPv6."""
    if settings.advertise is not None:
        host, _, port = settings.advertise.rpartition(":")
        return encode_host(ipaddress.ip_address(host.strip("[]")).packed, int(port))
    return encode_host(_first_address(), settings.serve.port)


def _first_address() -> bytes:
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)
    except OSError:
        found = []
    addresses = [ipaddress.IPv4Address(info[4][0]) for info in found]
    return next(
        (address for address in addresses if not address.is_loopback), ipaddress.IPv4Address("127.0.0.1")
    ).packed

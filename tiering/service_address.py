"""Where a running service is: its URL, taken apart once for all clients."""

from __future__ import annotations

import http.client
import ipaddress
import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

from tiering.errors import InvalidRequestError

_HINT = "for example http://127.0.0.1:8080"


@dataclass(frozen=True, slots=True)
class ServiceAddress:
    """A base URL; calls go below ``prefix``."""

    is_tls: bool
    host: str
    port: int | None
    prefix: str

    @classmethod
    def parse(cls, url: str) -> ServiceAddress:
        """An http or https URL, ``http://`` understood; :class:`InvalidRequestError` for anything else.

        A user name or password in it is refused: it would end in logs.
        """
        parts = urlsplit(url if "://" in url else f"http://{url}")
        try:
            port = parts.port
        except ValueError as error:
            raise InvalidRequestError(f"{url!r} has no valid port") from error
        if "@" in parts.netloc:
            raise InvalidRequestError("the URL of a service has no user name and no password", hint=_HINT)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise InvalidRequestError(f"{url!r} is not the URL of a service", hint=_HINT)
        return cls(parts.scheme == "https", parts.hostname, port, parts.path.rstrip("/"))

    @property
    def is_private(self) -> bool:
        """Whether nobody on the way can read what is sent: it is encrypted, or does not leave the machine."""
        if self.is_tls or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host.partition("%")[0]).is_loopback
        except ValueError:
            return False

    def connect(self, timeout_s: float, tls: ssl.SSLContext | None = None) -> http.client.HTTPConnection:
        """A connection that is not open yet; each of its steps may take so long. ``tls`` checks who answers."""
        if self.is_tls:
            return http.client.HTTPSConnection(self.host, self.port, timeout=timeout_s, context=tls)
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port is None else f":{self.port}"
        return f"{'https' if self.is_tls else 'http'}://{host}{port}{self.prefix}"

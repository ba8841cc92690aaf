"""The address of a running service, and what its client brings: a token, and the certificates that it trusts.

:func:`warn_if_open` is about all files with secrets, those of a service too.
"""

from __future__ import annotations

import http.client
import ipaddress
import logging
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from tierlog.tiering.base.errors import InvalidRequestError

_HINT = "for example http://127.0.0.1:8080"
TOKEN, TOKEN_FILE, CA_FILE = "TIERLOG_TOKEN", "TIERLOG_TOKEN_FILE", "TIERLOG_CA_FILE"
CLIENT_CERTIFICATE, CLIENT_KEY = "TIERLOG_CLIENT_CERTIFICATE", "TIERLOG_CLIENT_KEY"
TOKEN_OVER_HTTP = "TIERLOG_TOKEN_OVER_HTTP"
_MAX_TOKEN = 4096
_LOG = logging.getLogger("tierlog")
_OTHERS, _GROUP = 0o007, 0o070
_told: set[Path] = set()


@dataclass(frozen=True, slots=True)
class ServiceAddress:
    """The base URL of a service, taken apart; calls go below ``prefix``."""

    is_tls: bool
    host: str
    port: int | None
    prefix: str

    @classmethod
    def parse(cls, url: str) -> ServiceAddress:
        """Parses an http or https URL, ``http://`` understood; :class:`InvalidRequestError` for anything else.

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
        """Returns a connection that is not open yet; each of its steps may take so long. ``tls`` checks who answers."""
        if self.is_tls:
            return http.client.HTTPSConnection(self.host, self.port, timeout=timeout_s, context=tls)
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port is None else f":{self.port}"
        return f"{'https' if self.is_tls else 'http'}://{host}{port}{self.prefix}"


@dataclass(frozen=True, slots=True)
class ServiceAccess:
    """The credentials and checks of every request. The token is never shown, not even in an error."""

    token: str | None = field(default=None, repr=False)
    ca_file: Path | None = None
    """Authorities that may have signed the service's certificate; None: those that the machine trusts."""
    certificate: Path | None = None
    """Of the client, with its key, for a service that asks for one."""
    key: Path | None = None
    is_token_for_all: bool = False
    """Whether the token may go unencrypted over a network, where anybody on the way can take it."""

    @classmethod
    def of(
        cls,
        environment: Mapping[str, str] | None = None,
        *,
        token_file: Path | None = None,
        ca_file: Path | None = None,
    ) -> ServiceAccess:
        """Reads the environment, before which flags go.

        The variables are ``TIERLOG_TOKEN`` or ``TIERLOG_TOKEN_FILE``, ``TIERLOG_CA_FILE``,
        ``TIERLOG_CLIENT_CERTIFICATE``, ``TIERLOG_CLIENT_KEY`` and ``TIERLOG_TOKEN_OVER_HTTP``.
        """
        given = os.environ if environment is None else environment
        token: str | None = given.get(TOKEN)
        path = token_file or (None if token else _path(given, TOKEN_FILE))
        return cls(
            _checked(token if path is None else _read(path)),
            ca_file or _path(given, CA_FILE),
            _path(given, CLIENT_CERTIFICATE),
            _path(given, CLIENT_KEY),
            given.get(TOKEN_OVER_HTTP, "") not in ("", "0", "false"),
        )

    def headers(self, *, is_private: bool) -> dict[str, str]:
        """Returns what a request has to carry; ``is_private``: it is encrypted, or never leaves the machine.

        :class:`InvalidRequestError` for a token that would be readable on the way.
        """
        if self.token is None:
            return {}
        if not is_private and not self.is_token_for_all:
            raise InvalidRequestError(
                "a token is not sent over plain HTTP, where anybody on the way can read it",
                hint=f"use https, or set {TOKEN_OVER_HTTP}=1 in a network that you trust",
            )
        return {"Authorization": f"Bearer {self.token}"}

    def tls(self) -> ssl.SSLContext:
        """Checks the service's certificate and name; :class:`InvalidRequestError` for a file that is no use."""
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
        except OSError as error:
            raise _unusable(error, self.ca_file) from error
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.certificate is not None:
            warn_if_open(self.key or self.certificate, "the key of the client's certificate")
            try:
                context.load_cert_chain(self.certificate, self.key)
            except OSError as error:
                raise _unusable(error, self.certificate) from error
        return context


def _unusable(error: OSError, path: Path | None) -> InvalidRequestError:
    words = error.reason if isinstance(error, ssl.SSLError) else error.strerror
    return InvalidRequestError(
        f"cannot use the certificates: {words or error}", path=None if path is None else str(path)
    )


def _path(given: Mapping[str, str], name: str) -> Path | None:
    return Path(given[name]) if given.get(name) else None


def _read(path: Path) -> str:
    warn_if_open(path, "the token")
    try:
        return path.read_text(encoding="ascii")
    except OSError as error:
        raise InvalidRequestError(f"cannot read the token: {error.strerror}", path=str(path)) from error
    except UnicodeDecodeError:
        raise InvalidRequestError("there is no token in it", path=str(path)) from None


def _checked(token: str | None) -> str | None:
    """Returns the token without the line end of its file. Errors about a malformed token do not repeat it."""
    if token is None or not token.strip():
        return None
    token = token.strip()
    if len(token) > _MAX_TOKEN or not token.isascii() or not all("!" <= letter <= "~" for letter in token):
        raise InvalidRequestError("the token is not one: it has to be one line of printable ASCII without spaces")
    return token


def warn_if_open(path: Path, what: str) -> None:
    """Warns if anybody may read or write ``path``, or its group may though the file is our own.

    A secret that Kubernetes mounts is root's, and the process reads it by its group.
    """
    try:
        found = os.stat(path)
    except OSError:
        return  # whoever reads it says why that fails
    mask = _OTHERS | (_GROUP if found.st_uid == os.geteuid() else 0)
    if found.st_mode & mask and path not in _told:
        _told.add(path)
        _LOG.warning("others on this machine may read %s: chmod 600 %s", what, path)

"""The certificate that the service shows, and the clients' certificates it asks for."""

from __future__ import annotations

import logging
import os
import ssl
from pathlib import Path

from tierlog.service.config.serve import ServeSettings
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.fs import is_scarcity
from tierlog.tiering.base.secret_files import warn_if_open

_LOG = logging.getLogger("tierlog")
_Stamps = list[tuple[int, int, int] | None]


class ServerTls:
    """A TLS context, 1.2 or newer, whose certificate follows its files. For one thread."""

    def __init__(self, certificate: Path, key: Path | None, client_ca: Path | None) -> None:
        """``key`` None: it stands in the certificate's file. With ``client_ca``, a client without a certificate that
        it signed gets no connection.

        :class:`InvalidRequestError` says which file is missing, is not what it should be, or does not fit.
        """
        self._certificate = certificate
        self._key = key
        self._stamps = self._stamps_now()
        self.context = _context()
        self._load(self.context)
        if client_ca is not None:
            self.context.verify_mode = ssl.CERT_REQUIRED
            load_authorities(self.context, client_ca)

    @classmethod
    def of(cls, settings: ServeSettings) -> ServerTls | None:
        """Makes what the settings say, None for plain HTTP."""
        if settings.tls_certificate is None:
            return None
        key, client_ca = settings.tls_key, settings.tls_client_ca
        return cls(
            Path(settings.tls_certificate),
            None if key is None else Path(key),
            None if client_ca is None else Path(client_ca),
        )

    def shown(self, *_: object) -> ssl.SSLContext:
        """Returns the context, for a server that would rather make its own."""
        return self.context

    def refresh(self) -> None:
        """Takes a new certificate for connections to come, if its files have changed.

        Files that do not fit, because only one of the two was replaced so far or for good, change nothing; an error is
        logged once for each change. Files for which there is no descriptor now are looked at again the next time.
        """
        stamps = self._stamps_now()
        if stamps == self._stamps:
            return
        before, self._stamps = self._stamps, stamps
        try:
            self._load(_context())  # a context that refused a key may already have the new certificate
            self._load(self.context)
        except InvalidRequestError as error:
            _LOG.error("the certificate stays as it was: %s", error)
            if is_scarcity(error.__cause__):
                self._stamps = before
        else:
            _LOG.warning("took a new certificate from %s", self._certificate)

    def _stamps_now(self) -> _Stamps:
        return [_stamp(path) for path in (self._certificate, self._key) if path is not None]

    def _load(self, context: ssl.SSLContext) -> None:
        for path in (self._certificate, self._key):
            if path is not None:
                _check_readable(path)
        warn_if_open(self._key or self._certificate, "the key of the certificate")
        try:
            context.load_cert_chain(self._certificate, self._key, password=_no_passphrase)
        except ssl.SSLError as error:
            key = self._key or self._certificate
            if error.reason == "KEY_VALUES_MISMATCH":
                raise InvalidRequestError(
                    f"the key is not that of the certificate {self._certificate}", path=str(key)
                ) from error
            raise InvalidRequestError(
                f"certificate and key cannot be read: {_reason(error)}",
                path=str(self._certificate),
                hint=f"both are PEM files; the key is read from {key}",
            ) from error
        except OSError as error:
            raise InvalidRequestError(
                f"certificate and key cannot be read: {error.strerror or error}", path=str(self._certificate)
            ) from error


def load_authorities(context: ssl.SSLContext, path: Path) -> None:
    """Trusts certificates that those in a PEM file signed; :class:`InvalidRequestError` for a bad file."""
    _check_readable(path)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise InvalidRequestError(f"there is no certificate in it: {_reason(error)}", path=str(path)) from error


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _check_readable(path: Path) -> None:
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise InvalidRequestError(f"cannot read it: {error.strerror or error}", path=str(path)) from error


def _no_passphrase() -> str:
    """Raises instead of asking on the terminal, which a service does not have."""
    raise InvalidRequestError("the key has a passphrase", hint="give a key without one, readable by the service alone")


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns

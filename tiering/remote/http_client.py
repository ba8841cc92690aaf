"""Speaks HTTP with running services, blocking: what a command, a job and a node that asks another have in common.

It opens connections, keeps up to a given number of them, sends the token, checks the certificate, and turns refusals
into errors again. What to ask, and what to make of a good answer, is up to its callers.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import threading
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from tierlog.tiering.base.backoff import Retries, TryAgain
from tierlog.tiering.base.clock import Clock, SystemClock
from tierlog.tiering.base.errors import CorruptionError, StoreError, UnavailableError
from tierlog.tiering.remote.endpoint import ServiceAccess, ServiceAddress
from tierlog.tiering.remote.problems import LATER, refusal, retry_after_s

#: A connection that nobody used for longer may have ended without a word, at a router or a balancer in between.
_IDLE_S = 15.0
#: A service that asks for more patience than this is not waited for.
_MOST_ASKED_FOR_S = 60.0


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """The answer of a service; ``headers`` by their names in lower case."""

    address: ServiceAddress
    status: int
    headers: Mapping[str, str]
    content: bytes

    def document(self) -> dict[str, Any] | None:
        """Returns the JSON object that it is, None if it is none."""
        try:
            document = json.loads(self.content)
        except (ValueError, RecursionError):
            return None
        return document if isinstance(document, dict) else None

    def error(self) -> StoreError | None:
        """Returns the error that it tells of, None for a good answer. Redirects are errors."""
        return None if self.status < 300 else refusal(self.status, self.document(), str(self.address))


class HttpClient:
    """Asks services at any address. Thread safe.

    Up to ``kept`` connections to each are kept for some seconds while nobody uses them; more are opened where more ask
    at once, and closed afterwards. With none, each request has a connection of its own.
    """

    def __init__(
        self,
        access: ServiceAccess | None,
        timeout_s: float,
        *,
        kept: int = 0,
        most_bytes: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Connects to nothing yet. ``timeout_s`` bounds each step of a call, ``most_bytes`` the body of an answer.

        ``access`` None is that of the environment, looked at again each time: a mounted secret may have changed.
        """
        self._access = access
        self._timeout_s = timeout_s
        self._kept = kept
        self._most_bytes = most_bytes
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._idle: dict[ServiceAddress, list[_Idle]] = {}
        # a thread that nobody waits for may still hand a connection back after close()
        weakref.finalize(self, _close_all, self._idle)
        self._tls: ssl.SSLContext | None = None

    def check_certificates(self, address: ServiceAddress) -> None:
        """Raises :class:`InvalidRequestError` now if a file that checks who answers is no use."""
        self._tls_for(address)

    def close(self) -> None:
        """Closes the connections that nobody uses; the next call opens another. Idempotent."""
        with self._lock:
            _close_all(self._idle)

    def ask(
        self,
        address: ServiceAddress,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        timeout_s: float | None = None,
        connect_s: float | None = None,
        is_repeatable: bool = False,
    ) -> HttpAnswer:
        """Returns what the service says, whatever it says.

        A GET, and what else the caller says is repeatable, is sent once more if the service had closed the kept
        connection meanwhile. ``connect_s`` bounds connecting where that is to take less than an answer. Raises
        :class:`UnavailableError` if there is no answer, :class:`CorruptionError` for a body that is too long and
        :class:`InvalidRequestError` for a token that would go over a network unencrypted.
        """
        sent = self._headers(address, headers, is_kept=self._kept > 0)
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        with _as_unavailable(address):
            # over a kept connection if there is one, which the service may have closed meanwhile
            kept = self._take(address, timeout_s)
            if kept is not None:
                try:
                    return self._ask(kept, address, method, path, body=body, headers=sent)
                except TimeoutError:  # the others have most likely died with it, and each would cost as long a wait
                    self._let_go(address)
                    raise
                except (ConnectionError, ssl.SSLError, http.client.HTTPException):
                    if method != "GET" and not is_repeatable:
                        raise
            # over a new one
            fresh = self._connect(address, timeout_s, connect_s)
            return self._ask(fresh, address, method, path, body=body, headers=sent)

    @contextlib.contextmanager
    def download(
        self, address: ServiceAddress, path: str, headers: Mapping[str, str]
    ) -> Iterator[http.client.HTTPResponse]:
        """Asks for an answer of any length, over a connection of its own, and gives it as a file to be read.

        Raises the error that the service answered with, and :class:`UnavailableError` if there is no answer, or if it
        breaks off while it is read.
        """
        with _as_unavailable(address):
            connection = self._connect(address, self._timeout_s, None)
            with contextlib.closing(connection):
                connection.request("GET", address.prefix + path, None, self._headers(address, headers, is_kept=False))
                answered = connection.getresponse()
                if answered.status >= 300:
                    refused = HttpAnswer(address, answered.status, {}, answered.read())
                    raise refused.error() or UnavailableError(f"{address} answered {answered.status}")
                yield answered

    def _headers(self, address: ServiceAddress, headers: Mapping[str, str] | None, *, is_kept: bool) -> dict[str, str]:
        """Returns what goes with a request."""
        access = self._access or ServiceAccess.of()
        return {
            "Accept": "application/json",
            **({} if is_kept else {"Connection": "close"}),
            **access.headers(is_private=address.is_private),
            **(headers or {}),
        }

    def ask_again(
        self,
        retries: Retries,
        address: ServiceAddress,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> HttpAnswer:
        """Returns a good answer to a repeatable request; waits while the service is silent or asks for patience.

        Raises the error that the service answered with, and what :meth:`ask` raises.
        """

        def tried() -> HttpAnswer:
            try:
                answer = self.ask(address, method, path, body, headers)
            except UnavailableError as silence:
                raise TryAgain(silence) from silence
            error, asked_for_s = answer.error(), retry_after_s(answer.headers)
            if error is None:
                return answer
            if (asked_for_s or 0) <= _MOST_ASKED_FOR_S and (answer.status in LATER or asked_for_s is not None):
                raise TryAgain(error, asked_for_s or 0)
            raise error

        return retries.run(tried)

    def _ask(
        self,
        connection: http.client.HTTPConnection,
        address: ServiceAddress,
        method: str,
        path: str,
        *,
        body: bytes | None,
        headers: Mapping[str, str],
    ) -> HttpAnswer:
        is_used_up, is_cut_off = True, False
        try:
            try:
                connection.request(method, address.prefix + path, body, dict(headers))
            except (BrokenPipeError, ConnectionResetError) as broken:
                answered, is_cut_off = _early_answer(connection, broken), True
            else:
                answered = connection.getresponse()
            most_bytes = self._most_bytes
            content = answered.read() if most_bytes is None else answered.read(most_bytes + 1)
            if most_bytes is not None and len(content) > most_bytes:
                raise CorruptionError(f"an answer has more than {most_bytes} bytes", path=f"{address}{path}")
            if answered.length:  # which a bounded read does not say by itself
                raise http.client.IncompleteRead(content, answered.length)
            is_used_up = is_cut_off or connection.sock is None or not answered.isclosed()
        finally:
            if is_used_up or not self._keep(address, connection):
                connection.close()
        by_name = {name.lower(): value for name, value in answered.getheaders()}
        return HttpAnswer(address, answered.status, by_name, content)

    def _take(self, address: ServiceAddress, timeout_s: float) -> http.client.HTTPConnection | None:
        with self._lock:
            idle = self._young(address)
            connection = idle.pop().connection if idle else None
        if connection is not None and connection.sock is not None:
            connection.sock.settimeout(timeout_s)
        return connection

    def _let_go(self, address: ServiceAddress) -> None:
        with self._lock:
            _close_all({address: self._idle.pop(address, [])})

    def _young(self, address: ServiceAddress) -> list[_Idle]:
        """The kept connections to an address that may be used, the newest last; the others are closed."""
        least_s = self._clock.monotonic_s() - _IDLE_S
        idle = self._idle.setdefault(address, [])
        while idle and idle[0].since_s < least_s:
            idle.pop(0).connection.close()
        return idle

    def _keep(self, address: ServiceAddress, connection: http.client.HTTPConnection) -> bool:
        with self._lock:
            idle = self._young(address)
            if len(idle) >= self._kept:
                return False
            idle.append(_Idle(connection, self._clock.monotonic_s()))
            return True

    def _connect(
        self, address: ServiceAddress, timeout_s: float, connect_s: float | None
    ) -> http.client.HTTPConnection:
        connection = address.connect(timeout_s if connect_s is None else connect_s, self._tls_for(address))
        if connect_s is not None:
            try:
                connection.connect()
            except BaseException:
                connection.close()
                raise
            connection.sock.settimeout(timeout_s)
        return connection

    def _tls_for(self, address: ServiceAddress) -> ssl.SSLContext | None:
        if not address.is_tls:
            return None
        if self._access is None:
            return ServiceAccess.of().tls()
        with self._lock:
            if self._tls is None:
                self._tls = self._access.tls()
            return self._tls


@contextlib.contextmanager
def _as_unavailable(address: ServiceAddress) -> Iterator[None]:
    """Raises :class:`UnavailableError` for a service that gives no answer, or not all of it."""
    try:
        yield
    except ssl.SSLCertVerificationError as error:
        raise UnavailableError(
            f"{address} is not who it says it is: {error.verify_message}",
            hint="--ca-file or TIERLOG_CA_FILE names an authority of your own",
        ) from error
    except (OSError, UnicodeError, http.client.HTTPException) as error:  # UnicodeError: no name of a machine
        words = str(error) or type(error).__name__
        raise UnavailableError(f"no answer from {address}: {words}", hint="is `tierlog serve` running?") from error


class _Idle(NamedTuple):
    """A connection that nobody uses, and since when."""

    connection: http.client.HTTPConnection
    since_s: float


def _early_answer(connection: http.client.HTTPConnection, broken: OSError) -> http.client.HTTPResponse:
    """Returns what a service said before it had read a request that it hung up on; raises ``broken`` if nothing."""
    try:
        return connection.getresponse()
    except (OSError, http.client.HTTPException):
        raise broken from None


def _close_all(idle: dict[ServiceAddress, list[_Idle]]) -> None:
    for connections in idle.values():
        for one in connections:
            one.connection.close()
    idle.clear()

"""Requests to one service: where it is and what each carries, and connections that are kept, for threads."""

from __future__ import annotations

import os
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from tierlog.client.errors import NoAnswerError
from tierlog.client.requests import Answer, Flow, Pause, Request, T
from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import AccessError, ClosedError, StoreError, UnavailableError
from tierlog.tiering.remote.endpoint import (
    CA_FILE,
    CLIENT_CERTIFICATE,
    CLIENT_KEY,
    TOKEN,
    TOKEN_FILE,
    ServiceAccess,
    ServiceAddress,
)
from tierlog.tiering.remote.http_client import HttpClient

_JSON = "application/json"
_CONNECT_S = 10.0
#: Connections kept; further ones are closed after their request.
_KEPT = 32


@dataclass(frozen=True, slots=True)
class Service:
    """The address of one service and the access to it. What is not given is read from the environment at each use."""

    address: ServiceAddress
    given: Mapping[str, str]
    """Values that override variables of the environment, by their names."""
    timeout_s: float
    """Time-out for an answer, and for each further piece of it."""

    @classmethod
    def of(
        cls,
        url: str,
        *,
        token: str | None,
        token_file: Path | None,
        ca_file: Path | None,
        certificate: Path | None,
        key: Path | None,
        timeout_s: float,
    ) -> Service:
        """Makes a service of a URL; raises :class:`InvalidRequestError` for one that is none, and for an invalid
        token."""
        files = {TOKEN_FILE: token_file, CA_FILE: ca_file, CLIENT_CERTIFICATE: certificate, CLIENT_KEY: key}
        given = {name: str(path) for name, path in files.items() if path is not None}
        if token is not None:
            given[TOKEN] = token
        elif token_file is not None:
            given[TOKEN] = ""
        made = cls(ServiceAddress.parse(url), given, timeout_s)
        made.headers(Request("GET", "/"))
        return made

    def __repr__(self) -> str:
        return f"Service({self.address})"

    def url(self, request: Request) -> str:
        """Returns the address of a request."""
        return f"{self.address}{request.path}"

    def headers(self, request: Request) -> dict[str, str]:
        """Returns all headers of a request; a mounted token may have changed since the last one."""
        authorised = self._access().headers(is_private=self.address.is_private)
        return {"Accept": _JSON, "Accept-Encoding": "identity", **authorised, **request.headers}

    def tls(self) -> ssl.SSLContext | None:
        """Returns the TLS context of the service; None for one without TLS."""
        return self._access().tls() if self.address.is_tls else None

    def http(self, clock: Clock) -> HttpClient:
        """Returns a blocking client with the certificate files of now; tokens come with :meth:`headers`."""
        return HttpClient(replace(self._access(), token=None), self.timeout_s, kept=_KEPT, clock=clock)

    def read_s(self, request: Request) -> float:
        """Returns the time-out for the answer to a request."""
        return (request.within_s or self.timeout_s) + request.waits_s

    def connect_s(self, request: Request) -> float:
        """Returns the time-out for connecting."""
        return min(request.within_s or self.timeout_s, _CONNECT_S)

    def failure(self, error: BaseException) -> StoreError:
        """Returns the error of a request without an answer; a service with a wrong certificate is not asked again."""
        for one in (error, *error.args, error.__cause__, getattr(error, "certificate_error", None)):
            if isinstance(one, ssl.SSLCertVerificationError):
                why = getattr(one, "verify_message", "its certificate is not trusted")  # aiohttp's has none
                return AccessError(
                    f"{self.address} is not who it says it is: {why}",
                    hint="ca_file= or TIERLOG_CA_FILE names the authority of its certificate",
                )
        words = str(error) or type(error).__name__
        return NoAnswerError(f"no answer from {self.address}: {words}", hint="is `tierlog serve` running?")

    def _access(self) -> ServiceAccess:
        return ServiceAccess.of({**os.environ, **self.given})


class Transport(Protocol):
    """The way of requests to a service. Thread safe."""

    def send(self, request: Request) -> Answer:
        """Returns the answer, whatever its status; raises :class:`NoAnswerError` if there is none, :class:`AccessError`
        if the server is not who it says it is."""
        ...

    def pause(self, seconds: float) -> None:
        """Waits; raises :class:`ClosedError` once the transport is closed."""
        ...

    def close(self) -> None:
        """Ends pauses and closes connections. Idempotent."""
        ...


class HttpTransport:
    """Over HTTP, by the blocking client that commands, jobs and nodes use as well."""

    def __init__(self, service: Service, clock: Clock) -> None:
        self._service = service
        self._clock = clock
        self._closed = threading.Event()
        self._http = service.http(clock)
        self._http.check_certificates(service.address)

    def send(self, request: Request) -> Answer:
        """See :meth:`Transport.send`."""
        if self._closed.is_set():
            raise ClosedError("the client is closed")
        here = self._service
        try:
            answer = self._http.ask(
                here.address, request.method, request.path, request.body, here.headers(request),
                timeout_s=here.read_s(request), connect_s=here.connect_s(request), is_repeatable=True,
            )  # fmt: skip
        except UnavailableError as error:
            raise here.failure(error.__cause__ or error) from error
        return Answer(answer.status, answer.headers, answer.content)

    def pause(self, seconds: float) -> None:
        """Waits; raises :class:`ClosedError` once the transport is closed."""
        if self._clock.wait(self._closed, seconds):
            raise ClosedError("the client is closed")

    def close(self) -> None:
        """Ends pauses and closes idle connections. Idempotent."""
        self._closed.set()
        self._http.close()


def run(flow: Flow[T], transport: Transport) -> T:
    """Runs a flow to its end and returns its result."""
    try:
        step = next(flow)
        while True:
            answer: Answer | None = None
            try:
                if isinstance(step, Pause):
                    transport.pause(step.seconds)
                else:
                    answer = transport.send(step)
            except StoreError as error:
                step = flow.throw(error)
            else:
                step = flow.send(answer)
    except StopIteration as over:
        found: T = over.value
        return found

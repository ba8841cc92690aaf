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
#: Connections kept; more are opened where more threads ask at once, and closed afterwards.
_KEPT = 32


@dataclass(frozen=True, slots=True)
class Service:
    """How to speak to one service. What is not given is taken from the environment, each time it is needed."""

    address: ServiceAddress
    given: Mapping[str, str]
    """Names of the environment, and what goes before it."""
    timeout_s: float
    """How long an answer, and each further piece of it, may stay away."""

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
        """Raises :class:`InvalidRequestError` for anything but the URL of a service, and for what is no token."""
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
        """All headers of a request; a mounted token may have changed since the last one."""
        authorised = self._access().headers(is_private=self.address.is_private)
        return {"Accept": _JSON, "Accept-Encoding": "identity", **authorised, **request.headers}

    def tls(self) -> ssl.SSLContext | None:
        """Returns how to check the service; None for one without TLS."""
        return self._access().tls() if self.address.is_tls else None

    def http(self, clock: Clock) -> HttpClient:
        """A blocking client for :meth:`headers`, which bring the token, with the files of now."""
        return HttpClient(replace(self._access(), token=None), self.timeout_s, kept=_KEPT, clock=clock)

    def read_s(self, request: Request) -> float:
        """Returns for how long the answer of a request may stay away."""
        return (request.within_s or self.timeout_s) + request.waits_s

    def connect_s(self, request: Request) -> float:
        """Returns how long connecting may take."""
        return min(request.within_s or self.timeout_s, _CONNECT_S)

    def failure(self, error: BaseException) -> StoreError:
        """Returns the error of a request without an answer; a service that cannot be believed is not asked again."""
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
    """How requests get there. Thread safe."""

    def send(self, request: Request) -> Answer:
        """The answer, whatever it is; :class:`NoAnswerError` if there is none, :class:`AccessError` from a stranger."""
        ...

    def pause(self, seconds: float) -> None:
        """Wait; :class:`ClosedError` once the transport is closed."""
        ...

    def close(self) -> None:
        """End pauses and close connections. Idempotent."""
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
        """The answer, whatever it is; :class:`NoAnswerError` if there is none, :class:`AccessError` from a stranger."""
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
        """Wait; :class:`ClosedError` once the transport is closed."""
        if self._clock.wait(self._closed, seconds):
            raise ClosedError("the client is closed")

    def close(self) -> None:
        """End pauses and close connections that nobody uses. Idempotent."""
        self._closed.set()
        self._http.close()


def run(flow: Flow[T], transport: Transport) -> T:
    """Work a flow off, and return what it returns."""
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

"""Requests of a node or a querier to another node: reads, which may be repeated, over connections that are kept.

Requests carry this process's own token (:class:`ServiceAccess`) and the id of the request that they serve.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote, urlencode

import tierlog.index.format.errors  # noqa: F401 - a node may answer with its classes
from tierlog.service.observing.request_context import current_request
from tierlog.service.wire.documents import JSON, Json
from tierlog.tiering.base.errors import StoreMismatchError, UnavailableError
from tierlog.tiering.remote.endpoint import ServiceAccess, ServiceAddress
from tierlog.tiering.remote.http_client import HttpAnswer, HttpClient

#: Marks a request as coming from a node, so that it is not forwarded again.
FORWARDED = "Tierlog-Forwarded"
#: Names the store that is meant: any other answers 421.
STORE = "Tierlog-Store"
_MISDIRECTED = 421
#: Connections kept to one node; further ones are closed after their request.
_KEPT = 64
#: Maximum size of an answer: two pages and their metadata.
_MOST_BYTES = 80 << 20


class NodeClient:
    """A client of other nodes. Thread safe. Token, authorities and certificate are those of the environment."""

    def __init__(self, sender: str, timeout_ms: int, access: ServiceAccess | None = None) -> None:
        """``sender`` is the store that asks, or what else does; connecting and each read may take ``timeout_ms``."""
        access = ServiceAccess.of() if access is None else access
        self._client = HttpClient(access, timeout_ms / 1000, kept=_KEPT, most_bytes=_MOST_BYTES)
        self._sender = sender

    def get(self, url: str, path: str, *, store_id: str | None = None) -> Json:
        """Returns the document that the node at ``url`` answers; raises what it answered, or :class:`UnavailableError`.

        ``store_id`` is the store that has to answer, and :class:`StoreMismatchError` says that another one is there:
        what that one does not have tells nothing. :class:`InvalidRequestError` for a token that would go over a
        network unencrypted.
        """
        document = self._ask(url, path, JSON, store_id).document()
        if document is None:
            raise UnavailableError(f"{url} answered without JSON; is it tierlog?")
        return document

    def fetch(
        self, url: str, path: str, asked: Mapping[str, object] | None = None, accept: str = JSON,
        *, store_id: str | None = None,
    ) -> bytes:  # fmt: skip
        """Returns the body of a good answer; raises as :meth:`get`, and :class:`CorruptionError` for too long a one."""
        given = {name: value for name, value in (asked or {}).items() if value is not None}
        target = f"{path}{'?' + urlencode(given, doseq=True, quote_via=quote) if given else ''}"
        return self._ask(url, target, accept, store_id).content

    def close(self) -> None:
        """Closes idle connections."""
        self._client.close()

    def _ask(self, url: str, target: str, accept: str, store_id: str | None) -> HttpAnswer:
        address = ServiceAddress.parse(url)
        headers = {"Accept": accept, FORWARDED: self._sender}
        if store_id is not None:
            headers[STORE] = store_id
        request = current_request()
        if request is not None:
            headers["X-Request-Id"] = request.request_id
        try:
            answer = self._client.ask(address, "GET", target, headers=headers)
        except UnavailableError as error:  # its text, which may differ each time, would appear in answers to others
            raise UnavailableError(f"no answer from {address}: {type(error.__cause__).__name__}") from error
        if answer.status == _MISDIRECTED and store_id is not None:
            raise StoreMismatchError(
                f"{address} does not answer for store {store_id}",
                hint="the cluster table or --stores names the wrong address",
            )
        refusal = answer.error()
        if refusal is not None:
            raise refusal
        return answer

"""What a node or a querier asks another node: reads, which may be repeated, over connections that are kept.

Requests carry this process's own token (:class:`ServiceAccess`) and the id of the request that they serve.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

import urllib3
from urllib3.exceptions import HTTPError, ProtocolError

import index.errors  # noqa: F401 - a node may answer with its classes
from service.observing.requests import current_request
from service.wire import JSON, Json
from tiering.errors import CorruptionError, StoreError, StoreMismatchError, UnavailableError
from tiering.problems import answered_error
from tiering.service_access import ServiceAccess
from tiering.service_address import ServiceAddress

#: Says that a request came from a node, so that nobody sends it on once more.
FORWARDED = "Tierlog-Forwarded"
#: Names the store that is meant: another one answers 421, whatever it would have answered by itself.
STORE = "Tierlog-Store"
_MISDIRECTED = 421
#: Connections kept to one node; more are opened where more ask at once, and closed afterwards.
_KEPT = 64
_NODES = 1024
#: Of one answer: two pages and what stands beside them.
_MOST_BYTES = 80 << 20


class NodeClient:
    """Thread safe. The token, the authorities and the certificate are those of the environment."""

    def __init__(self, sender: str, timeout_ms: int, access: ServiceAccess | None = None) -> None:
        """``sender`` is the store that asks, or what else does; connecting and each read may take ``timeout_ms``."""
        self._access = ServiceAccess.of() if access is None else access
        self._sender = sender
        self._timeout = urllib3.Timeout(timeout_ms / 1000)
        self._lock = threading.Lock()
        self._pools: dict[bool, urllib3.PoolManager] = {}

    def get(self, url: str, path: str, *, store_id: str | None = None) -> Json:
        """The document that the node at ``url`` answers; raises what it answered, or :class:`UnavailableError`.

        ``store_id`` is the store that has to answer, and :class:`StoreMismatchError` says that another one is there:
        what that one does not have tells nothing. :class:`InvalidRequestError` for a token that would go over a
        network unencrypted.
        """
        document = _parsed(self.fetch(url, path, store_id=store_id))
        if document is None:
            raise UnavailableError(f"{url} answered without JSON; is it tierlog?")
        return document

    def fetch(
        self, url: str, path: str, asked: Mapping[str, object] | None = None, accept: str = JSON,
        *, store_id: str | None = None,
    ) -> bytes:  # fmt: skip
        """The body of a good answer; raises as :meth:`get` does, and :class:`CorruptionError` for a body too long."""
        address = ServiceAddress.parse(url)
        headers = {"Accept": accept, FORWARDED: self._sender, **self._access.headers(is_private=address.is_private)}
        if store_id is not None:
            headers[STORE] = store_id
        request = current_request()
        if request is not None:
            headers["X-Request-Id"] = request.request_id
        given = {name: value for name, value in (asked or {}).items() if value is not None}
        target = f"{address}{path}{'?' + urlencode(given, quote_via=quote) if given else ''}"
        pool = self._pool(is_tls=address.is_tls)
        try:
            try:
                status, body = self._ask(pool, target, headers)
            except ProtocolError:  # a kept connection that the node had closed for being idle
                status, body = self._ask(pool, target, headers)
        except (HTTPError, OSError) as error:
            raise UnavailableError(f"no answer from {address}: {type(error).__name__}") from error
        if status == 200:
            return body
        if status == _MISDIRECTED and store_id is not None:
            raise StoreMismatchError(
                f"{address} does not answer for store {store_id}",
                hint="the cluster table or --stores names the wrong address",
            )
        raise _refusal(str(address), status, body)

    def close(self) -> None:
        """Close connections that nobody uses."""
        for pool in self._pools.values():
            pool.clear()

    def _ask(self, pool: urllib3.PoolManager, target: str, headers: Mapping[str, str]) -> tuple[int, bytes]:
        answer = pool.request("GET", target, headers=headers, retries=False, redirect=False, preload_content=False)
        try:
            body = answer.read(_MOST_BYTES + 1)
            if len(body) > _MOST_BYTES:
                answer.close()
                raise CorruptionError(f"an answer has more than {_MOST_BYTES} bytes", path=target)
            return answer.status, body
        finally:
            answer.release_conn()

    def _pool(self, *, is_tls: bool) -> urllib3.PoolManager:
        with self._lock:
            if is_tls not in self._pools:
                context = self._access.tls() if is_tls else None
                self._pools[is_tls] = urllib3.PoolManager(
                    _NODES, maxsize=_KEPT, timeout=self._timeout, ssl_context=context
                )
            return self._pools[is_tls]


def _refusal(address: str, status: int, body: bytes) -> StoreError:
    if 300 <= status < 400:
        return StoreError(f"{address} sends elsewhere ({status})", hint="give the URL of the node itself")
    return answered_error(status, _parsed(body) or {"detail": f"{address} answered {status} without a reason"})


def _parsed(body: bytes) -> Json | None:
    try:
        document: Any = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None

"""Requests for another node of the cluster: sent on to it, and its answer sent back, piece by piece as they arrive.

This happens outside of admission: what is sent on needs neither a thread nor a place among the requests that are
answered here. It has places of its own for each store, so that a store that hangs leaves room for the others.

Headers pass both ways, except those of one connection (RFC 9110, 7.6) and those that this node has judged or sets.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import Request
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tierlog.service.access.caller import Caller
from tierlog.service.access.caller import Scope as Scopes
from tierlog.service.api.answers import while_wanted
from tierlog.service.api.application.node_session import BrokenOffError, NodeAnswer, NodeSession, NotSentError
from tierlog.service.api.errors import problem, store_error
from tierlog.service.api.route_traits import RouteTable
from tierlog.service.cluster.routing import (
    RoutedRequest,
    RouteTarget,
    StoreRule,
    TopicFinder,
    needs_remote_lookup,
    routed_request,
    target_store,
)
from tierlog.service.cluster.view import ClusterView, StorePlace
from tierlog.service.config.settings import Settings
from tierlog.service.observing.request_context import current_request
from tierlog.tiering.base.errors import InvalidRequestError, OverloadedError, StoreError, UnavailableError
from tierlog.tiering.base.worker_pool import WorkerPool
from tierlog.tiering.remote.endpoint import TOKEN_OVER_HTTP, ServiceAccess, ServiceAddress
from tierlog.tiering.remote.problems import problem_title, problem_type

_LOG = logging.getLogger("tierlog")
#: The store that a request is for, and the node that forwarded it; in answers, the store and its address.
STORE, SENDER, ADDRESS = "Tierlog-Store", "Tierlog-Forwarded", "Tierlog-Address"
_STORE, _SENDER = STORE.lower().encode(), SENDER.lower().encode()
_SAFE = ("GET", "HEAD")
_SOON_S = 1
#: Threads that ask a bucket where a group is.
_LOOK_UP_THREADS = 4
_REMEMBERED_GROUPS = 10_000

Pairs = list[tuple[bytes, bytes]]

_OF_A_CONNECTION = frozenset(
    (
        b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"proxy-authorization", b"te",
        b"trailer", b"transfer-encoding", b"upgrade",
    )
)  # fmt: skip
#: Headers of requests that this node has handled for both, or sets itself.
_JUDGED_HERE = frozenset(
    (
        b"host", b"expect", b"origin", b"sec-fetch-dest", b"sec-fetch-mode", b"sec-fetch-site", b"sec-fetch-user",
        b"x-request-id",
    )
)  # fmt: skip
_SET_HERE = frozenset((b"date", b"server", b"x-request-id"))


def request_headers(given: Iterable[tuple[bytes, bytes]], more: Mapping[str, str]) -> Pairs:
    """Returns the headers of a forwarded request; those of ``more`` replace others of the same names.

    Raises :class:`InvalidRequestError` for a value that is not UTF-8, which the client library would change.
    """
    found = _passed(given, _JUDGED_HERE, more)
    for name, value in found:
        try:
            value.decode()
        except UnicodeDecodeError:
            raise InvalidRequestError(f"header {name.decode('latin-1')!r} is no UTF-8") from None
    request = current_request()
    if request is not None:
        found.append((b"x-request-id", request.request_id.encode()))
    return found


def answer_headers(given: Iterable[tuple[bytes, bytes]], more: Mapping[str, str]) -> Pairs:
    """Returns the headers of an answer as the client gets them."""
    return _passed(given, _SET_HERE, more)


def _passed(given: Iterable[tuple[bytes, bytes]], left_out: frozenset[bytes], more: Mapping[str, str]) -> Pairs:
    headers = [(name.lower(), value) for name, value in given]
    named = (part.strip().lower() for name, value in headers if name == b"connection" for part in value.split(b","))
    ours = {name.lower().encode(): value.encode() for name, value in more.items()}
    dropped = {*_OF_A_CONNECTION, *left_out, *named, *ours}
    if any(name == b"transfer-encoding" for name, _ in headers):
        dropped.add(b"content-length")  # not true of the forwarded body
    return [*((name, value) for name, value in headers if name not in dropped), *ours.items()]


@dataclass(frozen=True, slots=True)
class _Forwarded:
    """Stands for a route, so that metrics and logs have a name for all requests that are sent on."""

    path: str = "forwarded"


class _GoneError(Exception):
    """The client went away before its body was there."""


class Forwarding:
    """ASGI middleware: sends a request on to the node of the store that it is meant for, if that is another node's.

    Only a caller with a right to a group or topic is told where it is: no refusal tells others, be it of the node that
    was asked or of the one that answered.

    Of the application's state it uses ``cluster``; a store that is alone (None) sends nothing on. It stands inside of
    access, so that a stranger's request goes nowhere, and outside of what reads bodies and compresses answers.
    """

    def __init__(self, app: ASGIApp, settings: Settings, table: RouteTable, topics: TopicFinder | None = None) -> None:
        """``topics`` tells a querier which stores have a topic."""
        self._app = app
        self._table = table
        self._topics = topics
        self._places = _Places(settings.serve.max_forwards)
        self._idle_s = settings.cluster.forward_idle_ms / 1000
        self._session = NodeSession(settings.cluster.ask_timeout_ms / 1000, settings.serve.keep_alive_ms / 2000)
        self._pool = WorkerPool(_LOOK_UP_THREADS, "tierlog-group-homes", linger_s=2.0)
        self._homes: dict[str, str | None] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Has a request answered here, or by the other node."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, self._closing(send))
            return
        if scope["type"] != "http" or scope["method"] == "OPTIONS":
            await self._app(scope, receive, send)
            return
        cluster: ClusterView | None = scope["app"].state.cluster
        if cluster is None and all(name != _SENDER for name, _ in scope["headers"]):
            await self._app(scope, receive, send)
            return
        found = self._table.of(scope)
        rule = found.traits.store
        if rule is None:
            await self._app(scope, receive, send)
            return
        headers, asked = Headers(scope=scope), None
        if cluster is not None and cluster.own_store is not None:
            send = _named(send, cluster.own_store)
        try:
            asked = _asked(rule, found.names, scope)
            if (sender := headers.get(SENDER)) is not None:
                await self._check_meant(asked, scope, cluster, headers, sender)
                place = None
            else:
                place = None if cluster is None else await self._elsewhere(asked, scope, cluster)
            if cluster is None or place is None:
                await self._app(scope, receive, send)
                return
            with self._places.one_of(place.store_id):
                scope["route"] = _Forwarded()
                shows_homes = _may_see_homes(asked, scope)
                await _Forward(
                    self._session,
                    idle_s=self._idle_s,
                    cluster=cluster,
                    place=place,
                    scope=scope,
                    receive=receive,
                    send=send,
                    shows_homes=shows_homes,
                ).run()
        except _MisdirectedError as error:
            await _misdirected(error)(scope, receive, send)
        except _RefusedError as error:
            told = error.error
            if isinstance(told, UnavailableError) and asked is not None and not _may_see_homes(asked, scope):
                told = _SILENCE
            await store_error(Request(scope), told)(scope, receive, send)

    async def _elsewhere(self, asked: RoutedRequest, scope: Scope, cluster: ClusterView) -> StorePlace | None:
        """Returns the store that is meant, if it is another node's; raises :class:`_RefusedError`."""
        try:
            store_id = await self._store_meant(asked, scope, cluster)
            if store_id is None:
                return None
            place = cluster.place_of(store_id)
            _check_token(scope, ServiceAddress.parse(place.url))
        except StoreError as error:
            raise _RefusedError(error) from error
        return place

    async def _store_meant(self, asked: RoutedRequest, scope: Scope, cluster: ClusterView) -> str | None:
        if not needs_remote_lookup(asked, cluster):
            return target_store(asked, cluster, self._topics).store_id
        caller = _caller(scope)
        if asked.group is not None and caller is not None:
            caller.check(Scopes.READ)  # before a bucket is asked
        if asked.group is not None and asked.store_id is None and asked.group in self._homes:
            return self._homes[asked.group]
        with self._places.one_of(""):
            work = partial(target_store, asked, cluster, self._topics, shows_homes=_may_see_homes(asked, scope))
            meant = await asyncio.wrap_future(self._pool.submit(work))
        self._remember(asked, meant)
        return meant.store_id

    def _remember(self, asked: RoutedRequest, meant: RouteTarget) -> None:
        """Remembers the home of a group, which never changes; that a group has no home is not remembered."""
        if asked.group is not None and meant.is_home:
            if len(self._homes) >= _REMEMBERED_GROUPS:
                self._homes.clear()
            self._homes[asked.group] = meant.store_id

    async def _check_meant(
        self, asked: RoutedRequest, scope: Scope, cluster: ClusterView | None, headers: Headers, sender: str
    ) -> None:
        """Rejects a forwarded request that is not for this node; nodes that disagree would otherwise loop."""
        own: str | None = cluster.own_store if cluster is not None else scope["app"].state.engine.store_id
        meant = headers.get(STORE, own)
        try:
            here = None if cluster is None or meant != own else await self._store_meant(asked, scope, cluster)
        except StoreError as error:
            raise _RefusedError(error) from error
        if meant != own or here is not None or own is None:
            raise _MisdirectedError(own, meant if here is None else here, sender)

    def _closing(self, send: Send) -> Send:
        async def closing(message: Message) -> None:
            if message["type"].startswith("lifespan.shutdown"):
                await self._session.close()
            await send(message)

        return closing


def _asked(rule: StoreRule, names: Mapping[str, str], scope: Scope) -> RoutedRequest:
    try:
        return routed_request(rule, names, scope["query_string"])
    except StoreError as error:
        raise _RefusedError(error) from error


def _caller(scope: Scope) -> Caller | None:
    caller: Caller | None = scope.get("tierlog.caller")
    return caller


def _may_see_homes(asked: RoutedRequest, scope: Scope) -> bool:
    """Whether the caller may learn where the group or the topic of a request is.

    Only the home of a group knows its topics, and answers others as if the group were not there.
    """
    caller = _caller(scope)
    if caller is None or caller.is_unlimited:
        return True
    topic = asked.topic
    return asked.group is None and (topic is None or any(caller.may(one, topic) for one in Scopes))


class _RefusedError(Exception):
    def __init__(self, error: StoreError) -> None:
        super().__init__()
        self.error = error


class _MisdirectedError(Exception):
    def __init__(self, own: str | None, meant: str | None, sender: str) -> None:
        super().__init__()
        self.own, self.meant, self.sender = own, meant, sender


class _Places:
    """Limits the requests that are being sent on to each store. Used on the event loop only."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken = Counter[str]()

    @contextmanager
    def one_of(self, store_id: str) -> Iterator[None]:
        """Counts a request; raises :class:`_RefusedError` if there are too many."""
        if self._taken[store_id] >= self._most:
            raise _RefusedError(
                OverloadedError(
                    f"{self._most} requests are being sent on to store {store_id!r} already",
                    hint="ask its own node, or try again in a moment; serve.max_forwards is the limit",
                )
            )
        self._taken[store_id] += 1
        try:
            yield
        finally:
            self._taken[store_id] -= 1
            if not self._taken[store_id]:
                del self._taken[store_id]


class _Forward:
    """One request on its way to another node, and the answer on its way back."""

    def __init__(
        self, session: NodeSession, *, idle_s: float, cluster: ClusterView, place: StorePlace,
        scope: Scope, receive: Receive, send: Send, shows_homes: bool,
    ) -> None:  # fmt: skip
        """With ``shows_homes``, a refusal may say which store it is of, and where that is."""
        self._shows_homes = shows_homes
        self._session, self._idle_s, self._cluster, self._place = session, idle_s, cluster, place
        self._scope, self._receive, self._send = scope, receive, send
        self._is_gone = self._has_begun = False
        self._taken_in = asyncio.Event()
        self._patience: asyncio.Timeout | None = None

    async def run(self) -> None:
        """Runs until the answer has ended or broken off, or nobody waits for it; then the node is told so too."""
        await while_wanted(self._answer(), self._until_gone())

    async def _answer(self) -> None:
        try:
            async with asyncio.timeout(self._idle_s) as self._patience:
                await self._exchange()
        except NotSentError as error:
            self._cluster.refresh_soon()
            await self._refuse(self._not_sent(str(error)))
        except BrokenOffError as error:
            self._cluster.refresh_soon()
            await self._refuse(self._broken_off(str(error)))
        except TimeoutError:
            await self._refuse(self._broken_off(f"nothing came for {self._idle_s:g} s (cluster.forward_idle_ms)"))

    async def _exchange(self) -> None:
        headers = Headers(scope=self._scope)
        has_body = "transfer-encoding" in headers or headers.get("content-length", "0") != "0"
        if not has_body:
            self._taken_in.set()
        own = self._cluster.own_store
        try:
            sent = request_headers(self._scope["headers"], {STORE: self._place.store_id, SENDER: own or "querier"})
        except InvalidRequestError as error:
            await self._refuse(store_error(Request(self._scope), error))
            return
        raw: bytes = self._scope.get("raw_path") or self._scope["path"].encode()
        query: bytes = self._scope["query_string"]
        target = (raw + (b"?" + query if query else b"")).decode("latin-1")
        if not target.startswith("/") or "#" in target:  # what is written behind an address could make it another
            await self._refuse(
                store_error(Request(self._scope), InvalidRequestError("the request's target is no path"))
            )
            return
        body = self._body() if has_body else None
        address = ServiceAddress.parse(self._place.url)
        async with self._session.ask(self._scope["method"], address, target, sent, body) as answer:
            if (refusal := self._checked(answer)) is not None:
                await self._refuse(refusal)
            else:
                await self._hand_back(answer)

    def _checked(self, answer: NodeAnswer) -> Response | None:
        """Returns a refusal if a store answered that is not the one that is meant."""
        found = next((value.decode("latin-1") for name, value in answer.headers if name.lower() == _STORE), None)
        if answer.status == 421 and found is not None:
            self._cluster.refresh_soon()
            return self._unavailable(
                f"{self._place.url} does not answer for store {self._place.store_id!r}: the cluster has just changed",
                "nothing was done; try again in a moment",
                retry_s=_SOON_S,
            )
        if answer.status < 400 and found != self._place.store_id:
            self._cluster.refresh_soon()
            other = "no store of a cluster" if found is None else f"store {found!r}"
            return self._unavailable(
                f"at {self._place.url} {other} answers instead of store {self._place.store_id!r}",
                "cluster.address of that store names a place where it is not",
            )
        return None

    async def _hand_back(self, answer: NodeAnswer) -> None:
        own = self._cluster.own_store
        named = {STORE: self._place.store_id, ADDRESS: self._place.url}
        headers = answer.headers
        if not self._shows_homes and answer.status in (401, 403, 404):  # as if this node had it to say
            headers = [(name, value) for name, value in headers if name.lower() != _STORE]
            named = {} if own is None else {STORE: own}
        self._has_begun = True
        await self._send(
            {"type": "http.response.start", "status": answer.status, "headers": answer_headers(headers, named)}
        )
        more = True
        async for piece, more in answer.pieces():
            self._moved()
            await self._send({"type": "http.response.body", "body": piece, "more_body": more})
            self._moved()
        if more:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _body(self) -> AsyncIterator[bytes]:
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self._is_gone = True
                self._taken_in.set()
                raise _GoneError
            self._moved()
            more = message.get("more_body", False)
            if piece := message.get("body", b""):
                yield piece
                self._moved()
        self._taken_in.set()

    async def _until_gone(self) -> None:
        await self._taken_in.wait()
        while not self._is_gone:
            self._is_gone = (await self._receive())["type"] == "http.disconnect"

    def _moved(self) -> None:
        """Restarts the timeout: something was sent or received, so the other side is alive."""
        if self._patience is not None:
            self._patience.reschedule(asyncio.get_running_loop().time() + self._idle_s)

    async def _refuse(self, answer: Response) -> None:
        """Answers in place of the node, unless its answer has begun: that is left without an end, and breaks off."""
        if self._is_gone:
            return
        if self._has_begun:
            _LOG.warning("an answer of store %s is broken off half-way", self._place.store_id)
            return
        self._has_begun = True
        await answer(self._scope, self._receive, self._send)

    def _not_sent(self, why: str) -> Response:
        return self._unavailable(
            f"store {self._place.store_id!r} does not answer at {self._place.url}: {why}",
            "nothing was done; try again in a moment, or ask the store at its address",
        )

    def _broken_off(self, why: str) -> Response:
        detail = f"store {self._place.store_id!r} at {self._place.url} broke off before it had answered: {why}"
        if self._scope["method"] in _SAFE:
            return self._unavailable(detail, "try again in a moment")
        hint = "it may have been done or not; look before it is sent again"
        if self._scope["path"].endswith("/messages"):
            hint = (
                "the messages may have been appended or not; with an Idempotency-Key, and this store_id, the same "
                "request can be sent again and appends nothing twice"
            )
        return self._unavailable(detail, hint)

    def _unavailable(self, detail: str, hint: str, *, retry_s: int | None = None) -> Response:
        if not self._shows_homes:
            return store_error(Request(self._scope), UnavailableError(_SILENCE.message, hint=hint))
        return problem(
            503, problem_title(UnavailableError), detail, uri=problem_type(UnavailableError), hint=hint,
            retry_s=retry_s, address=self._place.url, store_id=self._place.store_id,
        )  # fmt: skip


_SILENCE = UnavailableError("the store that is meant cannot be asked now", hint="try again in a moment")


def _check_token(scope: Scope, address: ServiceAddress) -> None:
    """Refuses to forward a token over an unencrypted connection, unless the operator allows it."""
    is_secret = any(name == b"authorization" for name, _ in scope["headers"])
    if is_secret and not address.is_private and not ServiceAccess.of().is_token_for_all:
        raise UnavailableError(
            f"a token is not sent on over plain HTTP to {address}, where anybody on the way can read it",
            hint=f"give the stores https addresses, or set {TOKEN_OVER_HTTP}=1 in a network that you trust",
        )


def _named(send: Send, store_id: str) -> Send:
    """Adds the id of the store to answers of this process."""
    header = (_STORE, store_id.encode())

    async def named(message: Message) -> None:
        if message["type"] == "http.response.start" and all(name != _STORE for name, _ in message["headers"]):
            message = {**message, "headers": [*message["headers"], header]}
        await send(message)

    return named


def _misdirected(error: _MisdirectedError) -> Response:
    this = "a querier" if error.own is None else f"store {error.own!r}"
    more: dict[str, Any] = {} if error.meant is None else {"store_id": error.meant}
    answer = problem(
        421,
        "misdirected request",
        f"this is {this}, and the request is for store {error.meant!r}; {error.sender[:100]!r} has sent it on already",
        hint="the cluster has changed, or cluster.address of a store is wrong; try again in a moment",
        **more,
    )
    answer.headers[STORE] = error.own or "none"
    return answer

"""What a request has to pass before it is looked at: the number of its kind, and the size of its body."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from fastapi import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.body_memory import BodyMemory, Share
from service.api.decoding import ENCODINGS, Decoder, decoder_of
from service.api.errors import problem, store_error
from service.api.lanes import Lane, Lanes
from service.setting_groups.serve import ServeSettings
from service.wire import JSON, NDJSON
from tiering.errors import OverloadedError

#: Of a body that is no messages: the largest there is, a commit of 10,000 offsets, fits.
_MOST_SMALL_BYTES = 4 << 20
#: Bytes of memory for a byte of a body: a message is many objects while JSON is taken apart.
_JSON_WEIGHT, _OTHER_WEIGHT = 8, 2
_JSON_KINDS = (JSON.encode(), NDJSON.encode())


class Admission:
    """ASGI middleware: 429 for a request of a kind of which there are enough; the lane of others is in the scope."""

    def __init__(self, app: ASGIApp, lanes: Lanes) -> None:
        self._app = app
        self._lanes = lanes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        lane = self._lanes.of(scope["method"], scope["path"], scope["query_string"])
        try:
            lane.enter()
        except OverloadedError as error:
            await store_error(Request(scope), error)(scope, receive, send)
            return
        is_inside = True

        async def sent(message: Message) -> None:
            nonlocal is_inside
            if is_inside and not lane.is_long:  # the work is done: what waits for a reader has a bound of its own
                is_inside = False
                lane.leave()
            await send(message)

        try:
            scope["tierlog.lane"] = lane
            await self._app(scope, receive, sent)
        finally:
            if is_inside:
                lane.leave()


def lane_of(request: Request) -> Lane:
    """The lane that a request was admitted to."""
    lane: Lane = request.scope["tierlog.lane"]
    return lane


class _RefusedError(Exception):
    def __init__(self, answer: Response) -> None:
        super().__init__()
        self.answer = answer


class _GoneError(Exception):
    """The client went away before its body was there."""


class Body:
    """The body of one request, which is read when it is asked for, whole and decoded, and not before."""

    def __init__(self, scope: Scope, receive: Receive, share: Share, settings: ServeSettings) -> None:
        self._scope, self._receive, self._share = scope, receive, share
        lane: Lane = scope["tierlog.lane"]
        most = settings.max_request_bytes
        self._max_bytes = most if lane.takes_messages else min(most, _MOST_SMALL_BYTES)
        self._receive_s = settings.receive_timeout_ms / 1000
        self._found: bytes | None = None

    @property
    def held_bytes(self) -> int:
        """Memory that the request holds for its body and what is made of it."""
        return self._share.held_bytes

    async def hold(self, size_bytes: int) -> None:
        """Hold so much at least; :class:`OverloadedError` if there is no room for too long."""
        if size_bytes > self._share.held_bytes:
            await self._share.memory.take(self._share, size_bytes - self._share.held_bytes)

    def let_go(self, held_bytes: int) -> None:
        """Forget the bytes, and hold no more than that from now on."""
        self._found = b""
        self._share.memory.leave(self._share, held_bytes)

    async def read(self) -> bytes:
        """The bytes, empty without a body; what is over a bound, or does not come, is answered by :class:`Bodies`."""
        if self._found is None:
            headers: dict[bytes, bytes] = dict(reversed(self._scope["headers"]))  # of several the first
            has_body = b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"
            self._found = await self._read(headers) if has_body else b""
        return self._found

    async def _read(self, headers: dict[bytes, bytes]) -> bytes:
        announced = headers.get(b"content-length", b"")
        announced_bytes = int(announced) if announced.isdigit() else 0
        if announced_bytes > self._max_bytes:
            raise _too_large(self._max_bytes)
        weight = _weight(headers)
        decoder = _decoder(headers)
        if decoder is None and announced_bytes:
            await self.hold(announced_bytes * weight)
        found: list[bytes] = []
        size = arrived = 0
        left_s = self._receive_s
        clock = asyncio.get_running_loop().time
        # the server says so of a body that came with its head: a timer takes longer than all else here
        is_here = self._scope.get("tierlog.is_whole", False)
        more = True
        while more:
            if is_here:
                message = await self._receive()
            else:
                began_s = clock()
                message = await self._next_message(left_s)
                left_s -= clock() - began_s
            if message["type"] == "http.disconnect":
                raise _GoneError
            more = message.get("more_body", False)
            data: bytes = message.get("body", b"")
            arrived += len(data)
            if arrived > self._max_bytes:
                raise _too_large(self._max_bytes)
            steps = iter((data,)) if decoder is None else decoder.feed(data)
            while (piece := await _next(self._scope, steps, is_here=decoder is None)) is not None:
                size += len(piece)
                if size > self._max_bytes:
                    raise _too_large(self._max_bytes)
                if size * weight > self._share.held_bytes:
                    await self.hold(size * weight)
                found.append(piece)
        if decoder is not None:
            try:
                decoder.end()
            except ValueError as error:
                raise _undecodable(error) from error
        return b"".join(found)

    async def _next_message(self, left_s: float) -> Message:
        try:
            async with asyncio.timeout(max(0.0, left_s)):
                return await self._receive()
        except TimeoutError as error:
            answer = problem(
                408, "request timeout", f"the request body was not there after {self._receive_s:g} s",
                hint="nothing was done; send smaller bodies, or raise serve.receive_timeout_ms",
            )  # fmt: skip
            answer.headers["Connection"] = "close"
            raise _RefusedError(answer) from error


def body_of(request: Request) -> Body:
    """The body of a request."""
    body: Body = request.scope["tierlog.body"]
    return body


class Bodies:
    """ASGI middleware: gives each request its :class:`Body`, within the limits, and the memory that it holds.

    413 for one that is or decodes to too much, 415 for an unknown encoding, 422 for one that cannot be decoded, 408 for
    one that takes too long, 429 if there is no room for it in memory. Nothing was done then.

    Who answers asks for the body, once the caller has the right to send it: one that nobody asks for takes no room, and
    the server throws it away as it comes.
    """

    def __init__(self, app: ASGIApp, settings: ServeSettings, memory: BodyMemory) -> None:
        self._app = app
        self._memory = memory
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        with self._memory.share() as share:
            scope["tierlog.body"] = Body(scope, receive, share, self._settings)

            async def sent(message: Message) -> None:
                """Of the room for the body keep what an answer takes that is given as a whole: it is never more."""
                if message["type"] == "http.response.body" and not message.get("more_body", False):
                    self._memory.leave(share, len(message.get("body", b"")))
                await send(message)

            try:
                await self._app(scope, receive, sent)
            except _GoneError:
                return
            except _RefusedError as refused:
                await refused.answer(scope, receive, send)


def _too_large(max_bytes: int) -> _RefusedError:
    detail = f"the request body is over the limit of {max_bytes} bytes"
    hint = "send smaller batches; for messages, serve.max_request_bytes is the limit"
    return _RefusedError(problem(413, "request too large", detail, hint=hint))


def _weight(headers: dict[bytes, bytes]) -> int:
    kind = headers.get(b"content-type", b"application/json").partition(b";")[0].strip().lower()
    return _JSON_WEIGHT if kind in _JSON_KINDS else _OTHER_WEIGHT


def _decoder(headers: dict[bytes, bytes]) -> Decoder | None:
    encoding = headers.get(b"content-encoding", b"identity").decode("latin-1").strip().lower()
    if encoding in ("", "identity"):
        return None
    try:
        return decoder_of(encoding)
    except KeyError as error:
        answer = problem(
            415, "unsupported media type", f"content encoding {encoding[:100]!r} is not one of {', '.join(ENCODINGS)}"
        )
        answer.headers["Accept-Encoding"] = ", ".join(ENCODINGS)
        raise _RefusedError(answer) from error


def _undecodable(error: ValueError) -> _RefusedError:
    return _RefusedError(problem(422, "unprocessable body", str(error), hint="Content-Encoding says how it is encoded"))


async def _next(scope: Scope, steps: Iterator[bytes], *, is_here: bool) -> bytes | None:
    """The next decoded piece; decoding is done on a thread, as it takes time."""
    if is_here:
        return next(steps, None)
    lane: Lane = scope["tierlog.lane"]
    try:
        return await lane.run(lambda: next(steps, None))
    except ValueError as error:
        raise _undecodable(error) from error

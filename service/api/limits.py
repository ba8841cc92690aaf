"""Limits of requests: how many of a kind are under way at once, and how large their bodies are, alone and together.

All bodies in memory share one budget of bytes (:class:`BodyMemory`). A compressed body is decoded a bounded piece at a
time, so that it is refused as soon as it is over its limit.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import zstandard
from fastapi import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tierlog.service.api.errors import problem, store_error
from tierlog.service.api.lanes import Lane, Lanes
from tierlog.service.api.route_traits import RouteTable
from tierlog.service.config.serve import ServeSettings
from tierlog.service.wire.documents import JSON, NDJSON
from tierlog.tiering.base.errors import OverloadedError

#: What ``Content-Encoding`` may name.
ENCODINGS = ("gzip", "zstd")
_STEP_BYTES = 256 << 10
#: At the end of a member, what follows it is copied: with longer input, a body of tiny members would spend its time
#: on that.
_GZIP_INPUT_BYTES = 1 << 10
#: A run-length block of 4 bytes decodes to 128 KiB, so that this much decodes to 8 MiB at most.
_ZSTD_INPUT_BYTES = 256
#: The window that a decoder has to support (RFC 9659); a frame that asks for more is refused.
_ZSTD_WINDOW_BYTES = 8 << 20
#: Limit of a body without messages: the largest there is, a commit of 10,000 offsets, fits.
_MOST_SMALL_BYTES = 4 << 20
#: Bytes of memory for a byte of a body: while JSON is parsed, a message is many objects.
_JSON_WEIGHT, _OTHER_WEIGHT = 8, 2
_JSON_KINDS = (JSON.encode(), NDJSON.encode())


@dataclass(slots=True, eq=False)
class BodyShare:
    """The share of one request in the budget; given back at the end of its context."""

    memory: BodyMemory
    held_bytes: int = 0

    def __enter__(self) -> BodyShare:
        return self

    def __exit__(self, *raised: object) -> None:
        self.memory.give_back(self)


class BodyMemory:
    """The budget for bodies: gives room in the order in which it is asked for. Used on the event loop only."""

    def __init__(self, total_bytes: int, wait_ms: int) -> None:
        self._total, self._wait_s = total_bytes, wait_ms / 1000
        self._waiting: deque[tuple[BodyShare, int, asyncio.Future[None]]] = deque()
        #: Bytes that are held now.
        self.used_bytes = 0

    def share(self) -> BodyShare:
        """Returns an empty share, for a context."""
        return BodyShare(self)

    def give_back(self, share: BodyShare) -> None:
        """Takes back all that a share holds, for those who wait for room."""
        self.leave(share, 0)

    def leave(self, share: BodyShare, size_bytes: int) -> None:
        """Takes back what a share holds beyond a size."""
        given_back = max(0, share.held_bytes - size_bytes)
        self.used_bytes -= given_back
        share.held_bytes -= given_back
        self._serve()

    async def take(self, share: BodyShare, size_bytes: int) -> None:
        """Gives a share more, at once or after a wait; raises :class:`OverloadedError` if that takes too long.

        The only share gets whatever it asks for: it is bounded by the size of a request.
        """
        if not self._waiting and self._fits(share, size_bytes):
            self._give(share, size_bytes)
            return
        given: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = (share, size_bytes, given)
        self._waiting.append(waiting)
        try:
            async with asyncio.timeout(self._wait_s):
                await asyncio.shield(given)
        except TimeoutError as error:
            if not given.done():  # it may have come at the last moment
                raise OverloadedError(
                    f"there is no room for {size_bytes} bytes of a request body",
                    hint="try again in a moment; serve.body_memory_bytes is the limit",
                ) from error
        finally:
            if not given.done():
                self._waiting.remove(waiting)
                self._serve()

    def _fits(self, share: BodyShare, size_bytes: int) -> bool:
        return self.used_bytes + size_bytes <= self._total or self.used_bytes == share.held_bytes

    def _give(self, share: BodyShare, size_bytes: int) -> None:
        share.held_bytes += size_bytes
        self.used_bytes += size_bytes

    def _serve(self) -> None:
        while self._waiting and self._fits(*self._waiting[0][:2]):
            share, size_bytes, given = self._waiting.popleft()
            self._give(share, size_bytes)
            given.set_result(None)


class Decoder(Protocol):
    """A decoder of one body."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Decodes a further piece into pieces of bounded size; ValueError if it is damaged."""
        ...

    def end(self) -> None:
        """Ends the body; ValueError if it is cut short."""
        ...


def decoder_of(encoding: str) -> Decoder:
    """Makes a decoder for one body; KeyError for an unknown encoding."""
    kinds: dict[str, Callable[[], Decoder]] = {"gzip": _Gzip, "x-gzip": _Gzip, "zstd": _Zstd}
    return kinds[encoding]()


class _Gzip:
    """A decoder of gzip, whose members may follow each other."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(31)
        self._is_between = True

    def feed(self, data: bytes) -> Iterator[bytes]:
        gathered: list[bytes] = []
        gathered_bytes = 0
        for start in range(0, len(data), _GZIP_INPUT_BYTES):
            piece = data[start : start + _GZIP_INPUT_BYTES]
            while piece:
                if self._is_between:
                    self._member, self._is_between = zlib.decompressobj(31), False
                try:
                    decoded = self._member.decompress(piece, _STEP_BYTES - gathered_bytes)
                except zlib.error as error:
                    raise ValueError(f"the body is not gzip: {error}") from error
                piece = self._member.unconsumed_tail
                if self._member.eof:
                    piece, self._is_between = self._member.unused_data, True
                gathered.append(decoded)
                gathered_bytes += len(decoded)
                if gathered_bytes >= _STEP_BYTES:
                    yield b"".join(gathered)
                    gathered, gathered_bytes = [], 0
        if gathered_bytes:
            yield b"".join(gathered)

    def end(self) -> None:
        if not self._is_between:
            raise ValueError("the gzip body is cut short")


class _Zstd:
    """A decoder of zstd, whose frames may follow each other."""

    def __init__(self) -> None:
        self._context = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
        self._frame = self._context.decompressobj()
        self._is_between = True

    def feed(self, data: bytes) -> Iterator[bytes]:
        gathered: list[bytes] = []
        gathered_bytes = 0
        for start in range(0, len(data), _ZSTD_INPUT_BYTES):
            piece = data[start : start + _ZSTD_INPUT_BYTES]
            while piece:
                if self._is_between:
                    self._frame, self._is_between = self._context.decompressobj(), False
                try:
                    decoded = self._frame.decompress(piece)
                except zstandard.ZstdError as error:
                    raise ValueError(f"the body is not zstd: {error}") from error
                piece = b""
                if self._frame.eof:
                    piece, self._is_between = self._frame.unused_data, True
                gathered.append(decoded)
                gathered_bytes += len(decoded)
            if gathered_bytes >= _STEP_BYTES:
                yield b"".join(gathered)
                gathered, gathered_bytes = [], 0
        if gathered_bytes:
            yield b"".join(gathered)

    def end(self) -> None:
        if not self._is_between:
            raise ValueError("the zstd body is cut short")


class Admission:
    """ASGI middleware: puts a request into its lane, which others find in the scope; 429 where the lane is full."""

    def __init__(self, app: ASGIApp, lanes: Lanes, table: RouteTable) -> None:
        self._app = app
        self._lanes, self._table = lanes, table

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        lane = self._lanes.of(self._table.of(scope).traits.lane, scope["query_string"])
        try:
            lane.enter()
        except OverloadedError as error:
            await store_error(Request(scope), error)(scope, receive, send)
            return
        is_inside = True

        async def sent(message: Message) -> None:
            nonlocal is_inside
            if is_inside and not lane.is_long:  # a waiting answer has a limit of its own
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
    """Returns the lane of a request."""
    lane: Lane = request.scope["tierlog.lane"]
    return lane


class _RefusedError(Exception):
    def __init__(self, answer: Response) -> None:
        super().__init__()
        self.answer = answer


class _GoneError(Exception):
    """The client went away before its body was there."""


class Body:
    """The body of one request: read when it is asked for and not before, whole and decoded."""

    def __init__(self, scope: Scope, receive: Receive, share: BodyShare, settings: ServeSettings) -> None:
        self._scope, self._receive, self._share = scope, receive, share
        lane: Lane = scope["tierlog.lane"]
        most = settings.max_request_bytes
        self._max_bytes = most if lane.takes_messages else min(most, _MOST_SMALL_BYTES)
        self._receive_s = settings.receive_timeout_ms / 1000
        self._found: bytes | None = None

    @property
    def held_bytes(self) -> int:
        """Memory that the request holds for its body and for what is made of it."""
        return self._share.held_bytes

    async def hold(self, size_bytes: int) -> None:
        """Holds at least this much; raises :class:`OverloadedError` if there is no room for too long."""
        if size_bytes > self._share.held_bytes:
            await self._share.memory.take(self._share, size_bytes - self._share.held_bytes)

    def let_go(self, held_bytes: int) -> None:
        """Forgets the bytes, and holds no more than this from now on."""
        self._found = b""
        self._share.memory.leave(self._share, held_bytes)

    async def read(self) -> bytes:
        """Reads the bytes, none without a body. :class:`Bodies` answers if they are over a limit or do not arrive."""
        if self._found is None:
            headers: dict[bytes, bytes] = dict(reversed(self._scope["headers"]))  # of several the first
            has_body = b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"
            self._found = await self._read(headers) if has_body else b""
        return self._found

    async def _read(self, headers: dict[bytes, bytes]) -> bytes:
        # room for the announced length, if there is one
        announced = headers.get(b"content-length", b"")
        announced_bytes = int(announced) if announced.isdigit() else 0
        if announced_bytes > self._max_bytes:
            raise _too_large(self._max_bytes)
        weight = _weight(headers)
        decoder = _decoder(headers)
        if decoder is None and announced_bytes:
            await self.hold(announced_bytes * weight)
        # piece by piece, within the time-out and the size limit of a body
        found: list[bytes] = []
        size = arrived = 0
        left_s = self._receive_s
        clock = asyncio.get_running_loop().time
        # the body came with its head: a timer would take longer than everything else here
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
    """Returns the body of a request."""
    body: Body = request.scope["tierlog.body"]
    return body


class Bodies:
    """ASGI middleware: gives each request its :class:`Body`, and keeps both within the limits.

    It answers 413 for a body that is or decodes to too much, 415 for an unknown encoding, 422 for a body that cannot be
    decoded, 408 for one that takes too long, 429 if there is no room for it in memory. Nothing was done then.

    A route asks for the body once the caller has the right to send it. A body that nobody asks for takes no room: the
    server throws it away as it comes.
    """

    def __init__(self, app: ASGIApp, settings: ServeSettings, memory: BodyMemory) -> None:
        self._app = app
        self._memory = memory
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        with self._memory.share() as share:
            scope["tierlog.body"] = Body(scope, receive, share, self._settings)

            async def sent(message: Message) -> None:
                """Keeps of the body's room what a whole answer takes, which is never more."""
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
    """Returns the next decoded piece; it is decoded on a thread, as that takes time."""
    if is_here:
        return next(steps, None)
    lane: Lane = scope["tierlog.lane"]
    try:
        return await lane.run(lambda: next(steps, None))
    except ValueError as error:
        raise _undecodable(error) from error

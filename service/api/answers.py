"""Answers that wait for their readers: made and sent piece by piece, and all together within one budget of memory.

A piece is made when the one before it is on its way, so that the reader sets the pace. What an answer is made of (the
messages of a page, or bytes that come all at once) is held until its last piece, and counts against the budget. A
reader who takes nothing for too long is cut off (``service.server.http_server``), so that nobody fills the budget.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from itertools import chain
from typing import Any

from fastapi import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tierlog.service.api.errors import store_error
from tierlog.service.api.lanes import Lane
from tierlog.tiering.base.errors import OverloadedError

#: Size of a piece: the server waits for the client between two. What is smaller is not worth counting.
PIECE_BYTES = 64 << 10
#: A long poll waits in steps, so that it ends when the service stops or the client has gone.
_STEP_S = 0.5


class AnswerShare:
    """The share of one answer in the budget, until :meth:`release`, or until the answer is forgotten."""

    __slots__ = ("_memory", "held_bytes")

    def __init__(self, memory: AnswerMemory, held_bytes: int) -> None:
        self._memory = memory
        self.held_bytes = held_bytes

    def hold(self, size_bytes: int) -> None:
        """Holds this much from now on: an answer that has begun is never refused."""
        self._memory.change(size_bytes - self.held_bytes)
        self.held_bytes = size_bytes

    def release(self) -> None:
        """Holds nothing any more. Idempotent."""
        self.hold(0)

    def __del__(self) -> None:
        self.release()


class AnswerMemory:
    """The budget for answers. Thread safe."""

    def __init__(self, total_bytes: int, wait_ms: int) -> None:
        self._total, self._wait_s = total_bytes, wait_ms / 1000
        # a share may be released when it is garbage-collected, so by a thread that holds the lock
        self._changed = threading.Condition(threading.RLock())
        #: Held now.
        self.used_bytes = 0

    def take(self, size_bytes: int, *, waits: bool = True) -> AnswerShare:
        """Takes room for an answer; raises :class:`OverloadedError` if there is none, with ``waits`` after a wait.

        It waits on a thread only. An answer that is alone gets whatever it asks for: its size has a limit of its own.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._fits(size_bytes), self._wait_s if waits else 0):
                raise OverloadedError(
                    f"there is no room for an answer of {size_bytes} bytes beside those that wait for their readers",
                    hint="try again in a moment, or ask for less; serve.answer_memory_bytes is the limit",
                )
            self.used_bytes += size_bytes
        return AnswerShare(self, size_bytes)

    def change(self, size_bytes: int) -> None:
        """Counts this much more, or less."""
        with self._changed:
            self.used_bytes += size_bytes
            if size_bytes < 0:
                self._changed.notify_all()

    def _fits(self, size_bytes: int) -> bool:
        return not size_bytes or not self.used_bytes or self.used_bytes + size_bytes <= self._total


def memory_of(request: Request) -> AnswerMemory:
    """Returns the budget of the service."""
    memory: AnswerMemory = request.app.state.answer_memory
    return memory


async def wait_for(
    arrival: asyncio.Future[None], timeout_s: float, request: Request, stopping: threading.Event
) -> bool:
    """Waits for what a long poll is for, on the event loop: the few threads of a lane are for those who have work.

    Returns whether it came; it may not, as the time is over, the service stops or the client has gone.
    """
    loop = asyncio.get_running_loop()
    end_s = loop.time() + timeout_s
    while (left_s := end_s - loop.time()) > 0 and not stopping.is_set() and not await request.is_disconnected():
        await asyncio.wait([arrival], timeout=min(left_s, _STEP_S))
        if arrival.done():
            return True
    return False


def answer_in_pieces(
    request: Request, pieces: Iterator[bytes], held_bytes: int, media_type: str, length: int | None = None
) -> Response:
    """Makes an answer of pieces, for which ``held_bytes`` are held; called on a thread of the request's lane.

    ``length`` is that of all pieces, if it is known. Raises :class:`OverloadedError` without room.
    """
    share = memory_of(request).take(held_bytes if held_bytes > PIECE_BYTES else 0)
    first, second = next(pieces, b""), next(pieces, None)
    if second is None:
        return Response(first, media_type=media_type)
    return _InPieces(request.scope["tierlog.lane"], share, chain((first, second), pieces), media_type, length)


def whole_answer(request: Request, data: bytes, media_type: str) -> Response:
    """Makes an answer of bytes that are there; otherwise like :func:`answer_in_pieces`."""
    pieces = (data[start : start + PIECE_BYTES] for start in range(0, len(data), PIECE_BYTES))
    return answer_in_pieces(request, pieces, len(data), media_type, len(data))


class _InPieces(Response):
    def __init__(
        self, lane: Lane, share: AnswerShare, pieces: Iterator[bytes], media_type: str, length: int | None
    ) -> None:
        super().__init__(media_type=media_type)
        if length is None:
            del self.headers["content-length"]
        else:
            self.headers["content-length"] = str(length)
        self._lane, self._share, self._pieces = lane, share, pieces
        self._is_made = length is not None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends everything, and holds it no longer than somebody takes it."""
        try:
            await while_wanted(self._send(send), until_gone(receive))
        finally:
            self._pieces = iter(())
            self._share.release()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        while (piece := await self._next()) is not None:
            await send_pieces(send, piece)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _next(self) -> bytes | None:
        if self._is_made:
            return next(self._pieces, None)
        return await self._lane.run(lambda: next(self._pieces, None), is_timed=False)


async def while_wanted(sending: Coroutine[Any, Any, None], leaving: Coroutine[Any, Any, None]) -> None:
    """Sends an answer until it has ended or its client is gone, which is when ``leaving`` ends."""
    answer, gone = asyncio.ensure_future(sending), asyncio.ensure_future(leaving)
    try:
        await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (gone, answer):
            task.cancel()
        await asyncio.gather(gone, answer, return_exceptions=True)
    if not answer.cancelled():
        answer.result()


async def send_pieces(send: Send, data: bytes) -> None:
    """Sends a part of a body in pieces, between which the server waits for the client."""
    if len(data) <= PIECE_BYTES:
        await send({"type": "http.response.body", "body": data, "more_body": True})
        return
    view = memoryview(data)
    for start in range(0, len(view), PIECE_BYTES):
        piece = bytes(view[start : start + PIECE_BYTES])
        await send({"type": "http.response.body", "body": piece, "more_body": True})


async def until_gone(receive: Receive) -> None:
    """Waits until the client has left; what it still sends is ignored."""
    while (await receive())["type"] != "http.disconnect":
        pass


class Answers:
    """ASGI middleware: sends an answer that is given as a whole in pieces too, and counts it as long as it waits.

    Without room, a call that only looks is answered by 429. A call that has changed something is answered in any case:
    after an append, the room of its body is kept for the answer (:class:`service.api.limits.Bodies`).
    """

    def __init__(self, app: ASGIApp, memory: AnswerMemory) -> None:
        self._app = app
        self._memory = memory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start: Message | None = None

        async def passed(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = message
                return
            begun, start = start, None
            body: bytes = message.get("body", b"")
            if len(body) <= PIECE_BYTES:
                if begun is not None:
                    await send(begun)
                await send(message)
                return
            try:
                share = self._memory.take(len(body) if scope["method"] == "GET" and begun else 0, waits=False)
            except OverloadedError as error:
                await store_error(Request(scope), error)(scope, receive, send)
                return
            try:
                if begun is not None:
                    await send(begun)
                await send_pieces(send, body)
                await send({**message, "body": b""})
            finally:
                share.release()

        await self._app(scope, receive, passed)

"""Compression of answers for clients that ask for it: zstd or gzip, piece by piece as they go out."""

from __future__ import annotations

import zlib
from typing import Protocol

import zstandard
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tierlog.service.api.lanes import Lane
from tierlog.service.api.negotiation import weight_of

#: Smaller bodies do not gain by compression.
_LEAST_BYTES = 1 << 10
#: Larger pieces are compressed on a thread: they would block the event loop for too long.
_LONG_BYTES = 32 << 10
#: In order of preference, for clients that have none.
_ENCODINGS = ("zstd", "gzip")
#: Arrow and Parquet are not compressed: they are compressed inside, or read in place.
_KINDS = ("application/json", "application/problem+json", "application/x-ndjson", "text/")
_RAW_KINDS = tuple(kind.encode() for kind in _KINDS)


class _Encoder(Protocol):
    def compress(self, data: bytes) -> bytes: ...
    def flush(self) -> bytes: ...


class Compression:
    """ASGI middleware: compresses text of 1 KiB or more; other answers go out as they are."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        await self._app(scope, receive, _Answer(scope, send).send)


class _Answer:
    """One answer on its way out; its start waits for the first piece of the body."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope, self._send = scope, send
        self._start: Message | None = None
        self._encoder: _Encoder | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            return
        if message["type"] != "http.response.body":
            await self._send(message)
            return
        body, more = message.get("body", b""), message.get("more_body", False)
        if self._start is not None:
            if not body and more:
                return
            start, self._start = self._start, None
            if more or len(body) >= _LEAST_BYTES or not _only_varies(start["headers"]):
                self._choose(MutableHeaders(raw=start["headers"]), start["status"], body, more=more)
            await self._send(start)
        if self._encoder is None:
            await self._send(message)
            return
        encoder = self._encoder

        def encoded() -> bytes:
            return encoder.compress(body) + (b"" if more else encoder.flush())

        lane: Lane | None = self._scope.get("tierlog.lane")
        is_long = lane is not None and len(body) > _LONG_BYTES
        data = await lane.run(encoded) if lane is not None and is_long else encoded()
        if data or not more:
            await self._send({**message, "body": data})

    def _choose(self, headers: MutableHeaders, status: int, body: bytes, *, more: bool) -> None:
        kind = headers.get("content-type", "")
        if not kind.startswith(_KINDS) or "content-encoding" in headers:
            return
        headers.add_vary_header("Accept-Encoding")
        encoding = _wanted(Headers(scope=self._scope).get("accept-encoding", ""))
        is_whole = status not in (204, 206, 304) and self._scope["method"] != "HEAD"
        if encoding is None or not is_whole or (not more and len(body) < _LEAST_BYTES):
            return
        self._encoder = (
            zlib.compressobj(1, wbits=31) if encoding == "gzip" else zstandard.ZstdCompressor(1).compressobj()
        )
        headers["Content-Encoding"] = encoding
        if "content-length" in headers:
            del headers["content-length"]


def _only_varies(headers: list[tuple[bytes, bytes]]) -> bool:
    """Names the header that larger answers depend on, which is most often all that a small one needs."""
    kind = b""
    for name, value in headers:
        if name == b"content-type":
            kind = value
        elif name in (b"content-encoding", b"vary"):
            return False
    if kind.startswith(_RAW_KINDS):
        headers.append((b"vary", b"Accept-Encoding"))
    return True


def _wanted(accepted: str) -> str | None:
    if not accepted:
        return None
    weights = [(weight_of(encoding, accepted) or 0.0, encoding) for encoding in _ENCODINGS]
    weight, encoding = max(weights, key=lambda each: each[0])
    return encoding if weight > 0 else None

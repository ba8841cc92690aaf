"""One request to an application without a server, whose client may stop anywhere."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from starlette.types import ASGIApp, Message

#: In the pieces of a body: the client goes away, or says nothing any more.
GONE, SILENT = "gone", "silent"
OnSend = Callable[[Message], Awaitable[None]]


class Call:
    """What was sent is in :attr:`sent`; ``on_send`` is the network."""

    def __init__(
        self,
        method: str,
        target: str,
        pieces: Sequence[bytes | str] = (),
        *,
        on_send: OnSend | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        path, _, query = target.partition("?")
        named: Mapping[str, str] = {"host": "127.0.0.1", **(headers or {})}
        self.scope: dict[str, Any] = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "root_path": "",
            "method": method, "path": path, "raw_path": path.encode(), "query_string": query.encode(),
            "server": ("127.0.0.1", 80), "client": ("127.0.0.1", 4711),
            "headers": [(name.encode(), value.encode()) for name, value in named.items()],
        }  # fmt: skip
        self._pieces = list(pieces)
        self._on_send = on_send
        self.sent: list[Message] = []

    async def run(self, app: ASGIApp) -> None:
        """Until the application has answered."""
        await app(self.scope, self._receive, self._send)

    @property
    def status(self) -> int | None:
        """Of the answer; None without one."""
        return next((message["status"] for message in self.sent if message["type"] == "http.response.start"), None)

    @property
    def body(self) -> bytes:
        """Of the answer, as far as it was sent."""
        return b"".join(message.get("body", b"") for message in self.sent)

    async def _receive(self) -> Message:
        piece = self._pieces.pop(0) if self._pieces else SILENT
        if piece == SILENT:
            await asyncio.Event().wait()
        if isinstance(piece, str):
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": piece, "more_body": bool(self._pieces)}

    async def _send(self, message: Message) -> None:
        if self._on_send is not None:
            await self._on_send(message)
        self.sent.append(message)

"""Bodies of requests and answers that must not take for ever; free of the SDK."""

from __future__ import annotations

import io
from typing import Protocol

from tiering.clock import Clock

_PIECE_BYTES = 256 << 10


class TimedBody:
    """Bytes to send, as a file that refuses to be read once the time of its call is up.

    Piece by piece, because the limit of a socket is one for the whole of what is sent at once: parts of 8 MiB would
    time out on a slow line. A line so slow that pieces trickle is ended by the limit for all of them.
    """

    def __init__(self, data: bytes | bytearray, clock: Clock, limit_s: float) -> None:
        self._view = memoryview(data)
        self._position = 0
        self._clock = clock
        self._deadline_s = clock.monotonic_s() + limit_s

    def __len__(self) -> int:
        return len(self._view)

    def read(self, size: int | None = -1) -> bytes:
        """The next piece; TimeoutError when the time is up."""
        if self._clock.monotonic_s() > self._deadline_s:
            raise TimeoutError("the transfer took too long")
        end = len(self._view) if size is None or size < 0 else self._position + size
        piece = bytes(self._view[self._position : end])
        self._position += len(piece)
        return piece

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move, as the SDK does before it repeats a request."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: len(self._view)}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        """Where the next piece begins."""
        return self._position


class Stream(Protocol):
    """What the transport gives as the body of an answer."""

    def read1(self, amt: int) -> bytes:
        """What has come, as soon as anything has; nothing at the end."""
        ...

    def read(self) -> bytes:
        """The rest."""
        ...


def read_until(stream: Stream, length: int, clock: Clock, deadline_s: float, into: list[bytes]) -> None:
    """Append the body's pieces as they come to ``into``, which keeps what came before a failure.

    A read of a fixed size would wait for all of it, however slowly it comes. Raises TimeoutError when time is up.
    """
    left = length
    while left > 0 and (piece := stream.read1(min(left, _PIECE_BYTES))):
        into.append(piece)
        left -= len(piece)
        if clock.monotonic_s() > deadline_s:
            raise TimeoutError("the transfer took too long")
    if left <= 0:
        stream.read()  # nothing is left, but only this gives the connection back

"""Request bodies that come compressed: gzip and zstd, a bounded piece at a time."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Protocol

import zstandard

#: What ``Content-Encoding`` may name.
ENCODINGS = ("gzip", "zstd")
_STEP_BYTES = 256 << 10
#: What is behind a member is copied at its end: of a body of tiny members, most of the time would go there.
_GZIP_INPUT_BYTES = 1 << 10
#: A run-length block of 4 bytes decodes to 128 KiB: so many at a time make 8 MiB at most.
_ZSTD_INPUT_BYTES = 256
#: What a decoder has to be able to hold (RFC 9659); a frame that asks for more is refused.
_ZSTD_WINDOW_BYTES = 8 << 20


class Decoder(Protocol):
    """Decodes one body."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """What a further piece decodes to, in pieces of bounded size; ValueError for what is damaged."""
        ...

    def end(self) -> None:
        """ValueError if the body is cut short."""
        ...


def decoder_of(encoding: str) -> Decoder:
    """A decoder for one body; KeyError for an unknown encoding."""
    kinds: dict[str, Callable[[], Decoder]] = {"gzip": _Gzip, "x-gzip": _Gzip, "zstd": _Zstd}
    return kinds[encoding]()


class _Gzip:
    """Members of gzip, one behind the other."""

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
    """Frames of zstd, one behind the other."""

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

"""Text files as whole lines: plain, gzip or zstd by their first bytes, a piece of about a MiB in memory at a time.

What is no text is refused: files of other kinds by their first bytes, and NUL bytes at the beginning. A named file is
looked at before anything of any file is read on; standard input and pipes are when it is their turn.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from tierlog.tiering.base.errors import InvalidRequestError, MessageTooLargeError

STDIN = "-"
#: What is read at a time.
PIECE_BYTES = 1 << 20
#: So much of a file's beginning is to be text.
_HEAD_BYTES = 64 << 10
_TAR_AT = 257
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
#: Behind the first byte of a frame that zstd passes over, and that some files begin with.
_SKIPPED = b"\x2a\x4d\x18"
#: First bytes of files that are no text, what they are, and how their text may be had.
_KINDS: tuple[tuple[bytes, str, str], ...] = (
    (b"\xfd7zXZ\0", "xz data", "xz -dc FILE | tierlog load - …"),
    (b"BZh", "bzip2 data", "bzip2 -dc FILE | tierlog load - …"),
    (b"\x04\x22\x4d\x18", "lz4 data", "lz4 -dc FILE | tierlog load - …"),
    (b"\xff\x06\0\0sNaPpY", "snappy data", "decompress it first"),
    (b"PK\x03\x04", "a zip archive", "unzip -p FILE | tierlog load - …"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", "7z x -so FILE | tierlog load - …"),
    (b"Rar!\x1a\x07", "a rar archive", "unpack it first"),
    (b"\xff\xfe", "UTF-16 text", "iconv -f UTF-16 -t UTF-8 FILE | tierlog load - …"),
    (b"\xfe\xff", "UTF-16 text", "iconv -f UTF-16 -t UTF-8 FILE | tierlog load - …"),
    (b"LPKSHHRH", "a journal of systemd", "journalctl --file FILE | tierlog load - …"),
    (b"PAR1\x15", "a Parquet file", "docs/pipeline.md has a job for Parquet"),
    (b"ARROW1\0\0", "an Arrow file", "docs/producing.md says how Arrow is sent"),
    (b"Obj\x01", "an Avro file", "write its records as JSON lines first"),
    (b"SQLite format 3\0", "an SQLite database", "write its rows as lines first"),
    (b"%PDF-", "a PDF", "only text has lines"),
    (b"\x7fELF", "a program", "only text has lines"),
    (b"\x89PNG", "a picture", "only text has lines"),
    (_GZIP, "gzip data", "decompress it once before"),
    (_ZSTD, "zstd data", "decompress it once before"),
)
_AS_TEXT = "--text takes it for text all the same"


def place_of(name: str, number: int) -> str:
    """Names a line of a file in an error; numbers begin at 1."""
    return f"{_said(name)}, line {number}"


def check_files(files: Sequence[str], *, is_text: bool = False) -> int | None:
    """Counts the bytes of all files, None if there is standard input or a pipe among them.

    Raises :class:`InvalidRequestError` for a file that cannot be read, and, unless ``is_text`` says it is text whatever
    it looks like, for one that is not.
    """
    total: int | None = 0
    for name in files:
        if name == STDIN:
            total = None
            continue
        with _opened(name) as stream:
            if not stream.seekable():
                total = None
                continue
            next(_pieces(name, stream, lambda count: None, is_text=is_text), b"")
            if total is not None:
                total += stream.seek(0, 2)
    return total


def blocks_of(
    name: str, *, max_line_bytes: int, is_text: bool = False, read: Callable[[int], None] = lambda count: None
) -> Iterator[bytes]:
    """Yields the lines of a file, many at a time, each ended by one LF: see :func:`whole_lines`.

    ``read`` is told how many bytes of the file were read. Raises :class:`InvalidRequestError` for what is no text, and
    for compressed data that is damaged or ends too early.
    """
    with _opened(name) as stream:
        yield from whole_lines(name, _pieces(name, stream, read, is_text=is_text), max_line_bytes)


def whole_lines(name: str, pieces: Iterator[bytes], max_line_bytes: int) -> Iterator[bytes]:
    """Yields the lines of a text that comes in pieces, many at a time, each ended by one LF.

    One CR before a line's end is dropped, and the last line gets an end if it has none. Raises
    :class:`MessageTooLargeError` once a line is longer than it may be, and reads no further.
    """
    lines, rest = 0, b""
    for piece in pieces:
        cut = piece.rfind(b"\n") + 1
        if cut:
            block = rest + piece[:cut]
            lines += block.count(b"\n")
            rest = piece[cut:]
            yield _plain_ends(block)
        else:
            rest += piece
        if len(rest) > max_line_bytes + 1:  # a CR may still go
            raise too_long("line", max_line_bytes, place=f"{place_of(name, lines + 1)}: ")
    if rest:
        yield _plain_ends(rest + b"\n")


def too_long(what: str, max_bytes: int, *, place: str = "", position: int | None = None) -> MessageTooLargeError:
    """The refusal of a line, or a record of several, that is too long for a body."""
    return MessageTooLargeError(
        f"{place}the {what} is over the limit of {max_bytes} bytes",
        position=position,
        hint="hot.max_body_bytes is the setting",
    )


def _plain_ends(block: bytes) -> bytes:
    return block.replace(b"\r\n", b"\n") if b"\r" in block else block


def _said(name: str) -> str:
    return "standard input" if name == STDIN else name


@contextmanager
def _opened(name: str) -> Iterator[BinaryIO]:
    if name == STDIN:
        yield sys.stdin.buffer
        return
    with contextlib.ExitStack() as stack:
        try:
            stream = stack.enter_context(Path(name).open("rb"))
        except OSError as error:
            raise InvalidRequestError(f"cannot read {name}: {error.strerror}") from error
        yield stream


class _Raw(io.RawIOBase):
    """The bytes of a file as they come, the first of which may be looked at before."""

    def __init__(self, stream: BinaryIO, read: Callable[[int], None]) -> None:
        super().__init__()
        self._stream, self._told = stream, read
        self._head = b""

    def head(self, count: int) -> bytes:
        """Returns up to so many of the first bytes, which are read all the same."""
        while len(self._head) < count and (more := self._more(_HEAD_BYTES)):
            self._head += more
        return self._head[:count]

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        found = self.piece(len(buffer))
        buffer[: len(found)] = found
        return len(found)

    def piece(self, most: int) -> bytes:
        """Returns what is there now, at least one byte unless the file is at its end."""
        if self._head:
            found, self._head = self._head[:most], self._head[most:]
            return found
        return self._more(most)

    def _more(self, most: int) -> bytes:
        found: bytes = self._stream.read1(most)  # type: ignore[attr-defined]
        self._told(len(found))
        return found


def _pieces(name: str, stream: BinaryIO, read: Callable[[int], None], *, is_text: bool) -> Iterator[bytes]:
    """Yields the text of a file, decompressed if it is compressed."""
    raw = _Raw(stream, read)
    magic = raw.head(4)
    kind = ""
    more: Callable[[int], bytes] = raw.piece
    if magic[:2] == _GZIP:
        kind, more = "gzip", gzip.GzipFile(fileobj=raw).read
    elif magic == _ZSTD or (magic[1:] == _SKIPPED and magic[0] & 0xF0 == 0x50):
        kind, more = "zstd", pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd").read
    done = 0
    while True:
        try:
            piece = more(PIECE_BYTES)
        except (OSError, EOFError, ValueError, zlib.error) as error:
            what = f"the {kind} data is damaged or cut off" if kind else "cannot be read"
            raise InvalidRequestError(f"{_said(name)}: {what} behind {done} bytes of text: {error}") from error
        if not piece:
            return
        if done < _HEAD_BYTES and not is_text:
            _check_text(name, piece[: _HEAD_BYTES - done], kind, is_first=not done)
        done += len(piece)
        yield piece


def _check_text(name: str, head: bytes, kind: str, *, is_first: bool) -> None:
    inside = f"{kind} data of " if kind else ""
    if is_first:
        for magic, what, way in _KINDS:
            if head.startswith(magic) and (magic != b"BZh" or head[4:10] == b"1AY&SY"):
                raise InvalidRequestError(f"{_said(name)} is {inside}{what}, not text", hint=way)
        if head[_TAR_AT : _TAR_AT + 5] == b"ustar":
            raise InvalidRequestError(
                f"{_said(name)} is {inside}a tar archive, not text", hint="tar -xOf FILE | tierlog load - …"
            )
    at = head.find(b"\0")
    if at >= 0:
        seen = f"byte {at} is NUL" if is_first else "there are NUL bytes"
        raise InvalidRequestError(f"{_said(name)} is {inside}no text: {seen}", hint=_AS_TEXT)

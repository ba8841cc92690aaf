"""The bytes that are dumped: a local file, mapped, or an object, fetched in ranges.

Sections of archive objects are read in bounds: nothing is fetched or made by a length that was not checked.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from tierlog.service.dump.result import decoding
from tierlog.tiering.base.clock import SystemClock
from tierlog.tiering.base.errors import CorruptionError, InvalidRequestError, NotFoundError
from tierlog.tiering.base.fs import ByteArray, LocalFileSystem
from tierlog.tiering.format.section import HEADER, PageRef, SectionHead, check_page, decode_head
from tierlog.tiering.objects.object_store import ObjectStore

#: What is fetched ahead of an object that is read in small steps.
_WINDOW_BYTES = 1 << 20
#: The most that is held in memory of an object at a time; more than any table or page has.
MOST_BYTES = 256 << 20


class _Bytes(Protocol):
    def array(self, start: int, end: int) -> ByteArray:
        """Returns the bytes of a range that lies inside."""
        ...


@dataclass(frozen=True, slots=True)
class Source:
    """A file or object by its name. Ranges are cut to what is there."""

    name: str
    """As errors and findings show it."""
    parts: tuple[str, ...]
    """Folders and file name, from which a format without a magic is told."""
    size: int
    path: Path | None
    """The path of a local file."""
    data: _Bytes

    def array(self, start: int, end: int) -> ByteArray:
        """Returns a range as an array: of a file it costs no memory until it is looked at."""
        start = max(0, min(start, self.size))
        return self.data.array(start, max(start, min(end, self.size)))

    def read(self, start: int, end: int) -> bytes:
        """Returns a range as bytes."""
        return self.array(start, end).tobytes()

    def folder(self, up: int = 0) -> str:
        """Returns the name of the folder around it, or of one further up; empty where there is none."""
        return self.parts[-2 - up] if len(self.parts) > up + 1 else ""


class _Mapped:
    def __init__(self, data: ByteArray) -> None:
        self._data = data

    def array(self, start: int, end: int) -> ByteArray:
        return self._data[start:end]


class _Fetched:
    def __init__(self, objects: ObjectStore, key: str, size: int) -> None:
        self._objects = objects
        self._key = key
        self._size = size
        self._window = (0, b"")

    def array(self, start: int, end: int) -> ByteArray:
        if end - start > MOST_BYTES:
            raise InvalidRequestError(
                f"{end - start} bytes of an object would have to be in memory", path=self._key, hint="copy it to a file"
            )
        at, kept = self._window
        if not at <= start <= end <= at + len(kept):
            ahead = min(self._size, max(end, start + _WINDOW_BYTES))
            at, kept = start, self._objects.get_range(self._key, start, ahead)
            self._window = at, kept
        return np.frombuffer(kept, np.uint8)[start - at : end - at]


def open_source(target: str) -> Source:
    """Opens the file or object of a path or URL; :class:`InvalidRequestError` for none, or no regular file.

    An object below ``file://`` is read as the file it is; the endpoint of S3 is a setting.
    """
    scheme, separator, rest = target.partition("://")
    if not separator:
        return _file(Path(target).absolute(), target)
    if scheme.lower() == "file":
        return _file(Path(rest).absolute(), target)
    bucket, _, key = rest.partition("/")
    if not key or key.endswith("/"):
        raise InvalidRequestError(f"{target!r} names no object", hint="for example s3://bucket/prefix/store/head")
    from tierlog.service.config.settings import Settings
    from tierlog.service.engine.opening import open_archive

    objects = open_archive(f"{scheme}://{bucket}", Settings.load(), SystemClock())
    try:
        size = objects.head(key).size_bytes
    except NotFoundError as error:
        raise InvalidRequestError("no such object", path=target) from error
    return Source(target, tuple(key.split("/")), size, None, _Fetched(objects, key, size))


def _file(path: Path, name: str) -> Source:
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InvalidRequestError("no such file", path=name) from error
    if not stat.S_ISREG(mode):
        raise InvalidRequestError("not a regular file", path=name, hint="name one file or object")
    data = LocalFileSystem().map_read(path)
    return Source(name, path.parts, len(data), path, _Mapped(data))


def read_head(source: Source, position: int, end: int, magic: bytes, version: int) -> SectionHead:
    """Reads header and table of the section that begins at ``position`` and ends at or before ``end``."""
    header = source.read(position, min(end, position + HEADER.size))
    if len(header) < HEADER.size:
        raise CorruptionError(f"section {magic!r} is cut short", position=position)
    table_length = HEADER.unpack(header)[2]
    if table_length > min(MOST_BYTES, end - position - HEADER.size):
        raise CorruptionError(f"section {magic!r} has a table of {table_length} bytes", position=position)
    with decoding():
        head = decode_head(
            source.read(position, position + HEADER.size + table_length), magic, version, path=source.name
        )
        if not isinstance(head.table, dict):
            raise CorruptionError(f"table of section {magic!r} is no object", position=position)
    if position + head.length > end:
        raise CorruptionError(f"section {magic!r} says it has {head.length} bytes", position=position)
    return head


def pages_of(head: SectionHead) -> list[PageRef]:
    """Returns the pages of a section, none of them outside of it."""
    with decoding():
        pages = head.pages
        for page in pages:
            if not head.head_length <= page.position <= page.position + page.length <= head.length:
                raise CorruptionError("a page lies outside of its section")
            if page.length > MOST_BYTES:
                raise CorruptionError(f"a page of {page.length} bytes")
    return pages


def read_page(source: Source, section_at: int, page: PageRef) -> bytes:
    """Reads a checked page of the section at ``section_at``."""
    start = section_at + page.position
    return check_page(source.read(start, start + page.length), page, path=source.name)

"""The contract of an object store, the few rules that every backend shares, and what requests cost.

Prices are list prices of Amazon S3 Standard, us-east-1, USD. Deleting and aborting are free.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import xxhash

from tierlog.tiering.base.errors import InvalidRequestError

MAX_KEY_BYTES = 900
# File systems and MinIO stop at 255 bytes a segment; one rule for all keeps an archive movable between
# backends.
MAX_SEGMENT_BYTES = 255
#: PUT, POST, COPY and LIST; each part of an upload and each page of 1,000 listed names is one.
USD_PER_WRITE = 0.005 / 1000
#: GET, HEAD and every other request.
USD_PER_READ = 0.0004 / 1000
#: An upload that is larger is made in parts of that size, and two requests more; as the S3 client of ours does.
PART_BYTES = 8 << 20
#: Names in one page of a listing.
LISTED_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """The description of one version of one object.

    ``etag`` is opaque: compare it for equality only. ``crc32`` is the zlib CRC-32 of the whole object where
    the server itself knows it, otherwise None. ``modified_ms`` is on the server's clock, which may differ
    from ours.
    """

    key: str
    size_bytes: int
    etag: str
    crc32: int | None
    modified_ms: int


@dataclass(frozen=True, slots=True)
class PendingUpload:
    """An upload that was begun and neither completed nor aborted; ``started_ms`` is on the server's clock."""

    key: str
    upload_id: str
    started_ms: int


class ObjectStore(Protocol):
    """Named immutable byte strings, replaced only as a whole; what every backend owes its callers:

    * **Idempotence.** Repeating a ``put`` without a condition, an ``upload``, a ``delete`` or an
      ``abort_upload`` leaves the same state as doing it once.
    * **Conditions are atomic.** Among any number of racing ``put(if_absent=True)`` of one key exactly one
      succeeds, likewise among ``put(if_match=e)`` with one etag, between threads, processes and machines that
      share the store. Losers get PreconditionFailedError, so does ``if_match`` on a missing object.
    * **A lost answer is possible.** After ObjectStoreUnavailableError or ThrottledError a write may have
      happened. A backend that retries by itself may also turn its own success into PreconditionFailedError,
      so a committer reads the object and looks for its own id before it concludes anything from a failed
      condition.
    * **Whole or nothing.** A reader sees an object complete or not at all, whatever became of its writer.
    * **Ranges** are half-open. A range that reaches outside the object is TornRecordError; fewer bytes than
      asked for are never returned. An empty range inside the object gives no bytes.
    * **"Not there" is an answer.** ObjectNotFoundError says that the store is well and holds no such object.
      A store that failed, timed out, or is not the right one raises another class
      (ObjectStoreUnavailableError, ThrottledError, InvalidRequestError).
    * **List order** is ascending by the UTF-8 bytes of the key. A key present from before the call until its
      end is listed exactly once; what comes or goes meanwhile may or may not be listed. Errors may come up at
      any step of the iteration. Objects whose keys break the rules of :func:`validate_key` are not listed.
    * **Visibility.** After a write or delete returns, every later get, head and list of anybody shows it.
    * **Durability.** When a write returns, the object survives a crash of the machine, as far as the backend
      can.
    * **Threads.** Every method may be called from several threads at once; an iterator belongs to one thread.
    * **Time.** Every call ends in bounded time; a call that would wait longer raises
      ObjectStoreUnavailableError.

    Exceptions are from ``tiering.base.errors`` only, except that what the ``pieces`` of an upload raise passes
    unchanged.
    """

    def put(self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None) -> ObjectInfo:
        """Stores ``data`` under ``key``, on a condition if one is given (never both).

        Raises PreconditionFailedError when the condition does not hold, or when the store cannot tell whether
        an earlier try of this very call was the one that succeeded.
        """
        ...

    def upload(self, key: str, pieces: Iterable[bytes]) -> ObjectInfo:
        """Stores the pieces, joined, holding at most two parts in memory beside the piece in hand.

        If anything fails, ``pieces`` included, no new object appears (but see the lost answer above).
        """
        ...

    def get(self, key: str) -> tuple[bytes, ObjectInfo]:
        """Returns the whole object and what describes exactly these bytes."""
        ...

    def get_if_changed(self, key: str, etag: str) -> tuple[bytes, ObjectInfo] | None:
        """Like :meth:`get`, or None while the object still has this etag."""
        ...

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """Exactly ``end - start`` bytes from ``start``; TornRecordError if the object does not hold them."""
        ...

    def head(self, key: str) -> ObjectInfo:
        """Describes an object without reading it."""
        ...

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        """Objects whose keys start with the text ``prefix`` and are greater than ``after``, in key order."""
        ...

    def delete(self, key: str) -> None:
        """Makes sure that the object is not there; no error if it never was."""
        ...

    def list_uploads(self, prefix: str) -> Iterator[PendingUpload]:
        """Uploads in progress or left by a crash whose keys start with ``prefix``, in no promised order."""
        ...

    def abort_upload(self, pending: PendingUpload) -> None:
        """Forgets a pending upload; no error if it is gone. An upload still running then fails, retryable."""
        ...

    def now_ms(self) -> int:
        """Returns the server's clock, the one that ``modified_ms`` is on; one request."""
        ...

    def close(self) -> None:
        """Gives connections back; may be repeated. Stored objects are not touched."""
        ...


def validate_key(key: str) -> str:
    """Returns ``key`` if every backend can hold it, otherwise raises InvalidRequestError.

    Keys are relative, ``/``-separated, without empty, ``.`` or ``..`` segments and without control characters
    (listings travel as XML), at most 900 bytes of UTF-8 in all and 255 in a segment.
    """
    _validate_text(key, "key")
    for segment in key.split("/"):
        if segment in ("", ".", ".."):
            raise InvalidRequestError(f"object key {key!r} has an empty, '.' or '..' segment")
        if len(segment.encode()) > MAX_SEGMENT_BYTES:
            raise InvalidRequestError(f"object key {key!r} has a segment over {MAX_SEGMENT_BYTES} bytes")
    return key


def is_valid_key(key: str) -> bool:
    """Whether :func:`validate_key` accepts ``key``."""
    try:
        validate_key(key)
    except InvalidRequestError:
        return False
    return True


def validate_prefix(prefix: str) -> str:
    """Returns ``prefix`` if a valid key may start with it; its last segment may be empty or cut anywhere."""
    _validate_text(prefix, "prefix")
    folder, slash, _ = prefix.rpartition("/")
    if slash:
        validate_key(folder)
    return prefix


def validate_after(after: str) -> str:
    """Returns ``after`` if it is a position that a listing may start from; it need not be a valid key."""
    return _validate_text(after, "position")


def validate_conditions(if_absent: bool, if_match: str | None) -> None:
    """Refuses a put with two conditions, or with an etag that no object can have."""
    if if_absent and if_match is not None:
        raise InvalidRequestError("if_absent and if_match exclude each other")
    if if_match == "":
        raise InvalidRequestError("if_match needs the etag of an object")


def validate_range(start: int, end: int) -> None:
    """Refuses a range that no object can hold; where the object ends is for the backend to see."""
    if not 0 <= start <= end:
        raise InvalidRequestError(f"[{start}, {end}) is not a byte range")


class Content:
    """Size, CRC-32 and etag of bytes that come in pieces, for backends that are their own server."""

    def __init__(self, data: bytes = b"") -> None:
        self.size_bytes = 0
        self.crc32 = 0
        self._digest = xxhash.xxh3_128()
        self.add(data)

    def add(self, piece: bytes) -> None:
        """Takes the next piece in."""
        self.size_bytes += len(piece)
        self.crc32 = zlib.crc32(piece, self.crc32)
        self._digest.update(piece)

    def info(self, key: str, modified_ms: int) -> ObjectInfo:
        """Returns the description of an object with the content so far: equal content, equal etag."""
        return ObjectInfo(key, self.size_bytes, self._digest.hexdigest(), self.crc32, modified_ms)


def split_parts(pieces: Iterable[bytes], part_bytes: int) -> Iterator[bytearray]:
    """Cuts the joined pieces into parts of ``part_bytes``, the last one shorter; nothing for no bytes.

    Each part is handed over and not kept, so that a caller who looks one part ahead holds two.
    """
    part = bytearray()
    for piece in pieces:
        rest = memoryview(piece)
        while rest:
            taken = rest[: part_bytes - len(part)]
            part += taken
            rest = rest[len(taken) :]
            if len(part) == part_bytes:
                yield part
                part = bytearray()
    if part:
        yield part


def _validate_text(text: str, what: str) -> str:
    try:
        encoded = text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(f"object {what} {text!r} is not valid unicode") from error
    if len(encoded) > MAX_KEY_BYTES:
        raise InvalidRequestError(f"object {what} of {len(encoded)} bytes is over {MAX_KEY_BYTES}")
    # The two last code points of the basic plane are no XML characters either.
    if any(letter < " " or "\x7f" <= letter <= "\x9f" or letter in "\ufffe\uffff" for letter in text):
        raise InvalidRequestError(f"object {what} {text!r} has a control character")
    return text


def usd_of(*, writes: int = 0, reads: int = 0) -> float:
    """Returns the price of so many requests."""
    return writes * USD_PER_WRITE + reads * USD_PER_READ

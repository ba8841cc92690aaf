"""The part of the S3 protocol that needs no SDK.

Descriptions of objects, errors, bodies with a time limit, and how S3 is to keep objects: storage class and encryption
at rest.
"""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import (
    InvalidRequestError,
    ObjectNotFoundError,
    ObjectStoreUnavailableError,
    PreconditionFailedError,
    StoreError,
    ThrottledError,
    TornRecordError,
)
from tierlog.tiering.objects.object_store import ObjectInfo

FULL_OBJECT = "FULL_OBJECT"
CREDENTIALS_HINT = "check the credentials, their rights on the bucket, and the clock of this machine"

_THROTTLED = {
    "RequestLimitExceeded",
    "SlowDown",
    "SlowDownRead",
    "SlowDownWrite",
    "Throttling",
    "ThrottlingException",
    "TooManyRequests",
}
_CREDENTIALS = {"ExpiredToken", "InvalidToken", "TokenRefreshRequired"}
# Answers with a 4xx status to a request that was right and will be again: lost or damaged on its way, or in a
# queue.
_TRANSIENT = {
    "BadDigest",
    "IncompleteBody",
    "OperationAborted",
    "RequestTimeout",
    "XAmzContentChecksumMismatch",
}
_PIECE_BYTES = 256 << 10
#: Objects of these have to be asked for hours before they can be read.
_OFFLINE = ("GLACIER", "DEEP_ARCHIVE")
_DATA = ("log", "index")


class Call(Protocol):
    """One operation of the SDK on the bucket; None for the answer with the error code ``tolerated``."""

    def __call__(self, operation: str, key: str, tolerated: str = "", **arguments: Any) -> Any:
        """Returns the answer; raises errors of ``tiering.base.errors``."""
        ...


def answer_error(status: int, code: str, message: str, key: str | None) -> StoreError:
    """Returns the error for an answer with this HTTP ``status``, S3 error ``code`` and ``message``.

    A 404 without a code is taken as "no such object"; the caller must know that the bucket exists.
    """
    text = f"the object store answered {status} {code}: {message}"
    if code == "NoSuchBucket":
        return InvalidRequestError(text, path=key, hint="make the bucket, or check its name and the endpoint")
    if code == "NoSuchUpload":
        return ObjectStoreUnavailableError("the upload was aborted, or is complete", path=key)
    if status == 404:
        return ObjectNotFoundError("no such object", path=key)
    if status == 412 or code in ("PreconditionFailed", "ConditionalRequestConflict"):
        return PreconditionFailedError("the object is not as the condition demands", path=key)
    if status == 416:
        return TornRecordError("the range begins outside of the object", path=key)
    if status == 429 or code in _THROTTLED:
        return ThrottledError(text, path=key)
    if status in (401, 403) or code in _CREDENTIALS:
        return InvalidRequestError(text, path=key, hint=CREDENTIALS_HINT)
    if status in (301, 307, 308):
        return InvalidRequestError(text, path=key, hint="check the region and the endpoint")
    if status == 501:
        return InvalidRequestError(text, path=key, hint="this server lacks something that tierlog needs")
    # 409 beyond the one above is a quarrel inside the server, for instance with a bucket that is being made.
    if code in _TRANSIENT or status in (408, 409) or not 400 <= status < 500:
        return ObjectStoreUnavailableError(text, path=key)
    return InvalidRequestError(text, path=key)


def object_info(key: str, answer: Any) -> ObjectInfo:
    """Returns the description in an answer to HEAD or GET."""
    modified_ms = to_ms(answer["LastModified"])
    return ObjectInfo(key, answer["ContentLength"], answer["ETag"], full_object_crc32(answer), modified_ms)


def full_object_crc32(answer: Any) -> int | None:
    """Returns the CRC-32 in an answer, unless it is, or may be, one made from the checksums of parts."""
    text = answer.get("ChecksumCRC32", "")
    kind = answer.get("ChecksumType")
    in_parts = "-" in answer["ETag"]
    if not text or "-" in text or (kind != FULL_OBJECT and (in_parts or kind is not None)):
        return None
    raw = base64.b64decode(text)
    return int.from_bytes(raw, "big") if len(raw) == 4 else None


def crc32_text(crc32: int) -> str:
    """Returns a CRC-32 in the form of the protocol."""
    return base64.b64encode(crc32.to_bytes(4, "big")).decode()


def to_ms(moment: datetime) -> int:
    """Milliseconds since the epoch."""
    return int(moment.timestamp() * 1000)


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
        """Returns the next piece; TimeoutError when the time is up."""
        if self._clock.monotonic_s() > self._deadline_s:
            raise TimeoutError("the transfer took too long")
        end = len(self._view) if size is None or size < 0 else self._position + size
        piece = bytes(self._view[self._position : end])
        self._position += len(piece)
        return piece

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Moves, as the SDK does before it repeats a request."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: len(self._view)}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        """Returns where the next piece begins."""
        return self._position


class Stream(Protocol):
    """The body of an answer, as the transport gives it."""

    def read1(self, amt: int) -> bytes:
        """Returns what has come, as soon as anything has; nothing at the end."""
        ...

    def read(self) -> bytes:
        """Returns the rest."""
        ...


def read_until(stream: Stream, length: int, clock: Clock, deadline_s: float, into: list[bytes]) -> None:
    """Appends the body's pieces as they come to ``into``, which keeps what came before a failure.

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


@dataclass(frozen=True, slots=True)
class S3ObjectOptions:
    """The options for keeping that every write names; None leaves one to the bucket.

    The storage class is for data alone, sorted segments and index objects: head, manifest, state and tails are small,
    read often and soon replaced, for which the cheaper classes ask more. Encryption is for everything.
    """

    storage_class: str | None = None
    sse: str | None = None
    """``AES256`` or ``aws:kms``."""
    sse_kms_key_id: str | None = None

    def __post_init__(self) -> None:
        if self.storage_class in _OFFLINE:
            raise InvalidRequestError(
                f"objects of storage class {self.storage_class} cannot be read at once",
                hint="GLACIER_IR is the coldest that can",
            )
        if self.sse_kms_key_id is not None and self.sse != "aws:kms":
            raise InvalidRequestError("a KMS key is for the encryption aws:kms")

    def arguments(self, key: str) -> dict[str, str]:
        """Returns what a put, or the start of an upload, of ``key`` says."""
        is_data = key.split("/")[1:2] in ([folder] for folder in _DATA)
        chosen = {
            "StorageClass": self.storage_class if is_data else None,
            "ServerSideEncryption": self.sse,
            "SSEKMSKeyId": self.sse_kms_key_id,
        }
        return {name: value for name, value in chosen.items() if value is not None}


DEFAULT_KEEPING = S3ObjectOptions()

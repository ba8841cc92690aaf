"""What the answers of an S3 server mean, object descriptions and errors; free of the SDK."""

from __future__ import annotations

import base64
from datetime import datetime
from typing import Any, Protocol

from tiering.cold.object_store import ObjectInfo
from tiering.errors import (
    InvalidRequestError,
    ObjectNotFoundError,
    ObjectStoreUnavailableError,
    PreconditionFailedError,
    StoreError,
    ThrottledError,
    TornRecordError,
)

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


class Call(Protocol):
    """One operation of the SDK on the bucket; None for the answer with the error code ``tolerated``."""

    def __call__(self, operation: str, key: str, tolerated: str = "", **arguments: Any) -> Any:
        """The answer; raises errors of ``tiering.errors``."""
        ...


def answer_error(status: int, code: str, message: str, key: str | None) -> StoreError:
    """The error for an answer with this HTTP ``status``, S3 error ``code`` and ``message``.

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
    """The description in an answer to HEAD or GET."""
    modified_ms = to_ms(answer["LastModified"])
    return ObjectInfo(key, answer["ContentLength"], answer["ETag"], full_object_crc32(answer), modified_ms)


def full_object_crc32(answer: Any) -> int | None:
    """The CRC-32 in an answer, unless it is, or may be, one made from the checksums of parts."""
    text = answer.get("ChecksumCRC32", "")
    kind = answer.get("ChecksumType")
    in_parts = "-" in answer["ETag"]
    if not text or "-" in text or (kind != FULL_OBJECT and (in_parts or kind is not None)):
        return None
    raw = base64.b64decode(text)
    return int.from_bytes(raw, "big") if len(raw) == 4 else None


def crc32_text(crc32: int) -> str:
    """A CRC-32 in the form of the protocol."""
    return base64.b64encode(crc32.to_bytes(4, "big")).decode()


def to_ms(moment: datetime) -> int:
    """Milliseconds since the epoch."""
    return int(moment.timestamp() * 1000)

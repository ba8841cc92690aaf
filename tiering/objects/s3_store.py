"""Objects in an S3 bucket, or in a server that speaks its protocol (MinIO, versitygw, moto).

The SDK is known to ``tiering.objects.s3_client`` alone, and is imported when a store is made, so that a local store
never pays for it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from email.utils import parsedate_to_datetime
from itertools import islice
from typing import Any

from tierlog.tiering.base.errors import (
    ChecksumMismatchError,
    InvalidRequestError,
    ObjectNotFoundError,
    ObjectStoreUnavailableError,
    PreconditionFailedError,
    StoreError,
    TornRecordError,
)
from tierlog.tiering.objects.object_store import (
    PART_BYTES,
    ObjectInfo,
    PendingUpload,
    is_valid_key,
    split_parts,
    validate_after,
    validate_conditions,
    validate_key,
    validate_prefix,
    validate_range,
)
from tierlog.tiering.objects.s3_client import DEFAULT_LIMITS, S3Client, S3Limits, sdk_errors
from tierlog.tiering.objects.s3_protocol import (
    DEFAULT_KEEPING,
    FULL_OBJECT,
    Call,
    S3ObjectOptions,
    crc32_text,
    full_object_crc32,
    object_info,
    read_until,
    to_ms,
)

# S3 allows 1024 bytes: 900 for a key, one for the slash.
MAX_PREFIX_BYTES = 120


class S3ObjectStore:
    """Keeps the contract of ObjectStore in ``bucket``, with every key below ``prefix``.

    Credentials and region come from the usual places of the AWS SDKs (region ``us-east-1`` if none is set);
    an ``endpoint_url`` switches to path-style addresses. ``part_bytes`` is the size of an upload's parts (S3:
    5 MiB to 5 GiB, at most 10,000 of them); an upload holds two parts.

    Time: every call is bounded by ``limits``. A body that breaks off is read on from where it broke, as long as the
    object is still the same: the SDK repeats requests, not bodies, and a line that breaks every few MiB would never
    let a large one through.

    Checksums: puts and parts carry a CRC-32 that the server checks, and so do whole uploads where the server
    knows checksums of full objects; where it does not, uploads go without. ``get`` checks the CRC-32 that the
    server keeps, ``get_range`` cannot. Listings carry no CRC-32. Of an upload in parts S3 gives the time of
    its *start* as the time of modification. MinIO forgets to list pending uploads when it is
    restarted; it removes stale ones itself, after a day.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        endpoint_url: str | None = None,
        part_bytes: int = PART_BYTES,
        limits: S3Limits = DEFAULT_LIMITS,
        keeping: S3ObjectOptions = DEFAULT_KEEPING,
    ) -> None:
        prefix = prefix.strip("/")
        if prefix and len(validate_key(prefix).encode()) > MAX_PREFIX_BYTES:
            raise InvalidRequestError(f"the prefix is over {MAX_PREFIX_BYTES} bytes", path=prefix)
        self._root = f"{prefix}/" if prefix else ""
        self._part_bytes = part_bytes
        self._keeping = keeping
        self._client = S3Client(bucket, endpoint_url, limits)
        self._uploads = MultipartUploads(self._client.call)

    def put(self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None) -> ObjectInfo:
        validate_conditions(if_absent, if_match)
        conditions = {"IfNoneMatch": "*"} if if_absent else {"IfMatch": if_match} if if_match else {}
        return self._put(key, data, conditions)

    def upload(self, key: str, pieces: Iterable[bytes]) -> ObjectInfo:
        """Stores the pieces in parts, or with one put if they fit into one part."""
        return self._upload(key, pieces, {})

    def upload_if_absent(self, key: str, pieces: Iterable[bytes]) -> ObjectInfo:
        """Stores the pieces on the condition that there is no such object, which few servers took until lately.

        Raises PreconditionFailedError as :meth:`put` does.
        """
        return self._upload(key, pieces, {"IfNoneMatch": "*"})

    def _upload(self, key: str, pieces: Iterable[bytes], conditions: dict[str, str]) -> ObjectInfo:
        validate_key(key)
        parts = split_parts(pieces, self._part_bytes)
        ahead = list(islice(parts, 2))
        if len(ahead) < 2:
            return self._put(key, ahead.pop() if ahead else b"", conditions)
        upload = self._uploads.begin(key, self._full(key), self._keeping.arguments(key))
        try:
            upload.add(ahead, parts)
            try:
                answer = upload.complete(conditions)
            except ObjectStoreUnavailableError:
                # Perhaps only the answer was lost; a repeated request then finds the upload gone.
                with suppress(StoreError):
                    info = self.head(key)
                    if (info.size_bytes, info.crc32) == (upload.size_bytes, upload.crc32):
                        return info
                raise
            return self._stored_info(key, upload.size_bytes, answer)
        except BaseException:  # also a stop of the program: parts that nobody sees cost money
            with suppress(StoreError):
                upload.abort()
            raise

    def get(self, key: str) -> tuple[bytes, ObjectInfo]:
        """Returns the whole object, checked against the server's CRC-32 if it has one for the full object."""
        return self._whole(key, self._client.call("get_object", key, Key=self._full(key), ChecksumMode="ENABLED"))

    def get_if_changed(self, key: str, etag: str) -> tuple[bytes, ObjectInfo] | None:
        """Returns the object, or None if the server says that it still has this etag."""
        answer = self._client.call(
            "get_object", key, "304", Key=self._full(key), IfNoneMatch=etag, ChecksumMode="ENABLED"
        )
        return None if answer is None else self._whole(key, answer)

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """Returns the bytes of the half-open range in one request; HTTP's inclusive form stays inside this method."""
        validate_range(start, end)
        if start == end:  # HTTP has no empty range
            size_bytes = self.head(key).size_bytes
            if end > size_bytes:
                raise TornRecordError(f"{end} is outside of {size_bytes} bytes", path=key, position=size_bytes)
            return b""
        return self._read_body(key, self._ranged(key, start, end), start)

    def head(self, key: str) -> ObjectInfo:
        """Describes the object; its CRC-32 only if it is one of the full object."""
        try:
            return object_info(key, self._client.call("head_object", key, Key=self._full(key), ChecksumMode="ENABLED"))
        except ObjectNotFoundError:
            # The answer to HEAD has no body, so that a missing bucket looks like a missing object.
            if not self._client.bucket_seen:
                self._client.call("list_objects_v2", key, Prefix=self._full(key), MaxKeys=1)
            raise

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        """Lists in pages of 1000, each asked for when the one before is used up."""
        return list_objects(self._client.call, self._root, validate_prefix(prefix), validate_after(after))

    def delete(self, key: str) -> None:
        """Deletes without a condition: MinIO accepts conditions on DELETE and ignores them."""
        with suppress(ObjectNotFoundError):
            self._client.call("delete_object", key, Key=self._full(key))

    def list_uploads(self, prefix: str) -> Iterator[PendingUpload]:
        """Multipart uploads that were begun and not ended."""
        return list_multipart(self._client.call, self._root, validate_prefix(prefix))

    def abort_upload(self, pending: PendingUpload) -> None:
        """Drops the parts of an upload; also after its end, as another try may have ended it."""
        MultipartUpload(self._client.call, pending.key, self._full(pending.key), pending.upload_id, False).abort()

    def now_ms(self) -> int:
        """Returns the time that the server states in its answers."""
        date = self._client.call("head_bucket", "")["ResponseMetadata"]["HTTPHeaders"].get("date")
        if date is None:
            raise ObjectStoreUnavailableError("the object store does not say what time it is")
        return to_ms(parsedate_to_datetime(date))

    def close(self) -> None:
        self._client.close()

    def _full(self, key: str) -> str:
        return self._root + validate_key(key)

    def _put(self, key: str, data: bytes | bytearray, conditions: dict[str, str]) -> ObjectInfo:
        more = {"ChecksumAlgorithm": "CRC32", "ChecksumCRC32": crc32_text(zlib.crc32(data)), **conditions}
        more |= self._keeping.arguments(key)
        try:
            answer = self._client.call("put_object", key, Key=self._full(key), Body=data, **more)
        except ObjectNotFoundError as error:
            if "IfMatch" in conditions:  # the answer where there is nothing to match
                raise PreconditionFailedError("the object is gone", path=key) from error
            raise ObjectStoreUnavailableError("the object store lost the object", path=key) from error
        return self._stored_info(key, len(data), answer)

    def _whole(self, key: str, answer: Any) -> tuple[bytes, ObjectInfo]:
        data, info = self._read_body(key, answer, 0), object_info(key, answer)
        if info.crc32 is not None and zlib.crc32(data) != info.crc32:
            raise ChecksumMismatchError("the object does not match the checksum of the server", path=key)
        return data, info

    def _read_body(self, key: str, answer: Any, start: int) -> bytes:
        """Returns the body of an answer, which begins at ``start`` in the object.

        One that breaks off is a failure of the connection, not of the object: the rest is asked for again.
        """
        limits, clock = self._client.limits, self._client.clock
        end, etag = start + answer["ContentLength"], answer["ETag"]
        deadline_s = clock.monotonic_s() + limits.call_limit_s(end - start)
        pieces: list[bytes] = []
        for tries_left in reversed(range(limits.max_attempts)):
            broken: StoreError | None = None
            try:
                with sdk_errors(key):
                    # The SDK's own wrapper reads in fixed sizes; what it would check is checked here.
                    read_until(answer["Body"]._raw_stream, answer["ContentLength"], clock, deadline_s, pieces)
            except ObjectStoreUnavailableError as error:
                broken = error
            finally:
                answer["Body"].close()
            came = sum(map(len, pieces))
            if came == end - start:
                return b"".join(pieces)
            if came > end - start or not tries_left or clock.monotonic_s() > deadline_s:
                raise broken or ObjectStoreUnavailableError(f"the answer broke off after {came} bytes", path=key)
            answer = self._rest(key, start + came, end, etag)
        raise AssertionError

    def _rest(self, key: str, start: int, end: int, etag: str) -> Any:
        """Returns the answer to the range, of the object with this etag."""
        try:
            return self._ranged(key, start, end, IfMatch=etag)
        except (PreconditionFailedError, ObjectNotFoundError) as error:
            raise ObjectStoreUnavailableError("the object was replaced while it was read", path=key) from error

    def _ranged(self, key: str, start: int, end: int, **conditions: str) -> Any:
        answer = self._client.call(
            "get_object", key, Key=self._full(key), Range=f"bytes={start}-{end - 1}", **conditions
        )
        served = answer.get("ContentRange", "")
        if not served.startswith(f"bytes {start}-"):
            answer["Body"].close()
            raise ObjectStoreUnavailableError(f"asked for [{start}, {end}), the server gave {served!r}", path=key)
        if answer["ContentLength"] != end - start:
            answer["Body"].close()
            raise TornRecordError(f"[{start}, {end}) ends outside of the object: {served}", path=key)
        return answer

    def _stored_info(self, key: str, size_bytes: int, answer: Any) -> ObjectInfo:
        """Returns what the answer to a write says; the server's clock is in its Date header."""
        date = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
        modified_ms = self.head(key).modified_ms if date is None else to_ms(parsedate_to_datetime(date))
        return ObjectInfo(key, size_bytes, answer["ETag"], full_object_crc32(answer), modified_ms)


def list_objects(call: Call, root: str, prefix: str, after: str) -> Iterator[ObjectInfo]:
    """Objects below ``root``, their keys without it; a page is asked for when the one before is used up."""
    arguments = {"Prefix": root + prefix}
    if after:
        arguments["StartAfter"] = root + after
    for page in _pages(call, "list_objects_v2", prefix, arguments, "ContinuationToken"):
        for entry in page.get("Contents", ()):
            key = entry["Key"][len(root) :]
            if is_valid_key(key):
                yield ObjectInfo(key, entry["Size"], entry["ETag"], None, to_ms(entry["LastModified"]))


def list_multipart(call: Call, root: str, prefix: str) -> Iterator[PendingUpload]:
    """Uploads below ``root`` that were begun and not ended, their keys without it.

    MinIO takes a prefix for one whole key. Asked for the bucket as a whole it names every upload begun since it was
    started, and those below the prefix are picked here.
    """
    asked = root + prefix
    found = False
    server = ""
    for page in _pages(call, "list_multipart_uploads", prefix, {"Prefix": asked}, "KeyMarker", "UploadIdMarker"):
        server = page["ResponseMetadata"]["HTTPHeaders"].get("server", "")
        for pending in _pending(page, root, asked):
            found = True
            yield pending
    if not found and asked and "minio" in server.lower():
        for page in _pages(call, "list_multipart_uploads", prefix, {}, "KeyMarker", "UploadIdMarker"):
            yield from _pending(page, root, asked)


def _pending(page: Any, root: str, asked: str) -> Iterator[PendingUpload]:
    for entry in page.get("Uploads", ()):
        key = entry["Key"]
        if key.startswith(asked) and is_valid_key(key[len(root) :]):
            yield PendingUpload(key[len(root) :], entry["UploadId"], to_ms(entry["Initiated"]))


def _pages(call: Call, operation: str, prefix: str, arguments: dict[str, str], *markers: str) -> Iterator[Any]:
    """Yields all pages; ``markers`` name the arguments that ``Next...`` of an answer is for."""
    while True:
        page = call(operation, prefix, **arguments)
        yield page
        if not page.get("IsTruncated"):
            return
        following = {marker: page.get(f"Next{marker}") for marker in markers}
        if not all(following.values()):
            raise ObjectStoreUnavailableError("the listing broke off", path=prefix)
        arguments = {**arguments, **following}


class MultipartUploads:
    """Begins uploads, and remembers when a server does not know checksums of full objects."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._ask_for_checksum = True

    def begin(self, key: str, full_key: str, keeping: dict[str, str]) -> MultipartUpload:
        """A new upload, kept as ``keeping`` says, with a checksum if the server agrees to one of the full object."""
        if self._ask_for_checksum:
            with suppress(InvalidRequestError):  # if not about the checksum, the plain request fails too
                answer = self._call(
                    "create_multipart_upload",
                    key,
                    Key=full_key,
                    ChecksumAlgorithm="CRC32",
                    ChecksumType=FULL_OBJECT,
                    **keeping,
                )
                agreed = answer.get("ChecksumType") == FULL_OBJECT
                upload = MultipartUpload(self._call, key, full_key, answer["UploadId"], agreed)
                if agreed:
                    return upload
                # Without a word about the type it would take our checksum for one of another kind.
                upload.abort()
        answer = self._call("create_multipart_upload", key, Key=full_key, **keeping)
        self._ask_for_checksum = False
        return MultipartUpload(self._call, key, full_key, answer["UploadId"], False)


class MultipartUpload:
    """One upload in progress: parts are added, then it is completed or aborted.

    It carries a checksum of the full object where the server knows such.
    """

    def __init__(self, call: Call, key: str, full_key: str, upload_id: str, checked: bool) -> None:
        self.size_bytes = 0
        self.crc32 = 0
        self._call = call
        self._key = key
        self._upload: dict[str, Any] = {"Key": full_key, "UploadId": upload_id}
        self._checked = checked
        self._parts: list[dict[str, Any]] = []

    def add(self, ahead: list[bytearray], parts: Iterator[bytearray]) -> None:
        """Sends the parts read ``ahead``, which are taken out of the list, and then the others."""
        for number, part in enumerate(_drained(ahead, parts), start=1):
            self.size_bytes += len(part)
            self.crc32 = zlib.crc32(part, self.crc32)
            arguments = {"PartNumber": number, "Body": part, **self._upload}
            checksum = {"ChecksumCRC32": crc32_text(zlib.crc32(part))} if self._checked else {}
            if self._checked:
                arguments["ChecksumAlgorithm"] = "CRC32"
            answer = self._call("upload_part", self._key, **arguments, **checksum)
            self._parts.append({"PartNumber": number, "ETag": answer["ETag"], **checksum})

    def complete(self, conditions: dict[str, str]) -> Any:
        """Makes the object appear; the server compares the checksum of the whole if it has agreed to."""
        arguments = {"MultipartUpload": {"Parts": self._parts}, **self._upload, **conditions}
        if self._checked:
            arguments |= {"ChecksumType": FULL_OBJECT, "ChecksumCRC32": crc32_text(self.crc32)}
        return self._call("complete_multipart_upload", self._key, **arguments)

    def abort(self) -> None:
        """Drops the parts; no error if the upload is gone."""
        with suppress(ObjectNotFoundError):
            self._call("abort_multipart_upload", self._key, "NoSuchUpload", **self._upload)


def _drained(ahead: list[bytearray], parts: Iterator[bytearray]) -> Iterator[bytearray]:
    """Yields all parts, without keeping the first ones while later ones are made."""
    while ahead:
        yield ahead.pop(0)
    yield from parts

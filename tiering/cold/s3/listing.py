"""Listings of an S3 bucket, page by page; free of the SDK."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tiering.cold.object_store import ObjectInfo, PendingUpload, is_valid_key
from tiering.cold.s3.answers import Call, to_ms
from tiering.errors import ObjectStoreUnavailableError


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
    """All pages; ``markers`` name the arguments that ``Next...`` of an answer is for."""
    while True:
        page = call(operation, prefix, **arguments)
        yield page
        if not page.get("IsTruncated"):
            return
        following = {marker: page.get(f"Next{marker}") for marker in markers}
        if not all(following.values()):
            raise ObjectStoreUnavailableError("the listing broke off", path=prefix)
        arguments = {**arguments, **following}

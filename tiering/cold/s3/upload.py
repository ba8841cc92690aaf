"""Uploads in parts on S3, with a checksum of the full object where the server knows it; free of the SDK."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from tiering.cold.s3.answers import FULL_OBJECT, Call, crc32_text
from tiering.errors import InvalidRequestError, ObjectNotFoundError


class MultipartUpload:
    """One upload in progress: add parts, then complete or abort it."""

    def __init__(self, call: Call, key: str, full_key: str, upload_id: str, checked: bool) -> None:
        self.size_bytes = 0
        self.crc32 = 0
        self._call = call
        self._key = key
        self._upload: dict[str, Any] = {"Key": full_key, "UploadId": upload_id}
        self._checked = checked
        self._parts: list[dict[str, Any]] = []

    def add(self, ahead: list[bytearray], parts: Iterator[bytearray]) -> None:
        """Send the parts read ``ahead``, which are taken out of the list, and then the others."""
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
        """Make the object appear; the server compares the checksum of the whole if it has agreed to."""
        arguments = {"MultipartUpload": {"Parts": self._parts}, **self._upload, **conditions}
        if self._checked:
            arguments |= {"ChecksumType": FULL_OBJECT, "ChecksumCRC32": crc32_text(self.crc32)}
        return self._call("complete_multipart_upload", self._key, **arguments)

    def abort(self) -> None:
        """Drop the parts; no error if the upload is gone."""
        with suppress(ObjectNotFoundError):
            self._call("abort_multipart_upload", self._key, "NoSuchUpload", **self._upload)


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


def _drained(ahead: list[bytearray], parts: Iterator[bytearray]) -> Iterator[bytearray]:
    """All parts, without keeping the first ones while later ones are made."""
    while ahead:
        yield ahead.pop(0)
    yield from parts

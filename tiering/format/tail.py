"""A tail: a piece of the unarchived log in the bucket. ``docs/formats/tail.md`` has every field and the protocol.

One section ``TLTAIL01``; the table says which range of whose log, the pages are the log's bytes.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
import zstandard

from tierlog.tiering.base.errors import ChecksumMismatchError, TornRecordError
from tierlog.tiering.base.fs import ByteArray
from tierlog.tiering.format.compression import decompress
from tierlog.tiering.format.section import decode_head, encode_section, whole_section

MAGIC = b"TLTAIL01"
VERSION = 1
#: Bytes of one page before compression.
PAGE_BYTES = 1 << 20
_LEVEL = 1


class TailKind(StrEnum):
    """The effect of a tail on the chain."""

    DATA = "data"
    ROLL = "roll"
    FENCE = "fence"


@dataclass(frozen=True, slots=True)
class TailHead:
    """Everything about a tail but the bytes: which of them it holds, and of whose log."""

    store_id: str
    volume_id: str
    epoch: int
    nonce: str
    kind: TailKind
    first: int
    end: int
    segment_bytes: int
    payload_bytes: int = 0
    payload_crc32: int = 0
    topics: Mapping[str, int] = field(default_factory=dict)
    """Queue counts of the topics that have records in it."""

    @classmethod
    def decode(cls, data: bytes, *, path: str) -> TailHead:
        """Decodes the first bytes of the object, header and table; raises the errors of a section."""
        return cls.of_table(decode_head(data, MAGIC, VERSION, path=path).table, path=path)

    @classmethod
    def of_table(cls, table: Mapping[str, Any], *, path: str) -> TailHead:
        """Reads the section's table; raises :class:`TornRecordError` if it contradicts itself."""
        head = cls(
            store_id=table["store_id"], volume_id=table["volume_id"], epoch=table["epoch"], nonce=table["nonce"],
            kind=TailKind(table["kind"]), first=table["first"], end=table["end"], segment_bytes=table["segment_bytes"],
            payload_bytes=table["bytes"], payload_crc32=table["crc32"], topics=dict(table["topics"]),
        )  # fmt: skip
        if not head._is_sound():
            raise TornRecordError(f"tail says it is {head.kind} of {head.first}..{head.end}", path=path)
        return head

    def _is_sound(self) -> bool:
        if self.kind is TailKind.FENCE:
            return self.end == self.first and not self.payload_bytes
        base = self.first - self.first % self.segment_bytes
        if not self.first < self.end <= base + self.segment_bytes:
            return False
        if self.kind is TailKind.ROLL:
            return self.end == base + self.segment_bytes and self.payload_bytes <= self.end - self.first
        return self.payload_bytes == self.end - self.first


@dataclass(frozen=True, slots=True)
class Tail:
    """A whole tail, its bytes verified."""

    head: TailHead
    payload: bytes


def encode_tail(head: TailHead, payload: ByteArray | bytes = b"") -> bytes:
    """Returns the object; length and checksum in ``head`` are the payload's, as :func:`payload_crc32` gives it."""
    compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True, write_content_size=True)
    view = memoryview(payload.data if isinstance(payload, np.ndarray) else payload)
    pieces = (view[start : start + PAGE_BYTES] for start in range(0, len(view), PAGE_BYTES))
    pages = [(compressor.compress(piece), {"raw_bytes": len(piece)}) for piece in pieces]
    table = {
        "store_id": head.store_id, "volume_id": head.volume_id, "epoch": head.epoch, "nonce": head.nonce,
        "kind": head.kind.value, "first": head.first, "end": head.end, "segment_bytes": head.segment_bytes,
        "bytes": head.payload_bytes, "crc32": head.payload_crc32, "topics": dict(head.topics),
    }  # fmt: skip
    return encode_section(MAGIC, VERSION, table, pages)[0]


def payload_crc32(payload: ByteArray | bytes) -> int:
    """Returns the checksum of a payload that its tail states."""
    return zlib.crc32(payload.data if isinstance(payload, np.ndarray) else payload)


def decode_tail(data: bytes, *, path: str) -> Tail:
    """Returns the object's content with every checksum verified; raises the errors of a section."""
    table, pages = whole_section(data, MAGIC, VERSION, path=path)
    head = TailHead.of_table(table, path=path)
    payload = b"".join(decompress(page, PAGE_BYTES, "page of a tail", path=path) for page in pages)
    if len(payload) != head.payload_bytes or zlib.crc32(payload) != head.payload_crc32:
        raise ChecksumMismatchError("the bytes of a tail are not those it was made of", path=path)
    return Tail(head, payload)

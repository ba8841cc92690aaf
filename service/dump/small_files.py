"""The checkpoint, the abort file, the lock, and a range in the disk cache."""

from __future__ import annotations

import zlib
from dataclasses import asdict

from service.dump.result import Dump, Options, text_of
from service.dump.source import Source
from tiering.cold.caching.disk import CRC_FROM, HEAD
from tiering.format.checkpoint import CHECKPOINT_BYTES, Checkpoint

_TEXT_BYTES = 1_000
_READ_BYTES = 1 << 20
#: RocketMQ 5.5 has more fields behind those that are known; they are shown by their position.
_FIELDS_END = 40


def dump_checkpoint(source: Source, options: Options) -> Dump:
    """The times and offsets of a checkpoint."""
    data = source.read(0, CHECKPOINT_BYTES)
    head = {**asdict(Checkpoint.decode(data)), "bytes": source.size}
    further = {
        str(at): value
        for at in range(_FIELDS_END, len(data) - 7, 8)
        if (value := int.from_bytes(data[at : at + 8], "big", signed=True))
    }
    dump = Dump("checkpoint", {**head, "further_fields": further} if further else head)
    if source.size != CHECKPOINT_BYTES:
        dump.find(f"a checkpoint has {CHECKPOINT_BYTES} bytes, not {source.size}; fields that are missing read as 0")
    return dump


def dump_abort(source: Source, options: Options) -> Dump:
    """The file that is there while a store is open for writing."""
    return Dump("abort", {"meaning": "the store is open, or was not closed", **_text(source)})


def dump_lock(source: Source, options: Options) -> Dump:
    """The file that a writer locks; after the first line ours names the holder."""
    return Dump("lock", {"meaning": "locked by who writes the store; its being there says nothing", **_text(source)})


def dump_cached_range(source: Source, options: Options) -> Dump:
    """Of which object a file of the disk cache is, and how much of it; its bytes are those of the object."""
    start = source.read(0, HEAD.size)
    dump = Dump("cached-range", {"bytes": source.size})
    if len(start) < HEAD.size:
        dump.find(f"file has {source.size} bytes, its head {HEAD.size}")
        return dump
    _, crc, length = HEAD.unpack(start)
    begins = HEAD.size + length
    key = text_of(source.read(HEAD.size, min(begins, source.size)).decode("utf-8", "replace"))
    dump.head |= {"key": key, "crc32": f"{crc:08x}", "range_bytes": max(0, source.size - begins)}
    found = 0
    for at in range(CRC_FROM, source.size, _READ_BYTES):
        found = zlib.crc32(source.read(at, min(at + _READ_BYTES, source.size)), found)
    if begins > source.size or found != crc:
        dump.find("wrong checksum: it counts as not there")
    return dump


def _text(source: Source) -> dict[str, object]:
    text = text_of(source.read(0, _TEXT_BYTES).decode("utf-8", "replace")).strip()
    return {"content": text, "bytes": source.size}

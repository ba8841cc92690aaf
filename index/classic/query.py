"""Asks several classic index files in RocketMQ's order and with RocketMQ's limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from index.classic.file import ClassicIndexFile
from tiering.format.hashing import key_hash

#: RocketMQ's ``maxMsgsNumBatch``.
MOST_OFFSETS = 64


@dataclass
class QueryOffsets:
    """Where messages with a key may lie, and how far the index reaches."""

    offsets: list[int] = field(default_factory=list)
    """Physical offsets as they were found: newest file first, newest item first. Other keys of equal hash included."""
    last_update_ms: int = 0
    last_update_offset: int = 0


def query_files(
    files: Sequence[ClassicIndexFile], topic: str, key: str, limit: int, begin_ms: int, end_ms: int
) -> QueryOffsets:
    """Look into ``files``, which are in the order of their names, for a closed range of store times.

    At most 64 offsets, over all files together. ``key`` is ``T#tags`` for a search by tags. Times are whole seconds
    (``ClassicIndexFile.query``): who needs them exact asks one second wider and reads the records.
    """
    answer = QueryOffsets()
    limit = min(limit, MOST_OFFSETS)
    hash = key_hash(topic, key)
    for file in reversed(files):
        header = file.header
        if file is files[-1]:
            answer.last_update_ms, answer.last_update_offset = header.end_ms, header.end_offset
        if header.may_hold(begin_ms, end_ms):
            answer.offsets += file.query(hash, limit - len(answer.offsets), begin_ms, end_ms)
        if header.begin_ms < begin_ms or len(answer.offsets) >= limit:
            break
    return answer

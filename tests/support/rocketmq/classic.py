"""The classic index of stores that RocketMQ wrote: their log as a subscriber sees it, and RocketMQ's way to query."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tierlog.index.rocketmq.classic_index import ClassicIndexFile, query_files
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.base.paths import base_offset_name
from tierlog.tiering.format.record import decode_record
from tierlog.tiering.hot.dispatch import LogRange
from tierlog.tiering.kernels.scan import ScanStop, TopicTable, scan


def log_ranges(root: Path, topics: Sequence[str], segment_bytes: int) -> Iterator[LogRange]:
    """Every valid record of a commit log in ranges of at most 50 records."""
    table = TopicTable(list(topics))
    base = 0
    while (path := root / "commitlog" / base_offset_name(base)).exists():
        data = np.frombuffer(path.read_bytes(), np.uint8)
        position = 0
        while True:
            found = scan(data, position, len(data), base, table, check_crc=True, max_rows=50)
            is_blank = found.stop is ScanStop.BLANK
            reached = len(data) if is_blank else found.position
            if reached > position:
                ids = np.arange(len(topics), dtype=np.int32)
                yield LogRange(data, base, base + position, base + reached, found.rows, ids)
            position = reached
            if is_blank:
                break
            if found.stop is not ScanStop.ROWS_FULL:
                return
        base += segment_bytes


def open_files(root: Path, slots: int, items: int) -> list[ClassicIndexFile]:
    """The classic files of a store directory in the order of their names."""
    paths = sorted(path for path in (root / "index").iterdir() if path.is_file() and path.name.isdecimal())
    return [ClassicIndexFile.open(LocalFileSystem(), path, slots, items) for path in paths]


@dataclass
class Found:
    """What ``queryMessage`` gives."""

    offsets: list[int]
    last_update_ms: int = 0
    last_update_offset: int = 0


class LogReader:
    """Reads records of a commit log whose segments all have one size."""

    def __init__(self, root: Path, segment_bytes: int) -> None:
        self._segment_bytes = segment_bytes
        self._segments = {int(path.name): path.read_bytes() for path in (root / "commitlog").iterdir()}

    def store_ms(self, offset: int) -> int:
        """Store time of the record at an offset."""
        base = offset - offset % self._segment_bytes
        return decode_record(self._segments[base], offset - base).store_ms


def query_message(files: Sequence[ClassicIndexFile], log: LogReader, query: dict[str, Any]) -> Found:
    """As a broker composes it: three rounds at most, each ending where the one before found its oldest message."""
    answer = Found([])
    end_ms = query["end"]
    key = f"T#{query['key']}" if query["indexType"] == "T" else query["key"]
    for _ in range(3):
        found = query_files(files, query["topic"], key, limit=query["maxNum"], begin_ms=query["begin"], end_ms=end_ms)
        if not found.offsets:
            break
        answer.last_update_ms, answer.last_update_offset = found.last_update_ms, found.last_update_offset
        answer.offsets += sorted(found.offsets)
        if answer.offsets:
            break
        end_ms = log.store_ms(min(found.offsets))
        if end_ms < query["begin"]:
            break
    return answer

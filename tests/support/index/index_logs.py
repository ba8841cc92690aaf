"""Logs of one segment, scanned, for tests of the index without a store around it."""

from __future__ import annotations

import numpy as np

from tierlog.tiering.format.properties import KEYS, encode_properties
from tierlog.tiering.format.record import Record, RecordVersion, encode_host, encode_record
from tierlog.tiering.hot.dispatch import LogRange
from tierlog.tiering.kernels.scan import TopicTable, scan

T = 1_700_000_000_000
HOST = encode_host(bytes([10, 0, 0, 1]), 9876)


class Log:
    """A log of one segment with messages (topic, keys, store time)."""

    def __init__(self, messages: list[tuple[str, str, int]], base: int = 0, sys_flag: int = 0) -> None:
        raw = b""
        self.offsets = []
        topics = list(dict.fromkeys(topic for topic, _, _ in messages))
        for at, (topic, keys, store_ms) in enumerate(messages):
            self.offsets.append(base + len(raw))
            text = encode_properties({KEYS: keys} if keys else {})
            raw += encode_record(
                Record(
                    0, RecordVersion.V1, 0, 0, 0, at, base + len(raw), sys_flag, store_ms - 5, HOST, store_ms,
                    HOST, 0, 0, b"body", topic, text,
                )
            )  # fmt: skip
        self.base = base
        self.end = base + len(raw)
        self.data = np.frombuffer(raw, np.uint8)
        self.rows = scan(self.data, 0, len(raw), base, TopicTable(topics), check_crc=True).rows
        self.topic_ids = np.arange(100, 100 + len(topics), dtype=np.int32)

    def range(self, start: int | None = None, end: int | None = None) -> LogRange:
        start = self.base if start is None else start
        end = self.end if end is None else end
        physical = self.rows["physical_offset"]
        rows = self.rows[(physical >= start) & (physical < end)]
        return LogRange(self.data, self.base, start, end, rows, self.topic_ids)


def numbered(count: int, keys: int = 1, step_ms: int = 100) -> Log:
    return Log([("t", " ".join(f"k{i}-{k}" for k in range(keys)), T + step_ms * i) for i in range(count)])

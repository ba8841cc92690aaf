"""The store directory of a broker that runs, as a test has it written: appended to, killed, started again, cleaned."""

from __future__ import annotations

import os
from pathlib import Path

from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.format.checkpoint import Checkpoint
from tierlog.tiering.format.record import (
    BLANK,
    BLANK_BYTES,
    MAGIC_BLANK,
    Record,
    RecordVersion,
    encode_host,
    encode_record,
)

SEGMENT_BYTES = 4096
_HOST = encode_host(bytes((10, 0, 0, 1)), 10911)
_HOST_V6 = encode_host(bytes(15) + b"\1", 10911)


class RunningBroker:
    """Writes what a broker writes; ``log`` is what its log is, without what lies behind blank records."""

    def __init__(self, root: Path, clock: ManualClock, *, begin: int = 0, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.paths = StorePaths(root)
        self.paths.commitlog.mkdir(parents=True)
        self.paths.config.mkdir()
        self.clock = clock
        self.segment_bytes = segment_bytes
        #: Where the next record goes.
        self.end = begin
        #: Every record and blank record by its offset.
        self.written: dict[int, bytes] = {}
        self._messages = 0
        self._segment(begin)
        self.start()

    # processes

    def start(self) -> None:
        """The mark of a start."""
        self.paths.abort.write_text("4711")
        ns = self.clock.now_ms() * 1_000_000
        os.utime(self.paths.abort, ns=(ns, ns))

    def stop(self) -> None:
        """A clean stop."""
        self.paths.abort.unlink()

    def start_again_at(self, end: int) -> None:
        """After a kill: the log ends at a record, what lies behind it in the file stays, later files go."""
        self.clock.advance(10_000)
        base = end - end % self.segment_bytes
        for path in self.paths.commitlog.iterdir():
            if int(path.name) > base:
                path.unlink()
        self.written = {offset: data for offset, data in self.written.items() if offset < end}
        self._messages = sum(len(data) > BLANK_BYTES for data in self.written.values())
        self.end = end
        self.start()

    # the log

    def record(self, body: bytes, *, checksum: bool = False, v6: bool = False, store_ms: int | None = None) -> bytes:
        """What the next record would be."""
        return encode_record(
            Record(
                size=0, version=RecordVersion.V1, body_crc=0, queue_id=0, flag=0, queue_offset=self._messages,
                physical_offset=self.end, sys_flag=0, born_ms=self.clock.now_ms(),
                born_host=_HOST_V6 if v6 else _HOST,
                store_ms=self.clock.now_ms() if store_ms is None else store_ms, store_host=_HOST, reconsume_times=0,
                prepared_offset=0, body=body, topic="orders", properties_text=b"KEYS\x01k\x02",
            ),
            checksum=checksum,
        )  # fmt: skip

    def append(self, body: bytes = b"x" * 100, *, checksum: bool = False, v6: bool = False) -> bytes:
        """A record at the end, behind a blank record if it has no room."""
        data = self.record(body, checksum=checksum, v6=v6)
        left = self.segment_bytes - self.end % self.segment_bytes
        if len(data) + BLANK_BYTES > left:
            self.roll()
            data = self.record(body, checksum=checksum, v6=v6)
        self.put(self.end, data)
        self.written[self.end] = data
        self._messages += 1
        self.end += len(data)
        return data

    def roll(self) -> None:
        """Ends the segment with a blank record, and makes the next file."""
        left = self.segment_bytes - self.end % self.segment_bytes
        blank = BLANK.pack(left, MAGIC_BLANK)
        self.put(self.end, blank)
        self.written[self.end] = blank
        self.end += left
        self._segment(self.end)

    def put(self, offset: int, data: bytes) -> None:
        """Bytes in place, whatever they are."""
        base = offset - offset % self.segment_bytes
        with self._segment(base).open("r+b") as file:
            file.seek(offset - base)
            file.write(data)

    def remove_first(self) -> int:
        """What the broker's removal does; returns where its log begins then."""
        path = min(self.paths.commitlog.iterdir())
        path.unlink()
        return int(min(self.paths.commitlog.iterdir()).name)

    def confirm(self, offset: int) -> None:
        """The checkpoint's confirmed offset."""
        self.paths.checkpoint.write_bytes(Checkpoint(confirm_offset=offset).encode())

    def log(self, begin: int = 0) -> dict[int, bytes]:
        """What a follower is to have from an offset on."""
        return {offset: data for offset, data in self.written.items() if offset >= begin}

    def _segment(self, base: int) -> Path:
        path = self.paths.segment(base)
        if not path.exists():
            path.write_bytes(bytes(self.segment_bytes))
        return path

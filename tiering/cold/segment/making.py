"""Makes compressed frames of sorted records, and looks at each once more before it counts.

What a frame compresses to is decompressed at once and compared with what the scan read, so that no byte changes
unnoticed between log and object (``docs/formats/sorted_segment.md``). All of that is one thread's work, for some
frames at a time: another thread takes longer to begin than a frame takes to compress.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import zstandard
from numpy.typing import NDArray

from tiering.errors import ChecksumMismatchError, CorruptionError
from tiering.format.sorted_segment import checksum_in_frame, decompress_frame
from tiering.kernels.checksum import crc32_of
from tiering.kernels.frames import Batch, FrameGatherer, FrameRoom

_BATCH_BYTES = 1 << 20
"""Of records: what is gathered stays in a processor's own cache until it is compressed."""


@dataclass(slots=True)
class MadeFrames:
    """Compressed frames that hold their records: ``piece`` joins them, ``crc32`` is its CRC.

    ``record_sum`` is that of the records that they were found to hold.
    """

    batch: Batch
    piece: bytes
    crc32: int
    lengths: list[int]
    checksums: list[int]
    record_sum: int


class FrameMaker:
    """Makes the frames of one segment; any thread may call it, each has memory and contexts of its own."""

    def __init__(self, gatherer: FrameGatherer, level: int) -> None:
        self._gatherer = gatherer
        self._level = level
        self._of_thread = threading.local()

    def make(self, batch: tuple[int, NDArray[np.void]]) -> MadeFrames:
        """Planned frames, the first of which has the number before them, compressed, and compared.

        Raises :class:`ChecksumMismatchError` if they do not hold their records.
        """
        room, compressor = self._own()
        gathered = self._gatherer.gather(batch[1], batch[0], room)
        compressed = [compressor.compress(part.data) for part in gathered.parts()]
        piece = b"".join(compressed)
        # the checksum first: what becomes of the bytes from here on is seen below, or by the server
        made = MadeFrames(gathered, piece, crc32_of(piece), [], [], 0)
        at = 0
        for planned, length in zip(gathered.frames, map(len, compressed), strict=True):
            frame = piece[at : at + length]
            try:
                held = decompress_frame(frame, int(planned["bytes"]), path="frame", position=int(planned["cold"]))
                made.record_sum += self._gatherer.inspect(planned, held)
            except CorruptionError as error:
                raise ChecksumMismatchError(f"a compressed frame is not what was read: {error}") from error
            made.lengths.append(length)
            made.checksums.append(checksum_in_frame(frame))
            at += length
        return made

    def _own(self) -> tuple[FrameRoom, zstandard.ZstdCompressor]:
        """Memory and compressor of this thread."""
        if not hasattr(self._of_thread, "own"):
            compressor = zstandard.ZstdCompressor(level=self._level, write_checksum=True, write_content_size=True)
            self._of_thread.own = FrameRoom(), compressor
        own: tuple[FrameRoom, zstandard.ZstdCompressor] = self._of_thread.own
        return own


def batches(frames: NDArray[np.void]) -> Iterator[tuple[int, NDArray[np.void]]]:
    """Planned frames and the number of the first of them, about a megabyte of records at a time."""
    first = 0
    ends = frames["cold"] + frames["bytes"]
    while first < len(frames):
        end = int(np.searchsorted(ends, int(frames["cold"][first]) + _BATCH_BYTES, side="right"))
        end = max(end, first + 1)
        yield first, frames[first:end]
        first = end

"""Decompresses neighbouring frames of one queue, up to a megabyte of them by one call, and says where its records lie.

A frame that is damaged or odd ends a stretch before it: it is decompressed by itself, as for whoever asks for that
frame alone, which says what is wrong with it where it comes up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tierlog.tiering.base.errors import ChecksumMismatchError, StoreError
from tierlog.tiering.cold.segment.reader import FRAME_COLUMNS, QueueRuns, SegmentReader, item_at
from tierlog.tiering.format.compression import decompress_neighbours
from tierlog.tiering.format.filler import Filler
from tierlog.tiering.format.record import Record
from tierlog.tiering.format.sorted_segment import FramePlace
from tierlog.tiering.kernels.frame_headers import leading_frames

#: What the frames of a stretch hold together at most, if it is not one frame alone: more was no faster.
STRETCH_BYTES = 1 << 20


@dataclass(slots=True)
class QueuePiece:
    """Records and fillers of one queue in order, in ``data``: frames, one behind the other.

    A run is begin, end, and begin and end of its frame in ``data``, all its records before those of the next. Whoever
    reads the piece moves ``position``, in the run of the number ``run``, on behind what was read, and ``next_offset``
    with it: there a pull goes on. ``data`` holds until the next piece is asked for.
    """

    data: NDArray[np.uint8]
    runs: NDArray[np.int64]
    last_offset: int
    run: int = 0
    position: int = 0
    next_offset: int = 0
    is_damaged: bool = False
    _end: int = field(init=False)
    _frame: tuple[int, bytes] | None = None

    def __post_init__(self) -> None:
        self.go_to(0, int(self.runs[0, 0]))

    @property
    def is_read(self) -> bool:
        """Whether nothing is left of it."""
        return self.run == len(self.runs)

    @property
    def run_bytes(self) -> int:
        """Bytes of its run that are left."""
        return self._end - self.position

    def go_to(self, run: int, position: int) -> None:
        """Moves to a position of a run, or to where the next begins if that is its end."""
        self._end = position
        while run < len(self.runs):
            self._end = int(self.runs[run, 1])
            if position < self._end:
                break
            run += 1
            position = int(self.runs[run, 0]) if run < len(self.runs) else position
        self.run, self.position = run, position

    def item(self) -> Record | Filler:
        """Returns what comes next."""
        begin, end = self.runs[self.run, 2:].tolist()
        if self._frame is None or self._frame[0] != begin:
            self._frame = begin, self.data[begin:end].tobytes()
        try:
            return item_at(self._frame[1], self.position - begin)
        except StoreError:
            self.is_damaged = True
            raise

    def go_behind(self, item: Record | Filler, offset: int) -> None:
        """Passes the next item; a pull goes on behind it unless it lies below ``offset``."""
        if item.queue_offset >= offset:
            self.next_offset = item.queue_offset + 1
        self.position += item.size
        if self.position >= self._end:
            self.go_to(self.run, self.position)


class QueueFrames:
    """The frames of one segment that hold records of a queue, in their order; a *stretch* is neighbours among them."""

    def __init__(self, segment: SegmentReader, runs: QueueRuns) -> None:
        self._segment = segment
        starts = runs["frame_position"].astype(np.int64)  # of the kind that is looked for, which else costs a copy
        firsts = np.flatnonzero(np.diff(starts, prepend=starts[:1] - 1))
        frames = runs[firsts]
        self._places = np.column_stack([frames[name] for name in FRAME_COLUMNS])
        self._starts, self._stops = starts[firsts], starts[firsts] + frames["frame_length"]
        #: Frames that do not follow their neighbour in the object, and the number of all.
        self._cuts = np.append(np.flatnonzero(self._starts[1:] != self._stops[:-1]) + 1, len(frames))
        #: Runs at which frames begin, and the number of all.
        self._firsts = np.append(firsts, len(runs))
        #: Where frames begin, and the last ends, if all of them were decompressed one behind the other.
        self._begins = np.concatenate(([0], np.cumsum(frames["frame_bytes"])))
        of_run = np.repeat(np.column_stack((self._begins[:-1], self._begins[1:])), np.diff(self._firsts), axis=0)
        begins = of_run[:, 0] + runs["position"]
        self._runs = np.column_stack((begins, begins + runs["bytes"], of_run))
        self._last_offsets = runs["first_queue_offset"] + runs["records"] - 1

    def __len__(self) -> int:
        return len(self._places)

    def place(self, frame: int) -> FramePlace:
        """Returns where a frame lies."""
        return FramePlace(*self._places[frame].tolist())

    def bytes_between(self, frame: int, end: int) -> tuple[int, int]:
        """Returns where frames ``[frame, end)`` lie in the object, if nothing else lies between them."""
        return int(self._starts[frame]), int(self._stops[end - 1])

    def neighbours(self, frame: int, limit_bytes: int) -> int:
        """Returns the end of a stretch that begins with a frame and is compressed in ``limit_bytes``, or one frame."""
        cut = int(self._cuts[self._cuts.searchsorted(frame, side="right")])
        limit = self._starts[frame] + limit_bytes
        return frame + max(int(self._stops[frame:cut].searchsorted(limit, side="right")), 1)

    def room_for(self, frame: int, end: int) -> int:
        """Bytes that :meth:`pieces` wants for a stretch; 0 for one frame, which is decompressed by itself."""
        wanted = int(self._begins[end] - self._begins[frame])
        return max(min(wanted, STRETCH_BYTES), 0) + 1 if end - frame > 1 else 0

    def pieces(self, frame: int, end: int, data: bytes, room: NDArray[np.uint8]) -> Iterator[QueuePiece]:
        """Yields the records of a stretch, whose compressed bytes are ``data``, in order.

        As many frames as fit into ``room``, less one byte, are decompressed there by one call.
        """
        start = int(self._starts[frame])
        alone_to = frame
        while frame < end:
            stop = self._together(frame, end, data, start, len(room) - 1) if frame >= alone_to else frame
            if stop > frame + 1:
                try:
                    raw = self._decompressed(frame, stop, data, start, room)
                except ChecksumMismatchError:
                    alone_to = stop
                else:
                    yield self._piece(frame, stop, raw)
                    frame = stop
                    continue
            place = self.place(frame)
            at = place.position - start
            yield self._piece(
                frame, frame + 1,
                np.frombuffer(self._segment.decode_frame(place, data[at : at + place.length]), np.uint8),
            )  # fmt: skip
            frame += 1

    def _together(self, frame: int, end: int, data: bytes, start: int, room_bytes: int) -> int:
        """Returns the end of the frames from one on that fit and look sound."""
        most = self._begins[frame] + room_bytes
        stop = frame + int(self._begins[frame + 1 : end + 1].searchsorted(most, side="right"))
        return frame + leading_frames(data, start, self._places[frame:stop]) if stop > frame + 1 else frame

    def _decompressed(
        self, frame: int, end: int, data: bytes, start: int, room: NDArray[np.uint8]
    ) -> NDArray[np.uint8]:
        first, last = self.bytes_between(frame, end)
        wanted = int(self._begins[end] - self._begins[frame])
        given = decompress_neighbours(memoryview(data)[first - start : last - start], room[: wanted + 1].data)
        if given != wanted:
            raise ChecksumMismatchError(f"frames of {given} bytes, expected {wanted}")
        return room[:wanted]

    def _piece(self, frame: int, end: int, data: NDArray[np.uint8]) -> QueuePiece:
        first, last = int(self._firsts[frame]), int(self._firsts[end])
        return QueuePiece(data, self._runs[first:last] - self._begins[frame], int(self._last_offsets[last - 1]))

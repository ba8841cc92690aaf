"""The directory of a sorted segment, and its rows for the manifest, built up as frames are written."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tierlog.tiering.base.errors import ChecksumMismatchError
from tierlog.tiering.base.types import TimeBounds
from tierlog.tiering.format.queue_rows import QUEUE_ROW, QueueRows
from tierlog.tiering.format.section import Page
from tierlog.tiering.format.sorted_segment import (
    DIRECTORY_PAGE_ROWS,
    DIRECTORY_SCHEMA,
    FramePlace,
    encode_directory_page,
)
from tierlog.tiering.kernels.sorting import parts_of

_TIMES = ("min_store_ms", "max_store_ms", "min_born_ms", "max_born_ms")
Runs = NDArray[np.void]


class DirectoryBuilder:
    """Takes the runs of each frame in order; a page is encoded as soon as it is full."""

    def __init__(
        self, base_offset: int, groups: NDArray[np.void], topic_names: Sequence[str], topic_ids: NDArray[np.int32]
    ) -> None:
        """``groups`` are the segment's in their order; names and ids are indexed by topic number."""
        self._base = base_offset
        self._names = topic_names
        self._topics, self._queues, _ = parts_of(groups["key"])
        self._ids = topic_ids
        self._waiting: list[Runs] = []
        self._rows = 0
        self._frames: list[FramePlace] = []
        self._pages: list[Page] = []
        self._queue_rows: list[QueueRows] = []
        self._bounds: TimeBounds | None = None

    def add(self, runs: Runs, places: Sequence[FramePlace]) -> None:
        """The runs of the next frames, and where these lie."""
        self._frames += places
        self._waiting.append(runs)
        self._rows += len(runs)
        if self._rows > DIRECTORY_PAGE_ROWS:
            self._add_full_pages()

    def finish(self) -> tuple[list[Page], QueueRows, TimeBounds | None]:
        """Pages, rows for the manifest and the times of all."""
        if self._rows:
            self._add_full_pages()
            self._add_page(self._waiting[0])
            self._waiting, self._rows = [], 0
        rows = np.concatenate(self._queue_rows) if self._queue_rows else np.empty(0, QUEUE_ROW)
        return self._pages, _merged(rows).astype(QUEUE_ROW), self._bounds

    def _add_full_pages(self) -> None:
        """A page ends where a topic does: one that fits into a page lies in one, a larger one begins in its own."""
        waiting = np.concatenate(self._waiting)
        while len(waiting) > DIRECTORY_PAGE_ROWS:
            topics = self._topics[waiting["group"][: DIRECTORY_PAGE_ROWS + 1]]
            others = np.flatnonzero(topics != topics[-1])
            end = int(others[-1]) + 1 if len(others) else DIRECTORY_PAGE_ROWS
            self._add_page(waiting[:end])
            waiting = waiting[end:]
        self._waiting = [waiting.copy()]
        self._rows = len(waiting)

    def _add_page(self, runs: Runs) -> None:
        topics = self._topics[runs["group"]]
        queues = self._queues[runs["group"]]
        table = pa.table(
            {
                "frame": runs["frame"],
                **frame_columns(self._frames, runs["frame"]),
                "topic": [self._names[number] for number in topics.tolist()],
                "queue_id": queues,
                **{name: runs[name] for name in ("first_queue_offset", "records", "position", "bytes", *_TIMES)},
            }
        ).cast(DIRECTORY_SCHEMA)
        info = {"rows": len(runs), "first": _place(table, 0), "last": _place(table, len(table) - 1)}
        page = encode_directory_page(table)
        if encode_directory_page(table) != page:
            raise ChecksumMismatchError("a directory page does not hold what was put into it")
        self._pages.append((page, info))
        times = TimeBounds(*(int(_EXTREMES[name](runs[name])) for name in _TIMES))
        self._bounds = times if self._bounds is None else self._bounds.union(times)
        kept = runs["first_queue_offset"] >= 0
        rows = np.empty(int(kept.sum()), QUEUE_ROW)
        rows["topic_id"], rows["queue_id"], rows["segment"] = self._ids[topics[kept]], queues[kept], self._base
        rows["count"] = runs["records"][kept]
        for name in ("first_queue_offset", *_TIMES):
            rows[name] = runs[name][kept]
        self._queue_rows.append(_merged(rows))


_EXTREMES = {name: np.min if name.startswith("min") else np.max for name in _TIMES}


def frame_columns(places: Sequence[FramePlace], frames: NDArray[np.int64]) -> dict[str, pa.Array]:
    """Returns the columns of directory rows that say where the frame of each lies."""
    chosen = np.array([places[frame] for frame in frames.tolist()], np.int64).reshape(-1, 4)
    names = ("frame_position", "frame_length", "frame_bytes", "frame_checksum")
    return {
        name: pa.array(chosen[:, number]).cast(DIRECTORY_SCHEMA.field(name).type) for number, name in enumerate(names)
    }


def _merged(rows: QueueRows) -> QueueRows:
    """One row where some follow each other: a run goes on over the end of a frame."""
    if not len(rows):
        return rows
    first = rows["first_queue_offset"].astype(np.int64)
    is_next = first[1:] == first[:-1] + rows["count"][:-1]
    for name in ("topic_id", "queue_id"):
        is_next &= rows[name][1:] == rows[name][:-1]
    starts = np.flatnonzero(np.concatenate(([True], ~is_next)))
    merged = rows[starts]
    merged["count"] = np.add.reduceat(rows["count"].astype(np.int64), starts)
    for name in _TIMES:
        reduce = np.minimum if name.startswith("min") else np.maximum
        merged[name] = reduce.reduceat(rows[name].astype(np.int64), starts)
    return merged


def _place(table: pa.Table, row: int) -> list[object]:
    return [table[name][row].as_py() for name in ("topic", "queue_id", "first_queue_offset")]

"""Compares the metadata of one sorted segment (entry, directory, offset map, queue rows) with its records."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tierlog.tiering.base.errors import CorruptionError
from tierlog.tiering.base.fs import ByteArray
from tierlog.tiering.cold.segment.derivation import rows_of_directory
from tierlog.tiering.cold.segment.reader import DirectoryRow, SegmentReader
from tierlog.tiering.cold.segment.whole_segment import Find, WholeSegment
from tierlog.tiering.format.queue_rows import QueueRows
from tierlog.tiering.kernels.scan import ScanRows, in_queues

_TIMES = ("store_ms", "born_ms")
_PIECE_BYTES = 16 << 20


def compare_segment(segment: SegmentReader, whole: WholeSegment, find: Find) -> None:
    """Compares entry, offset map and directory with the records that can be read."""
    entry, items = whole.entry, whole.items
    if whole.is_whole:
        if len(items) != entry.records or int(items["size"].sum()) != entry.raw_bytes:
            find(f"holds {len(items)} records, the manifest says {entry.records}")
        table = segment.directory_table()
        if (table["base"], table["segment_bytes"], table["blank_position"]) != (
            entry.base, entry.segment_bytes, entry.raw_bytes,
        ):  # fmt: skip
            find("its directory speaks of another segment")
    if len(whole.rows) and entry.bounds is None:
        find("the manifest says that it is without records")
    for name in _TIMES:
        times = whole.rows[name]
        if entry.bounds is not None and len(times):
            low, high = getattr(entry.bounds, f"min_{name}"), getattr(entry.bounds, f"max_{name}")
            if low > times.min() or high < times.max():
                find(f"holds {name} from {times.min()} to {times.max()}, the manifest says {low} to {high}")
    try:
        _compare_map(segment, whole, find)
    except CorruptionError as error:
        find(f"offset map: {error.message}")
    _compare_pages(segment, find)
    if whole.runs:
        _compare_directory(whole, find)


def _compare_map(segment: SegmentReader, whole: WholeSegment, find: Find) -> None:
    physical, cold = segment.offset_map()
    if len(np.unique(cold)) != len(cold) or (np.diff(physical) <= 0).any():
        find("its offset map is not one to one")
        return
    order = np.argsort(whole.items["position"], kind="stable")
    mine = whole.items[order]
    at = np.searchsorted(physical, mine["position"] + whole.entry.base)
    at = np.minimum(at, max(0, len(physical) - 1))
    if len(mine) and not len(physical):
        find("its offset map is empty")
    elif len(mine):
        wrong = (physical[at] != mine["position"] + whole.entry.base) | (cold[at] != mine["cold"] + whole.entry.base)
        if wrong.any():
            offset = int(mine["position"][wrong][0]) + whole.entry.base
            find(f"its offset map leads elsewhere for {int(wrong.sum())} records, the first at {offset}")
    if whole.is_whole and len(physical) != len(mine):
        find(f"its offset map names {len(physical)} records, there are {len(mine)}")


def _compare_pages(segment: SegmentReader, find: Find) -> None:
    try:
        for number, (page, rows) in enumerate(segment.directory_pages()):
            ends = [[row.topic, row.queue_id, row.first_queue_offset] for row in (rows[0], rows[-1])]
            if page.info["rows"] != len(rows) or [page.info["first"], page.info["last"]] != ends:
                find(f"page {number} of its directory holds other rows than its table says")
    except CorruptionError:
        return  # told by whoever read the directory first


def _compare_directory(whole: WholeSegment, find: Find) -> None:
    items, runs = whole.items, whole.runs
    numbers = {name: number for number, name in enumerate(whole.names)}
    is_told = np.zeros(len(items), bool)
    last: tuple[bytes, int, bool, int] | None = None
    for run in runs:
        place = run.topic.encode(), run.queue_id, run.first_queue_offset < 0, run.first_queue_offset
        if last is not None and place < last:
            find(f"its directory is out of order at {_name(run)}")
        last = place
        if run.frame in whole.damaged_frames:
            continue
        frame = int(np.searchsorted(items["frame"], run.frame))
        if frame == len(items) or items["frame"][frame] != run.frame:
            find(f"its directory names frame {run.frame}, which is not there ({_name(run)})")
            continue
        start = int(items["cold"][frame]) + run.position
        low, high = np.searchsorted(items["cold"], [start, start + run.bytes])
        mine = items[low:high]
        if len(mine) != run.records or not len(mine) or mine["cold"][0] != start or mine["size"].sum() != run.bytes:
            find(f"its directory has another place or size for {_name(run)} than the records")
            continue
        is_told[low:high] = True
        _compare_run(whole, run, numbers[run.topic], mine, find)
    # fillers of topics that are not archived are in no row
    if (~is_told & ~items["filler"]).any():
        find(f"its directory leaves out {int((~is_told & ~items['filler']).sum())} records")


def _compare_run(whole: WholeSegment, run: DirectoryRow, number: int, mine: NDArray[np.void], find: Find) -> None:
    known = mine["row"] >= 0
    rows: ScanRows = whole.rows[mine["row"][known]]
    offsets = run.first_queue_offset + np.arange(len(mine))[known]
    is_in_queue = in_queues(rows)
    wrong = (rows["topic_number"] != number) | (rows["queue_id"] != run.queue_id)
    # what is in no queue may be a record whose offset came before, in a log that a broker wrote
    wrong |= ~is_in_queue & (run.first_queue_offset >= 0)
    if run.first_queue_offset >= 0:
        wrong |= rows["queue_offset"] != offsets
    if wrong.any():
        at = int(rows["physical_offset"][wrong][0])
        find(f"its directory has the record at {at} in {_name(run)}, where it does not belong")
    for name in _TIMES:
        low, high = getattr(run, f"min_{name}"), getattr(run, f"max_{name}")
        if len(rows) and (low > rows[name].min() or high < rows[name].max()):
            find(f"bounds of {name} in its directory are narrower than the records of {_name(run)}")


def _name(run: DirectoryRow) -> str:
    return f"{run.topic}/{run.queue_id} from queue offset {run.first_queue_offset}"


def compare_queue_rows(whole: WholeSegment, stored: QueueRows, topic_ids: Mapping[str, int], find: Find) -> None:
    """Compares the rows that are stored for this segment with those that its directory implies."""
    wanted = rows_of_directory(whole.runs, whole.entry.base, topic_ids)
    order = ["topic_id", "queue_id", "first_queue_offset"]
    stored, wanted = np.sort(stored, order=order), np.sort(wanted, order=order)
    places = ["topic_id", "queue_id", "first_queue_offset", "count"]
    if stored[places].tolist() != wanted[places].tolist():
        missing = set(wanted[places].tolist()) ^ set(stored[places].tolist())
        topic_id, queue_id, first, count = min(missing) if missing else stored[places].tolist()[0]
        find(
            f"queue rows of segment {whole.entry.base} differ from its directory, the first in topic {topic_id} "
            f"queue {queue_id}, offsets [{first}, {first + count})"
        )
        return
    for name in _TIMES:
        if (stored[f"min_{name}"] > wanted[f"min_{name}"]).any() or (
            stored[f"max_{name}"] < wanted[f"max_{name}"]
        ).any():
            find(f"bounds of {name} in the queue rows of segment {whole.entry.base} are narrower than its directory's")


def compare_with_hot(whole: WholeSegment, hot: ByteArray, find: Find) -> None:
    """Compares the records with the hot copy of the same segment; passes over removed and damaged ones."""
    items = np.sort(whole.items[whole.items["row"] >= 0], order="position")
    starts, ends = items["position"], items["position"] + items["size"]
    for piece in range(0, len(hot), _PIECE_BYTES):
        end = piece + _PIECE_BYTES
        bad = np.flatnonzero(whole.data[piece:end] != hot[piece:end]) + piece
        at = np.searchsorted(starts, bad, side="right") - 1
        inside = (at >= 0) & (bad < ends[np.maximum(at, 0)]) if len(items) else np.zeros(len(bad), bool)
        if inside.any():
            find(f"I2: differs from the hot copy at {whole.entry.base + int(bad[inside][0])}")
            return

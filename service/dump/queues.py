"""Consume queue files."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from service.dump.commit_log import base_of
from service.dump.result import Dump, Json, Options, columns_of, window
from service.dump.source import Source
from tiering.format.queue_unit import LAST_EXTENSION, PREFILL_UNIT, UNIT_BYTES, UNIT_DTYPE

_COLUMNS = columns_of("queue_offset kind:text physical_offset size_bytes tag_hash")
_PIECE_UNITS = 4_096


def dump_queue(source: Source, options: Options) -> Dump:
    """A queue file of a broker or of ours."""
    return _dump(source, options, "consume-queue")


def dump_tiered_queue(source: Source, options: Options) -> Dump:
    """A queue file of RocketMQ's tiered store: offsets are those in the queue's own log."""
    return _dump(source, options, "tiered-queue")


def _dump(source: Source, options: Options, kind: str) -> Dump:
    base, odd = divmod(base_of(source.parts[-1]) or 0, UNIT_BYTES)
    units, rest = divmod(source.size, UNIT_BYTES)
    head: Json = {"topic": source.folder(2), "queue_id": source.folder(1)} if kind == "tiered-queue" else {}
    if kind == "consume-queue" and source.folder(2) == "consumequeue":
        head = {"topic": source.folder(1), "queue_id": source.folder()}
    dump = Dump(kind, {**head, "first_queue_offset": base, "units": units, "bytes": source.size}, "units", _COLUMNS)
    if odd or rest:
        dump.find(f"a queue file begins and ends with a unit of {UNIT_BYTES} bytes; this one of {source.size} does not")
    dump.rows = _rows(source, options, dump, base, units)
    return dump


def _rows(source: Source, options: Options, dump: Dump, base: int, units: int) -> Iterator[Json]:
    start, stop = window(options, base, base + units)
    written = prefilled = bad = 0
    first_unwritten: int | None = None
    for first in range(start - base, stop - base, _PIECE_UNITS):
        end = min(first + _PIECE_UNITS, stop - base)
        piece = source.array(first * UNIT_BYTES, end * UNIT_BYTES).view(UNIT_DTYPE)
        if first_unwritten is not None and not np.any(piece.view(np.uint8)):
            continue
        for at, (offset, size, tag) in enumerate(piece.tolist(), base + first):
            if offset == size == tag == 0:
                first_unwritten = at if first_unwritten is None else first_unwritten
                continue
            if first_unwritten is not None:
                dump.find(f"units {first_unwritten} to {at - 1} were never written, but {at} was")
                first_unwritten = None
            kind = "unit"
            if (offset, size, tag) == (PREFILL_UNIT.physical_offset, PREFILL_UNIT.size, PREFILL_UNIT.tag_hash):
                kind, prefilled = "pre-fill", prefilled + 1
            elif offset < 0 or size <= 0:
                kind, bad = "bad", bad + 1
                dump.find(f"unit {at} has offset {offset} and size {size}")
            elif tag <= LAST_EXTENSION:
                kind = "unit, extended"
            written += kind.startswith("unit")
            yield {"queue_offset": at, "kind": kind, "physical_offset": offset, "size_bytes": size, "tag_hash": tag}
    dump.end.update(written=written, prefilled=prefilled, bad=bad)
    dump.end["never_written_from"] = first_unwritten

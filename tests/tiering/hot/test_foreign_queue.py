"""Queue offsets as a broker's log may have them: jumps, repeats, and topics that were deleted and made again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.support.stores.hot_stores import HotWorld, queue_offsets, record
from tierlog.tiering.base.errors import CorruptionError
from tierlog.tiering.base.options import HotOptions
from tierlog.tiering.format.record import BLANK, MAGIC_BLANK, Record, RecordVersion, SysFlag, encode_record
from tierlog.tiering.hot.consume_queue import place_foreign
from tierlog.tiering.hot.store import HotStore
from tierlog.tiering.kernels.scan import SCAN_ROW, ScanRows


def rows(*offsets: int) -> ScanRows:
    made = np.zeros(len(offsets), SCAN_ROW)
    made["queue_offset"] = offsets
    made["physical_offset"] = 100 * np.arange(len(offsets))
    return made


@pytest.mark.parametrize(
    ("offsets", "next_offset", "kept", "first", "begins_again"),
    [
        ((0, 1, 2), None, [0, 1, 2], 0, False),
        ((5, 6), None, [5, 6], 5, False),
        ((3, 4), 3, [3, 4], 3, False),
        ((3, 7, 8), 3, [3, 7, 8], 3, False),  # a jump is closed
        ((9,), 3, [9], 3, False),
        ((1, 2, 3, 4), 3, [3, 4], 3, False),  # repeats have their units already
        ((3, 3, 4), 3, [3, 4], 3, False),
        ((2,), 3, [], 3, False),
        ((0, 1), 3, [0, 1], 0, True),  # deleted and made again
        ((5, 6, 0, 1), None, [0, 1], 0, True),
        ((0, 1, 0, 1, 2), None, [0, 1, 2], 0, True),
        ((4, 0, 0), 4, [0], 0, True),
        ((-1, 3, 1 << 60, 4), 3, [3, 4], 3, False),  # no broker wrote such offsets
        ((-7,), None, [], 0, False),
        ((), 7, [], 0, False),
    ],
)
def test_placing(
    offsets: tuple[int, ...], next_offset: int | None, kept: list[int], first: int, begins_again: bool
) -> None:
    found, place, again = place_foreign(rows(*offsets), next_offset)
    assert (found["queue_offset"].tolist(), again) == (kept, begins_again)
    if kept:
        assert place == first


def write_log(world: HotWorld, records: list[Record], *, segments: int = 1) -> int:
    """A commit log with these records, spread over segments; returns where it ends."""
    for folder in (world.paths.commitlog, world.paths.consumequeue):
        world.fs.make_dirs(folder)
    each = -(-len(records) // segments)
    for number in range(segments):
        base = number * world.segment_bytes
        data = b""
        for made in records[number * each : (number + 1) * each]:
            data += encode_record(replace(made, physical_offset=base + len(data)))
        end = base + len(data)
        if number < segments - 1:
            data += BLANK.pack(world.segment_bytes - len(data), MAGIC_BLANK)
        file = world.fs.open(world.paths.segment(base))
        file.write_at(0, data.ljust(world.segment_bytes, b"\0"))
        file.close()
    return end


def one_queue(*offsets: int, topic: str = "a") -> list[Record]:
    return [record(topic=topic, queue_offset=offset) for offset in offsets]


def foreign(world: HotWorld) -> HotStore:
    options = HotOptions(segment_bytes=world.segment_bytes, queue_file_units=world.queue_file_units, foreign=True)
    hot = HotStore(world.fs, world.paths, world.clock, options, bytes(8))
    hot.recover([])
    return hot


@pytest.mark.parametrize("segments", [1, 2, 3])
@pytest.mark.parametrize(
    ("in_log", "in_queue"),
    [
        ([0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5]),
        ([4, 5, 6, 7, 8, 9], [4, 5, 6, 7, 8, 9]),
        ([0, 1, 2, 5, 6, 7], [0, 1, 2, 5, 6, 7]),
        ([0, 1, 2, 1, 2, 3], [0, 1, 2, 3]),
        ([7, 8, 9, 0, 1, 2], [0, 1, 2]),
        ([0, 1, 0, 1, 0, 1], [0, 1]),
    ],
)
def test_queue_of_a_brokers_log(in_log: list[int], in_queue: list[int], segments: int) -> None:
    world = HotWorld(queue_file_units=4)
    write_log(world, one_queue(*in_log), segments=segments)
    assert queue_offsets(foreign(world), "a") == in_queue


def test_our_own_log_is_refused_with_such_offsets() -> None:
    world = HotWorld()
    write_log(world, one_queue(0, 1, 3))
    with pytest.raises(CorruptionError, match="not consecutive"):
        world.open()


@pytest.mark.parametrize("topic", ["TBW102", "a.b", "x" * 200, "ns%topic", "主题", "a b"])
def test_names_that_a_broker_may_have_let_in(topic: str) -> None:
    world = HotWorld()
    version = RecordVersion.V2 if len(topic) > 127 else RecordVersion.V1
    end = write_log(world, [record(topic=topic, version=version)])
    hot = foreign(world)
    assert hot.log.end == end
    assert queue_offsets(hot, topic) == [0]


@pytest.mark.parametrize("topic", ["a/b", "..", ""])
def test_a_name_that_no_folder_has_ends_the_log(topic: str) -> None:
    world = HotWorld()
    write_log(world, one_queue(0, topic=topic))
    assert foreign(world).log.end == 0


def test_prepared_and_rolled_back_records_take_no_place() -> None:
    world = HotWorld()
    flags = (0, SysFlag.TRANSACTION_PREPARED, SysFlag.TRANSACTION_ROLLBACK, SysFlag.TRANSACTION_COMMIT)
    records = [record(topic="a", sys_flag=int(flag), queue_offset=int(flag == flags[-1])) for flag in flags]
    write_log(world, records)
    assert queue_offsets(foreign(world), "a") == [0, 1]


def test_a_record_that_is_still_being_written_ends_the_log() -> None:
    """Its property text is copied last: zero bytes at its end, and nothing behind it."""
    world = HotWorld()
    text = b"name\x01value\x02"
    whole, last = record(topic="a", properties_text=text), record(topic="a", properties_text=text[:-2] + bytes(2))
    end = write_log(world, [whole])
    write_log(world, [whole, last])
    assert foreign(world).log.end == end
    world = HotWorld()
    end = write_log(world, [whole, last, whole])  # somebody went on behind it: it is whole, and odd
    assert foreign(world).log.end == end

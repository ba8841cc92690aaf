"""The log of a broker out of its store directory, which the broker writes, ends, cleans and replaces files in."""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.fs.faulty_fs import FaultyFileSystem
from tests.support.rocketmq.fake_broker import FakeBroker
from tests.support.rocketmq.golden import STORES, unpack
from tests.support.rocketmq.running_broker import SEGMENT_BYTES, RunningBroker
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import (
    ClosedError,
    CorruptionError,
    InvalidRequestError,
    NotFoundError,
    UnavailableError,
)
from tierlog.tiering.base.fs import File, LocalFileSystem
from tierlog.tiering.base.paths import StorePaths, base_offset_name, parse_base_offset
from tierlog.tiering.format.record import MAGIC_BLANK, decode_record
from tierlog.tiering.rocketmq.broker_directory import BrokerDirectory
from tierlog.tiering.rocketmq.codes import RequestCode
from tierlog.tiering.rocketmq.log_source import LogBounds, LogSource, NoLogYetError, OffsetGoneError, SourceLostError
from tierlog.tiering.rocketmq.remoting import BrokerClient

Make = Callable[..., BrokerDirectory]


class NotedFlushes(LocalFileSystem):
    """Notes which files are flushed, and refuses to open one for writing."""

    def __init__(self) -> None:
        self.flushed: list[str] = []

    def open(self, path: Path) -> File:
        raise AssertionError(f"opened for writing: {path}")

    def open_read(self, path: Path) -> File:
        file = super().open_read(path)
        flush = file.flush

        def noted() -> None:
            self.flushed.append(path.name)
            flush()

        file.flush = noted  # type: ignore[method-assign]
        return file


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def broker(tmp_path: Path, clock: ManualClock) -> RunningBroker:
    return RunningBroker(tmp_path / "store", clock)


@pytest.fixture
def fs() -> NotedFlushes:
    return NotedFlushes()


@pytest.fixture
def make(broker: RunningBroker, clock: ManualClock, fs: NotedFlushes) -> Iterator[Make]:
    made: list[BrokerDirectory] = []

    def opened(**given: object) -> BrokerDirectory:
        arguments = {"fs": fs, "clock": clock, **given}
        made.append(BrokerDirectory(broker.paths.root, **arguments))  # type: ignore[arg-type]
        return made[-1]

    yield opened
    for each in made:
        each.close()


def records_of(data: bytes, start: int, segment_bytes: int = SEGMENT_BYTES) -> dict[int, bytes]:
    """Whole records and blank ones in bytes of one segment, by offset; what is behind a blank record is left out."""
    found, at = {}, 0
    while at < len(data):
        size, magic = int.from_bytes(data[at : at + 4], "big"), int.from_bytes(data[at + 4 : at + 8], "big")
        if magic == MAGIC_BLANK & 0xFFFFFFFF:
            found[start + at] = data[at : at + 8]
            break
        decode_record(data, at, physical_offset=start + at)
        found[start + at] = data[at : at + size]
        at += size
    return found


def read_all(source: LogSource, wait_s: float = 1.5) -> dict[int, bytes]:
    """Everything that is there, read to its end: bytes of each segment put together, taken apart into records."""
    pieces: dict[int, bytearray] = {}
    starts: dict[int, int] = {}
    while data := bytes(source.read(wait_s)):
        base = source.position() - source.position() % source.segment_bytes
        starts.setdefault(base, source.position())
        piece = pieces.setdefault(base, bytearray())
        assert source.position() == starts[base] + len(piece)
        piece += data
    found: dict[int, bytes] = {}
    for base, piece in pieces.items():
        found |= records_of(bytes(piece), starts[base], source.segment_bytes)
    return found


def begun(source: BrokerDirectory, offset: int) -> BrokerDirectory:
    source.begin(offset)
    return source


def test_what_a_broker_writes_is_read_in_order_over_segments(broker: RunningBroker, make: Make) -> None:
    source = begun(make(), 0)
    assert source.read(0) == b""
    seen: dict[int, bytes] = {}
    for number in range(150):
        broker.append(bytes([number]) * (number * 7 % 300), v6=number % 5 == 0)
        if number % 11 == 0:
            seen |= read_all(source)
            assert seen == broker.log()
    assert len(list(broker.paths.commitlog.iterdir())) > 5
    assert seen | read_all(source) == broker.log()
    assert source.bounds() == LogBounds(0, broker.end)


def test_reading_may_begin_at_any_record(broker: RunningBroker, make: Make) -> None:
    for _ in range(60):
        broker.append()
    for offset in broker.written:
        if len(broker.written[offset]) > 8:
            assert read_all(begun(make(), offset)) == broker.log(offset)


def test_the_last_record_has_to_stay_as_it_is_for_a_second(broker: RunningBroker, make: Make) -> None:
    first, last = broker.append(), broker.append()
    source = begun(make(), 0)
    assert source.read(0) == first
    assert source.read(0.9) == b""
    assert source.read(0.2) == last


def test_a_last_record_over_zeros_that_were_seen_has_to_stay_as_it_is_for_a_moment(
    broker: RunningBroker, make: Make
) -> None:
    source = begun(make(), 0)
    assert source.read(0) == b""
    for body in (b"x" * 100, b"y" * 300):
        last = broker.append(body)
        assert source.read(0.04) == b""
        assert source.read(0.1) == last


def test_a_last_record_over_what_a_restart_has_left_has_to_stay_for_a_second(broker: RunningBroker, make: Make) -> None:
    source = begun(make(), 0)
    for _ in range(3):
        assert source.read(0) == b""
        broker.append()
        assert source.read(0.1)
    broker.start_again_at(0)
    with pytest.raises(SourceLostError):
        source.read(0)
    source.begin(0)
    broker.put(0, bytes(4))  # the first one is not valid any more, and all that lies behind it is left
    assert source.read(0.1) == b""
    last = broker.append()
    assert source.read(0.9) == b""
    assert source.read(0.2) == last


@pytest.mark.parametrize("missing", [slice(-3, None), slice(-7, -5), slice(-22, -20), slice(-11, -10)])
def test_a_last_record_over_zeros_of_which_a_piece_is_written_late_is_not_taken_before(
    missing: slice, broker: RunningBroker, make: Make
) -> None:
    """Its body and all of its lengths are there."""
    source = begun(make(), 0)
    assert source.read(0) == b""
    data = broker.record(b"y" * 300)
    torn = bytearray(data)
    torn[missing] = bytes(len(torn[missing]))
    broker.put(0, bytes(torn))
    assert source.read(0.9) == b""
    broker.put(0, data)
    assert source.read(0.1) == data


def test_a_record_is_a_sign_of_life_and_files_that_stay_as_they_are_are_none(
    broker: RunningBroker, make: Make, clock: ManualClock
) -> None:
    source = begun(make(), 0)
    assert source.read(3) == b""
    assert source.heard_s() == -math.inf
    broker.append(checksum=True)
    assert source.read(0)
    heard_s = clock.monotonic_s()
    assert source.read(3) == b""
    assert source.heard_s() == heard_s


def test_a_last_record_that_sums_itself_is_whole_at_once(broker: RunningBroker, make: Make) -> None:
    last = broker.append(checksum=True)
    assert begun(make(), 0).read(0) == last


def test_half_a_record_is_waited_for(broker: RunningBroker, make: Make) -> None:
    data = broker.record(b"y" * 300, checksum=True)
    source = begun(make(), 0)
    for count in (1, 4, 8, 30, 63, 64, 200, len(data) - 1):
        broker.put(0, data[:count])
        assert source.read(3) == b""
    broker.put(0, data)
    assert source.read(0) == data


def test_a_record_whose_text_is_written_late_is_not_taken_before(broker: RunningBroker, make: Make) -> None:
    """All lengths and the body are there, so that only time tells."""
    data = broker.record(b"y" * 300)
    source = begun(make(), 0)
    broker.put(0, data[:-5] + bytes(5))
    assert source.read(0.9) == b""
    broker.put(0, data)
    assert source.read(0.9) == b""
    assert source.read(0.2) == data


def test_a_head_that_is_longer_than_its_segment_is_no_record_and_says_nothing_of_the_one_before(
    broker: RunningBroker, make: Make
) -> None:
    last = broker.append()
    head = bytearray(broker.record(b"y" * 300))
    head[:4] = SEGMENT_BYTES.to_bytes(4, "big")
    broker.put(broker.end, bytes(head))
    source = begun(make(), 0)
    assert source.read(0.9) == b""
    assert source.read(0.2) == last
    assert source.read(3) == b""


def test_a_record_larger_than_a_read_is_read_whole(tmp_path: Path, clock: ManualClock, fs: NotedFlushes) -> None:
    broker = RunningBroker(tmp_path / "other", clock, segment_bytes=8 << 20)
    for size in (3_000_000, 100, 1_100_000, (1 << 20) - 93):
        broker.append(b"z" * size)
    source = begun(BrokerDirectory(broker.paths.root, fs=fs, clock=clock), 0)
    assert read_all(source) == broker.log()
    assert source.bounds().max_offset == broker.end
    source.close()


def test_leftovers_behind_a_record_of_after_a_restart_are_not_read(broker: RunningBroker, make: Make) -> None:
    """The broker was killed in a record, and the records behind it are whole, in place and of the same size."""
    kept = broker.append()
    torn_at = broker.end
    for _ in range(3):
        broker.append()
    leftovers = broker.end
    broker.put(torn_at, b"\0" * 30)
    broker.start_again_at(torn_at)
    source = begun(make(), 0)
    assert read_all(source) == {0: kept}
    broker.clock.advance(1_000)
    new = broker.append(b"n" * 100)
    assert read_all(source) == {torn_at: new}
    assert broker.end < leftovers
    assert read_all(source, 30) == {}
    newer = broker.append(b"m" * 100)
    assert read_all(source) == {torn_at + len(new): newer}


def test_records_of_a_clock_that_was_set_back_are_read_once_the_broker_says_so(
    broker: RunningBroker, make: Make, clock: ManualClock
) -> None:
    broker.append()
    with FakeBroker() as peer:
        client = BrokerClient(peer.address, clock=clock)
        peer.tell_bounds(0, broker.end)
        source = begun(make(client=client), 0)
        assert len(read_all(source)) == 1
        clock.step(-3_600_000)
        broker.append()
        assert read_all(source, 5) == {}
        peer.tell_bounds(0, broker.end)
        assert list(read_all(source, 5)) == [len(broker.written[0])]
        client.close()


def test_records_of_a_clock_that_was_set_back_are_read_once_their_segment_is_closed(
    broker: RunningBroker, make: Make, clock: ManualClock
) -> None:
    broker.append()
    source = begun(make(), 0)
    seen = read_all(source)
    clock.step(-3_600_000)
    while broker.end < SEGMENT_BYTES:
        broker.append()
    broker.append()
    assert seen | read_all(source) == broker.log()


@pytest.mark.parametrize("torn", [0, 3, 60])
def test_a_hole_of_zeros_is_given_once_the_broker_says_that_its_log_goes_on_behind_it(
    broker: RunningBroker, make: Make, clock: ManualClock, torn: int
) -> None:
    while broker.end < 3 * SEGMENT_BYTES:
        broker.append()
    broker.append()
    end, begin = list(broker.written)[10], 3 * SEGMENT_BYTES
    for base in range(0, begin, SEGMENT_BYTES):
        first = max(base, end + torn)
        broker.put(first, bytes(base + SEGMENT_BYTES - first))

    def read(source: BrokerDirectory) -> bytes:
        found = b""
        for _ in range(20):
            found += source.read(0)
            clock.advance(1_000)
        return found

    with FakeBroker() as peer:
        client = BrokerClient(peer.address, clock=clock)
        # its files are those of before the crash, until it has recovered
        peer.tell_bounds(0, end)
        source = begun(make(client=client), 0)
        assert read(source) == b"".join(data for at, data in broker.written.items() if at < end)
        peer.tell_bounds(0, broker.end)
        hole = broker.written[end][:torn] + bytes(begin - end - torn)
        assert read(source) == hole + b"".join(broker.log(begin).values())
        client.close()


def test_a_restart_is_noticed_and_then_all_has_to_begin_again(broker: RunningBroker, make: Make) -> None:
    broker.append()
    source = begun(make(), 0)
    seen = read_all(source)
    broker.append()
    broker.start_again_at(broker.end)
    with pytest.raises(SourceLostError, match="the broker was started again"):
        read_all(source)
    with pytest.raises(SourceLostError, match="not begun"):
        source.read(0)
    source.begin(len(seen[0]))
    assert seen | read_all(source) == broker.log()


def test_a_clean_stop_ends_nothing_and_the_next_start_is_noticed(broker: RunningBroker, make: Make) -> None:
    source = begun(make(), 0)
    broker.append()
    broker.stop()
    assert read_all(source) == broker.log()
    broker.start()
    with pytest.raises(SourceLostError, match="the broker was started again"):
        source.read(0)


def test_a_log_that_became_shorter_does_not_have_the_offset(broker: RunningBroker, make: Make) -> None:
    first = broker.append()
    second = broker.append()
    source = begun(make(), 0)
    assert len(read_all(source)) == 2
    broker.put(len(first), bytes(len(second)))
    broker.start_again_at(len(first))
    with pytest.raises(OffsetGoneError) as caught:
        source.begin(len(first) + len(second))
    assert (caught.value.min_offset, caught.value.max_offset) == (0, len(first))
    source.begin(len(first))


def test_a_removed_segment_is_read_to_its_end_and_so_are_the_next_ones(broker: RunningBroker, make: Make) -> None:
    source = begun(make(), 0)
    while broker.end < 3 * SEGMENT_BYTES:
        broker.append()
    seen = records_of(bytes(source.read(0)), 0)
    broker.clock.advance(1_000)
    source.report(0)
    seen |= records_of(bytes(source.read(0)), SEGMENT_BYTES)
    for _ in range(3):
        broker.remove_first()
    assert seen | read_all(source) == broker.log()


def test_a_segment_removed_before_it_was_seen_is_gone(broker: RunningBroker, make: Make) -> None:
    source = begun(make(max_held_bytes=2 * SEGMENT_BYTES), 0)
    while broker.end < 5 * SEGMENT_BYTES:
        broker.append()
    for _ in range(4):
        broker.remove_first()
    with pytest.raises(OffsetGoneError) as caught:
        read_all(source)
    assert caught.value.min_offset == 4 * SEGMENT_BYTES
    with pytest.raises(OffsetGoneError):
        make().begin(0)
    assert make().bounds() == LogBounds(4 * SEGMENT_BYTES, broker.end)


def test_segments_opened_before_a_restart_outlast_their_removal(broker: RunningBroker, make: Make) -> None:
    while broker.end < 3 * SEGMENT_BYTES:
        broker.append()
    source = begun(make(), 0)
    broker.remove_first()
    broker.start_again_at(broker.end)
    with pytest.raises(SourceLostError):
        source.read(0)
    source.begin(0)
    assert read_all(source) == broker.log()


def test_held_segments_outlast_removal_and_our_own_restart(broker: RunningBroker, make: Make, tmp_path: Path) -> None:
    held = tmp_path / "held"
    while broker.end < 3 * SEGMENT_BYTES:
        broker.append()
    source = begun(make(held_folder=held), 0)
    source.read(0)
    source.close()
    for _ in range(2):
        broker.remove_first()
    again = make(held_folder=held)
    assert again.held_bytes == 2 * SEGMENT_BYTES
    assert again.bounds().min_offset == 0
    again.begin(0)
    assert read_all(again) == broker.log()
    again.settled()
    again.report(2 * SEGMENT_BYTES - 1)
    assert os.listdir(held) == [base_offset_name(SEGMENT_BYTES), base_offset_name(2 * SEGMENT_BYTES)]
    again.report(2 * SEGMENT_BYTES)
    assert os.listdir(held) == [base_offset_name(2 * SEGMENT_BYTES)]
    assert again.held_bytes == 0


def test_no_more_is_held_than_may_be_and_it_is_said(
    broker: RunningBroker, make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    held = tmp_path / "held"
    source = begun(make(held_folder=held, max_held_bytes=2 * SEGMENT_BYTES), 0)
    while broker.end < 5 * SEGMENT_BYTES:
        broker.append()
        broker.clock.advance(1_000)
        source.read(0)
    assert len(os.listdir(held)) == 2
    assert source.is_hold_full
    assert [each.message for each in caplog.records] == [
        f"{held} holds all the segments it may; further ones are left to the broker's removal"
    ]
    read_all(source)
    source.settled()
    source.report(broker.end)
    broker.clock.advance(1_000)
    source.read(0)
    assert not source.is_hold_full


def test_a_folder_where_segments_cannot_be_held_is_refused(broker: RunningBroker, make: Make, tmp_path: Path) -> None:
    while broker.end < 2 * SEGMENT_BYTES:
        broker.append()
    disk = FaultyFileSystem(LocalFileSystem())
    disk.refuse("link")
    with pytest.raises(InvalidRequestError, match="on the volume of the broker's log"):
        make(fs=disk, held_folder=tmp_path / "held").begin(0)


def test_a_name_that_was_held_of_another_log_is_replaced(broker: RunningBroker, make: Make, tmp_path: Path) -> None:
    held = tmp_path / "held"
    held.mkdir()
    (held / base_offset_name(0)).write_bytes(b"of another log")
    while broker.end < 2 * SEGMENT_BYTES:
        broker.append()
    begun(make(held_folder=held), 0)
    assert (held / base_offset_name(0)).samefile(broker.paths.segment(0))


def test_what_was_held_and_is_wanted_no_more_is_let_go_and_takes_no_room(
    broker: RunningBroker, make: Make, tmp_path: Path
) -> None:
    held = tmp_path / "held"
    while broker.end < 4 * SEGMENT_BYTES:
        broker.append()
    source = begun(make(held_folder=held), 0)
    source.read(0)
    source.close()
    assert len(os.listdir(held)) == 4
    # killed when all of it was durable, or when the broker had taken its end back: nothing more comes for now
    broker.paths.segment(4 * SEGMENT_BYTES).unlink()
    broker.paths.segment(3 * SEGMENT_BYTES).unlink()
    source = begun(make(held_folder=held, max_held_bytes=2 * SEGMENT_BYTES), 2 * SEGMENT_BYTES)
    assert not source.is_hold_full
    source.settled()
    assert os.listdir(held) == [base_offset_name(2 * SEGMENT_BYTES)]


def test_a_held_segment_is_not_taken_for_one_that_was_taken_back_while_the_broker_removes(
    broker: RunningBroker, make: Make, tmp_path: Path, fs: NotedFlushes
) -> None:
    held = tmp_path / "held"
    while broker.end < 4 * SEGMENT_BYTES:
        broker.append()
    source = begun(make(held_folder=held), 0)
    list_dir = fs.list_dir

    def while_it_removes(path: Path) -> list[str]:
        """The first name was read before it went, the second one had gone before it would have been."""
        found = list_dir(path)
        if path == broker.paths.commitlog and len(found) > 3:
            broker.remove_first()
            broker.remove_first()
            return [found[0], *found[2:]]
        return found

    fs.list_dir = while_it_removes  # type: ignore[method-assign]
    source.settled()
    assert {base_offset_name(0), base_offset_name(SEGMENT_BYTES)} <= set(os.listdir(held))
    assert read_all(source) == broker.log()


def test_a_held_segment_that_the_broker_took_back_is_not_read(
    broker: RunningBroker, make: Make, tmp_path: Path
) -> None:
    held = tmp_path / "held"
    while broker.end < 3 * SEGMENT_BYTES:
        broker.append()
    begun(make(held_folder=held), 0).close()
    # the broker found its second segment damaged, and dropped what follows: no removal from the front
    for base in (SEGMENT_BYTES, 2 * SEGMENT_BYTES, 3 * SEGMENT_BYTES):
        broker.paths.segment(base).unlink(missing_ok=True)
    assert base_offset_name(SEGMENT_BYTES) in os.listdir(held)
    source = begun(make(held_folder=held), 0)
    assert max(read_all(source)) < SEGMENT_BYTES
    assert source.bounds().max_offset <= SEGMENT_BYTES


def test_what_was_read_is_settled_once_its_file_is_flushed(broker: RunningBroker, make: Make, fs: NotedFlushes) -> None:
    source = begun(make(), 0)
    assert (source.settled(), fs.flushed) == (0, [])
    while broker.end < 2 * SEGMENT_BYTES:
        broker.append()
    broker.append()
    assert source.read(0) != b""
    first = source.settled()
    assert (first, fs.flushed) == (SEGMENT_BYTES, [base_offset_name(0)])
    read_all(source)
    assert source.settled() == broker.end
    assert fs.flushed == [base_offset_name(number * SEGMENT_BYTES) for number in range(3)]
    broker.append()
    read_all(source)
    before = source.settled()
    assert before < broker.end
    broker.clock.advance(5_000)
    assert source.settled() == broker.end


def test_what_an_earlier_process_read_is_flushed_first(broker: RunningBroker, make: Make, fs: NotedFlushes) -> None:
    while broker.end < 4 * SEGMENT_BYTES:
        broker.append()
    source = begun(make(), 3 * SEGMENT_BYTES)
    assert source.settled() == 3 * SEGMENT_BYTES
    assert fs.flushed == [base_offset_name(2 * SEGMENT_BYTES)]


def test_a_file_that_cannot_be_flushed_settles_nothing(broker: RunningBroker, make: Make) -> None:
    broker.append(checksum=True)
    disk = FaultyFileSystem(LocalFileSystem())
    source = begun(make(fs=disk), 0)
    assert source.read(0) != b""
    disk.refuse("flush")
    with pytest.raises(SourceLostError, match="cannot be flushed"):
        source.settled()


def test_in_controller_mode_nothing_above_the_confirmed_offset_is_read(broker: RunningBroker, make: Make) -> None:
    offsets = [broker.end]
    for _ in range(3):
        broker.append()
        offsets.append(broker.end)
    broker.confirm(offsets[2])
    source = begun(make(is_controller_mode=True), 0)
    assert list(read_all(source)) == offsets[:2]
    broker.clock.advance(5_000)
    assert source.settled() == offsets[2]
    broker.confirm(offsets[2] + 10)
    assert read_all(source) == {}
    broker.confirm(offsets[3])
    assert list(read_all(source)) == [offsets[2]]
    broker.confirm(offsets[1])
    assert source.settled() == offsets[1]


def test_without_controller_mode_a_confirmed_offset_of_the_last_start_says_nothing(
    broker: RunningBroker, make: Make
) -> None:
    broker.append()
    broker.confirm(1)
    assert read_all(begun(make(), 0)) == broker.log()


def test_in_controller_mode_nothing_is_read_while_no_confirmed_offset_is_known(
    broker: RunningBroker, make: Make
) -> None:
    """A new master's checkpoint says 0 for a minute, whatever its slaves have; a torn one says nothing either."""
    broker.append()
    source = begun(make(is_controller_mode=True), 0)
    assert read_all(source) == {}
    broker.confirm(0)
    assert read_all(source) == {}
    broker.clock.advance(60_000)
    assert source.settled() == 0
    broker.confirm(broker.end)
    assert read_all(source) == broker.log()


def tell_slaves(peer: FakeBroker, end: int, *acknowledged: int | None, epoch: str = "3-0") -> None:
    """Of the slaves in step, None for one that is not connected; another one is far behind."""
    connections = [{"inSync": True, "slaveAckOffset": offset} for offset in acknowledged if offset is not None]
    connections.append({"inSync": False, "slaveAckOffset": 1})
    number, start = epoch.split("-")
    peer.tell_bounds(0, end)
    peer.answer(
        RequestCode.GET_BROKER_HA_STATUS,
        {
            "master": True, "masterCommitLogMaxOffset": end, "inSyncSlaveNums": len(acknowledged),
            "haConnectionInfo": connections,
        },
    )  # fmt: skip
    last = {"epoch": int(number), "startOffset": int(start), "endOffset": 1 << 60}
    peer.answer(RequestCode.GET_BROKER_EPOCH_CACHE, {"epochList": [{"epoch": 1, "startOffset": 0}, last]})


def note_epoch(broker: RunningBroker, *lines: str) -> None:
    text = "".join(f"{line}\n" for line in lines)
    (broker.paths.root / "epochFileCheckpoint").write_text(f"{len(lines)}\n4711\n{text}")


def test_in_controller_mode_the_master_says_what_its_slaves_have(
    broker: RunningBroker, make: Make, clock: ManualClock
) -> None:
    offsets = [0]
    for _ in range(4):
        broker.append()
        offsets.append(broker.end)
    broker.confirm(0)
    note_epoch(broker, "1-0", "3-0")
    with FakeBroker() as peer:
        client = BrokerClient(peer.address, clock=clock)
        tell_slaves(peer, broker.end, offsets[1], offsets[2])
        source = begun(make(client=client, is_controller_mode=True), 0)
        assert list(read_all(source)) == offsets[:1]
        tell_slaves(peer, broker.end, offsets[2], None)
        assert read_all(source, 5) == {}
        tell_slaves(peer, broker.end, offsets[2], epoch="4-0")
        assert read_all(source, 5) == {}  # this directory has not met the new master
        note_epoch(broker, "1-0", "3-0", "4-0")
        assert list(read_all(source, 5)) == offsets[1:2]
        clock.advance(60_000)
        assert source.settled() == offsets[2]
        client.close()


def test_a_master_that_is_alone_has_confirmed_what_it_had_for_a_while(
    broker: RunningBroker, make: Make, clock: ManualClock
) -> None:
    """Its checkpoint says what it was when it became so, for as long as it is."""
    broker.append()
    first = broker.end
    broker.confirm(first)
    broker.append()
    note_epoch(broker, "3-0")
    with FakeBroker() as peer:
        client = BrokerClient(peer.address, clock=clock)
        tell_slaves(peer, broker.end)
        source = begun(make(client=client, is_controller_mode=True), 0)
        assert list(read_all(source, 5)) == [0]
        assert list(read_all(source, 10)) == [first]
        # what came in the meantime has waited as long as it was there
        offsets = [broker.end]
        for _ in range(3):
            broker.append()
            tell_slaves(peer, broker.end)
            assert read_all(source, 3) == {}
            offsets.append(broker.end)
        assert list(read_all(source, 2)) == offsets[:1]
        assert list(read_all(source, 10)) == offsets[1:-1]
        # a slave that was in step for a moment begins it anew
        broker.append()
        tell_slaves(peer, broker.end, first)
        assert read_all(source, 5) == {}
        tell_slaves(peer, broker.end)
        assert read_all(source, 5) == {}
        assert len(read_all(source, 10)) == 1
        client.close()


_LATER_MS = 60_000


@pytest.mark.parametrize(
    ("least", "more", "booted_after_ms", "is_its"),
    [
        (0, 0, 0, True),
        (0, 0, -_LATER_MS, True),  # a long recovery comes before the mark
        (0, 0, _LATER_MS, False),
        (3 * SEGMENT_BYTES, 0, 0, False),
        (0, 2 * SEGMENT_BYTES, 0, False),
    ],
)
def test_a_broker_that_answers_counts_if_it_can_be_the_one_that_writes_the_files(
    least: int, more: int, booted_after_ms: int, is_its: bool, broker: RunningBroker, make: Make, clock: ManualClock
) -> None:
    for _ in range(3 * SEGMENT_BYTES // 200):
        broker.append()
    booted_ms = clock.now_ms() + booted_after_ms
    with FakeBroker() as peer:
        client = BrokerClient(peer.address, clock=clock)
        peer.tell_bounds(least, broker.end + more, bootTimestamp=str(booted_ms))
        source = make(client=client)
        assert (source.told() is not None) is is_its
        assert source.bounds() == LogBounds(0, broker.end)
        client.close()


def test_a_broker_that_answers_beside_files_of_one_that_was_stopped_counts_as_none(
    broker: RunningBroker, make: Make, clock: ManualClock
) -> None:
    broker.append()
    with FakeBroker() as peer:
        client = BrokerClient(peer.address, clock=clock)
        peer.tell_bounds(0, 2 * broker.end)
        source = make(client=client)
        assert source.bounds() == LogBounds(0, 2 * broker.end)
        broker.stop()
        assert source.bounds() == LogBounds(0, broker.end)
        client.close()


@pytest.mark.parametrize(("epoch", "is_its"), [("3-0", True), ("4-100", False)])
def test_a_master_of_another_epoch_does_not_write_these_files(
    epoch: str, is_its: bool, broker: RunningBroker, make: Make, clock: ManualClock
) -> None:
    note_epoch(broker, "1-0", "3-0")
    with FakeBroker() as peer:
        client = BrokerClient(peer.address, clock=clock)
        tell_slaves(peer, broker.end, epoch=epoch)
        assert (make(client=client, is_controller_mode=True).told() is not None) is is_its
        client.close()


def test_configuration_is_read_while_the_broker_replaces_it(broker: RunningBroker, make: Make) -> None:
    source, path = make(), broker.paths.config / "topics.json"
    table = json.dumps({"topicConfigTable": {"orders": {"readQueueNums": 4, "writeQueueNums": 4, "perm": 6}}})
    old, new = table, table.replace("orders", "offers")
    assert source.state().topics == ()
    path.write_text(old)
    assert [topic.name for topic in source.state().topics] == ["orders"]
    path.rename(path.with_name("topics.json.bak"))
    assert [topic.name for topic in source.state().topics] == ["orders"]
    for count in range(0, len(new), 7):
        path.write_text(new[:count])
        assert [topic.name for topic in source.state().topics] == ["orders"]
    path.write_text(new)
    assert [topic.name for topic in source.state().topics] == ["offers"]
    for each in (path, path.with_name("topics.json.bak")):
        each.write_text(new[:20])
    with pytest.raises(UnavailableError, match="could not be read"):
        source.state()


def test_a_folder_without_a_log_is_not_followed(tmp_path: Path, clock: ManualClock) -> None:
    with pytest.raises(NoLogYetError, match="no log here yet"):
        BrokerDirectory(tmp_path, fs=LocalFileSystem(), clock=clock)
    with pytest.raises(NotFoundError, match="no directory of a broker"):
        BrokerDirectory(tmp_path / "elsewhere", fs=LocalFileSystem(), clock=clock)


def test_a_closed_source_gives_nothing(broker: RunningBroker, make: Make) -> None:
    source = begun(make(), 0)
    source.close()
    source.close()
    for call in (lambda: source.read(0), lambda: source.begin(0), source.settled):
        with pytest.raises(ClosedError):
            call()


def test_nothing_is_written_into_the_brokers_directory(broker: RunningBroker, make: Make, tmp_path: Path) -> None:
    while broker.end < 2 * SEGMENT_BYTES:
        broker.append()

    def seen() -> dict[Path, tuple[bytes, int]]:
        files = [path for path in broker.paths.root.rglob("*") if path.is_file()]
        return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}

    before = seen()
    for path in broker.paths.root.rglob("*"):
        path.chmod(0o500 if path.is_dir() else 0o400)
    source = begun(make(held_folder=tmp_path / "held"), 0)
    read_all(source)
    source.settled()
    source.report(broker.end)
    source.close()
    assert seen() == before


@pytest.mark.parametrize("seed", range(30))
def test_whatever_the_broker_does_the_log_is_followed(seed: int, tmp_path: Path) -> None:
    """Appends, kills with torn records and leftovers, removals; read in between, begun again where it was lost."""
    chance, clock = random.Random(seed), ManualClock()
    broker = RunningBroker(tmp_path / "store", clock, begin=chance.choice([0, 3 * SEGMENT_BYTES]))
    source = BrokerDirectory(
        broker.paths.root, fs=LocalFileSystem(), clock=clock, held_folder=tmp_path / "held" if seed % 2 else None
    )
    source.begin(broker.end)
    seen: dict[int, bytes] = {}
    reached = broker.end
    for _ in range(60):
        what = chance.random()
        if what < 0.6:
            for _ in range(chance.randrange(1, 12)):
                broker.append(b"b" * chance.choice([100, 100, 100, 40, 700]), checksum=chance.random() < 0.2)
                clock.advance(chance.choice([0, 1, 400]))
        elif what < 0.7 and broker.written:
            # the record at the end is torn, whole leftovers lie behind it
            end = broker.end
            for _ in range(chance.randrange(1, 4)):
                if SEGMENT_BYTES - broker.end % SEGMENT_BYTES > 400:
                    broker.append()
            broker.put(end, bytes(40) if end % SEGMENT_BYTES < SEGMENT_BYTES - 40 else b"")
            broker.start_again_at(end)
        elif what < 0.8 and len(list(broker.paths.commitlog.iterdir())) > 2 and reached >= broker.end:
            broker.remove_first()
        else:
            try:
                got = read_all(source, chance.choice([0, 0.3, 1.5]))
            except SourceLostError:
                with suppress(OffsetGoneError):
                    source.begin(reached)
                got = read_all(source, 2)
            seen |= got
            if seen:
                last = max(seen)
                size = len(seen[last])
                reached = last + size if size > 8 else last - last % SEGMENT_BYTES + SEGMENT_BYTES
            source.settled()
            source.report(reached)
    try:
        seen |= read_all(source)
    except SourceLostError:
        source.begin(reached)
        seen |= read_all(source)
    assert seen == broker.written
    source.close()


@pytest.mark.parametrize("name", STORES)
def test_stores_of_real_brokers_are_read_to_their_end(name: str, tmp_path: Path, clock: ManualClock) -> None:
    paths = StorePaths(unpack(name, tmp_path / "store"))
    source = BrokerDirectory(paths.root, fs=LocalFileSystem(), clock=clock)
    at = source.bounds().min_offset
    source.begin(at)
    while data := bytes(source.read(1.5)):
        base = source.position() - source.position() % source.segment_bytes
        assert source.position() in (at, base)
        at = source.position() + len(data)
        assert data == paths.segment(base).read_bytes()[source.position() - base : at - base]
    source.close()
    end = where_rocketmq_ends(paths)
    # where a bit of a body has flipped, records go on: whoever takes the bytes compares them
    assert at == end or (name == "crashed-flip" and at > end)


def where_rocketmq_ends(paths: StorePaths) -> int:
    """The first place without a valid record of the last segment that has one, which is where a broker would go on."""
    end = 0
    for path in sorted(paths.commitlog.iterdir()):
        base = parse_base_offset(path.name)
        assert base is not None
        data, at = path.read_bytes(), 0
        with suppress(CorruptionError):
            while True:
                at += decode_record(data, at, physical_offset=base + at).size
                end = base + at
    return end
